//! A codec with the shapes of the published Mimi and random weights, for tests and benchmarks without a download.

use std::collections::BTreeMap;

use rumik::config::CodecConfig;
use rumik::tensors::{Dtype, TensorFile};
use safetensors::tensor::TensorView;

/// Codebooks that rumik-oss-1 uses.
pub const NUM_QUANTIZERS: usize = 8;

/// The sizes of `kyutai/mimi`.
pub fn published_config() -> CodecConfig {
    CodecConfig {
        sampling_rate: 24_000,
        hidden_size: 512,
        num_filters: 64,
        num_hidden_layers: 8,
        num_attention_heads: 8,
        head_dim: 64,
        intermediate_size: 2048,
        sliding_window: 250,
        rope_theta: 10_000.0,
        norm_eps: 1e-5,
        num_quantizers: 32,
        num_semantic_quantizers: 1,
        codebook_size: 2048,
        codebook_dim: 256,
        upsampling_ratios: vec![8, 6, 5, 4],
        kernel_size: 7,
        last_kernel_size: 3,
        residual_kernel_size: 3,
        num_residual_layers: 1,
        dilation_growth_rate: 2,
        compress: 2,
    }
}

/// Reproducible values, uniform in ±1.
pub fn noise(seed: u32) -> impl Iterator<Item = f32> {
    std::iter::successors(Some(seed), |s| Some(s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
        .skip(1)
        .map(|s| (s >> 8) as f32 / (1 << 23) as f32 - 1.0)
}

/// Random codes, `[frames, NUM_QUANTIZERS]`.
pub fn random_codes(config: &CodecConfig, seed: u32, frames: usize) -> Vec<u32> {
    let code = |v: f32| ((v + 1.0) / 2.0 * config.codebook_size as f32) as u32;
    noise(seed).take(frames * NUM_QUANTIZERS).map(code).collect()
}

/// A tensor to make up: its name, its shape, and how many inputs are summed with it (0 for a tensor of ones).
type Plan = (String, Vec<usize>, usize);

/// The decoder half of a codec file: weights that keep the size of what passes through; norms, layer scales and usage
/// counts of one.
pub fn random_weights(config: &CodecConfig) -> TensorFile {
    let values = |(shape, inputs, seed): (&[usize], usize, u32)| -> Vec<u8> {
        // A uniform variable in ±1 has the variance 1/3.
        let value = |v: f32| if inputs == 0 { 1.0 } else { v * (3.0 / inputs as f32).sqrt() };
        noise(seed).take(shape.iter().product()).flat_map(|v| value(v).to_le_bytes()).collect()
    };
    let plans = decoder_tensors(config);
    let data: Vec<Vec<u8>> =
        plans.iter().zip(1..).map(|((_, shape, inputs), seed)| values((shape, *inputs, seed))).collect();
    let views: BTreeMap<&str, TensorView<'_>> = plans
        .iter()
        .zip(&data)
        .map(|((name, shape, _), data)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), data).unwrap()))
        .collect();
    TensorFile::from_bytes("random codec", safetensors::serialize(views, None).unwrap().into()).unwrap()
}

fn decoder_tensors(config: &CodecConfig) -> Vec<Plan> {
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let (codes, dim) = (config.codebook_size, config.codebook_dim);
    let width = config.num_attention_heads * config.head_dim;
    let mut plans = Vec::new();
    let mut plan = |name: String, shape: &[usize], inputs: usize| plans.push((name, shape.to_vec(), inputs));

    for (part, layers) in [("semantic", 1), ("acoustic", NUM_QUANTIZERS - 1)] {
        let part = format!("quantizer.{part}_residual_vector_quantizer");
        for layer in 0..layers {
            plan(format!("{part}.layers.{layer}.codebook.embed_sum"), &[codes, dim], 3);
            plan(format!("{part}.layers.{layer}.codebook.cluster_usage"), &[codes], 0);
        }
        plan(format!("{part}.output_proj.weight"), &[hidden, dim, 1], dim);
    }
    plan("upsample.conv.weight".into(), &[hidden, 1, 4], 2);
    for layer in 0..config.num_hidden_layers {
        let mut plan = |part: &str, shape: &[usize], inputs| {
            plan(format!("decoder_transformer.layers.{layer}.{part}"), shape, inputs);
        };
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            plan(&format!("{norm}.weight"), &[hidden], 0);
            plan(&format!("{norm}.bias"), &[hidden], 100);
        }
        for projection in ["q_proj", "k_proj", "v_proj"] {
            plan(&format!("self_attn.{projection}.weight"), &[width, hidden], hidden);
        }
        plan("self_attn.o_proj.weight", &[hidden, width], width);
        plan("mlp.fc1.weight", &[wide, hidden], hidden);
        plan("mlp.fc2.weight", &[hidden, wide], wide);
        plan("self_attn_layer_scale.scale", &[hidden], 0);
        plan("mlp_layer_scale.scale", &[hidden], 0);
    }
    let mut conv = |name: String, shape: [usize; 3], outputs: usize, inputs: usize| {
        plan(format!("decoder.layers.{name}.conv.weight"), &shape, inputs);
        plan(format!("decoder.layers.{name}.conv.bias"), &[outputs], 100);
    };
    let mut channels = config.num_filters << config.upsampling_ratios.len();
    conv("0".into(), [channels, hidden, config.kernel_size], channels, hidden * config.kernel_size);
    for (stage, ratio) in config.upsampling_ratios.iter().enumerate() {
        let (inputs, outputs, inner, index) = (channels, channels / 2, channels / 4, 2 + 3 * stage);
        conv(index.to_string(), [inputs, outputs, 2 * ratio], outputs, 2 * inputs);
        let kernel = config.residual_kernel_size;
        conv(format!("{}.block.1", index + 1), [inner, outputs, kernel], inner, outputs * kernel);
        conv(format!("{}.block.3", index + 1), [outputs, inner, 1], outputs, inner);
        channels = outputs;
    }
    let last = 2 + 3 * config.upsampling_ratios.len();
    conv(last.to_string(), [1, channels, config.last_kernel_size], 1, channels * config.last_kernel_size);
    plans
}
