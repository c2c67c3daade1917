//! The codec by other hands: candle-transformers' Mimi, a whole utterance at once.

use std::collections::HashMap;

use candle_core::{DType, Device, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::mimi;

use crate::config::CodecConfig;
use crate::error::{Error, Result};
use crate::tensors::{Dtype, TensorFile};

/// Longest utterance, in frames: candle's rotary table ends at 8192 positions, two a frame.
const LONGEST_FRAMES: usize = 4096;

/// Decodes utterances in one piece, for the reference's speech and to hold the engine's streaming codec against.
pub struct OneShot {
    model: mimi::Model,
    num_quantizers: usize,
}

impl std::fmt::Debug for OneShot {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("OneShot").field("num_quantizers", &self.num_quantizers).finish_non_exhaustive()
    }
}

impl OneShot {
    /// Loads a codec with its first `num_quantizers` codebooks, in f32 on the CPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a codec of another design than the published Mimi, whatever its widths.
    /// [`Error::Invalid`] for tensors that are missing or cannot be read.
    pub fn load(config: &CodecConfig, weights: &TensorFile, num_quantizers: usize) -> Result<OneShot> {
        let mut tensors = HashMap::new();
        for (name, tensor) in weights.tensors() {
            if matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                let values = Tensor::from_vec(tensor.to_f32()?, tensor.shape.clone(), &Device::Cpu);
                tensors.insert(name.clone(), values.map_err(failure)?);
            }
        }
        let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let model = mimi::Model::new(candle_config(config, num_quantizers)?, builder);
        let model = model.map_err(|e| Error::invalid(weights.place(), "codec", "a MimiModel with its encoder", e))?;
        Ok(OneShot { model, num_quantizers })
    }

    /// Samples of `codes: [frames, num_quantizers]`; none for no frames.
    ///
    /// # Errors
    /// [`Error::Shape`] for a partial frame, [`Error::Input`] for more than 327 s or a code out of range.
    pub fn decode(&self, codes: &[u32]) -> Result<Vec<f32>> {
        let q = self.num_quantizers;
        if !codes.len().is_multiple_of(q) {
            let (expected, found) = (format!("a multiple of {q}"), codes.len().to_string());
            return Err(Error::Shape { operation: "codec", operand: "codes", expected, found });
        }
        let frames = codes.len() / q;
        if frames > LONGEST_FRAMES {
            return Err(Error::input(
                "codes",
                format!("{frames} frames; at most {LONGEST_FRAMES} are decoded at once"),
            ));
        }
        if frames == 0 {
            return Ok(Vec::new());
        }
        let wave = || -> CandleResult<Vec<f32>> {
            let codes = Tensor::from_slice(codes, (1, frames, q), &Device::Cpu)?.transpose(1, 2)?.contiguous()?;
            // A copy for each utterance: candle's position counts on for the life of an object. Weights are shared.
            self.model.clone().decode(&codes)?.flatten_all()?.to_vec1()
        };
        wave().map_err(failure)
    }
}

fn failure(error: candle_core::Error) -> Error {
    Error::Device { device: "candle".into(), action: "run the codec", reason: error.to_string() }
}

/// candle's own description of the published codec, in the widths of this one.
fn candle_config(config: &CodecConfig, num_quantizers: usize) -> Result<mimi::encodec::Config> {
    let mut theirs = mimi::Config::v0_1(Some(num_quantizers));
    let fixed = [
        ("sampling_rate", config.sampling_rate as f64, theirs.sample_rate),
        ("kernel_size", config.kernel_size as f64, theirs.seanet.kernel_size as f64),
        ("last_kernel_size", config.last_kernel_size as f64, theirs.seanet.last_kernel_size as f64),
        ("residual_kernel_size", config.residual_kernel_size as f64, theirs.seanet.residual_kernel_size as f64),
        ("num_residual_layers", config.num_residual_layers as f64, theirs.seanet.n_residual_layers as f64),
        ("compress", config.compress as f64, theirs.seanet.compress as f64),
        ("rope_theta", config.rope_theta, theirs.transformer.max_period as f64),
    ];
    if let Some((field, found, expected)) = fixed.into_iter().find(|(_, found, expected)| found != expected) {
        let why = format!("{field} is {found}; the independent decoder of the audio gates knows {expected} only");
        return Err(Error::Unsupported { what: "this codec".into(), why });
    }
    if config.upsampling_ratios != theirs.seanet.ratios {
        let why = format!("upsampling_ratios {:?}; only {:?}", config.upsampling_ratios, theirs.seanet.ratios);
        return Err(Error::Unsupported { what: "this codec".into(), why });
    }
    theirs.seanet.dimension = config.hidden_size;
    theirs.seanet.n_filters = config.num_filters;
    theirs.transformer.d_model = config.hidden_size;
    theirs.transformer.num_heads = config.num_attention_heads;
    theirs.transformer.num_layers = config.num_hidden_layers;
    theirs.transformer.dim_feedforward = config.intermediate_size;
    // candle's window of a whole sequence is `context` and the position itself; the model's includes the position.
    theirs.transformer.context = config.sliding_window - 1;
    theirs.quantizer_bins = config.codebook_size;
    theirs.quantizer_dim = config.codebook_dim;
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::engine::mimi::Decoder;
    use crate::verify::snr_db;

    /// Both sum in f32 in other orders, which leaves about 120 dB; a codec that loses its state falls below 30.
    const LEAST_SNR_DB: f64 = 90.0;
    const Q: usize = 8;

    fn codec() -> (OneShot, Decoder, CodecConfig) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/codec");
        let config = CodecConfig::parse("config.json", &std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let weights = TensorFile::open(&folder.join("model.safetensors")).unwrap();
        let decoder = Decoder::load(&config, &weights, Q).unwrap();
        (OneShot::load(&config, &weights, Q).unwrap(), decoder, config)
    }

    fn codes(frames: usize) -> Vec<u32> {
        crate::verify::audio::testing::noise(5).take(Q * frames).map(|v| ((v + 1.0) * 127.0) as u32).collect()
    }

    #[test]
    fn a_stream_is_the_whole_and_a_stream_that_forgets_is_not() {
        let (one_shot, decoder, _) = codec();
        let codes = codes(150); // past the attention window
        let expected = one_shot.decode(&codes).unwrap();
        let stream = |forget_at: usize| {
            let (mut state, mut pcm) = (decoder.state(), Vec::new());
            for (t, frame) in codes.chunks(Q).enumerate() {
                if t == forget_at {
                    state.reset();
                }
                decoder.step(&mut state, frame, &mut pcm).unwrap();
            }
            pcm
        };
        let (sound, forgetful) = (snr_db(&stream(usize::MAX), &expected), snr_db(&stream(70), &expected));
        println!("streamed {sound:.0} dB, state lost once {forgetful:.0} dB");
        assert!(sound > LEAST_SNR_DB && forgetful < 66.0, "{sound} {forgetful}");
        assert_eq!(one_shot.decode(&codes).unwrap(), expected); // nothing stays behind
    }

    #[test]
    fn what_cannot_be_decoded_is_refused() {
        let (one_shot, _, config) = codec();
        assert!(one_shot.decode(&[]).unwrap().is_empty());
        assert!(one_shot.decode(&[1, 2, 3]).is_err() && one_shot.decode(&vec![0; Q * (LONGEST_FRAMES + 1)]).is_err());
        assert!(one_shot.decode(&[100_000; Q]).is_err());
        let other = CodecConfig { kernel_size: 5, ..config };
        let error = candle_config(&other, Q).unwrap_err().to_string();
        assert!(error.contains("kernel_size is 5"), "{error}");
    }
}
