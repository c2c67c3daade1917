//! The reference file: what the original model says to a set of prompts, and what it thinks at every step.
//!
//! Made once where the original is (`rumik-verify reference`), it lets any machine verify an export without the original.
//! It is a safetensors file; for prompt `N` of its set it holds
//!
//! ```text
//! N.ids         I32 [p]        prompt ids
//! N.tokens      I32 [steps]    tokens drawn, `</audio>` included
//! N.stop        F32 [steps]    P(stop)
//! N.entropy     F32 [steps]    entropy over all rows, nats
//! N.counts      I32 [steps]    rows stored for each step
//! N.rows        U16 [sum]      rows of the audio head, ascending within a step
//! N.logits      BF16 [sum]     their logits
//! N.tail        F32 [steps]    log of the sum of exp(logit) over all other rows
//! N.pcm         I16 [samples]  the speech, where the original has a codec
//! ```
//!
//! and, as the last tensor, `digest` (32 bytes): SHA-256 over the data of all others. Its metadata holds the facts.

mod compact;
mod make;

use std::path::Path;

use half::bf16;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use compact::{Compact, FEWEST_ROWS, TAIL};
pub use make::{Job, facts, make};

use super::prompts::{Prompt, PromptSet};
use super::record::SamplingFacts;
use crate::config::ModelConfig;
use crate::engine::Sampling;
use crate::error::{Error, Result};
use crate::format::{Report, SourceReport};
use crate::tensors::{Bytes, Dtype, Tensor, TensorFile};

/// Name of the format, in the metadata.
pub const FORMAT: &str = "rumik-reference-v1";

/// What a reference file says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Facts {
    /// The original: name, revision, hashes of its weight files.
    pub source: SourceReport,
    /// Sizes and ids that an export must share.
    pub model: ModelFacts,
    /// How tokens were drawn; the seed is each prompt's own.
    pub sampling: SamplingFacts,
    /// Steps after which speech was ended.
    pub max_new_tokens: usize,
    /// True when only the prompts of a quick run are held.
    pub quick: bool,
    /// The prompts, all of the set.
    pub prompts: PromptSet,
}

impl Facts {
    /// How tokens were drawn.
    pub fn sampling(&self) -> Sampling {
        Sampling { temperature: self.sampling.temperature as f32, top_k: self.sampling.top_k }
    }

    /// The prompts that the file holds, with their places in the set.
    pub fn held(&self) -> impl Iterator<Item = (usize, &Prompt)> {
        self.prompts.prompts.iter().enumerate().filter(|(_, prompt)| !self.quick || prompt.quick)
    }
}

/// The part of a configuration that decides which token is which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "named as in config.json")]
pub struct ModelFacts {
    pub vocab_size: usize,
    pub num_quantizers: usize,
    pub first_unit_id: u32,
    pub last_unit_id: u32,
    pub audio_end_token_id: u32,
}

impl From<&ModelConfig> for ModelFacts {
    fn from(config: &ModelConfig) -> ModelFacts {
        ModelFacts {
            vocab_size: config.vocab_size,
            num_quantizers: config.num_quantizers,
            first_unit_id: config.first_unit_id,
            last_unit_id: config.last_unit_id,
            audio_end_token_id: config.audio_end_token_id,
        }
    }
}

/// One prompt, and how the original speaks it.
#[derive(Clone, Debug)]
pub struct Item {
    /// The prompt.
    pub prompt: Prompt,
    /// Its ids.
    pub ids: Vec<u32>,
    /// Tokens drawn, at least one.
    pub tokens: Vec<u32>,
    /// Whether the stop head ended the speech.
    pub stopped: bool,
    /// P(stop) at every step.
    pub stop: Vec<f32>,
    /// Distribution at every step.
    pub steps: Vec<Compact>,
    /// The speech, 16 bits; empty without a codec.
    pub pcm: Vec<i16>,
}

