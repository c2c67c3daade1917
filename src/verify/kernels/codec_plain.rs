//! The codec of the known-answer tests by plain operations, over the whole sequence, sums in f64.

use super::codec::{Codec, PER_FRAME, PHASES, QUANTIZERS, codebook};
use crate::engine::mimi::ops;

impl Codec {
    fn get(&self, name: &str) -> &[f32] {
        self.tensors.get(name).map_or(&[], |(_, values)| values)
    }

    fn conv(&self, name: &str) -> (&[f32], &[f32]) {
        let of = |part: &str| self.get(&format!("decoder.layers.{name}.conv.{part}"));
        (of("weight"), of("bias"))
    }
}

/// Samples of `codes: [frames, QUANTIZERS]`.
pub(super) fn plain_decode(codec: &Codec, codes: &[u32]) -> Vec<f32> {
    let hidden = codec.config.hidden_size;
    let mut x = plain_latents(codec, codes);
    x = ops::depthwise_conv_transpose(&x, codec.get("upsample.conv.weight"), hidden, PER_FRAME);
    for layer in 0..codec.config.num_hidden_layers {
        plain_transformer_layer(codec, layer, &mut x);
    }
    let elu = |x: &[f32]| x.iter().map(|&x| ops::elu(x)).collect::<Vec<f32>>();
    let (first, up) = (codec.conv("0"), codec.conv("2"));
    x = ops::causal_conv(&x, first.0, first.1, 3, 1);
    x = ops::causal_conv_transpose(&elu(&x), up.0, up.1, 2 * PHASES, PHASES);
    let (wide, narrow, last) = (codec.conv("3.block.1"), codec.conv("3.block.3"), codec.conv("5"));
    let inner = ops::causal_conv(&elu(&x), wide.0, wide.1, 3, 1);
    let added = ops::causal_conv(&elu(&inner), narrow.0, narrow.1, 1, 1);
    x.iter_mut().zip(added).for_each(|(x, added)| *x += added);
    ops::causal_conv(&elu(&x), last.0, last.1, 3, 1)
}

/// Codes to `[frames, hidden]`.
fn plain_latents(codec: &Codec, codes: &[u32]) -> Vec<f32> {
    let dim = codec.config.codebook_dim;
    let books: Vec<Vec<f32>> = (0..QUANTIZERS)
        .map(|q| ops::codebook(codec.get(&codebook(q, "embed_sum")), codec.get(&codebook(q, "cluster_usage"))))
        .collect();
    let sum = |frame: &[u32], from: usize, to: usize| -> Vec<f32> {
        (0..dim).map(|d| (from..to).map(|q| books[q][frame[q] as usize * dim + d]).sum()).collect()
    };
    let part = |part: &str, sums: Vec<f32>| {
        let name = format!("quantizer.{part}_residual_vector_quantizer.output_proj.weight");
        ops::linear(&sums, codec.get(&name), dim)
    };
    let sums = |from: usize, to: usize| codes.chunks(QUANTIZERS).flat_map(|frame| sum(frame, from, to)).collect();
    let (semantic, acoustic) = (part("semantic", sums(0, 1)), part("acoustic", sums(1, QUANTIZERS)));
    semantic.iter().zip(&acoustic).map(|(a, b)| a + b).collect()
}

/// One transformer layer, in place.
fn plain_transformer_layer(codec: &Codec, layer: usize, x: &mut [f32]) {
    let (config, hidden) = (&codec.config, codec.config.hidden_size);
    let get = |part: &str| codec.get(&format!("decoder_transformer.layers.{layer}.{part}"));
    let norm = |x: &[f32], name: &str| -> Vec<f32> {
        let (weight, bias) = (get(&format!("{name}.weight")), get(&format!("{name}.bias")));
        x.chunks(hidden).flat_map(|row| ops::layer_norm(row, weight, bias, config.norm_eps)).collect()
    };
    let add = |x: &mut [f32], branch: &[f32], scale: &[f32]| {
        x.iter_mut().zip(branch).enumerate().for_each(|(i, (x, branch))| *x += branch * scale[i % hidden]);
    };
    let normed = norm(x, "input_layernorm");
    let project = |part: &str| ops::linear(&normed, get(&format!("self_attn.{part}_proj.weight")), hidden);
    let (mut q, mut k, v) = (project("q"), project("k"), project("v"));
    let (d, positions) = (config.head_dim, x.len() / hidden);
    for rows in [&mut q, &mut k] {
        for (i, head) in rows.chunks_mut(d).enumerate() {
            ops::rotate_half(head, ops::rotary((i * d / hidden) as u64, config.rope_theta, d));
        }
    }
    let mut attended = vec![0.0; x.len()];
    for head in 0..config.num_attention_heads {
        let of = |x: &[f32], last: usize| -> Vec<f32> {
            (0..=last).flat_map(|p| x[p * hidden + head * d..][..d].to_vec()).collect()
        };
        for p in 0..positions {
            let at = p * hidden + head * d;
            let out = ops::attention(&q[at..at + d], &of(&k, p), &of(&v, p), config.sliding_window);
            attended[at..at + d].copy_from_slice(&out);
        }
    }
    let attended = ops::linear(&attended, get("self_attn.o_proj.weight"), hidden);
    add(x, &attended, get("self_attn_layer_scale.scale"));
    let normed = norm(x, "post_attention_layernorm");
    let inner: Vec<f32> = ops::linear(&normed, get("mlp.fc1.weight"), hidden).iter().map(|&x| ops::gelu(x)).collect();
    add(x, &ops::linear(&inner, get("mlp.fc2.weight"), config.intermediate_size), get("mlp_layer_scale.scale"));
}
