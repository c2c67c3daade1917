//! Models of a few layers whose answers are known, and the forward pass of any model by plain operations.
//!
//! They show what no single kernel does: which values meet which weights, that a residual is added once, how far a window
//! reaches, where keys and values of a slot are kept, what the heads make of the last state.

use crate::config::{LayerType, ModelConfig};
use crate::engine::cpu::plain::{self, Order};
use crate::engine::sampler::{self, Noise, Outlook};
use crate::engine::{End, Engine, Observer, Request, Sampling, Scores};
use crate::error::Result;
use crate::format::{Export, Head, Int4Matrix, Layer, StopHead};
use crate::tensors::{Bytes, Dtype, Tensor};

use super::judge::Judge;
use super::products::{ROUNDING_TOLERANCE, rounded};
use super::values::{bits, int4, int8, noise, random_int4, random_int8, transposed};
use super::vectors::{FLOAT_TOLERANCE, NO_EPS, balanced};

/// Width of the residual stream: two groups.
const HIDDEN: usize = 256;
/// Width of the MLP: three groups.
const INTERMEDIATE: usize = 384;
/// Query heads, and key/value heads that serve two of them each.
const HEADS: [usize; 2] = [4, 2];
/// Codebooks, and codes of each.
const CODES: [usize; 2] = [3, 8];
/// Positions that a sliding layer sees.
const WINDOW: usize = 5;
/// Positions of a slot.
pub(super) const POSITIONS: usize = 64;
/// Epsilon of the stop head's LayerNorm, which is not in `config.json`.
const STOP_EPS: f32 = 1e-5;

/// Opens an engine for a model and a number of slots of [`POSITIONS`].
pub(super) type Open<'a> = &'a dyn Fn(&Export, usize) -> Result<Box<dyn Engine>>;

/// Sizes of the test models, for one head size.
pub(super) fn config(head_dim: usize, layer_types: Vec<LayerType>, eps: f32) -> ModelConfig {
    let units = (CODES[0] * CODES[1]) as u32;
    ModelConfig {
        vocab_size: 40 + units as usize + 2,
        hidden_size: HIDDEN,
        intermediate_size: INTERMEDIATE,
        num_attention_heads: HEADS[0],
        num_key_value_heads: HEADS[1],
        head_dim,
        sliding_window: WINDOW,
        layer_types,
        max_position_embeddings: POSITIONS,
        rope_theta: 10_000.0,
        logit_scale: 0.25,
        layer_norm_eps: eps,
        num_quantizers: CODES[0],
        codebook_size: CODES[1],
        first_unit_id: 40,
        last_unit_id: 40 + units - 1,
        text_start_token_id: 1,
        audio_start_token_id: 3,
        audio_end_token_id: 40 + units,
        bos_token_id: 2,
        frame_rate_hz: 12.5,
        speakers: vec!["Ira".into()],
    }
}

/// A matrix of zeros.
pub(super) fn zeros(n: usize, k: usize) -> Int4Matrix {
    int4([n, k], |_, _| 0, |_, _| 0.0, |_, _| 0.0)
}

/// A matrix that takes column `of(row)` times `factor`.
fn picks(n: usize, k: usize, factor: f32, of: impl Fn(usize) -> usize) -> Int4Matrix {
    int4([n, k], |row, column| if column == of(row) { 15 } else { 0 }, |_, _| factor / 15.0, |_, _| 0.0)
}

/// A layer whose matrices come from `make(seed, n, k)`.
pub(super) fn layer(config: &ModelConfig, norm: Vec<f32>, make: impl Fn(u32, usize, usize) -> Int4Matrix) -> Layer {
    let (hidden, query, kv) = (config.hidden_size, config.query_size(), config.key_value_size());
    let wide = config.intermediate_size;
    Layer {
        norm,
        q: make(1, query, hidden),
        k: make(2, kv, hidden),
        v: make(3, kv, hidden),
        o: make(4, hidden, query),
        gate: make(5, wide, hidden),
        up: make(6, wide, hidden),
        down: make(7, hidden, wide),
    }
}

/// A stop head that never fires.
fn quiet_stop(hidden: usize) -> StopHead {
    StopHead {
        inner: 16,
        norm_weight: vec![1.0; hidden],
        norm_bias: vec![0.0; hidden],
        up_weight: noise(61, 16 * hidden),
        up_bias: noise(62, 16),
        down_weight: noise(63, 16),
        down_bias: -1e3,
    }
}