/// A reference file, checked as a whole.
#[derive(Clone, Debug)]
pub struct ReferenceFile {
    /// What it says about itself.
    pub facts: Facts,
    /// Its prompts in the order of the set.
    pub items: Vec<Item>,
    /// SHA-256 of the file.
    pub sha256: String,
    place: String,
}

impl ReferenceFile {
    /// Opens a file and checks all of it.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] naming what is missing, damaged or contradicts something else.
    pub fn open(path: &Path) -> Result<ReferenceFile> {
        ReferenceFile::from_bytes(&path.display().to_string(), Bytes::map(path)?)
    }

    /// As [`ReferenceFile::open`], of a file in memory.
    ///
    /// # Errors
    /// As [`ReferenceFile::open`].
    pub fn from_bytes(place: &str, bytes: Bytes) -> Result<ReferenceFile> {
        let sha256 = crate::tensors::write::hex(&Sha256::digest(&*bytes));
        let file = TensorFile::from_bytes(place, bytes)?;
        let stated = |key: &str| file.metadata().get(key).map_or("", String::as_str);
        if stated("format") != FORMAT {
            return Err(Error::invalid(place, "format", FORMAT, format!("{:?}", stated("format")))
                .with_hint("make a reference with `rumik-verify reference SOURCE --out reference.safetensors`"));
        }
        let facts: Facts = serde_json::from_str(stated("facts"))
            .map_err(|e| Error::invalid(place, "facts", "what rumik-verify wrote", e))?;
        facts.prompts.check(place)?;
        check_digest(&file)?;
        let items: Vec<Item> =
            facts.held().map(|(n, prompt)| Item::read(&file, n, prompt, &facts)).collect::<Result<_>>()?;
        if items.is_empty() {
            return Err(Error::invalid(place, "prompts", "at least one", "none"));
        }
        Ok(ReferenceFile { facts, items, sha256, place: place.to_owned() })
    }

    /// The items of a run: all of them, or those marked for a quick one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a full run on a file that holds only the prompts of a quick one, or a quick one on a set
    /// without any.
    pub fn items_of(&self, quick: bool) -> Result<Vec<&Item>> {
        if self.facts.quick && !quick {
            let error = Error::invalid(&self.place, "prompts", "all of the set", "those of a quick run");
            return Err(error.with_hint("add --quick, or make the reference without it"));
        }
        let items: Vec<&Item> = self.items.iter().filter(|item| !quick || item.prompt.quick).collect();
        match items.is_empty() {
            true => Err(Error::invalid(&self.place, "prompts", "some marked for a quick run", "none")),
            false => Ok(items),
        }
    }

    /// Checks that an export comes from the original that this reference was made with.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming what differs.
    pub fn check_fits(&self, config: &ModelConfig, report: Option<&Report>) -> Result<()> {
        let (ours, theirs) = (&self.facts.model, ModelFacts::from(config));
        if *ours != theirs {
            return Err(Error::invalid(&self.place, "model", format!("{theirs:?} as the export"), format!("{ours:?}")));
        }
        let hashes = |source: &SourceReport| {
            let mut hashes: Vec<String> = source.files.iter().map(|file| file.content.sha256.clone()).collect();
            hashes.sort_unstable();
            hashes
        };
        if let Some(report) = report.filter(|report| hashes(&report.source) != hashes(&self.facts.source)) {
            let expected = format!("the weights of {} that the export was made from", report.source.name);
            let found = format!("other weights, of {}", self.facts.source.name);
            return Err(Error::invalid(&self.place, "source", expected, found));
        }
        Ok(())
    }
}

