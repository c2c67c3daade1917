//! What failed, whether it is worth another try, and how long to wait before it.

use std::time::Duration;

use super::settings::Settings;
use crate::error::{Error, Result};

/// Longest wait between two tries that the server did not ask for.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Why one request failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// What to say if there is no other try, or if it fails as well.
    error: Box<Error>,
    kind: Kind,
    /// The wait that the server asked for.
    wait: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It will fail the same way again.
    Final,
    /// It stopped in the middle and may work next time.
    Transient,
    /// Nothing of use was heard from the server, which may work next time.
    Unreachable,
}

impl Failure {
    /// A failure in the middle of an answer.
    pub(super) fn transient(error: Error) -> Failure {
        Failure { error: Box::new(error), kind: Kind::Transient, wait: None }
    }

    /// A failure before any answer, or a server that has no time now.
    pub(super) fn unreachable(error: Error, wait: Option<Duration>) -> Failure {
        Failure { error: Box::new(error), kind: Kind::Unreachable, wait }
    }

    pub(super) fn is_unreachable(&self) -> bool {
        self.kind == Kind::Unreachable
    }

    pub(super) fn into_error(self) -> Error {
        *self.error
    }
}

/// A failure that no other try can mend.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error: Box::new(error), kind: Kind::Final, wait: None }
    }
}

/// Counts failures in a row.
pub(super) struct Retry {
    limit: u32,
    backoff: Duration,
    failures: u32,
}

impl Retry {
    pub(super) fn new(settings: &Settings) -> Retry {
        Retry { limit: settings.retries, backoff: settings.backoff, failures: 0 }
    }

    /// Forgets the failures so far: there was progress.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// The failure's own, when it is final or was one too many.
    pub(super) fn wait(&mut self, failure: Failure) -> Result<()> {
        if failure.kind == Kind::Final || self.failures == self.limit {
            return Err(failure.into_error());
        }
        let doubled = self.backoff.saturating_mul(1 << self.failures.min(16));
        std::thread::sleep(failure.wait.unwrap_or(doubled.min(MAX_BACKOFF)));
        self.failures += 1;
        Ok(())
    }

    /// Tries until it works.
    ///
    /// # Errors
    /// As [`Retry::wait`].
    pub(super) fn run<T>(mut self, mut attempt: impl FnMut() -> std::result::Result<T, Failure>) -> Result<T> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => self.wait(failure)?,
            }
        }
    }
}
