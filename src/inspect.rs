//! What is in a checkpoint or an export, for people and programs.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::checkpoint::{Folder, Outline};
use crate::error::{Error, Result};
use crate::format::{Encoding, Export, Files, Report};
use crate::tensors::Dtype;

/// Which of the two a folder holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A source checkpoint.
    Source,
    /// An int4 export.
    Export,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Size of its data.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// Everything that can be said without reading weights.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What the folder holds.
    pub kind: Kind,
    /// The folder.
    pub place: String,
    /// `config.json`.
    pub config: Value,
    /// The language model's tensors by name.
    pub tensors: Vec<TensorInfo>,
    /// Whether the codec is there.
    pub codec: bool,
    /// `export.json` of an export that has one.
    pub report: Option<Report>,
}

/// Checks a folder's headers and tells what is in it.
///
/// # Errors
/// As [`Outline::read`] and [`Export::open`].
pub fn inspect(folder: &Path) -> Result<Inspection> {
    let place = folder.display().to_string();
    let config = read_json(&folder.join("config.json"))?;
    // a sharded checkpoint is no export, and a folder that opens as neither is described as the checkpoint it should be
    match Files::in_folder(folder) {
        Ok(files) if files.weights.find("model.embed_tokens.qweight").is_some() => {
            let all = files.weights.tensors().values();
            let tensors = all.map(|t| TensorInfo { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() });
            let tensors = tensors.collect();
            let export = Export::from_files(files)?;
            let report = export.report.as_ref().map(|json| Report::parse(&format!("{place}/export.json"), json));
            let (codec, report) = (export.codec.is_some(), report.transpose()?);
            Ok(Inspection { kind: Kind::Export, place, config, tensors, codec, report })
        }
        _ => {
            let outline = Outline::read(&Folder::new(folder))?;
            let codec = outline.codec.is_some();
            let tensors = outline.tensors.into_iter();
            let tensors = tensors.map(|(name, t)| TensorInfo { name, dtype: t.dtype, shape: t.shape }).collect();
            Ok(Inspection { kind: Kind::Source, place, config, tensors, codec, report: None })
        }
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&bytes).map_err(|e| Error::invalid(path.display(), "content", "JSON", e))
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let kind = match self.kind {
            Kind::Source => "source checkpoint",
            Kind::Export => "int4 export",
        };
        let bytes: u64 = self.tensors.iter().map(TensorInfo::bytes).sum();
        writeln!(f, "{}: {kind}, {} tensors, {bytes} bytes", self.place, self.tensors.len())?;
        writeln!(f, "codec: {}", if self.codec { "yes" } else { "no" })?;
        if let Some(report) = &self.report {
            write!(f, "{report}")?;
        }
        writeln!(f, "\nconfig")?;
        for (key, value) in self.config.as_object().into_iter().flatten() {
            writeln!(f, "  {key}: {value}")?;
        }
        writeln!(f, "\ntensors")?;
        for tensor in &self.tensors {
            writeln!(f, "  {} {} {:?}", tensor.name, tensor.dtype, tensor.shape)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    /// Source, output and errors, a few lines and one a matrix.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let percent = |x: f64| format!("{:.2} %", 100.0 * x);
        let revision = self.source.revision.as_deref().unwrap_or("no revision");
        writeln!(f, "format: {} version {}, head {}", self.format, self.version, self.options.head)?;
        writeln!(f, "source: {} ({revision})", self.source.name)?;
        let output = &self.output.content;
        writeln!(f, "output: {} bytes, SHA-256 {}", output.bytes, output.sha256)?;
        let int4 = self.matrices.iter().filter(|m| m.encoding == Encoding::Int4).count();
        let mean = percent(self.mean_relative_error);
        writeln!(f, "relative error: {mean} mean of {int4} int4 matrices, worst {}", self.worst_matrix)?;
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for matrix in &self.matrices {
            let (error, worst) = (&matrix.error, &matrix.error.worst_group);
            writeln!(
                f,
                "  {} {:?} [{}, {}]: {}, worst group {} at row {} group {}, scales {:e} to {:e}",
                matrix.name,
                matrix.encoding,
                matrix.rows,
                matrix.columns,
                percent(error.relative_error),
                percent(worst.relative_error),
                worst.row,
                worst.group,
                error.scale_min,
                error.scale_max
            )?;
        }
        Ok(())
    }
}
