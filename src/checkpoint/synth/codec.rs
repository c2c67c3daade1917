//! The codec's random weights, encoder included, so that its size is the real one's.

use super::super::codec::{codec_tensors, convolution, residual_unit, transformer};
use super::filled;
use super::weights::{Fill, Weight};
use crate::config::CodecConfig;

/// Every tensor of `codec/model.safetensors`, in the order of names.
pub(super) fn weights(config: &CodecConfig) -> Vec<Weight> {
    let mut tensors = codec_tensors(config, config.num_quantizers);
    let codebooks = tensors.iter().filter_map(|(name, _)| name.strip_suffix("embed_sum"));
    let initialized: Vec<_> = codebooks.map(|prefix| (format!("{prefix}initialized"), vec![1])).collect();
    tensors.extend(initialized);
    for part in ["semantic", "acoustic"] {
        let name = format!("quantizer.{part}_residual_vector_quantizer.input_proj.weight");
        tensors.push((name, vec![config.codebook_dim, config.hidden_size, 1]));
    }
    tensors.push(("downsample.conv.weight".to_owned(), vec![config.hidden_size, config.hidden_size, 4]));
    transformer(config, "encoder_transformer", &mut tensors);
    encoder(config, &mut tensors);
    tensors.sort();
    filled(tensors, fill)
}

/// The SEANet encoder: the decoder's mirror image.
fn encoder(config: &CodecConfig, tensors: &mut Vec<(String, Vec<usize>)>) {
    let mut wide = config.num_filters;
    convolution("encoder.layers.0".to_owned(), [wide, 1, config.kernel_size], wide, tensors);
    let mut layer = 1;
    for ratio in config.upsampling_ratios.iter().rev() {
        for unit in 0..config.num_residual_layers {
            residual_unit(config, &format!("encoder.layers.{}", layer + unit), wide, tensors);
        }
        layer += config.num_residual_layers + 1;
        convolution(format!("encoder.layers.{layer}"), [2 * wide, wide, 2 * ratio], 2 * wide, tensors);
        wide *= 2;
        layer += 1;
    }
    let last = [config.hidden_size, wide, config.last_kernel_size];
    convolution(format!("encoder.layers.{}", layer + 1), last, config.hidden_size, tensors);
}

/// Standard deviations that keep the signal's level from layer to layer; ELU takes about a fifth, the gain gives it back.
fn fill(name: &str, shape: &[usize]) -> Fill {
    const GAIN: f32 = 1.2;
    let root = |fan_in: usize| 1.0 / (fan_in as f32).sqrt();
    let transposed = name.starts_with("decoder.layers.") && shape.len() == 3 && shape[2].is_multiple_of(2);
    match name {
        _ if name.ends_with("cluster_usage") => Fill::normal(4.0, 0.5),
        _ if name.ends_with("initialized") => Fill::normal(1.0, 0.0),
        _ if name.ends_with("embed_sum") => Fill::normal(0.0, 4.0),
        _ if name.ends_with("norm.weight") => Fill::normal(1.0, 0.02),
        _ if name.ends_with("layer_scale.scale") => Fill::normal(0.01, 0.001),
        _ if name.ends_with(".bias") => Fill::normal(0.0, 0.01),
        "upsample.conv.weight" => Fill::normal(0.0, 0.7),
        _ if transposed => Fill::normal(0.0, GAIN * root(2 * shape[0])), // two taps of the kernel meet each output
        _ if shape[0] == 1 => Fill::normal(0.0, 0.1 * root(shape[1..].iter().product())), // the waveform
        _ => Fill::normal(0.0, GAIN * root(shape[1..].iter().product())),
    }
}
