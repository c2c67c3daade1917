//! `rumik-run tune`: which kernels are fastest on this GPU, measured where they run, and remembered.

use clap::Args;

use super::Outcome;
use super::model::ModelArgs;

/// Options of `tune`.
#[derive(Args, Clone, Debug)]
pub struct TuneArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Streams at once to tune for
    #[arg(long, default_value_t = 1)]
    slots: usize,
    /// Positions in the cache to tune at
    #[arg(long, default_value_t = 500)]
    positions: usize,
    /// Measure and report, but remember nothing
    #[arg(long)]
    dry_run: bool,
    /// Print the measurements as one JSON document
    #[arg(long)]
    json: bool,
}

/// Measures every choice of kernels that the GPU can run, each in an engine of its own, and keeps the best one.
///
/// # Errors
/// Whatever keeps the model from running on the GPU; a build or a `--device` without one.
#[cfg(feature = "cuda")]
pub fn run(args: &TuneArgs) -> anyhow::Result<Outcome> {
    use super::{print, print_json};
    let tuned = cuda::tune(args)?;
    match args.json {
        true => print_json(&tuned)?,
        false => print(&tuned)?,
    }
    Ok(Outcome::Done)
}

/// Says that this build has no GPU to tune.
///
/// # Errors
/// Always.
#[cfg(not(feature = "cuda"))]
pub fn run(_: &TuneArgs) -> anyhow::Result<Outcome> {
    let why = "this build has no GPU code; build with --features cuda".to_owned();
    Err(crate::Error::Unsupported { what: "rumik-run tune".to_owned(), why }.into())
}

#[cfg(feature = "cuda")]
mod cuda {
    use std::fmt;
    use std::path::PathBuf;
    use std::time::Duration;

    use serde::Serialize;

    use super::TuneArgs;
    use crate::bench;
    use crate::cli::model::{Device, export};
    use crate::engine::Spread;
    use crate::engine::cuda::{CudaEngine, Options, identify};
    use crate::engine::tuning::{Pin, Tuning, best};
    use crate::error::{Error, Result};

    /// Time for one candidate, its opening apart.
    const PATIENCE: Duration = Duration::from_secs(2);

    /// What was measured and what came of it.
    #[derive(Serialize)]
    pub(super) struct Tuned {
        card: String,
        measured: Vec<Measured>,
        /// The choice now in force.
        chosen: Tuning,
        /// Where it is kept, if it is not the table's own.
        pinned: Option<PathBuf>,
    }

    #[derive(Serialize)]
    struct Measured {
        tuning: Tuning,
        frame_ms: Spread,
    }

    pub(super) fn tune(args: &TuneArgs) -> Result<Tuned> {
        let ordinal = match args.model.device {
            Device::Cpu => {
                return Err(Error::input("--device", "expected a GPU, found cpu, which has nothing to tune"));
            }
            Device::Auto => 0,
            Device::Cuda(number) => number,
        };
        let export = export(&args.model)?;
        let (card, key) = identify(ordinal)?;
        let path = Pin::path(&key);
        let mut measured = Vec::new();
        for tuning in Tuning::candidates(card) {
            eprintln!("measuring: {tuning}");
            let positions = (args.positions + 304).min(export.config.max_position_embeddings);
            let options = Options {
                ordinal,
                slots: args.slots,
                positions,
                endless: true,
                tuning: Some(tuning),
                ..Options::default()
            };
            let mut engine = CudaEngine::open(&export, &options)?;
            let run = bench::decoding(&mut engine, args.slots, args.positions, PATIENCE)?;
            measured.push((tuning, run.frame_ms));
        }
        let (chosen, pinned) = match (best(&measured), path) {
            (Some(index), path) => {
                let (tuning, frame) = measured[index];
                let pin = Pin { key: key.clone(), tuning, frame_ms: [frame.median, measured[0].1.median] };
                let path = path.filter(|_| !args.dry_run);
                path.iter().try_for_each(|path| pin.write(path))?;
                (tuning, path)
            }
            (None, path) => {
                if let Some(path) = path.filter(|path| !args.dry_run && path.exists()) {
                    std::fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                }
                (measured[0].0, None)
            }
        };
        let measured = measured.into_iter().map(|(tuning, frame_ms)| Measured { tuning, frame_ms }).collect();
        Ok(Tuned { card: key.card, measured, chosen, pinned })
    }

    impl fmt::Display for Tuned {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            writeln!(f, "{}: milliseconds of a frame period, 10th and 90th percentile", self.card)?;
            for Measured { tuning, frame_ms } in &self.measured {
                let Spread { median, low, high } = frame_ms;
                let mark = if *tuning == self.chosen { "→" } else { " " };
                writeln!(f, "{mark} {median:8.3} ({low:.3} .. {high:.3})  {tuning}")?;
            }
            match &self.pinned {
                Some(path) => writeln!(f, "kept in {}", path.display()),
                None => writeln!(f, "nothing kept: the table's own choice stands unless another is clearly faster"),
            }
        }
    }
}
