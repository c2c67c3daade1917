//! `export.json`: where an export comes from, how it was made and what it lost (`docs/SPEC.md`, section 4).

use serde::{Deserialize, Serialize};

use super::layout::{FORMAT, GROUP, REPORT_FILE, WEIGHTS_FILE};
use super::plan::HeadKind;
use crate::error::{Error, Result};
use crate::tensors::write::Digested;

/// Version of the format that this program writes, and the largest it reads.
pub const VERSION: u32 = 1;

/// Size and digest of a named file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    /// Its name in its folder.
    pub name: String,
    /// Size and SHA-256.
    #[serde(flatten)]
    pub content: Digested,
}

/// The checkpoint that an export was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Repository id, or the folder's own name; never a path.
    pub name: String,
    /// Commit of the repository, where it is known.
    pub revision: Option<String>,
    /// Its weight files by name.
    pub files: Vec<FileDigest>,
}

/// How scales are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// From the smallest and largest weight of each group.
    #[default]
    Minmax,
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportOptions {
    /// How scales are chosen.
    pub method: Method,
    /// How the output head is stored.
    pub head: HeadKind,
    /// Whether the codec was copied.
    pub codec: bool,
    /// Whether tensors that are zero throughout were let through.
    pub allow_zero_tensors: bool,
}

/// How a matrix is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// Groups of 128 columns.
    Int4,
    /// One scale a row.
    Int8,
    /// bfloat16.
    Bf16,
}

/// The group that lost most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorstGroup {
    /// Its row.
    pub row: usize,
    /// Its number in the row; 0 where a row is one group.
    pub group: usize,
    /// ‖w - w'‖ / ‖w‖ of the group.
    pub relative_error: f64,
}

/// Errors and scales of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixError {
    /// ‖W - W'‖_F / ‖W‖_F, 0 for a matrix of zeros.
    pub relative_error: f64,
    /// The group that lost most, the first of equals.
    pub worst_group: WorstGroup,
    /// Smallest scale.
    pub scale_min: f32,
    /// Largest scale.
    pub scale_max: f32,
    /// Scales that are 0.
    pub zero_scales: usize,
}

/// One quantized matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MatrixReport {
    /// The source tensor, or `head.audio_weight`.
    pub name: String,
    /// How it is stored.
    pub encoding: Encoding,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// What it lost.
    #[serde(flatten)]
    pub error: MatrixError,
}

/// The whole report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the format.
    pub format: String,
    /// Version of the format.
    pub version: u32,
    /// Columns that share a scale.
    pub group_size: usize,
    /// The checkpoint.
    pub source: SourceReport,
    /// The weights file.
    pub output: FileDigest,
    /// What the user asked for.
    pub options: ReportOptions,
    /// Conversions, and tensors that are zero throughout.
    pub notes: Vec<String>,
    /// Mean over the int4 matrices.
    pub mean_relative_error: f64,
    /// The int4 matrix with the largest relative error.
    pub worst_matrix: String,
    /// Every quantized matrix and the head, in the order of the file.
    pub matrices: Vec<MatrixReport>,
}

impl Report {
    /// Puts a report together.
    pub fn new(
        source: SourceReport,
        output: Digested,
        options: ReportOptions,
        notes: Vec<String>,
        matrices: Vec<MatrixReport>,
    ) -> Report {
        let int4 = || matrices.iter().filter(|m| m.encoding == Encoding::Int4);
        let sum: f64 = int4().map(|m| m.error.relative_error).sum();
        let worst = int4().reduce(|a, b| if b.error.relative_error > a.error.relative_error { b } else { a });
        Report {
            format: FORMAT.to_owned(),
            version: VERSION,
            group_size: GROUP,
            source,
            output: FileDigest { name: WEIGHTS_FILE.to_owned(), content: output },
            options,
            notes,
            mean_relative_error: sum / int4().count().max(1) as f64,
            worst_matrix: worst.map(|m| m.name.clone()).unwrap_or_default(),
            matrices,
        }
    }

    /// The bytes of `export.json`.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut json = serde_json::to_vec_pretty(self).map_err(|e| Error::invalid(REPORT_FILE, "report", "JSON", e))?;
        json.push(b'\n');
        Ok(json)
    }

    /// Reads an `export.json`. `place` names the file in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another format, a version newer than [`VERSION`], or JSON that is no such report.
    pub fn parse(place: &str, json: &[u8]) -> Result<Report> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let bad = |e: serde_json::Error| Error::invalid(place, "content", "the report of an export", e);
        let head: Head = serde_json::from_slice(json).map_err(bad)?;
        if head.format != FORMAT {
            return Err(Error::invalid(place, "format", FORMAT, head.format));
        }
        if head.version > VERSION {
            let error = Error::invalid(place, "version", format!("at most {VERSION}"), head.version);
            return Err(error.with_hint("a newer rumik wrote this export: update this program"));
        }
        serde_json::from_slice(json).map_err(bad)
    }
}
