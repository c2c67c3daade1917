//! A folder with a small checkpoint and what transformers computed from it, and everything here held against that.
//!
//! The folder is laid out as `fixtures/golden/tiny`, whose README describes every key, and may have any dimensions. The
//! keys that are present decide: what is there is compared, what this program does not know is listed.

mod codec;
mod engine;
mod exported;
mod facts;
mod reference;
mod text;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::exported::Exported;
use self::facts::{Facts, PromptFacts};
use super::{Limit, Verdict, differing, largest_difference};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::engine::Engine;
use crate::engine::cpu::{self, CpuEngine};
use crate::error::{Error, Result};
use crate::format::{Export, HeadKind};
use crate::reference::Device;
use crate::tensors::{Bytes, Dtype, TensorFile};

/// File with the expected tensors.
pub const TENSORS_FILE: &str = "golden.safetensors";
/// File with the expected facts.
pub const FACTS_FILE: &str = "golden.json";

/// Largest difference of an f32 logit, state or residual: ten times what independent f32 implementations differ by.
pub const F32_LIMIT: f64 = 1e-3;
/// Largest difference of a probability in f32: a logit's noise of 1e-4 changes one by less than this.
pub const PROBABILITY_LIMIT: f64 = 1e-4;
/// Things that must be the same: the number of those that are not.
const NONE_DIFFERS: Limit = Limit::AtMost(0.0);

/// The result of [`compare`].
#[derive(Debug, serde::Serialize)]
pub struct Report {
    /// The folder.
    pub golden: String,
    /// True when every comparison passed.
    pub passed: bool,
    /// The comparisons.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Tensors of the folder that no comparison used.
    pub not_compared: Vec<String>,
}

impl Report {
    /// Writes the table of comparisons, the tensors left over, and the verdict as the last line.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn print(&self, out: &mut impl std::io::Write) -> std::io::Result<()> {
        if !self.not_compared.is_empty() {
            writeln!(out, "not compared: {}\n", self.not_compared.join(", "))?;
        }
        writeln!(out, "{}", self.verdict)
    }
}

/// Where the two sides of the comparisons run.
pub struct Sides<'a> {
    /// The reference.
    pub reference: Device,
    /// Opens the engine that is judged.
    pub engine: &'a mut dyn FnMut(Export) -> Result<Box<dyn Engine>>,
}

/// Compares everything this program can compute with a golden folder, on the processor.
///
/// # Errors
/// As [`compare_on`].
pub fn compare(folder: &Path) -> Result<Report> {
    let mut engine = |export| Ok(Box::new(CpuEngine::new(export, cpu::Options::default())?) as Box<dyn Engine>);
    compare_on(folder, &mut Sides { reference: Device::Cpu, engine: &mut engine })
}

/// Compares everything this program can compute with a golden folder.
///
/// # Errors
/// [`Error::Io`] or [`Error::Invalid`] when a file is missing, damaged or contradicts its description, and when there is
/// nothing in the folder to compare; [`Error::Input`] for ids outside the vocabulary.
pub fn compare_on(folder: &Path, sides: &mut Sides<'_>) -> Result<Report> {
    let golden = Golden::open(folder)?;
    let mut judge = Judge { golden: &golden, verdict: Verdict::default() };
    let prompts = golden.prompts()?;
    text::compare(&mut judge, &prompts)?;
    text::compare_frames(&mut judge, &prompts)?;
    let checkpoint = Checkpoint::open(folder)?;
    reference::compare(&mut judge, &checkpoint, &prompts, &sides.reference)?;
    exported::compare_synthetic(&mut judge)?;
    compare_exports(&mut judge, &checkpoint, &prompts, sides)?;
    codec::compare(&mut judge, &checkpoint, &prompts)?;
    let verdict = judge.verdict;
    if verdict.comparisons.is_empty() {
        let found = "none that this program knows";
        return Err(Error::invalid(folder.display(), "golden", "results to compare with", found));
    }
    Ok(Report {
        golden: folder.display().to_string(),
        passed: verdict.passed(),
        not_compared: golden.unused(),
        verdict,
    })
}

/// Exports the checkpoint with each head that the folder has results for, and compares what comes of it.
fn compare_exports(
    judge: &mut Judge,
    checkpoint: &Checkpoint,
    prompts: &[Prompt],
    sides: &mut Sides<'_>,
) -> Result<()> {
    for variant in &engine::VARIANTS {
        let is_int8 = variant.head == HeadKind::Int8;
        let codes = is_int8 && exported::has_codes(judge.golden);
        if !codes && !variant.is_in(judge.golden) {
            continue;
        }
        let exported = Exported::of(checkpoint, variant.head)?;
        if codes {
            exported::compare_codes(judge, &exported)?;
        }
        if variant.is_in(judge.golden) {
            if is_int8 {
                exported::compare_scores(judge, variant, &exported, prompts, &sides.reference)?;
            }
            let mut engine = (sides.engine)(exported.export.clone())?;
            engine::compare(judge, variant, &mut *engine, prompts)?;
        }
    }
    Ok(())
}

/// A golden folder, opened.
struct Golden {
    folder: PathBuf,
    config: ModelConfig,
    tensors: TensorFile,
    facts: Facts,
    used: RefCell<BTreeSet<String>>,
}

/// One prompt of the folder.
struct Prompt<'a> {
    number: usize,
    ids: Vec<u32>,
    facts: Option<&'a PromptFacts>,
}

