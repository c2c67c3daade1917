//! A synthetic checkpoint behaves like a model: sane logits, a stop head that stays quiet, and units that come quantizer by
//! quantizer, so that frames can be assembled. The forward pass here is the shortest one that can be written.

use std::collections::HashMap;

use rumik::checkpoint::Checkpoint;
use rumik::checkpoint::synth::{Preset, SynthOptions, synth};
use rumik::config::{LayerType, ModelConfig};

/// Smallest distance in logits between the best unit of the right quantizer and the best of any other: found 6.2 to 6.9 for three
/// seeds; half of that still keeps other quantizers out at temperature 0.8.
const LEAST_MARGIN: f32 = 3.0;

/// Of every position of one layer.
type KeysAndValues = (Vec<Vec<f32>>, Vec<Vec<f32>>);

/// All weights in f32, and the keys and values of every layer.
struct Model {
    config: ModelConfig,
    weights: HashMap<String, Vec<f32>>,
    cache: Vec<KeysAndValues>,
}

fn norm(x: &[f32], weight: &[f32]) -> Vec<f32> {
    let mean = x.iter().sum::<f32>() / x.len() as f32;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / x.len() as f32;
    x.iter().zip(weight).map(|(v, w)| (v - mean) / (variance + 1e-5).sqrt() * w).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Model {
    fn get(&self, name: &str) -> &[f32] {
        &self.weights[name]
    }

    fn project(&self, name: &str, x: &[f32]) -> Vec<f32> {
        self.get(&format!("{name}.weight")).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    /// Hidden state after the last norm.
    fn step(&mut self, token: usize) -> Vec<f32> {
        let hidden = self.config.hidden_size;
        let mut x = self.get("model.embed_tokens.weight")[token * hidden..(token + 1) * hidden].to_vec();
        for layer in 0..self.config.num_layers() {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let h = norm(&x, self.get(&name("input_layernorm.weight")));
            let mixed = self.attend(layer, &h);
            let attention = self.project(&name("self_attn.o_proj"), &mixed);
            let (gate, up) = (self.project(&name("mlp.gate_proj"), &h), self.project(&name("mlp.up_proj"), &h));
            let inner: Vec<f32> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let mlp = self.project(&name("mlp.down_proj"), &inner);
            x.iter_mut().zip(attention.iter().zip(&mlp)).for_each(|(x, (a, m))| *x += a + m);
        }
        norm(&x, self.get("model.norm.weight"))
    }

    fn attend(&mut self, layer: usize, h: &[f32]) -> Vec<f32> {
        let part = |kind: &str| format!("model.layers.{layer}.self_attn.{kind}_proj");
        let (mut q, mut k, v) = (self.project(&part("q"), h), self.project(&part("k"), h), self.project(&part("v"), h));
        let position = self.cache[layer].0.len();
        let (d, sliding) = (self.config.head_dim, self.config.layer_types[layer] == LayerType::Sliding);
        if sliding {
            for (j, pair) in q.chunks_exact_mut(2).chain(k.chunks_exact_mut(2)).enumerate() {
                let exponent = (2 * j % d) as f32 / d as f32;
                let (sin, cos) = (position as f32 * (self.config.rope_theta as f32).powf(-exponent)).sin_cos();
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[1] * cos + pair[0] * sin);
            }
        }
        let (keys, values) = &mut self.cache[layer];
        keys.push(k);
        values.push(v);
        let first = if sliding { (position + 1).saturating_sub(self.config.sliding_window) } else { 0 };
        let shared = self.config.num_attention_heads / self.config.num_key_value_heads;
        let mut mixed = vec![0.0; q.len()];
        for (head, out) in mixed.chunks_exact_mut(d).enumerate() {
            let kv = head / shared * d..(head / shared + 1) * d;
            let score = |p: usize| dot(&q[head * d..(head + 1) * d], &keys[p][kv.clone()]) / (d as f32).sqrt();
            let weights: Vec<f32> = (first..=position).map(|p| score(p).exp()).collect();
            let sum: f32 = weights.iter().sum();
            for (p, weight) in (first..).zip(&weights) {
                out.iter_mut().zip(&values[p][kv.clone()]).for_each(|(o, v)| *o += weight / sum * v);
            }
        }
        mixed
    }
}

#[test]
fn synthetic_speech_makes_frames_and_varies() {
    (0..3).for_each(speak);
}

fn speak(seed: u64) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("model");
    synth(&folder, SynthOptions { preset: Preset::Tiny, seed, force: false, threads: None }, &|_| {}).unwrap();
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let weights = checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.to_f32().unwrap())).collect();
    let config = checkpoint.config;
    let mut model = Model { cache: vec![Default::default(); config.num_layers()], weights, config: config.clone() };
    let prompt = [config.bos_token_id, config.text_start_token_id, 80, 120, 95, 300, config.audio_start_token_id];
    let mut state = Vec::new();
    prompt.iter().for_each(|&token| state = model.step(token as usize));
    let (mut spoken, mut least) = (Vec::new(), f32::INFINITY);
    for step in 0..120usize {
        let embedding = model.get("model.embed_tokens.weight").chunks_exact(config.hidden_size);
        let logits: Vec<f32> = embedding.map(|row| dot(row, &state) * config.logit_scale).collect();
        assert!(logits.iter().all(|logit| logit.abs() < 100.0), "logits of sane size");
        let rows = config.first_unit_id as usize..=config.last_unit_id as usize;
        let best = rows.max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        let unit = best - config.first_unit_id as usize;
        assert_eq!(unit % config.num_quantizers, step % config.num_quantizers, "seed {seed}, step {step}");
        let others = (config.first_unit_id as usize..=config.last_unit_id as usize)
            .filter(|id| (*id as isize - best as isize) % 8 != 0);
        least = least.min(logits[best] - others.map(|id| logits[id]).fold(f32::MIN, f32::max));
        assert!(logits[best] > logits[config.audio_end_token_id as usize]);
        let inner = norm(&state, model.get("stop_predictor.0.weight"));
        assert!(inner.iter().all(|v| v.is_finite()));
        spoken.push(unit);
        state = model.step(best);
    }
    assert!(least > LEAST_MARGIN, "seed {seed}: {least}");
    let frames: std::collections::BTreeSet<_> = spoken.chunks_exact(8).collect();
    assert!(frames.len() > 3, "frames differ: {spoken:?}");
}
