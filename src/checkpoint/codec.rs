//! The tensors of the codec's decoder half, in the MimiModel layout of transformers.

use std::collections::BTreeMap;

use super::outline::SourceTensor;
use crate::config::{CodecConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::tensors::Dtype;

/// What the codec's headers say.
#[derive(Clone, Debug)]
pub struct CodecOutline {
    /// `codec/config.json`.
    pub config: CodecConfig,
    /// Size of `codec/model.safetensors`.
    pub bytes: u64,
}

/// Every tensor that decoding `codebooks` codebooks reads, with its shape.
///
/// Transposed convolutions are `[in, out, kernel]`, the others `[out, in, kernel]`.
pub fn codec_tensors(config: &CodecConfig, codebooks: usize) -> Vec<(String, Vec<usize>)> {
    let mut tensors = Vec::new();
    quantizer(config, codebooks, &mut tensors);
    tensors.push(("upsample.conv.weight".to_owned(), vec![config.hidden_size, 1, 4]));
    transformer(config, "decoder_transformer", &mut tensors);
    seanet(config, &mut tensors);
    tensors
}

fn quantizer(config: &CodecConfig, codebooks: usize, tensors: &mut Vec<(String, Vec<usize>)>) {
    let semantic = config.num_semantic_quantizers.min(codebooks);
    for (part, layers) in [("semantic", semantic), ("acoustic", codebooks - semantic)] {
        let part = format!("quantizer.{part}_residual_vector_quantizer");
        for layer in 0..layers {
            let codebook = format!("{part}.layers.{layer}.codebook");
            tensors.push((format!("{codebook}.embed_sum"), vec![config.codebook_size, config.codebook_dim]));
            tensors.push((format!("{codebook}.cluster_usage"), vec![config.codebook_size]));
        }
        if layers > 0 {
            tensors.push((format!("{part}.output_proj.weight"), vec![config.hidden_size, config.codebook_dim, 1]));
        }
    }
}

/// The layers of the encoder's or decoder's transformer.
pub(super) fn transformer(config: &CodecConfig, prefix: &str, tensors: &mut Vec<(String, Vec<usize>)>) {
    let (hidden, heads) = (config.hidden_size, config.num_attention_heads * config.head_dim);
    for layer in 0..config.num_hidden_layers {
        let mut add =
            |name: &str, shape: &[usize]| tensors.push((format!("{prefix}.layers.{layer}.{name}"), shape.into()));
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(&format!("{norm}.weight"), &[hidden]);
            add(&format!("{norm}.bias"), &[hidden]);
        }
        for projection in ["q_proj", "k_proj", "v_proj"] {
            add(&format!("self_attn.{projection}.weight"), &[heads, hidden]);
        }
        add("self_attn.o_proj.weight", &[hidden, heads]);
        add("self_attn_layer_scale.scale", &[hidden]);
        add("mlp.fc1.weight", &[config.intermediate_size, hidden]);
        add("mlp.fc2.weight", &[hidden, config.intermediate_size]);
        add("mlp_layer_scale.scale", &[hidden]);
    }
}

/// One convolution: weight and bias.
pub(super) fn convolution(name: String, shape: [usize; 3], outputs: usize, tensors: &mut Vec<(String, Vec<usize>)>) {
    tensors.push((format!("{name}.conv.weight"), shape.to_vec()));
    tensors.push((format!("{name}.conv.bias"), vec![outputs]));
}

/// One residual unit: a convolution into fewer channels and one back.
pub(super) fn residual_unit(config: &CodecConfig, name: &str, wide: usize, tensors: &mut Vec<(String, Vec<usize>)>) {
    let narrow = wide / config.compress;
    convolution(format!("{name}.block.1"), [narrow, wide, config.residual_kernel_size], narrow, tensors);
    convolution(format!("{name}.block.3"), [wide, narrow, 1], wide, tensors);
}

/// The SEANet decoder. Its `layers` count activations too: a convolution, then per ratio an ELU, a transposed convolution and
/// the residual units, then an ELU and the last convolution.
fn seanet(config: &CodecConfig, tensors: &mut Vec<(String, Vec<usize>)>) {
    let mut wide = config.num_filters << config.upsampling_ratios.len();
    convolution("decoder.layers.0".to_owned(), [wide, config.hidden_size, config.kernel_size], wide, tensors);
    let mut layer = 2;
    for ratio in &config.upsampling_ratios {
        convolution(format!("decoder.layers.{layer}"), [wide, wide / 2, 2 * ratio], wide / 2, tensors);
        wide /= 2;
        for unit in 1..=config.num_residual_layers {
            residual_unit(config, &format!("decoder.layers.{}", layer + unit), wide, tensors);
        }
        layer += config.num_residual_layers + 2;
    }
    convolution(format!("decoder.layers.{layer}"), [1, wide, config.last_kernel_size], 1, tensors);
}

/// Checks that codec and language model fit each other, and every tensor the decoder reads.
pub(super) fn check(
    place: &str,
    codec: &CodecConfig,
    model: &ModelConfig,
    found: &BTreeMap<String, SourceTensor>,
) -> Result<()> {
    let config = |item: &str, expected: String, found: String| Error::invalid(place, item, expected, found);
    if codec.num_quantizers < model.num_quantizers {
        let expected = format!("at least {} (num_quantizers of the model)", model.num_quantizers);
        return Err(config("num_quantizers", expected, codec.num_quantizers.to_string()));
    }
    if codec.codebook_size != model.codebook_size {
        let expected = format!("{} (codebook_size of the model)", model.codebook_size);
        return Err(config("codebook_size", expected, codec.codebook_size.to_string()));
    }
    if codec.frame_rate_hz() != model.frame_rate_hz {
        let expected = format!("{} frames a second (frame_rate_hz of the model)", model.frame_rate_hz);
        return Err(config("upsampling_ratios", expected, codec.frame_rate_hz().to_string()));
    }
    if codec.num_hidden_layers + codec.num_residual_layers + model.num_quantizers > found.len() {
        // a number in a configuration must not decide how much memory its own check takes
        let expected = format!("no more layers and codebooks than the {} tensors of the file", found.len());
        let numbers = format!(
            "num_hidden_layers {}, num_residual_layers {}, {} codebooks",
            codec.num_hidden_layers, codec.num_residual_layers, model.num_quantizers
        );
        return Err(config("config.json", expected, numbers));
    }
    for (name, shape) in codec_tensors(codec, model.num_quantizers) {
        super::outline::check_tensor(place, found, &name, &[Dtype::F32, Dtype::BF16, Dtype::F16], &shape)?;
    }
    Ok(())
}
