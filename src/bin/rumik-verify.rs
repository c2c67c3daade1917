//! `rumik-verify`: proves that what this project computes is what the model means.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rumik::cli::model::{Device, engine_on, reference_on};
use rumik::cli::{Outcome, exit, print_json};
use rumik::format::Export;
use rumik::verify::{agree, golden};

/// Hold the reference, the int4 engine and the codec against known results, and give a verdict.
///
/// Exit status: 0 every comparison passed, 1 at least one failed, 2 the comparison could not be made.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare with a folder that holds a small checkpoint and what transformers computed from it.
    Golden {
        /// The folder: checkpoint, codec, tokenizer, golden.safetensors and golden.json.
        folder: PathBuf,
        /// Where the engine runs: auto, cpu, cuda or cuda:N; with the feature candle-cuda the reference as well.
        #[arg(long, default_value = "cpu")]
        device: Device,
        /// Print the comparisons as one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Compare an engine with the CPU engine on an export of any size: scores, choices, company, samples.
    Agree {
        /// The export.
        model: PathBuf,
        /// The engine: auto, cpu, cuda or cuda:N.
        #[arg(long, default_value = "auto")]
        device: Device,
        /// Tokens to speak.
        #[arg(long, default_value_t = 200)]
        steps: usize,
        /// Streams that keep the first one company.
        #[arg(long, default_value_t = 8)]
        slots: usize,
        /// Print the comparisons as one JSON document.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    exit(run(Args::parse()))
}

fn run(args: Args) -> anyhow::Result<Outcome> {
    match args.command {
        Command::Golden { folder, device, json } => golden(&folder, device, json),
        Command::Agree { model, device, steps, slots, json } => {
            let export = Export::open(&model)?;
            let plan = agree::Plan { prompt: 34, steps, slots };
            let mut open = |slots| engine_on(device, export.clone(), slots);
            let verdict = agree::compare(&export, plan, &mut open, &mut |what| eprintln!("{what}"))?;
            match json {
                true => print_json(&verdict)?,
                false => println!("{verdict}"),
            }
            Ok(if verdict.passed() { Outcome::Done } else { Outcome::Failed })
        }
    }
}

fn golden(folder: &Path, device: Device, json: bool) -> anyhow::Result<Outcome> {
    let mut engine = |export| engine_on(device, export, 1);
    let reference = reference_on(device)?;
    let report = golden::compare_on(folder, &mut golden::Sides { reference, engine: &mut engine })?;
    match json {
        true => print_json(&report)?,
        false => report.print(&mut std::io::stdout().lock())?,
    }
    Ok(if report.passed { Outcome::Done } else { Outcome::Failed })
}
