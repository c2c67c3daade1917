//! `rumik-verify`: proves that what this project computes is what the model means.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rumik::cli::{Outcome, exit, print_json};
use rumik::verify::golden;

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
        /// Print the comparisons as one JSON document.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    exit(run(Args::parse()))
}

fn run(args: Args) -> anyhow::Result<Outcome> {
    let Command::Golden { folder, json } = args.command;
    let report = golden::compare(&folder)?;
    match json {
        true => print_json(&report)?,
        false => report.print(&mut std::io::stdout().lock())?,
    }
    Ok(if report.passed { Outcome::Done } else { Outcome::Failed })
}
