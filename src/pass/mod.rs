//! The pass: whether an export may serve on this kind of backend, decided from its `verify.json`.
//!
//! The gate (`verify`) writes the file; this module believes nothing of it that it can check: its bytes, its digest, the
//! verdict from the comparisons, the limits from the built-in ones, every file's SHA-256, and the engine it was made with.
//! The digest is no signature. It catches a damaged, stale or edited file, not somebody who sets out to forge one.

mod digests;

use std::path::Path;

pub use digests::Digests;
use serde::Serialize;

use crate::engine::Backend;
use crate::error::{Error, Result};
pub use crate::format::layout::REFERENCE_FILE;
use crate::format::{Paths, Report};
use crate::tensors::Bytes;
use crate::verify::limits::{self, REQUIRED};
use crate::verify::record::{Document, LimitKind, Mode, Outcome, RECORD_FILE, Record};

/// SHA-256 over the sources below `src/engine`, taken when this program was built.
pub const ENGINE_SOURCES: &str = env!("RUMIK_ENGINE_SOURCES");

/// A passing record that matches the files, the engine and the backend in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// The kind of backend it is for.
    pub backend: Backend,
    /// How much was run.
    pub mode: Mode,
    /// Whose limits were used.
    pub limits: LimitKind,
    /// Digest of the record.
    pub record: String,
}

/// How far a model's speech has been proven.
#[derive(Debug)]
pub enum Standing {
    /// By a passing record.
    Passed(Pass),
    /// By the tests of this crate: the demonstration voice that is compiled in.
    BuiltIn,
    /// Not: the reason, and the command to run.
    Unverified(Error),
}

impl Standing {
    /// Checks an export's `verify.json`; whatever is wrong with it is the reason.
    pub fn of(paths: &Paths, backend: Backend) -> Standing {
        check(paths, backend, &mut Digests::of_user()).map_or_else(Standing::Unverified, Standing::Passed)
    }

    /// Whether the model may serve.
    pub fn is_verified(&self) -> bool {
        !matches!(self, Standing::Unverified(_))
    }

    /// One line for logs and `/health`: `passed (full, default limits)`, `built in: verified by the test suite`, or
    /// `unverified: ` and the reason.
    pub fn summary(&self) -> String {
        match self {
            Standing::Passed(Pass { mode, limits, .. }) => {
                let mode = if *mode == Mode::Full { "full" } else { "quick" };
                let limits = if *limits == LimitKind::Default { "default" } else { "custom" };
                format!("passed ({mode}, {limits} limits)")
            }
            Standing::BuiltIn => "built in: verified by the test suite".to_owned(),
            Standing::Unverified(reason) => format!("unverified: {reason}"),
        }
    }

    /// The model may serve, or the reason why not with the command to run. For `rumik-run serve` without `--unverified`.
    ///
    /// # Errors
    /// The reason.
    pub fn require(self) -> Result<Standing> {
        match self {
            Standing::Unverified(reason) => Err(reason),
            proven => Ok(proven),
        }
    }
}

/// Checks that an export has a passing record for a kind of backend, made with this engine and of these very files.
///
/// Reads every file once; `digests` remembers, so that the next start is quick.
///
/// # Errors
/// [`Error::Invalid`] saying what is missing, stale, edited or failed, with the command to run; [`Error::Io`].
pub fn check(paths: &Paths, backend: Backend, digests: &mut Digests) -> Result<Pass> {
    let advice = || format!("run `{}`", command(paths, backend));
    find(paths, backend, digests).map_err(|error| error.with_hint(advice()))
}

fn find(paths: &Paths, backend: Backend, digests: &mut Digests) -> Result<Pass> {
    let file = paths.folder.join(RECORD_FILE);
    let place = file.display().to_string();
    let missing = |found: &dyn std::fmt::Display| {
        Err(Error::invalid(&place, "verdict", format!("a pass of this export on {backend}"), found))
    };
    if !file.exists() {
        return missing(&"no such file");
    }
    let json = match Bytes::map(&file) {
        Ok(json) => json,
        Err(error) => return missing(&format_args!("something else: {error}")),
    };
    let document = Document::parse(&place, &json)?;
    let Some(record) = document.of(backend) else {
        return missing(&"none for this kind of device");
    };
    if record.verdict != Outcome::Pass {
        let failed: Vec<&str> = record.comparisons.iter().filter(|c| !c.passed).map(|c| c.name.as_str()).collect();
        return missing(&format_args!("a failure: {}", failed.join(", ")));
    }
    if record.engine.sources != ENGINE_SOURCES {
        let found = format!("one by another engine (version {})", record.engine.version);
        return missing(&format_args!("{found}: it is stale"));
    }
    check_limits(record, &place)?;
    check_files(record, paths, &place, digests)?;
    Ok(Pass { backend, mode: record.mode, limits: record.limits, record: record.digest.clone() })
}

/// The record has all comparisons that a pass needs, and its limits are the built-in ones wherever it says so.
fn check_limits(record: &Record, place: &str) -> Result<()> {
    if let Some(name) = REQUIRED.iter().find(|name| !record.comparisons.iter().any(|c| c.name == **name)) {
        return Err(Error::invalid(place, *name, "a comparison of this name", "none: the record is not whole"));
    }
    let kind = limits::kind_of(&record.comparisons).map_err(|name| {
        Error::invalid(place, name, "a comparison that this program knows", "an unknown one: it was edited")
    })?;
    match kind == record.limits {
        true => Ok(()),
        false => Err(Error::invalid(place, "limits", "those of the comparisons", "others: it was edited")),
    }
}

/// Every file is the one that was verified, and none is missing or new.
fn check_files(record: &Record, paths: &Paths, place: &str, digests: &mut Digests) -> Result<()> {
    let mut verified: Vec<_> = record.export.files.iter().collect();
    for (name, path) in paths.named() {
        let Some(index) = verified.iter().position(|file| file.name == name) else {
            return Err(Error::invalid(place, name, "the files that were verified", "a file that was not"));
        };
        let (expected, found) = (&verified.swap_remove(index).content, digests.of(path)?);
        if *expected != found {
            let short = |sha256: &str| sha256.chars().take(12).collect::<String>();
            return Err(Error::invalid(
                place,
                name,
                format!("the file that was verified (SHA-256 {}…)", short(&expected.sha256)),
                format!("another ({}…)", short(&found.sha256)),
            ));
        }
    }
    match verified.first() {
        Some(file) => Err(Error::invalid(place, &file.name, "the file that was verified", "no such file")),
        None => Ok(()),
    }
}

/// The command that makes the pass.
fn command(paths: &Paths, backend: Backend) -> String {
    let folder = quoted(&paths.folder);
    let device = if backend == Backend::Cuda { " --device cuda" } else { "" };
    if paths.folder.join(REFERENCE_FILE).exists() {
        return format!("rumik-verify {folder}{device}");
    }
    let report = paths.report.as_ref().and_then(|path| Report::parse(RECORD_FILE, &Bytes::map(path).ok()?).ok());
    let source = report.map(|report| report.source.name).filter(|name| name.contains('/'));
    format!("rumik-verify {folder} --source {}{device}", source.as_deref().unwrap_or("SOURCE"))
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@~".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
