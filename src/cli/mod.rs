//! What the three programs share: exit codes, the one line an error becomes, progress bars and JSON output.

pub mod model;
pub mod output;
mod progress;
pub mod say;
pub mod text;
pub mod verify;

use std::io::Write;
use std::process::ExitCode;

pub use progress::{Progress, Units};

/// How a program ended, when it could run at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done, or the verdict is pass: exit 0.
    Done,
    /// Ran to its end and the verdict is fail: exit 1.
    Failed,
}

/// Turns the result of a program into its exit code: 0 done or passed, 1 verdict failed, 2 could not run.
///
/// The error and its causes become one line on stderr. A closed stdout (`| head`) is a normal end, not an error.
pub fn exit(result: anyhow::Result<Outcome>) -> ExitCode {
    match result {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {}", one_line(&with_causes(&error)));
            ExitCode::from(2)
        }
    }
}

/// The message and those of its causes that it does not already quote.
fn with_causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .map(ToString::to_string)
        .reduce(|message, cause| match message.contains(&cause) {
            true => message,
            false => format!("{message}: {cause}"),
        })
        .unwrap_or_default()
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}

/// Joins lines and escapes control characters: names and values in messages come from files and users.
fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// Prints a report to stdout.
///
/// # Errors
/// When stdout cannot be written.
pub fn print(report: &impl std::fmt::Display) -> anyhow::Result<()> {
    write!(std::io::stdout().lock(), "{report}")?;
    Ok(())
}

/// Prints one JSON document and a line feed to stdout.
///
/// # Errors
/// When stdout cannot be written.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
