//! Models of a few layers whose answers are known.
//!
//! They show what no single kernel does: which values meet which weights, that a residual is added once, how far a window
//! reaches, where keys and values of a slot are kept, what the heads make of the last state.

use crate::config::{LayerType, ModelConfig};
use crate::engine::sampler::{self, Noise, Outlook};
use crate::engine::{End, Engine, Request, Sampling};
use crate::error::Result;
use crate::format::{Export, Head, Int4Matrix, Layer, StopHead};
use crate::tensors::{Bytes, Dtype, Tensor};

use super::forward::{Seen, plain_forward, plain_logits, plain_stop};
use super::judge::Judge;
use super::products::ROUNDING_TOLERANCE;
use super::values::{int4, int8, noise, random_int4, random_int8};
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
    let mut head = random_int8(64, rows, hidden);
    // Logits of a few units, so that the noise of the choice matters.
    head.scale.iter_mut().for_each(|scale| *scale *= half::f16::from_f32(2f32.powi(-6)));
    let patterns: Vec<Vec<f32>> = (0..config.vocab_size).map(|id| balanced(id as u32, hidden)).collect();
    Export {
        name: "known answers".into(),
        layers,
        embedding: int8([config.vocab_size, hidden], |id, i| 64 * patterns[id][i] as i8, |_| 2f32.powi(-6)),
        head: Head::Int8(head),
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
pub(crate) fn random(head_dim: usize, layer_types: Vec<LayerType>) -> Export {
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

/// Holds the scores of an engine against models with known answers. `tolerance`: of forward passes against plain ones, 0 for
/// the same bits.
pub(super) fn judge_scores(judge: &mut Judge<'_>, head_dim: usize, tolerance: f64, open: Open<'_>) -> Result<()> {
    judge_residual(judge, head_dim, open)?;
    judge_window(judge, head_dim, open)?;
    judge_stop(judge, head_dim, open)?;
    judge_layers(judge, head_dim, tolerance, open)
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

/// Holds what `count` slots speak side by side, joining, leaving and following each other, against what each request makes
/// alone by plain operations.
pub(super) fn judge_decode(judge: &mut Judge<'_>, head_dim: usize, count: usize, open: Open<'_>) -> Result<()> {
    let export = random(head_dim, vec![LayerType::Sliding, LayerType::Full]);
    // One request more than slots: the second ends first, and the last takes its slot, over what it left in the cache.
    let prompts: Vec<Vec<u32>> = (0..=count).map(|i| prompt(5 + i as u32, [11, 3, 7][i % 3])).collect();
    let request = |(i, prompt)| Request {
        prompt,
        sampling: if i == 0 {
            Sampling { temperature: 0.0, top_k: 1 }
        } else {
            Sampling { temperature: 0.8, top_k: 7 }
        },
        max_new_tokens: if i == 1 { 9 } else { 12 + i % 3 },
        seed: 5 + i as u64,
        sequence: i as u32,
    };
    let requests: Vec<Request<'_>> = prompts.iter().map(Vec::as_slice).enumerate().map(request).collect();
    let mut engine = open(&export, count)?;
    let mut made = vec![Made::default(); requests.len()];
    let mut slots: Vec<Option<usize>> = (0..count).map(Some).collect(); // the request that a slot speaks
    for (slot, request) in requests.iter().take(count).enumerate() {
        engine.start(slot, request)?;
    }
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
            *speaks = (request == 1).then_some(count);
            if let Some(next) = *speaks {
                engine.start(slot, &requests[next])?;
            }
        }
    }
    let expected = requests.iter().map(|request| plain_speech(&export, request)).collect::<Result<Vec<Made>>>()?;
    judge.same("decode", "slots", &made, &expected);
    Ok(())
}