/// A model around layers. Every embedding row is a pattern of balanced signs, so that LayerNorm leaves it as it is.
pub(super) fn export(config: ModelConfig, layers: Vec<Layer>) -> Export {
    let (hidden, rows) = (config.hidden_size, config.audio_rows());
    let patterns: Vec<Vec<f32>> = (0..config.vocab_size).map(|id| balanced(id as u32, hidden)).collect();
    Export {
        name: "known answers".into(),
        layers,
        embedding: int8([config.vocab_size, hidden], |id, i| 64 * patterns[id][i] as i8, |_| 2f32.powi(-6)),
        head: Head::Int8(random_int8(64, rows, hidden)),
        audio_ids: (config.first_unit_id..=config.last_unit_id).chain([config.audio_end_token_id]).collect(),
        norm: vec![1.0; hidden],
        stop: quiet_stop(hidden),
        codec: None,
        tokenizer: Bytes::from(Vec::new()),
        report: None,
        config,
    }
}

/// A model of random layers, of size such that neither residual nor logits grow out of hand.
pub(super) fn random(head_dim: usize, layer_types: Vec<LayerType>) -> Export {
    let config = config(head_dim, layer_types, 1e-5);
    let small = |seed: u32, n: usize, k: usize| {
        let mut w = random_int4(seed, n, k);
        for (scale, min) in w.scale.iter_mut().zip(&mut w.min) {
            *scale = half::f16::from_f32(0.01 * (1.0 + scale.to_f32().abs()));
            *min = half::f16::from_f32(-7.5 * scale.to_f32() + 0.01 * min.to_f32());
        }
        w
    };
    let layers = (0..config.num_layers() as u32)
        .map(|index| {
            let norm = noise(80 + index, HIDDEN).iter().map(|w| 1.0 + 0.5 * w).collect();
            layer(&config, norm, |seed, n, k| small(100 * index + 7 * seed, n, k))
        })
        .collect();
    Export { norm: noise(90, HIDDEN).iter().map(|w| 1.0 + 0.5 * w).collect(), ..export(config, layers) }
}

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
    let product = |w: &Int4Matrix, x: &[f32]| super::products::plain_int4(w, x);
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
fn plain_stop(stop: &StopHead, hidden: &[f32]) -> f32 {
    let mut x = vec![0.0; hidden.len()];
    plain::layer_norm(hidden, &stop.norm_weight, STOP_EPS, &mut x);
    x.iter_mut().zip(&stop.norm_bias).for_each(|(x, bias)| *x += bias);
    let inner = stop.up_weight.chunks(x.len()).zip(&stop.up_bias).zip(&stop.down_weight).map(|((up, bias), down)| {
        let z: f64 = up.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>() + f64::from(*bias);
        f64::from(plain::gelu(z as f32)) * f64::from(*down)
    });
    (1.0 / (1.0 + (-(inner.sum::<f64>() + f64::from(stop.down_bias))).exp())) as f32
}

/// Holds an engine against models with known answers. `tolerance`: of forward passes against plain ones, 0 for the same bits.
pub(super) fn judge(judge: &mut Judge<'_>, head_dim: usize, tolerance: f64, open: Open<'_>) -> Result<()> {
    judge_residual(judge, head_dim, open)?;
    judge_window(judge, head_dim, open)?;
    judge_stop(judge, head_dim, open)?;
    judge_layers(judge, head_dim, tolerance, open)?;
    judge_decode(judge, head_dim, open)
}

fn score(engine: &mut dyn Engine, tokens: &[u32]) -> Result<Seen> {
    let mut seen = Seen::default();
    engine.score(0, tokens, &mut seen)?;
    Ok(seen)
}

/// Ids of a prompt.
fn prompt(seed: u32, count: usize) -> Vec<u32> {
    super::values::words(seed, count).map(|word| word % 40).collect()
}

/// Nothing but zeros leaves the stream as it is; gate 30 x, up x and down 1/32 add 30/32 where x is +1, and attention nothing.
fn judge_residual(judge: &mut Judge<'_>, head_dim: usize, open: Open<'_>) -> Result<()> {
    let config = config(head_dim, vec![LayerType::Sliding, LayerType::Full], NO_EPS);
    let tokens = prompt(1, 9);
    let x: Vec<f32> = tokens.iter().flat_map(|id| balanced(*id, HIDDEN)).collect();
    let still = layer(&config, vec![1.0; HIDDEN], |_, n, k| zeros(n, k));
    let seen = score(&mut *open(&export(config.clone(), vec![still.clone(), still.clone()]), 1)?, &tokens)?;
    judge.exact("residual", "unchanged", &seen.residual.concat(), &[x.clone(), x.clone()].concat());
    let mlp = Layer {
        gate: picks(INTERMEDIATE, HIDDEN, 30.0, |row| row % HIDDEN),
        up: picks(INTERMEDIATE, HIDDEN, 1.0, |row| row % HIDDEN),
        down: picks(HIDDEN, INTERMEDIATE, 1.0 / 32.0, |row| row),
        ..still.clone()
    };
    let added: Vec<f32> = x.iter().map(|x| if *x > 0.0 { x + 30.0 / 32.0 } else { *x }).collect();
    let seen = score(&mut *open(&export(config, vec![mlp, still]), 1)?, &tokens)?;
    // Scales of 2 and 1/15 are f16: 2^-11 of what is added, once for up and once for down.
    judge.close("residual", "mlp_added_once", &seen.residual[0], &added, 2e-3);
    Ok(())
}