impl Prompt<'_> {
    /// The greedy tokens that `golden.json` lists.
    fn generated_ids(&self) -> Option<Vec<u32>> {
        self.facts?.generated_ids.clone()
    }
}

impl Golden {
    fn open(folder: &Path) -> Result<Golden> {
        let (config, facts) = (folder.join("config.json"), folder.join(FACTS_FILE));
        Ok(Golden {
            folder: folder.to_owned(),
            config: ModelConfig::parse(&config.display().to_string(), &Bytes::map(&config)?)?,
            tensors: TensorFile::open(&folder.join(TENSORS_FILE))?,
            facts: Facts::parse(&facts.display().to_string(), &Bytes::map(&facts)?)?,
            used: RefCell::default(),
        })
    }

    /// A float tensor that may be absent. Its values may be anything: what is not finite fails its comparison.
    fn values(&self, key: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.find(key) else { return Ok(None) };
        tensor.expect(&[Dtype::F32, Dtype::F16, Dtype::BF16], shape)?;
        self.used.borrow_mut().insert(key.to_owned());
        tensor.to_f32().map(Some)
    }

    /// An integer tensor that may be absent, with its shape; `None` in `shape` takes any size.
    fn integers(&self, key: &str, shape: &[Option<usize>]) -> Result<Option<(Vec<usize>, Vec<u32>)>> {
        let Some(tensor) = self.tensors.find(key) else { return Ok(None) };
        let fits = |(size, wanted): (&usize, &Option<usize>)| wanted.is_none_or(|wanted| wanted == *size);
        if tensor.shape.len() != shape.len() || !tensor.shape.iter().zip(shape).all(fits) {
            let sizes: Vec<_> = shape.iter().map(|size| size.map_or("any".into(), |size| size.to_string())).collect();
            return Err(tensor.invalid(format!("shape [{}]", sizes.join(", ")), format!("{:?}", tensor.shape)));
        }
        let to_u32 = |value: i64| u32::try_from(value).map_err(|_| tensor.invalid("numbers from 0", value));
        let values = tensor.to_i64()?.into_iter().map(to_u32).collect::<Result<_>>()?;
        self.used.borrow_mut().insert(key.to_owned());
        Ok(Some((tensor.shape.clone(), values)))
    }

    /// The bytes of a tensor that may be absent.
    fn bytes(&self, key: &str, dtype: Dtype, shape: &[usize]) -> Result<Option<&[u8]>> {
        let Some(tensor) = self.tensors.find(key) else { return Ok(None) };
        tensor.expect(&[dtype], shape)?;
        self.used.borrow_mut().insert(key.to_owned());
        Ok(Some(&tensor.data))
    }

    /// A list of token ids that may be absent.
    fn ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        Ok(self.integers(key, &[None])?.map(|(_, ids)| ids))
    }

    /// The prompts: those with ids in either file.
    fn prompts(&self) -> Result<Vec<Prompt<'_>>> {
        let number_of = |name: &str| name.strip_prefix("prompt.")?.strip_suffix(".ids")?.parse().ok();
        let mut numbers: BTreeSet<usize> = self.tensors.tensors().keys().filter_map(|name| number_of(name)).collect();
        numbers.extend(0..self.facts.prompts.len());
        let mut prompts = Vec::new();
        for number in numbers {
            let facts = self.facts.prompts.get(number);
            let listed = facts.and_then(|facts| facts.prompt_ids.clone());
            if let Some(ids) = self.ids(&format!("prompt.{number}.ids"))?.or(listed) {
                prompts.push(Prompt { number, ids, facts });
            }
        }
        Ok(prompts)
    }

    fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.tensors.tensors().keys().filter(|name| !used.contains(*name)).cloned().collect()
    }
}

/// The golden folder and the verdict on what has been compared with it.
struct Judge<'a> {
    golden: &'a Golden,
    verdict: Verdict,
}

impl Judge<'_> {
    /// Holds `found`, of `shape`, against the tensor `key`, where the folder has it: the largest difference.
    fn close(&mut self, name: &str, limit: f64, key: &str, shape: &[usize], found: &[f32]) -> Result<()> {
        if let Some(expected) = self.golden.values(key, shape)?.filter(|values| !values.is_empty()) {
            let (difference, index) = largest_difference(found, &expected);
            self.verdict.measure(name, Limit::AtMost(limit), difference, || at(key, index, shape));
        }
        Ok(())
    }

    /// Holds ids against ids: how many differ.
    fn same_ids(&mut self, name: &str, key: &str, found: &[u32], expected: &[u32]) {
        let (count, first) = differing(found, expected);
        self.verdict.measure(name, NONE_DIFFERS, count, || format!("{key}[{first}]"));
    }

    /// Holds one thing against another.
    fn same<T: PartialEq + std::fmt::Display>(&mut self, name: &str, place: &str, found: T, expected: T) {
        let different = f64::from(u8::from(found != expected));
        self.verdict.measure(name, NONE_DIFFERS, different, || match found == expected {
            true => place.to_owned(),
            false => format!("{place}: {found} instead of {expected}"),
        });
    }
}

/// `key[row, column]` of a flat index.
fn at(key: &str, index: usize, shape: &[usize]) -> String {
    let mut rest = index;
    let mut places: Vec<usize> = shape.iter().rev().map(|&size| (rest % size.max(1), rest /= size.max(1)).0).collect();
    places.reverse();
    format!("{key}{places:?}")
}
