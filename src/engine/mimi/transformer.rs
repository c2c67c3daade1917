//! The decoder transformer at 25 positions a second, with a ring of keys and values as long as its window.

use super::gemm::Matrix;
use super::ops;
use super::simd::{self, Set};
use crate::config::CodecConfig;
use crate::error::Result;
use crate::tensors::TensorFile;

/// Pre-norm transformer without a final norm.
#[derive(Debug)]
pub(super) struct Transformer {
    layers: Vec<Layer>,
    shape: Shape,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    hidden: usize,
    heads: usize,
    head_dim: usize,
    window: usize,
    rope_theta: f64,
    norm_eps: f32,
}

#[derive(Debug)]
struct Layer {
    attention_norm: LayerNorm,
    /// Queries, keys and values after each other, `[3 * heads * head_dim, hidden]`.
    qkv: Matrix,
    o: Matrix,
    attention_scale: Vec<f32>,
    mlp_norm: LayerNorm,
    fc1: Matrix,
    fc2: Matrix,
    mlp_scale: Vec<f32>,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Keys and values of the last `window` positions and the number of positions so far.
#[derive(Clone, Debug)]
pub(super) struct State {
    position: u64,
    layers: Vec<Ring>,
    scratch: Scratch,
}

/// Keys and values of one layer, `[heads, window, head_dim]` each; position `p` is at row `p % window`.
#[derive(Clone, Debug)]
struct Ring {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Working memory of a step, of no meaning between steps.
#[derive(Clone, Debug, Default)]
struct Scratch {
    normed: Vec<f32>,
    qkv: Vec<f32>,
    rotary: Vec<(f32, f32)>,
    scores: Vec<f32>,
    attended: Vec<f32>,
    wide: Vec<f32>,
    branch: Vec<f32>,
}

impl State {
    pub(super) fn reset(&mut self) {
        // Rows past the position are never read, so the ring needs no clearing.
        self.position = 0;
    }
}

impl Transformer {
    /// Reads `decoder_transformer.layers.*`.
    pub(super) fn load(file: &TensorFile, config: &CodecConfig) -> Result<Transformer> {
        let shape = Shape {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            head_dim: config.head_dim,
            window: config.sliding_window,
            rope_theta: config.rope_theta,
            norm_eps: config.norm_eps,
        };
        let layers = (0..config.num_hidden_layers).map(|layer| Layer::load(file, config, layer));
        Ok(Transformer { layers: layers.collect::<Result<_>>()?, shape })
    }

    /// The state before the first position.
    pub(super) fn state(&self) -> State {
        let size = self.shape.heads * self.shape.window * self.shape.head_dim;
        let ring = Ring { keys: vec![0.0; size], values: vec![0.0; size] };
        State { position: 0, layers: vec![ring; self.layers.len()], scratch: Scratch::default() }
    }

