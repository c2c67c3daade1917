//! The forward pass of any model by plain operations, over a whole sequence.

use crate::config::{LayerType, ModelConfig};
use crate::engine::cpu::plain::{self, Order};
use crate::engine::{Observer, Scores};
use crate::format::{Export, Head, Int4Matrix, Layer, StopHead};

use super::model::POSITIONS;
use super::products::{plain_int4, rounded};
use super::values::{bits, transposed};

/// Epsilon of the stop head's LayerNorm, which is not in `config.json`.
const STOP_EPS: f32 = 1e-5;

/// What a model makes of a sequence.
#[derive(Default)]
pub(super) struct Seen {
    /// A layer: `[t, hidden]`.
    pub(super) residual: Vec<Vec<f32>>,
    /// `[t, hidden]`.
    pub(super) hidden: Vec<f32>,
    /// `[t, rows]`.
    pub(super) logits: Vec<f32>,
    /// `[t]`.
    pub(super) stop: Vec<f32>,
}

impl Observer for Seen {
    fn position(&mut self, scores: Scores<'_>) {
        self.hidden.extend(scores.hidden);
        self.logits.extend(scores.logits);
        self.stop.push(scores.stop_probability);
    }

    fn layer(&mut self, layer: usize, _position: usize, residual: &[f32]) {
        self.residual.resize_with(self.residual.len().max(layer + 1), Vec::new);
        self.residual[layer].extend(residual);
    }
}

/// The forward pass by plain operations, over a whole sequence.
pub(super) fn plain_forward(export: &Export, tokens: &[u32]) -> Seen {
    let config = &export.config;
    let mut x = vec![0.0; tokens.len() * config.hidden_size];
    for (x, token) in x.chunks_mut(config.hidden_size).zip(tokens) {
        plain::embedding_row(&export.embedding, *token as usize, x);
    }
    let mut seen = Seen::default();
    for (layer, kind) in export.layers.iter().zip(&config.layer_types) {
        plain_layer(config, layer, *kind, &mut x);
        seen.residual.push(x.clone());
    }
    seen.hidden = normed(&x, &export.norm, config.layer_norm_eps);
    seen.logits = plain_logits(export, &seen.hidden);
    seen.stop = seen.hidden.chunks(config.hidden_size).map(|hidden| plain_stop(&export.stop, hidden)).collect();
    seen
}

/// LayerNorm of rows.
fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    for (x, out) in x.chunks(weight.len()).zip(out.chunks_mut(weight.len())) {
        plain::layer_norm(x, weight, eps, out);
    }
    out
}

/// One layer, in place; `x: [t, hidden]`.
fn plain_layer(config: &ModelConfig, layer: &Layer, kind: LayerType, x: &mut [f32]) {
    let h = normed(x, &layer.norm, config.layer_norm_eps);
    let product = plain_int4;
    let (mut q, mut k, v) = (product(&layer.q, &h), product(&layer.k, &h), product(&layer.v, &h));
    if kind == LayerType::Sliding {
        let rope = plain::Rope::new(config.rope_theta, config.head_dim, POSITIONS);
        q.chunks_mut(config.query_size()).enumerate().for_each(|(p, q)| rope.rotate(q, p));
        k.chunks_mut(config.key_value_size()).enumerate().for_each(|(p, k)| rope.rotate(k, p));
    }
    let attended = product(&layer.o, &plain_attention(config, kind, &q, &k, &v));
    let (gate, up) = (product(&layer.gate, &h), product(&layer.up, &h));
    let mut activated = vec![0.0; gate.len()];
    plain::silu_up(&gate, &up, &mut activated);
    let mlp = product(&layer.down, &activated);
    for (x, (attended, mlp)) in x.iter_mut().zip(attended.iter().zip(&mlp)) {
        *x = (*x + attended) + mlp;
    }
}

/// Attention of every position to itself and those before it. `q: [t, query]`, `k, v: [t, key]`; returns `[t, query]`.
fn plain_attention(config: &ModelConfig, kind: LayerType, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
    let (dim, kv) = (config.head_dim, config.num_key_value_heads);
    let shared = config.query_size() / kv;
    let cache = |x: &[f32], head: usize| -> Vec<u16> {
        x.chunks(kv * dim).flat_map(|row| bits(&row[head * dim..(head + 1) * dim])).collect()
    };
    let (mut out, mut scratch) = (vec![0.0; q.len()], Vec::new());
    for head in 0..kv {
        let (keys, values) = (cache(k, head), cache(v, head));
        for p in 0..q.len() / config.query_size() {
            let oldest = if kind == LayerType::Sliding { (p + 1).saturating_sub(config.sliding_window) } else { 0 };
            let (seen, at) = (oldest * dim..(p + 1) * dim, p * config.query_size() + head * shared);
            let (q, out) = (&q[at..at + shared], &mut out[at..at + shared]);
            plain::attend(q, &keys[seen.clone()], &values[seen], dim, &mut scratch, out);
        }
    }
    out
}

/// Scaled logits, `[t, rows]`.
pub(super) fn plain_logits(export: &Export, hidden: &[f32]) -> Vec<f32> {
    let config = &export.config;
    let columns = hidden.len() / config.hidden_size;
    let mut y = vec![0.0; config.audio_rows() * columns];
    match &export.head {
        Head::Int8(w) => plain::int8_rows(w, 0, &rounded(hidden, w.k, Order::Bytes), &mut y),
        Head::Bf16(w) => plain::bf16_rows(&w.data, hidden, config.hidden_size, &mut y),
    }
    transposed(&y, columns).iter().map(|logit| logit * config.logit_scale).collect()
}

/// P(stop) of a state, in f64.
pub(super) fn plain_stop(stop: &StopHead, hidden: &[f32]) -> f32 {
    let mut x = vec![0.0; hidden.len()];
    plain::layer_norm(hidden, &stop.norm_weight, STOP_EPS, &mut x);
    x.iter_mut().zip(&stop.norm_bias).for_each(|(x, bias)| *x += bias);
    let inner = stop.up_weight.chunks(x.len()).zip(&stop.up_bias).zip(&stop.down_weight).map(|((up, bias), down)| {
        let z: f64 = up.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() + f64::from(*bias);
        f64::from(plain::gelu(z as f32)) * f64::from(*down)
    });
    (1.0 / (1.0 + (-(inner.sum::<f64>() + f64::from(stop.down_bias))).exp())) as f32
}
