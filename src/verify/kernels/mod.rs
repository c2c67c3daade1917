//! Known-answer tests of every kernel of a backend.
//!
//! Each kernel gets inputs whose exact answer is known in closed form, chosen so that a likely fault (nibbles swapped, a minimum
//! counted twice, a group or window off by one, a value never written) changes the answer, and random ones of awkward shapes
//! against the plain operation that is its meaning. Outputs, caches and working memory hold a poison before. A kernel that
//! no test reached fails the run: see `registry`.

mod attention;
mod choice;
mod codec;
mod codec_plain;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod forward;
mod judge;
mod model;
#[cfg(all(test, feature = "cuda"))]
pub(crate) use model::random as random_model;
mod products;
pub mod registry;
#[cfg(test)]
mod tests;
mod values;
mod vectors;

use serde::Serialize;

use super::Verdict;
use crate::error::Result;

/// Whose kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The processor, on every instruction set that it has.
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
}

/// The result of the tests, as `rumik-verify kernels --json` writes it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The backend: `cpu`, `cuda:0`.
    pub device: String,
    /// True when every comparison passed and no kernel was left out.
    pub passed: bool,
    /// The comparisons, called `path.kernel.test`.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Runs the known-answer tests of every kernel of a backend.
///
/// # Errors
/// [`crate::Error::Unsupported`] without that GPU or without GPU code in this build; [`crate::Error::Device`]. A test that could not run is
/// an error, never a pass.
pub fn run(backend: Backend) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    match backend {
        Backend::Cpu => cpu::run(&mut verdict)?,
        Backend::Cuda(number) => on_gpu(&mut verdict, number)?,
    }
    Ok(verdict)
}

impl Backend {
    /// The first GPU if this build and this machine have one, else the processor.
    pub fn automatic() -> Backend {
        #[cfg(feature = "cuda")]
        if crate::engine::cuda::is_usable(0) {
            return Backend::Cuda(0);
        }
        Backend::Cpu
    }

    /// Runs the tests and says where.
    ///
    /// # Errors
    /// As [`run`].
    pub fn report(self) -> Result<Report> {
        let verdict = run(self)?;
        let device = match self {
            Backend::Cpu => "cpu".to_owned(),
            Backend::Cuda(number) => format!("cuda:{number}"),
        };
        Ok(Report { device, passed: verdict.passed(), verdict })
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(verdict: &mut Verdict, number: usize) -> Result<()> {
    cuda::run(verdict, number)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(_: &mut Verdict, _: usize) -> Result<()> {
    let why = "this build has no GPU code; build with --features cuda".to_owned();
    Err(crate::error::Error::Unsupported { what: "--device cuda".to_owned(), why })
}
