//! `rumik-run bench`: how fast a model speaks on this machine.

use std::time::{Duration, Instant};

use clap::Args;

use super::model::{Device, ModelArgs, export};
use super::{Outcome, print, print_json};
use crate::bench::{self, Plan};
use crate::engine::Metered;
use crate::engine::cpu::{self, CpuEngine};
use crate::error::{Error, Result};
use crate::format::Export;

/// Most streams that one engine runs.
const MOST_SLOTS: usize = 64;

/// Options of `bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Numbers of streams to run at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    slots: Vec<usize>,
    /// Positions in the cache to decode at; on the processor 200 if not given, because filling a cache takes long there
    #[arg(long, value_delimiter = ',')]
    positions: Vec<usize>,
    /// Length of the whole clip
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    clip_seconds: f64,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Measures.
///
/// # Errors
/// Whatever keeps the model from running; [`Error::Input`] for numbers out of range.
pub fn run(args: &BenchArgs) -> anyhow::Result<Outcome> {
    args.check()?;
    let begun = Instant::now();
    let export = export(&args.model)?;
    let files_seconds = begun.elapsed().as_secs_f64();
    let device = args.device(&export);
    let positions = match (args.positions.as_slice(), device) {
        ([], Device::Cpu) => vec![200],
        ([], _) => vec![200, 500, 2000],
        (given, _) => given.to_vec(),
    };
    let longest = positions.iter().copied().max().unwrap_or(0);
    let plan = Plan {
        slots: args.slots.clone(),
        positions,
        patience: Duration::from_secs(10),
        clip_seconds: args.clip_seconds,
        phase_head: args.model.phase_head,
    };
    let mut open = |slots, phase_head| engine(&export, &args.model, device, Size { slots, longest, phase_head });
    let mut report = bench::run(&plan, &mut open, &mut |what| eprintln!("measuring: {what}"))?;
    report.model.clone_from(&export.name);
    report.start.files_seconds = files_seconds;
    match args.json {
        true => print_json(&report)?,
        false => print(&report)?,
    }
    Ok(Outcome::Done)
}

impl BenchArgs {
    fn check(&self) -> Result<()> {
        if let Some(slots) = self.slots.iter().find(|slots| !(1..=MOST_SLOTS).contains(*slots)) {
            return Err(Error::input("--slots", format!("expected 1 to {MOST_SLOTS}, found {slots}")));
        }
        if self.positions.contains(&0) {
            return Err(Error::input("--positions", "expected at least 1, found 0"));
        }
        if !(0.1..=200.0).contains(&self.clip_seconds) {
            let message = format!("expected 0.1 to 200 seconds, found {}", self.clip_seconds);
            return Err(Error::input("--clip-seconds", message));
        }
        Ok(())
    }

    /// `auto` decided once, so that no line of the report is of another device.
    fn device(&self, export: &Export) -> Device {
        match self.model.device {
            Device::Auto => match cuda(export, 0, Size { slots: 1, longest: 0, phase_head: false }) {
                Ok(_) => Device::Cuda(0),
                Err(error) => {
                    eprintln!("note: measuring the processor: {error}");
                    Device::Cpu
                }
            },
            device => device,
        }
    }
}

/// What an engine must hold.
#[derive(Clone, Copy)]
struct Size {
    slots: usize,
    longest: usize,
    phase_head: bool,
}

impl Size {
    /// Positions of a slot: as `rumik-run say` has by default, or more for a longer measurement.
    fn positions(self, export: &Export) -> usize {
        (self.longest + 304).max(2304).min(export.config.max_position_embeddings)
    }
}

fn engine(export: &Export, args: &ModelArgs, device: Device, size: Size) -> Result<Box<dyn Metered>> {
    if let Device::Cuda(number) = device {
        return cuda(export, number, size);
    }
    let options = cpu::Options {
        slots: size.slots,
        positions: Some(size.positions(export)),
        threads: args.threads,
        phase_head: size.phase_head,
    };
    Ok(Box::new(CpuEngine::new(export.clone(), options)?))
}

#[cfg(feature = "cuda")]
fn cuda(export: &Export, ordinal: usize, size: Size) -> Result<Box<dyn Metered>> {
    use crate::engine::cuda::{CudaEngine, Options};
    let options = Options {
        ordinal,
        slots: size.slots,
        positions: size.positions(export),
        phase_head: size.phase_head,
        endless: true,
        ..Options::default()
    };
    Ok(Box::new(CudaEngine::open(export, &options)?))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: &Export, _: usize, _: Size) -> Result<Box<dyn Metered>> {
    let why = "this build has no GPU code; build with --features cuda".to_owned();
    Err(Error::Unsupported { what: "--device cuda".to_owned(), why })
}
