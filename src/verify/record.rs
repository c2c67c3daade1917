//! `verify.json`: what was verified, on what, against what, and every result.
//!
//! The file is canonical: the same export, reference, seed and device give the same bytes, and a file that is not
//! byte for byte what this program would write of its content is refused. It holds no clock time and no path.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::listen::SpeechFigures;
use super::number::{self, round_all};
use super::{Comparison, Verdict};
use crate::engine::Backend;
use crate::error::{Error, Result};
pub use crate::format::layout::RECORD_FILE;
use crate::format::{FileDigest, SourceReport};
use crate::tensors::write::hex;

/// Name of the format.
pub const FORMAT: &str = "rumik-verify";
/// Version that this program writes and reads.
pub const VERSION: u32 = 1;

/// The whole file: the newest record of each kind of backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// At most one for each backend, in the order of [`Backend`].
    pub records: Vec<Record>,
}

/// A verdict in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every comparison passed.
    Pass,
    /// At least one did not, or there was none.
    Fail,
}

/// How much was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Every check, on the few prompts marked `quick`.
    Quick,
    /// Every check, on every prompt.
    Full,
}

/// Whose limits were used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// Those of `docs/verification.md`.
    Default,
    /// At least one was set by hand.
    Custom,
}

/// One run of the gate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The verdict.
    pub verdict: Outcome,
    /// How much was run.
    pub mode: Mode,
    /// Whose limits were used.
    pub limits: LimitKind,
    /// What was verified.
    pub export: ExportFacts,
    /// What ran it.
    pub engine: EngineFacts,
    /// What it was held against.
    pub reference: ReferenceFacts,
    /// Every measured value that has a limit, in the order of the run.
    pub comparisons: Vec<Comparison>,
    /// Known answers of the backend's kernels, called `path.kernel.test`.
    pub kernels: Vec<Comparison>,
    /// Question 1: the engine against candle on the same weights.
    pub parity: Parity,
    /// Question 2: the engine against the original in bf16.
    pub quality: Quality,
    /// The speech itself; absent where only scores were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<SpeechFigures>,
    /// SHA-256 of this record with this field empty. It catches edits by hand; it is no signature.
    pub digest: String,
}

/// The files that were verified.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportFacts {
    /// All files that speech depends on: weights, configuration, tokenizer, codec, report.
    pub files: Vec<FileDigest>,
    /// Quantization error of each int4 matrix as `export.json` states it, in the order of the file; empty without one.
    pub matrices: Vec<MatrixFigure>,
}

/// Relative error of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixFigure {
    /// Name of the source tensor, `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// ‖W − Wq‖ / ‖W‖.
    #[serde(with = "number")]
    pub relative_error: f64,
}

/// The program, and the machine it ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFacts {
    /// Version of this program.
    pub version: String,
    /// SHA-256 over the sources of the engine and its kernels, taken when this program was built.
    pub sources: String,
    /// The kind of backend.
    pub backend: Backend,
    /// Backend, instruction set, threads, as the engine describes itself.
    pub description: String,
    /// Processor or GPU.
    pub device: String,
    /// Version of the GPU driver.
    pub driver: Option<String>,
}

/// The reference that the quality was measured against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReferenceFacts {
    /// The original checkpoint.
    pub source: SourceReport,
    /// Name of the prompt set.
    pub prompts: String,
    /// SHA-256 of the reference file.
    pub sha256: String,
    /// How the reference spoke.
    pub sampling: SamplingFacts,
    /// Largest error that the compact logits of the reference can make in a mean KL, in nats.
    #[serde(with = "number")]
    pub kl_error: f64,
}

/// How tokens were drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingFacts {
    /// Divides the logits.
    pub temperature: f64,
    /// Rows that take part.
    pub top_k: usize,
}

/// Question 1 in figures: is the engine right?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parity {
    /// Sequences compared.
    pub sequences: usize,
    /// Positions compared, over all sequences.
    pub positions: usize,
    /// Mean KL(candle ‖ engine) in nats.
    #[serde(with = "number")]
    pub mean_kl: f64,
    /// Largest KL of a position.
    #[serde(with = "number")]
    pub worst_kl: f64,
    /// Share of positions with the same best row.
    #[serde(with = "number")]
    pub top1: f64,
    /// Relative error of the residual stream after each layer.
    pub layers: Vec<LayerFigure>,
}

/// How far a layer's output is from candle's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerFigure {
    /// ‖engine − candle‖ / ‖candle‖ over all positions.
    #[serde(with = "number")]
    pub relative_error: f64,
    /// The same at the worst position.
    #[serde(with = "number")]
    pub worst: f64,
}

/// Question 2 in figures: is the quantization good enough?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// All steps.
    pub overall: Figures,
    /// By place in the frame: codebook 0 first.
    pub codebooks: Vec<Figures>,
    /// By group of prompts.
    pub groups: Vec<GroupFigures>,
    /// By prompt, in the order of the set.
    pub prompts: Vec<PromptFigures>,
}

/// A group of prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupFigures {
    /// Its name: `english`.
    pub name: String,
    /// All its steps.
    pub all: Figures,
    /// Its steps of codebook 0, which carries the words.
    pub first_codebook: Figures,
}

/// A prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptFigures {
    /// Its id in the set.
    pub id: String,
    /// Its group.
    pub group: String,
    /// Its text.
    pub text: String,
    /// All its steps.
    pub all: Figures,
}