impl Item {
    fn read(file: &TensorFile, n: usize, prompt: &Prompt, facts: &Facts) -> Result<Item> {
        let get = |name: &str| file.get(&format!("{n}.{name}"));
        let ids_of = |name: &str| -> Result<Vec<u32>> {
            let tensor = get(name)?;
            let id = |id: i64| u32::try_from(id).map_err(|_| tensor.invalid("numbers from 0", id));
            tensor.to_i64()?.into_iter().map(id).collect()
        };
        let (ids, tokens, counts) = (ids_of("ids")?, ids_of("tokens")?, ids_of("counts")?);
        let steps = tokens.len();
        if ids.is_empty() || steps == 0 {
            return Err(get("tokens")?.invalid("a prompt and at least one token", "none"));
        }
        let floats = |name: &str| file.get_f32(&format!("{n}.{name}"), &[steps]);
        let (stop, entropy, tail) = (floats("stop")?, floats("entropy")?, tails(get("tail")?, steps)?);
        let (rows, logits) = (get("rows")?, get("logits")?);
        let stored: usize = counts.iter().map(|count| *count as usize).sum();
        rows.expect(&[Dtype::U16], &[stored])?;
        logits.expect(&[Dtype::BF16], &[stored])?;
        if counts.len() != steps {
            return Err(get("counts")?.invalid(format!("{steps} steps"), counts.len()));
        }
        let audio_rows = (facts.model.last_unit_id - facts.model.first_unit_id) as usize + 2;
        let words = |data: &Bytes| data.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect::<Vec<_>>();
        let (all_rows, all_logits) = (words(&rows.data), words(&logits.data));
        let (mut distributions, mut first) = (Vec::with_capacity(steps), 0);
        for step in 0..steps {
            let range = first..first + counts[step] as usize;
            first = range.end;
            let own = &all_rows[range.clone()];
            let fine =
                !own.is_empty() && own.is_sorted_by(|a, b| a < b) && usize::from(own[own.len() - 1]) < audio_rows;
            if !fine {
                return Err(
                    rows.invalid(format!("ascending rows below {audio_rows}"), format!("others at step {step}"))
                );
            }
            distributions.push(Compact {
                rows: own.to_vec(),
                logits: all_logits[range].iter().map(|bits| bf16::from_bits(*bits)).collect(),
                tail: tail[step],
                entropy: entropy[step],
            });
        }
        let pcm = match file.find(&format!("{n}.pcm")) {
            Some(pcm) => pcm.data.as_chunks().0.iter().map(|b| i16::from_le_bytes(*b)).collect(),
            None => Vec::new(),
        };
        let stopped = steps > crate::config::MIN_NEW_TOKENS && stop[steps - 1] > crate::config::STOP_THRESHOLD;
        Ok(Item { prompt: prompt.clone(), ids, tokens, stopped, stop, steps: distributions, pcm })
    }
}

/// Logarithms of what the rows that are not stored add up to: minus infinity where all rows are.
fn tails(tensor: &Tensor, steps: usize) -> Result<Vec<f32>> {
    tensor.expect(&[Dtype::F32], &[steps])?;
    let tails = tensor.to_f32()?;
    match tails.iter().find(|tail| !(tail.is_finite() || **tail == f32::NEG_INFINITY)) {
        Some(tail) => Err(tensor.invalid("logarithms of sums", tail)),
        None => Ok(tails),
    }
}

/// SHA-256 over the data of every tensor but `digest`, in the order of their names.
fn data_digest<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> [u8; 32] {
    let mut all: Vec<_> = tensors.filter(|(name, _)| *name != "digest").collect();
    all.sort_unstable_by_key(|(name, _)| *name);
    let mut digest = Sha256::new();
    all.iter().for_each(|(_, data)| digest.update(data));
    digest.finalize().into()
}

fn check_digest(file: &TensorFile) -> Result<()> {
    let stated = file.get_as("digest", &[Dtype::U8], &[32])?;
    let found = data_digest(file.tensors().iter().map(|(name, tensor)| (name.as_str(), &*tensor.data)));
    match *stated.data == found {
        true => Ok(()),
        false => Err(stated.invalid("the digest of the data", "another: the file is damaged")),
    }
}