/// Queries of zero see all positions alike: attention adds the mean of the window, of the right key/value head.
fn judge_window(judge: &mut Judge<'_>, head_dim: usize, open: Open<'_>) -> Result<()> {
    for (test, kind, window) in [("sliding", LayerType::Sliding, WINDOW), ("full", LayerType::Full, POSITIONS)] {
        let config = config(head_dim, vec![kind], NO_EPS);
        let (query, key) = (config.query_size(), config.key_value_size());
        let layer = Layer {
            v: picks(key, HIDDEN, 15.0 / 16.0, |row| row % HIDDEN),
            o: picks(HIDDEN, query, 15.0 / 8.0, |row| (query - 1 - row) % query),
            ..layer(&config, vec![1.0; HIDDEN], |_, n, k| zeros(n, k))
        };
        let tokens = prompt(2, 13);
        let x: Vec<Vec<f32>> = tokens.iter().map(|id| balanced(*id, HIDDEN)).collect();
        let column = |row: usize| {
            let attended = (query - 1 - row) % query; // head and column of the attention's output that o picks
            let (head, d) = (attended / head_dim * HEADS[1] / HEADS[0], attended % head_dim);
            (head * head_dim + d) % HIDDEN
        };
        let at = |p: usize, row: usize| {
            let seen = &x[(p + 1).saturating_sub(window)..=p];
            let mean = seen.iter().map(|x| x[column(row)]).sum::<f32>() / seen.len() as f32;
            x[p][row] + 15.0 / 16.0 * 15.0 / 8.0 * mean
        };
        let expected: Vec<f32> =
            (0..tokens.len()).flat_map(|p| (0..HIDDEN).map(move |row| (p, row))).map(|(p, row)| at(p, row)).collect();
        let seen = score(&mut *open(&export(config, vec![layer]), 1)?, &tokens)?;
        judge.close("window", test, &seen.residual[0], &expected, ROUNDING_TOLERANCE);
    }
    Ok(())
}

/// LayerNorm to a vector of one 1, an inner value of exactly 1: gelu(1) = 0.8413447.
fn judge_stop(judge: &mut Judge<'_>, head_dim: usize, open: Open<'_>) -> Result<()> {
    let config = config(head_dim, vec![LayerType::Full], NO_EPS);
    let still = layer(&config, vec![1.0; HIDDEN], |_, n, k| zeros(n, k));
    let mut known = export(config, vec![still]);
    let mut norm_bias = vec![0.0; HIDDEN];
    norm_bias[130] = 1.0;
    let mut up_weight = vec![0.0; 3 * HIDDEN];
    (up_weight[130], up_weight[HIDDEN + 130], up_weight[2 * HIDDEN]) = (2.0, -1.0, 5.0);
    known.stop = StopHead {
        inner: 3,
        norm_weight: vec![0.0; HIDDEN],
        norm_bias,
        up_weight,
        up_bias: vec![-1.0, 0.0, 0.0], // inner: 1, -1, 0
        down_weight: vec![1.0, 2.0, 100.0],
        down_bias: 0.25,
    };
    let logit: f64 = 0.841_344_746 + 2.0 * -0.158_655_254 + 0.25;
    let tokens = prompt(3, 4);
    let seen = score(&mut *open(&known, 1)?, &tokens)?;
    judge.close("stop_head", "known", &seen.stop, &[(1.0 / (1.0 + (-logit).exp())) as f32; 4], FLOAT_TOLERANCE);
    let random = random(head_dim, vec![LayerType::Full]);
    let random = Export { stop: StopHead { down_bias: 0.1, ..random.stop.clone() }, ..random };
    let seen = score(&mut *open(&random, 1)?, &tokens)?;
    let meaning: Vec<f32> = seen.hidden.chunks(HIDDEN).map(|hidden| plain_stop(&random.stop, hidden)).collect();
    // Sums of 256 products of size 1 in f32, through a sigmoid.
    judge.close("stop_head", "meaning", &seen.stop, &meaning, 10.0 * FLOAT_TOLERANCE);
    Ok(())
}

