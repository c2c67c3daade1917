//! `rumik-run`: speech from an int4 export.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use rumik::cli;

/// Speak with rumik-oss-1, quantized to int4
///
/// Without --model a small demonstration voice that is built into this program speaks: about 1,700 English and Hindi
/// words in four synthetic voices. For the real model, run `rumik-export --out rumik-int4` once (it downloads 6.8 GB and
/// writes 2.5 GB), then add `--model rumik-int4`.
///
/// Exit status: 0 done; 1 done, but `batch` refused some lines; 2 could not run.
#[derive(Parser)]
#[command(version, name = "rumik-run")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say a text: to a file, to stdout or to the sound card
    Say(Box<cli::say::SayArgs>),
    /// Say many texts: JSON lines to WAV files, resumable, on one machine or many
    Batch(Box<cli::batch::BatchArgs>),
    /// Show what would be said: chunks, seconds, and every number, date or sign that is read as words
    Text(Box<cli::text::ShowArgs>),
    /// Measure how fast a model speaks on this machine
    Bench(Box<cli::bench::BenchArgs>),
    /// Measure which kernels are fastest on this GPU, and remember it
    Tune(Box<cli::tune::TuneArgs>),
    /// Serve speech over HTTP: many streams at once, OpenAI's interface
    #[cfg(feature = "serve")]
    Serve(Box<cli::serve::ServeArgs>),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    cli::exit(match arguments.command {
        Command::Say(args) => cli::say::run(&args),
        Command::Batch(args) => cli::batch::run(&args),
        Command::Text(args) => cli::text::run(&args),
        Command::Bench(args) => cli::bench::run(&args),
        Command::Tune(args) => cli::tune::run(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => cli::serve::run(&args),
    })
}
