//! The seam between what speaks and what it runs on.
//!
//! A backend owns everything that changes while speaking: the KV cache, positions, the last token, seeds, the stop rule,
//! frame assembly and the codec's streaming state. The caller fills slots, asks for one frame period at a time and takes
//! what came out. Nothing crosses the seam per token, so a device backend can run eight tokens and the codec in one
//! submission and hand back token ids, the end flag and PCM from pinned memory.
//!
//! ```text
//! admit(slot, request) ── prefill ×n ──▶ running ── step ×n ──▶ ended ── reset(slot) ──▶ free
//!                                        running ◀── hold(slot, bool) ──▶ held
//! ```

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod footprint;
pub mod frames;
pub mod kv;
mod metered;
pub mod mimi;
pub mod phase;
pub mod sampler;
pub mod tuning;

pub use metered::{KernelTime, MemoryUse, Metered, Spread, Traffic};

use crate::config::ModelConfig;
use crate::error::Result;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 means greedy.
    pub temperature: f32,
    /// Number of best rows that take part; ties go to the lower row.
    pub top_k: usize,
}

impl Default for Sampling {
    /// The model's own values: temperature 0.8, top-k 30.
    fn default() -> Sampling {
        Sampling { temperature: 0.8, top_k: 30 }
    }
}

/// One utterance to speak.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Prompt ids, from BOS to `<audio>`.
    pub prompt: &'a [u32],
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Steps after which speech ends whatever the model wants.
    pub max_new_tokens: usize,
    /// Seed of the noise. Noise is a function of (seed, sequence, step, row), so that a request sounds the same whoever
    /// shares the batch.
    pub seed: u64,
    /// Number of this utterance within its request, so that chunks of one text draw different noise.
    pub sequence: u32,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The stop head's probability passed the threshold.
    StopHead,
    /// `</audio>` was chosen.
    AudioEnd,
    /// `max_new_tokens` were made.
    Length,
}

/// What one slot made in one frame period.
///
/// PCM may come later than the tokens it belongs to (a backend may run the codec beside the next frame), but never out of
/// order, and the step that carries `end` carries the last of it.
#[derive(Debug)]
pub struct Step<'a> {
    /// The slot.
    pub slot: usize,
    /// Token ids chosen, at most `num_quantizers`; the last is `</audio>` when the speech ended by it.
    pub tokens: &'a [u32],
    /// Codes of the frames completed, `[frames, num_quantizers]`.
    pub codes: &'a [u32],
    /// Samples ready, a multiple of the frame length, full scale ±1; empty without a codec.
    pub pcm: &'a [f32],
    /// Set once, on the last step of the sequence.
    pub end: Option<End>,
}

/// What the model makes of one position, for comparison with a reference.
#[derive(Debug)]
pub struct Scores<'a> {
    /// Position in the sequence.
    pub position: usize,
    /// Output of the last LayerNorm, `[hidden]`.
    pub hidden: &'a [f32],
    /// Scaled logits of the audio rows, `[audio_rows]`, in the order of `audio_ids`.
    pub logits: &'a [f32],
    /// P(stop).
    pub stop_probability: f32,
}

/// Watches a sequence go through the model.
pub trait Observer {
    /// Called for every position in order.
    fn position(&mut self, scores: Scores<'_>);

    /// Called for every layer and position with the residual stream after the layer, `[hidden]`.
    fn layer(&mut self, _layer: usize, _position: usize, _residual: &[f32]) {}
}

/// The kinds of backend. A pass is for one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backend {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
        })
    }
}

/// What a backend is and what it holds.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its kind.
    pub kind: Backend,
    /// Backend and instruction set or device, for people: `cpu (avx512-vnni, 2 threads)`.
    pub backend: String,
    /// The model.
    pub config: ModelConfig,
    /// Sequences that can run at once.
    pub slots: usize,
    /// Positions a slot can hold, prompt and new tokens together.
    pub positions: usize,
    /// Samples a frame; 0 without a codec.
    pub samples_per_frame: usize,
    /// Samples a second; 0 without a codec.
    pub sample_rate_hz: usize,
    /// Steps by which samples may come after their tokens ([`Step`]), but for a slot's first and last.
    pub steps_late: usize,
    /// Token id of each row of `Scores::logits`.
    pub audio_ids: Vec<u32>,
}

/// A backend: the int4 model, its cache and its codec on one device.
///
/// One thread owns it. Every slot's output is bit-identical to running alone, whatever the other slots do.
pub trait Engine: Send {
    /// What it is.
    fn info(&self) -> &Info;

    /// Puts an utterance into a free slot. Its prompt is run by [`Engine::prefill`].
    ///
    /// # Errors
    /// [`crate::Error::Input`] for a prompt that is empty, holds an id outside the vocabulary or does not fit the slot
    /// together with `max_new_tokens`, or for sampling values out of range; the slot stays free. Device errors.
    fn admit(&mut self, slot: usize, request: &Request<'_>) -> Result<()>;

    /// Runs the next piece of an admitted prompt, a bounded number of positions; `true` when the slot is running.
    ///
    /// Frames of other slots may be made between the pieces: how a prompt is cut changes no bit of any output. A slot that
    /// is running, ended or free is left as it is.
    ///
    /// # Errors
    /// Device errors; the slot must be reset afterwards.
    fn prefill(&mut self, slot: usize) -> Result<bool>;

    /// Puts an utterance into a free slot and runs its whole prompt.
    ///
    /// # Errors
    /// As [`Engine::admit`] and [`Engine::prefill`].
    fn start(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        self.admit(slot, request)?;
        while !self.prefill(slot)? {}
        Ok(())
    }

    /// Holds a slot, or lets it go on: a held slot keeps all its state and is not stepped, which changes no bit of what it
    /// makes later. [`Engine::reset`] and [`Engine::admit`] end it.
    fn hold(&mut self, slot: usize, held: bool);

    /// Device memory reserved for weights, cache and codec, in bytes; 0 on the processor.
    fn device_bytes(&self) -> usize {
        0
    }

    /// Advances every running slot by up to one frame of tokens and calls `sink` once for each of them, in slot order.
    ///
    /// A slot that ended is not stepped again until it is reset and admitted; one that is held, not until it is let go.
    ///
    /// # Errors
    /// Device errors; every slot must be reset afterwards.
    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()>;

    /// Frees a slot at once, whatever its state; the next utterance in it behaves as in a new engine.
    fn reset(&mut self, slot: usize);

    /// Teacher forcing: runs `tokens` from position 0 in a free slot and shows every position. The slot is free again
    /// afterwards.
    ///
    /// # Errors
    /// As [`Engine::admit`].
    fn score(&mut self, slot: usize, tokens: &[u32], observer: &mut dyn Observer) -> Result<()>;
}