/// Random layers of both kinds, past the window, with either head.
fn judge_layers(judge: &mut Judge<'_>, head_dim: usize, tolerance: f64, open: Open<'_>) -> Result<()> {
    let int8 = random(head_dim, vec![LayerType::Sliding, LayerType::Full, LayerType::Sliding]);
    let rows = int8.config.audio_rows();
    let data: Vec<u8> =
        noise(65, rows * HIDDEN).iter().flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
    let (name, place) = ("head.audio_weight".to_owned(), "known answers".into());
    let tensor = Tensor { name, dtype: Dtype::BF16, shape: vec![rows, HIDDEN], data: data.into(), place };
    let bf16 = Export { head: Head::Bf16(tensor), ..int8.clone() };
    let tokens = prompt(4, 40);
    let mut close = |kernel: &str, test: &str, found: &[f32], expected: &[f32], tolerance: f64| match tolerance {
        0.0 => judge.exact(kernel, test, found, expected),
        _ => judge.close(kernel, test, found, expected, tolerance),
    };
    for (kernel, export) in [("head_int8", &int8), ("head_bf16", &bf16)] {
        let (seen, plain) = (score(&mut *open(export, 1)?, &tokens)?, plain_forward(export, &tokens));
        close("layers", "residual", &seen.residual.concat(), &plain.residual.concat(), tolerance);
        close("layers", "hidden", &seen.hidden, &plain.hidden, tolerance);
        // What the head makes of the states that this engine fed it: int8 products have the same bits everywhere.
        let own = plain_logits(export, &seen.hidden);
        let own_tolerance =
            if kernel == "head_int8" || tolerance == 0.0 { 0.0 } else { super::products::SUM_TOLERANCE };
        close(kernel, "logits", &seen.logits, &own, own_tolerance);
    }
    Ok(())
}

/// Tokens and codes that one request makes alone.
#[derive(Clone, Debug, Default, PartialEq)]
struct Made {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    end: Option<End>,
}

/// The same by plain operations: a whole forward pass a token.
fn plain_speech(export: &Export, request: &Request<'_>) -> Result<Made> {
    let (mut ids, mut made) = (request.prompt.to_vec(), Made::default());
    let mut frames = crate::engine::frames::Frames::new(&export.config);
    while made.end.is_none() {
        let seen = plain_forward(export, &ids);
        let logits = &seen.logits[seen.logits.len() - export.audio_ids.len()..];
        let stop_probability = seen.stop.last().copied().unwrap_or(f32::NAN);
        let outlook = Outlook { logits, stop_probability, end_row: logits.len() - 1 };
        let noise = Noise { seed: request.seed, sequence: request.sequence, step: made.tokens.len() as u32 };
        let choice = sampler::next_token(outlook, request.sampling, noise, request.max_new_tokens)?;
        let id = export.audio_ids[choice.row];
        frames.push(id, &mut made.codes);
        ids.push(id);
        made.tokens.push(id);
        made.end = choice.end;
    }
    Ok(made)
}

/// Requests that join, leave and reuse slots make what each makes alone by plain operations.
fn judge_decode(judge: &mut Judge<'_>, head_dim: usize, open: Open<'_>) -> Result<()> {
    let export = random(head_dim, vec![LayerType::Sliding, LayerType::Full]);
    let prompts = [prompt(5, 11), prompt(6, 3), prompt(7, 7)];
    let sampled = Sampling { temperature: 0.8, top_k: 7 };
    let greedy = Sampling { temperature: 0.0, top_k: 1 };
    let request = |i: usize, sampling, max_new_tokens| Request {
        prompt: &prompts[i],
        sampling,
        max_new_tokens,
        seed: 5 + i as u64,
        sequence: i as u32,
    };
    let requests = [request(0, greedy, 22), request(1, sampled, 13), request(2, sampled, 17)];
    let mut engine = open(&export, 2)?;
    let mut made = vec![Made::default(); requests.len()];
    let mut slots = [Some(0), Some(1)]; // the request that a slot speaks
    engine.start(0, &requests[0])?;
    engine.start(1, &requests[1])?;
    while slots.iter().any(Option::is_some) {
        engine.step(&mut |step| {
            if let Some(made) = slots[step.slot].and_then(|request: usize| made.get_mut(request)) {
                made.tokens.extend(step.tokens);
                made.codes.extend(step.codes);
                made.end = step.end;
            }
        })?;
        for (slot, speaks) in slots.iter_mut().enumerate() {
            let Some(request) = speaks.filter(|&request| made[request].end.is_some()) else { continue };
            engine.reset(slot);
            // The second request ends first; the third takes its slot, over what it left in the cache.
            *speaks = (request == 1).then_some(2);
            if let Some(next) = *speaks {
                engine.start(slot, &requests[next])?;
            }
        }
    }
    let expected = requests.iter().map(|request| plain_speech(&export, request)).collect::<Result<Vec<Made>>>()?;
    judge.same("decode", "slots", &made, &expected);
    Ok(())
}
