//! The kernels of an NVIDIA GPU.
//!
//! Comparisons are called `cuda.phase.test`; which kernels a phase is, the device records while it launches them. Every function
//! of the modules that the program holds must have been launched in a comparison.

mod head;
mod layers;

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::config::{LayerType, ModelConfig};
use crate::engine::Engine;
use crate::engine::cuda::probe::{self, Probe, Products};
use crate::engine::cuda::{CudaEngine, Options};
use crate::engine::tuning::Tuning;
use crate::error::{Error, Result};
use crate::format::{self, Export};
use crate::verify::Verdict;

use super::judge::Judge;
use super::{codec, model, registry};

/// A forward pass whose LayerNorm and attention sum in another order: a step of the 16-bit activations more or less here and
/// there, relative to the largest value.
const FORWARD_TOLERANCE: f64 = 1e-3;
/// Slots of the engines: for the kernels of up to 4 columns, and for those of up to 8.
const COMPANIES: [usize; 2] = [2, 6];

/// The first error of a device among results that a test took for empty ones; it ends the run.
#[derive(Default)]
struct FirstError(RefCell<Option<Error>>);

impl FirstError {
    fn or_empty(&self, found: Result<Vec<f32>>) -> Vec<f32> {
        found.unwrap_or_else(|error| {
            self.0.borrow_mut().get_or_insert(error);
            Vec::new()
        })
    }

    fn check(self) -> Result<()> {
        self.0.into_inner().map_or(Ok(()), Err)
    }
}

/// Runs every known-answer test of GPU number `ordinal`.
pub(super) fn run(verdict: &mut Verdict, ordinal: usize) -> Result<()> {
    let existing = probe::kernels(ordinal)?;
    probe::take_launched();
    let mut judge = Judge::new(verdict, "cuda");
    for products in [Products::Table, Products::Warps, Products::Shallow] {
        for sizes in [layers::WIDE, layers::NARROW] {
            layers::judge(&mut judge, ordinal, sizes, products)?;
        }
    }
    layers::judge_company(&mut judge, ordinal)?;
    head::judge(&mut judge, ordinal)?;
    for head_dim in [64, 128] {
        run_engine(&mut judge, ordinal, head_dim)?;
    }
    run_codec(&mut judge, ordinal)?;
    judge.covers(probe::take_launched());
    let known: BTreeSet<&str> = existing.iter().map(String::as_str).chain(registry::CUDA.iter().copied()).collect();
    judge.finish(known);
    Ok(())
}

/// Models of known layers in a whole engine; speech by a launch a phase, warp by warp, and by what the table chooses.
fn run_engine(judge: &mut Judge<'_>, ordinal: usize, head_dim: usize) -> Result<()> {
    let table = Tuning::of(crate::engine::cuda::identify(ordinal)?.0);
    let open = |export: &Export, slots, plain: bool| {
        let tuning = Some(if plain { Tuning { persistent: false, warpgroups: false, ..table } } else { table });
        let options = Options { ordinal, slots, positions: model::POSITIONS, tuning, ..Options::default() };
        Ok(Box::new(CudaEngine::open(export, &options)?) as Box<dyn Engine>)
    };
    for plain in [true, false] {
        model::judge_scores(judge, head_dim, FORWARD_TOLERANCE, &|export, slots| open(export, slots, plain))?;
        for company in COMPANIES {
            model::judge_decode(judge, head_dim, company, &|export, slots| open(export, slots, plain))?;
        }
    }
    Ok(())
}

/// The codec beside a model of as many codebooks.
fn run_codec(judge: &mut Judge<'_>, ordinal: usize) -> Result<()> {
    let config: ModelConfig = model::config(64, vec![LayerType::Full], 1e-5);
    let still = model::layer(&config, vec![1.0; config.hidden_size], |_, n, k| model::zeros(n, k));
    let probe = Probe::open(ordinal, &model::export(config, vec![still]), Products::Table)?;
    codec::judge(judge, "codec", &|codec, codes, _, twice| {
        let files = format::Codec { config: codec.config.clone(), weights: codec.weights.clone() };
        probe.decode(&files, codes, 5, twice)
    })
}
