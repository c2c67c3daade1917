//! What a recogniser understands of both models' speech: error rates of characters and words, and their rise.
//!
//! English and Hindi prompts are written down by Whisper and compared with their text in one normalised form
//! ([`words`]). Other prompts are not judged: a mixed or romanised line has no single right spelling. The recogniser's own
//! errors are in both models' rates; only the rise from one to the other is held to a limit.
//!
//! `docs/verification.md`, section "Error rates", has what was measured.

pub mod mel;
mod rates;
mod resample;
mod text;
mod whisper;

pub use rates::{ErrorRates, Errors, Heard, LIMITS, judge};
pub use resample::resample;
pub use text::words;
pub use whisper::{DEFAULT_REPO, Whisper};

use serde::{Deserialize, Serialize};

use super::prompts::Group;
use crate::speech::Lang;

/// A language that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant is the language it names")]
pub enum Language {
    English,
    Hindi,
}

impl Language {
    /// The language of a group of prompts; `None` for a group that is not judged.
    pub fn of(group: Group) -> Option<Language> {
        match group {
            Group::English => Some(Language::English),
            Group::Hindi => Some(Language::Hindi),
            _ => None,
        }
    }

    /// The recogniser's token for it.
    fn token(self) -> &'static str {
        match self {
            Language::English => "<|en|>",
            Language::Hindi => "<|hi|>",
        }
    }

    fn lang(self) -> Lang {
        match self {
            Language::English => Lang::English,
            Language::Hindi => Lang::Hindi,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Language::English => "english",
            Language::Hindi => "hindi",
        }
    }
}