/// Distributions of the engine held against those of the reference, over some steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figures {
    /// Steps.
    pub steps: usize,
    /// Mean KL(reference ‖ engine) over the audio rows at temperature 1, in nats.
    #[serde(with = "number")]
    pub mean_kl: f64,
    /// 99th percentile of it.
    #[serde(with = "number")]
    pub p99_kl: f64,
    /// Mean entropy of the reference in nats: what it leaves open itself.
    #[serde(with = "number")]
    pub entropy: f64,
    /// Share of steps whose best row is the same.
    #[serde(with = "number")]
    pub top1: f64,
    /// Share of the reference's five best rows that are among the engine's five best.
    #[serde(with = "number")]
    pub top5: f64,
    /// Mean total variation distance of the distributions that are drawn from (temperature, top-k): the share of draws
    /// that come out differently at best.
    #[serde(with = "number")]
    pub draw_distance: f64,
    /// exp of the mean negative log probability of the reference's tokens, by the reference.
    #[serde(with = "number")]
    pub perplexity_reference: f64,
    /// The same by the engine.
    #[serde(with = "number")]
    pub perplexity_engine: f64,
    /// Mean of |P(stop) − P(stop) of the reference|.
    #[serde(with = "number")]
    pub stop_difference: f64,
    /// Largest of them.
    #[serde(with = "number")]
    pub worst_stop_difference: f64,
    /// Steps at which one of the two would have stopped and the other not.
    pub stop_decisions_changed: usize,
}

/// No steps: every mean is NaN.
impl Default for Figures {
    fn default() -> Figures {
        Figures {
            steps: 0,
            mean_kl: f64::NAN,
            p99_kl: f64::NAN,
            entropy: f64::NAN,
            top1: f64::NAN,
            top5: f64::NAN,
            draw_distance: f64::NAN,
            perplexity_reference: f64::NAN,
            perplexity_engine: f64::NAN,
            stop_difference: f64::NAN,
            worst_stop_difference: f64::NAN,
            stop_decisions_changed: 0,
        }
    }
}

impl Record {
    /// Rounds every figure, judges the rounded ones, and puts the digest over all of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a figure cannot be written, which no record of this program has.
    pub fn seal(self) -> Result<Record> {
        let bad = |e: serde_json::Error| Error::invalid(RECORD_FILE, "record", "JSON", e);
        let mut value = serde_json::to_value(&self).map_err(bad)?;
        round_all(&mut value);
        let mut record: Record = serde_json::from_value(value).map_err(bad)?;
        let judge = |c: &mut Comparison| c.passed = c.limit.holds(c.measured);
        record.comparisons.iter_mut().chain(&mut record.kernels).for_each(judge);
        record.verdict = record.judged();
        record.digest = record.content_digest()?;
        Ok(record)
    }

    /// What the comparisons say, whatever `verdict` says: a pass needs some, and each of them within its limit.
    pub fn judged(&self) -> Outcome {
        let holds = |c: &Comparison| c.passed && c.limit.holds(c.measured) && c.measurements > 0;
        match !self.comparisons.is_empty() && self.comparisons.iter().chain(&self.kernels).all(holds) {
            true => Outcome::Pass,
            false => Outcome::Fail,
        }
    }

    /// The comparisons as a table for people.
    pub fn table(&self) -> Verdict {
        Verdict { comparisons: self.comparisons.clone() }
    }

    /// SHA-256 of the record with an empty digest.
    ///
    /// # Errors
    /// As [`Record::seal`].
    pub fn content_digest(&self) -> Result<String> {
        let content = Record { digest: String::new(), ..self.clone() };
        let json = serde_json::to_vec(&content).map_err(|e| Error::invalid(RECORD_FILE, "record", "JSON", e))?;
        Ok(hex(&Sha256::digest(json)))
    }
}

impl Document {
    /// A file of these records, one for each backend.
    pub fn new(mut records: Vec<Record>) -> Document {
        records.sort_by_key(|record| record.engine.backend);
        Document { format: FORMAT.to_owned(), version: VERSION, records }
    }

    /// The bytes of the file: indented JSON and a line feed.
    ///
    /// # Errors
    /// As [`Record::seal`].
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|e| Error::invalid(RECORD_FILE, "document", "JSON", e))?;
        json.push(b'\n');
        Ok(json)
    }

    /// Reads a file and checks that it is whole: format, canonical bytes, digests, verdicts. `place` names it in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] saying what is wrong.
    pub fn parse(place: &str, json: &[u8]) -> Result<Document> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let bad = |e: serde_json::Error| Error::invalid(place, "content", "a record of rumik-verify", e);
        let head: Head = serde_json::from_slice(json).map_err(bad)?;
        if head.format != FORMAT {
            return Err(Error::invalid(place, "format", FORMAT, head.format));
        }
        if head.version != VERSION {
            return Err(Error::invalid(place, "version", VERSION, head.version));
        }
        let document: Document = serde_json::from_slice(json).map_err(bad)?;
        for record in &document.records {
            if record.content_digest()? != record.digest {
                return Err(Error::invalid(place, "digest", "the digest of the record", "another: it was edited"));
            }
            if record.judged() != record.verdict {
                return Err(Error::invalid(place, "verdict", "what the comparisons say", "something else"));
            }
        }
        let backends: Vec<Backend> = document.records.iter().map(|record| record.engine.backend).collect();
        if !backends.is_sorted_by(|a, b| a < b) {
            return Err(Error::invalid(place, "records", "one for each backend, in order", format!("{backends:?}")));
        }
        match document.to_json()? == json {
            true => Ok(document),
            false => {
                Err(Error::invalid(place, "content", "the bytes that rumik-verify writes", "others: it was edited"))
            }
        }
    }

    /// The record of a kind of backend.
    pub fn of(&self, backend: Backend) -> Option<&Record> {
        self.records.iter().find(|record| record.engine.backend == backend)
    }
}
