//! What is heard: the speech of both models, prompt by prompt, from the same noise.
//!
//! A logit gate alone has passed int4 exports that rambled. Here every take is measured by itself ([`TakeFacts`]) and held
//! against the reference's take of the same prompt ([`judge`]): a fault must be new with the export, not the model's own.
//!
//! `docs/verification.md`, section "Audio gates", has what was measured and why the limits stand where they do.

mod codec;
mod facts;
mod gates;
mod level;
mod speak;
#[cfg(test)]
mod testing;

pub use codec::OneShot;
pub use facts::{Layout, TakeFacts};
pub use gates::{LIMITS, Rates, judge};
pub use level::{Sound, WINDOW_MS};
pub use speak::{Pair, Spoken, pair, speak};

use serde::{Deserialize, Serialize};

use crate::engine::End;

/// One utterance by one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    /// Tokens chosen, the final `</audio>` included if there is one.
    pub tokens: Vec<u32>,
    /// Codes of the complete frames, `[frames, num_quantizers]`.
    pub codes: Vec<u32>,
    /// Samples, full scale ±1.
    pub pcm: Vec<f32>,
    /// Why it ended.
    pub end: End,
}

/// A prompt, spoken by both models and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairFacts {
    /// Id of the prompt.
    pub id: String,
    /// The reference's take.
    pub reference: TakeFacts,
    /// The engine's take.
    pub engine: TakeFacts,
    /// Signal-to-noise ratio in dB of the engine's streamed samples against [`OneShot`] of the same codes.
    #[serde(with = "super::number")]
    pub streaming_snr_db: f64,
}
