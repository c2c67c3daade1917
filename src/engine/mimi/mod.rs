//! Streaming Mimi decoder: codes in, samples out, frame by frame and exactly as in one piece.
//!
//! ```text
//! codes [t, q] ─quantizer─▶ latents [t, hidden] ─upsample─▶ [2t, hidden] ─transformer─▶ [2t, hidden] ─seanet─▶ samples
//! ```
//!
//! Everything is causal. A [`State`] keeps what later samples still depend on: the past rows of every convolution and
//! the keys and values of the attention window. It never grows, so a stream may run for ever. A [`Decoder`] never
//! changes, so any number of streams share one.
//!
//! Sequences are row-major, time first. Source: Défossez et al., "Moshi" (2024), and `MimiModel` of transformers, whose
//! tensor names the file uses.

mod conv;
pub(crate) mod gemm;
pub mod ops;
mod quantizer;
mod seanet;
pub(crate) mod simd;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transformer;

use conv::{History, Upsample};
use quantizer::Quantizer;
use seanet::{LayerState, SeaNet};
use transformer::Transformer;

use crate::config::CodecConfig;
use crate::error::{Error, Result};
use crate::tensors::TensorFile;

/// Positions of the transformer per frame.
const UPSAMPLING: usize = 2;
/// Frames run at once. More would read the weights less often and the cache would no longer hold the widest layer.
const BLOCK_FRAMES: usize = 4;

/// The weights of the decoder half, shared by all streams.
#[derive(Debug)]
pub struct Decoder {
    quantizer: Quantizer,
    upsample: Upsample,
    transformer: Transformer,
    seanet: SeaNet,
    samples_per_frame: usize,
}

/// One stream: what the samples to come depend on, and working memory. Made by [`Decoder::state`], for that decoder.
#[derive(Clone, Debug)]
pub struct State {
    upsample: History,
    transformer: transformer::State,
    seanet: Vec<LayerState>,
    scratch: [Vec<f32>; 3],
}

impl State {
    /// Forgets everything; the next frame is the first.
    pub fn reset(&mut self) {
        self.upsample.reset();
        self.transformer.reset();
        self.seanet.iter_mut().for_each(LayerState::reset);
    }
}

impl Decoder {
    /// Reads the decoder half of a MimiModel; tensors of the encoder are not looked at.
    ///
    /// `num_quantizers` codebooks are read, the first of the file; every frame has that many codes.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file and tensor: missing, of another type or shape, or not finite.
    /// [`Error::Invalid`] for a configuration that no decoder can have. [`Error::Input`] when the codec has fewer
    /// codebooks.
    pub fn load(config: &CodecConfig, weights: &TensorFile, num_quantizers: usize) -> Result<Decoder> {
        if !(1..=config.num_quantizers).contains(&num_quantizers) {
            let message = format!("{num_quantizers} asked for, the codec has 1 to {}", config.num_quantizers);
            return Err(Error::input("num_quantizers", message));
        }
        check(config, weights)?;
        Ok(Decoder {
            quantizer: Quantizer::load(weights, config, num_quantizers)?,
            upsample: Upsample::load(weights, config.hidden_size, UPSAMPLING)?,
            transformer: Transformer::load(weights, config)?,
            seanet: SeaNet::load(weights, config)?,
            samples_per_frame: config.samples_per_frame(),
        })
    }

    /// Samples a frame.
    pub fn samples_per_frame(&self) -> usize {
        self.samples_per_frame
    }

    /// Codes a frame.
    pub fn num_quantizers(&self) -> usize {
        self.quantizer.num_quantizers()
    }

    /// A stream before its first frame.
    pub fn state(&self) -> State {
        State {
            upsample: self.upsample.history(),
            transformer: self.transformer.state(),
            seanet: self.seanet.state(),
            scratch: Default::default(),
        }
    }

    /// Decodes the next frames of a stream and appends their samples to `out`.
    ///
    /// `codes: [frames, num_quantizers]`, one frame or more; `frames * samples_per_frame` samples, full scale ±1, not
    /// clipped. The samples are the same bits however a stream is cut into steps.
    ///
    /// # Errors
    /// [`Error::Shape`] for a partial frame or none, [`Error::Input`] for a code out of range; the stream is unchanged.
    pub fn step(&self, state: &mut State, codes: &[u32], out: &mut Vec<f32>) -> Result<()> {
        self.quantizer.check(codes)?;
        // Once into the thread pool for all products: each of them entering it would wake a thread anew.
        rayon::scope(|_| {
            for codes in codes.chunks(BLOCK_FRAMES * self.num_quantizers()) {
                self.step_block(state, codes);
                out.extend_from_slice(&state.scratch[0]);
            }
        });
        Ok(())
    }

    /// Leaves the samples in the first scratch buffer.
    fn step_block(&self, state: &mut State, codes: &[u32]) {
        let State { upsample, transformer, seanet, scratch: [x, y, z] } = state;
        self.quantizer.step(codes, x, y);
        self.upsample.step(upsample, y, x);
        self.transformer.step(transformer, x);
        self.seanet.step(seanet, x, y, z);
    }
}

/// What the sizes must satisfy among themselves; the shapes of the tensors show the rest.
fn check(config: &CodecConfig, weights: &TensorFile) -> Result<()> {
    let invalid = |item: &str, expected: String, found: usize| {
        Err(Error::invalid(format!("the config.json of {}", weights.place()), item, expected, found))
    };
    if !config.head_dim.is_multiple_of(2) {
        return invalid("head_dim", "an even number (RoPE rotates pairs)".into(), config.head_dim);
    }
    if config.compress > config.num_filters {
        let expected = format!("at most num_filters {}, or residual units have no channels", config.num_filters);
        return invalid("compress", expected, config.compress);
    }
    Ok(())
}
