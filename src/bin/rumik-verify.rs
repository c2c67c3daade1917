//! `rumik-verify`: proves that an export speaks like the original, or refuses it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rumik::cli::model::Device;
use rumik::cli::verify::{self, CheckArgs, ReferenceArgs};
use rumik::cli::{Outcome, exit, print, print_json};
use rumik::verify::{golden, kernels};

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
        Some(Command::Golden { folder, json }) => run_golden(&folder, json),
        Some(Command::Kernels { device, json }) => run_kernels(device, json),
    }
}

fn run_golden(folder: &Path, json: bool) -> anyhow::Result<Outcome> {
    let report = golden::compare(folder)?;
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