    /// Runs the positions of `x: [t, hidden]` through all layers, in place.
    pub(super) fn step(&self, state: &mut State, x: &mut [f32]) {
        let State { position, layers, scratch } = state;
        let positions = (x.len() / self.shape.hidden) as u64;
        scratch.rotary.clear();
        for p in *position..*position + positions {
            scratch.rotary.extend(ops::rotary(p, self.shape.rope_theta, self.shape.head_dim));
        }
        for (layer, ring) in self.layers.iter().zip(layers) {
            layer.step(&self.shape, *position, ring, scratch, x);
        }
        *position += positions;
    }
}

impl Layer {
    fn load(file: &TensorFile, config: &CodecConfig, layer: usize) -> Result<Layer> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let width = config.num_attention_heads * config.head_dim;
        let get =
            |name: &str, shape: &[usize]| file.get_f32(&format!("decoder_transformer.layers.{layer}.{name}"), shape);
        let linear = |name: &str, n: usize, k: usize| {
            let weight = get(name, &[n, k])?;
            Ok(Matrix::pack(n, k, |n, j| weight[n * k + j], |_| 0.0))
        };
        let norm = |name: &str| {
            let vector = |part: &str| get(&format!("{name}.{part}"), &[hidden]);
            Ok(LayerNorm { weight: vector("weight")?, bias: vector("bias")? })
        };
        let mut qkv = get("self_attn.q_proj.weight", &[width, hidden])?;
        qkv.extend(get("self_attn.k_proj.weight", &[width, hidden])?);
        qkv.extend(get("self_attn.v_proj.weight", &[width, hidden])?);
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            qkv: Matrix::pack(3 * width, hidden, |n, k| qkv[n * hidden + k], |_| 0.0),
            o: linear("self_attn.o_proj.weight", hidden, width)?,
            attention_scale: get("self_attn_layer_scale.scale", &[hidden])?,
            mlp_norm: norm("post_attention_layernorm")?,
            fc1: linear("mlp.fc1.weight", wide, hidden)?,
            fc2: linear("mlp.fc2.weight", hidden, wide)?,
            mlp_scale: get("mlp_layer_scale.scale", &[hidden])?,
        })
    }

    fn step(&self, shape: &Shape, position: u64, ring: &mut Ring, scratch: &mut Scratch, x: &mut [f32]) {
        let Scratch { normed, qkv, rotary, scores, attended, wide, branch } = scratch;
        self.attention_norm.apply(x, shape, normed);
        multiply(&self.qkv, normed, shape.hidden, qkv);
        attended.resize(qkv.len() / 3, 0.0);
        let width = shape.heads * shape.head_dim;
        for (t, (qkv, out)) in qkv.chunks_mut(3 * width).zip(attended.chunks_mut(width)).enumerate() {
            let rotary = &rotary[t * shape.head_dim / 2..][..shape.head_dim / 2];
            ring.attend(shape, position + t as u64, qkv, rotary, scores, out);
        }
        multiply(&self.o, attended, width, branch);
        add_scaled(x, branch, &self.attention_scale);

        self.mlp_norm.apply(x, shape, normed);
        multiply(&self.fc1, normed, shape.hidden, wide);
        simd::gelu(Set::best(), wide);
        multiply(&self.fc2, wide, self.fc1.outputs(), branch);
        add_scaled(x, branch, &self.mlp_scale);
    }
}

impl Ring {
    /// Puts one position's key and value in and attends from it. Positions go one by one, so a step of many sees the
    /// ring exactly as many steps of one do.
    fn attend(
        &mut self,
        shape: &Shape,
        position: u64,
        qkv: &mut [f32],
        rotary: &[(f32, f32)],
        scores: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        let (d, window) = (shape.head_dim, shape.window);
        let row = (position % window as u64) as usize;
        let filled = window.min(usize::try_from(position).unwrap_or(window).saturating_add(1));
        scores.resize(filled, 0.0);
        let (q, kv) = qkv.split_at_mut(shape.heads * d);
        let (k, v) = kv.split_at_mut(shape.heads * d);
        let scale = 1.0 / (d as f32).sqrt();
        let heads = q.chunks_mut(d).zip(k.chunks_mut(d)).zip(v.chunks(d)).zip(out.chunks_mut(d)).enumerate();
        for (head, (((q, k), v), out)) in heads {
            ops::rotate_half(q, rotary.iter().copied());
            ops::rotate_half(k, rotary.iter().copied());
            let start = head * window * d;
            self.keys[start + row * d..][..d].copy_from_slice(k);
            self.values[start + row * d..][..d].copy_from_slice(v);
            let (keys, values) = (&self.keys[start..][..filled * d], &self.values[start..][..filled * d]);
            simd::attend(Set::best(), q, keys, values, scale, scores, out);
        }
    }
}

impl LayerNorm {
    fn apply(&self, x: &[f32], shape: &Shape, out: &mut Vec<f32>) {
        out.clear();
        for row in x.chunks(shape.hidden) {
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / row.len() as f32;
            let scale = 1.0 / (variance + shape.norm_eps).sqrt();
            let affine = row.iter().zip(self.weight.iter().zip(&self.bias));
            out.extend(affine.map(|(v, (weight, bias))| (v - mean) * scale * weight + bias));
        }
    }
}

/// `y: [t, n]` from `x: [t, k]`.
fn multiply(matrix: &Matrix, x: &[f32], k: usize, y: &mut Vec<f32>) {
    y.resize(x.len() / k * matrix.outputs(), 0.0);
    matrix.multiply(x, k, y);
}

/// The residual connection with its layer scale.
fn add_scaled(x: &mut [f32], branch: &[f32], scale: &[f32]) {
    for (x, branch) in x.chunks_mut(scale.len()).zip(branch.chunks(scale.len())) {
        x.iter_mut().zip(branch.iter().zip(scale)).for_each(|(x, (branch, scale))| *x += branch * scale);
    }
}
