//! `rumik-verify`: proves that an export speaks like the original, or refuses it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rumik::cli::model::{Device, engine_on, reference_on};
use rumik::cli::verify::{self, CheckArgs, ReferenceArgs};
use rumik::cli::{Outcome, exit, print, print_json};
use rumik::format::Export;
use rumik::verify::{agree, golden, kernels};

/// Hold an export against the original, give a verdict, and write it into the export as verify.json.
///
/// Exit status: 0 every comparison passed, 1 at least one failed, 2 the comparison could not be made.
#[derive(Parser)]
#[command(version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    check: CheckArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Let the original speak once, and keep all that is needed to verify exports without it
    Reference(ReferenceArgs),
    /// Compare with a folder that holds a small checkpoint and what transformers computed from it
    Golden {
        /// The folder: checkpoint, codec, tokenizer, golden.safetensors and golden.json
        folder: PathBuf,
        /// Where the engine runs: auto, cpu, cuda or cuda:N; with the feature candle-cuda the reference as well
        #[arg(long, default_value = "cpu")]
        device: Device,
        /// Print the comparisons as one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Compare an engine with the CPU engine on an export of any size: scores, choices, company, samples
    Agree {
        /// The export
        model: PathBuf,
        /// The engine: auto, cpu, cuda or cuda:N
        #[arg(long, default_value = "auto")]
        device: Device,
        /// Tokens to speak
        #[arg(long, default_value_t = 200)]
        steps: usize,
        /// Streams that keep the first one company
        #[arg(long, default_value_t = 8)]
        slots: usize,
        /// Print the comparisons as one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Hold every kernel of a backend against inputs whose exact answer is known
    Kernels {
        /// auto, cpu, cuda or cuda:N; auto is the first usable GPU, else the processor
        #[arg(long, default_value = "auto")]
        device: Device,
        /// Print the comparisons as one JSON document
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    exit(run(Cli::parse()))
}

fn run(cli: Cli) -> anyhow::Result<Outcome> {
    match cli.command {
        None => verify::run(&cli.check),
        Some(Command::Reference(args)) => verify::run_reference(&args),
        Some(Command::Golden { folder, device, json }) => run_golden(&folder, device, json),
        Some(Command::Kernels { device, json }) => run_kernels(device, json),
        Some(Command::Agree { model, device, steps, slots, json }) => {
            run_agree(&model, device, agree::Plan { prompt: 34, steps, slots }, json)
        }
    }
}

fn run_agree(model: &Path, device: Device, plan: agree::Plan, json: bool) -> anyhow::Result<Outcome> {
    let export = Export::open(model)?;
    let mut open = |slots| engine_on(device, export.clone(), slots);
    let verdict = agree::compare(&export, plan, &mut open, &mut |what| eprintln!("{what}"))?;
    match json {
        true => print_json(&verdict)?,
        false => println!("{verdict}"),
    }
    Ok(if verdict.passed() { Outcome::Done } else { Outcome::Failed })
}

fn run_golden(folder: &Path, device: Device, json: bool) -> anyhow::Result<Outcome> {
    let mut engine = |export| engine_on(device, export, 1);
    let reference = reference_on(device)?;
    let report = golden::compare_on(folder, &mut golden::Sides { reference, engine: &mut engine })?;
    match json {
        true => print_json(&report)?,
        false => report.print(&mut std::io::stdout().lock())?,
    }
    Ok(if report.passed { Outcome::Done } else { Outcome::Failed })
}

fn run_kernels(device: Device, json: bool) -> anyhow::Result<Outcome> {
    let report = match device {
        Device::Auto => kernels::Backend::automatic(),
        Device::Cpu => kernels::Backend::Cpu,
        Device::Cuda(number) => kernels::Backend::Cuda(number),
    }
    .report()?;
    match json {
        true => print_json(&report)?,
        false => print(&format_args!("{}\n", report.verdict))?,
    }
    Ok(if report.passed { Outcome::Done } else { Outcome::Failed })
}
