//! Every kernel against the plain operation it stands for, and the engine against golden tokens and itself.
//!
//! All need a GPU: `cargo test --release --features cuda cuda -- --ignored`.

use std::path::Path;

use half::f16;

use super::device::Plain;
use super::kernels::*;
use super::*;
use crate::checkpoint::Checkpoint;
use crate::config::{LayerType, ModelConfig};
use crate::engine::cpu::plain::{self, Order, Rounded};
use crate::engine::sampler::{Noise, Outlook};
use crate::engine::{Sampling, mimi};
use crate::format::layout::GROUP;
use crate::format::{Head, HeadKind};
use crate::quant::{self, ExportOptions};
use crate::tensors::TensorFile;

/// f32 sums of a few hundred to a few thousand products against f64, relative to the largest value.
const SUM_TOLERANCE: f32 = 2e-5;
/// Least signal-to-noise ratio of the codec against the CPU's, in dB: two f32 decoders with sums in other orders.
const LEAST_SNR_DB: f64 = 90.0;

/// Exports a fixture into a folder of its own.
fn export(checkpoint: &str, head: HeadKind) -> Export {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("export");
    let source = Checkpoint::open(Path::new(checkpoint)).unwrap();
    let options = ExportOptions { head, source_name: "fixture".into(), ..ExportOptions::default() };
    quant::export(&source, &out, &options, &|_| {}).unwrap();
    Export::open(&out).unwrap() // the files stay mapped after the folder is gone
}

fn tiny(head: HeadKind) -> Export {
    export("fixtures/golden/tiny", head)
}

fn demo() -> Export {
    export("fixtures/demo", HeadKind::Int8)
}

fn open(export: &Export, slots: usize, positions: usize) -> CudaEngine {
    CudaEngine::open(export, &Options { slots, positions, ..Options::default() }).unwrap()
}

fn read<T: Plain>(engine: &CudaEngine, from: Address, len: usize) -> Vec<T> {
    let mut values = vec![T::default(); len];
    engine.device.read(&engine.main, from, &mut values).unwrap();
    engine.device.synchronize(&engine.main).unwrap();
    values
}

/// Reproducible values around 0, of unequal size.
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let word = |i: usize| crate::engine::sampler::philox([i as u32, seed, 0, 0], [5, 6]);
    let value = |w: [u32; 4]| (w[0] as f32 / 2f32.powi(31) - 1.0) * (0.2 + 3.0 * (w[1] >> 24) as f32 / 256.0);
    (0..count).map(|i| value(word(i))).collect()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = found.iter().zip(expected).enumerate().map(|(i, (f, e))| ((f - e).abs(), i));
    let (error, at) = worst.fold((0f32, 0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
    assert!(error <= tolerance * largest, "{what}: index {at}: {} against {}", found[at], expected[at]);
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differ = found.iter().zip(expected).position(|(f, e)| f.to_bits() != e.to_bits());
    if let Some(at) = differ {
        panic!("{what}: index {at} of {}: {} against {}", found.len(), found[at], expected[at]);
    }
}

/// Reads rounded activations of `columns` vectors back into the plain form.
fn rounded(engine: &CudaEngine, digits: Digits, columns: usize) -> Rounded {
    let groups = digits.groups as usize;
    let tiles = columns.div_ceil(4) * groups;
    let words: Vec<u32> = read(engine, digits.words, tiles * 256);
    let scales: Vec<[f32; 2]> = read(engine, digits.scales, tiles * 4);
    let mut out = Rounded::zeros(groups * GROUP, columns, Order::Bytes);
    for c in 0..columns {
        for g in 0..groups {
            let at = c / 4 * groups + g;
            [out.scale[c * groups + g], out.offset[c * groups + g]] = scales[at * 4 + c % 4];
            for k in 0..GROUP {
                let digit = |digit: usize| {
                    let lane = (c % 4 * 2 + digit) * 4 + k % 16 / 4;
                    let word = words[at * 256 + lane * 8 + k / 32 * 2 + k % 32 / 16];
                    i16::from((word >> (8 * (k % 4))) as u8 as i8)
                };
                out.q[(c * groups + g) * GROUP + k] = 256 * digit(0) + digit(1);
            }
            let q = &out.q[(c * groups + g) * GROUP..][..GROUP];
            out.sum[c * groups + g] = q.iter().map(|&q| i32::from(q)).sum();
        }
    }
    out
}

#[track_caller]
fn assert_rounded(found: &Rounded, x: &[f32], what: &str) {
    let mut expected = Rounded::zeros(found.k, found.columns, Order::Bytes);
    plain::round(x, &mut expected);
    assert_eq!(found.q, expected.q, "{what}");
    assert_same(&found.scale, &expected.scale, what);
    assert_same(&found.offset, &expected.offset, what);
}

/// Residual rows, positions and slots of a test pass: column `c` at position `first + c`, or slot `c` each at its own.
struct Pass {
    columns: Vec<Column>,
    x: Vec<f32>,
}

fn prepare(engine: &CudaEngine, columns: Vec<Column>, seed: u32) -> Pass {
    let hidden = engine.info.config.hidden_size;
    let x = noise(seed, columns.len() * hidden);
    for (column, x) in columns.iter().zip(x.chunks(hidden)) {
        engine.device.write(&engine.main, engine.decoder.residual(column.row as usize), x).unwrap();
    }
    engine.device.write(&engine.main, engine.decoder.columns(), &columns).unwrap();
    Pass { columns, x }
}

/// Fills cache and scratch with values that spoil any result they get into.
fn poison(engine: &CudaEngine) {
    let (config, buffers) = (&engine.info.config, engine.decoder.buffers);
    let cache = engine.slots.len() * config.key_value_size() * engine.info.positions * 2;
    let fill = |at: Address, bytes: usize| engine.device.fill(&engine.main, at, 0x7b, bytes).unwrap();
    for layer in &engine.decoder.layers {
        fill(layer.keys, cache); // f16 0x7b7b is 61,280
        fill(layer.values, cache);
    }
    fill(buffers.q, MAX_COLUMNS * config.query_size() * 4);
    fill(buffers.mlp, MAX_COLUMNS * config.intermediate_size * 4);
    fill(buffers.partial, MAX_COLUMNS * config.query_size() * 32 * 4);
    for digits in [buffers.hidden, buffers.attention, buffers.inner] {
        fill(digits.words, MAX_COLUMNS / 4 * digits.groups as usize * 1024);
        fill(digits.scales, MAX_COLUMNS / 4 * digits.groups as usize * 32);
    }
}

fn run_layer(engine: &CudaEngine, layer: usize, columns: usize, positions: usize) {
    engine.decoder.layer(engine.main(), layer, columns, positions).unwrap();
    engine.device.synchronize(&engine.main).unwrap();
}

fn rows(engine: &CudaEngine, pass: &Pass) -> Vec<f32> {
    let hidden = engine.info.config.hidden_size;
    pass.columns.iter().flat_map(|c| read::<f32>(engine, engine.decoder.residual(c.row as usize), hidden)).collect()
}

/// One layer of a wide pass, checked operation by operation: each against the plain one on what the device fed it.
fn check_layer(engine: &CudaEngine, export: &Export, layer: usize, count: usize) {
    let (config, weights, buffers) = (&engine.info.config, &export.layers[layer], engine.decoder.buffers);
    let (hidden, dim, kv) = (config.hidden_size, config.head_dim, config.num_key_value_heads);
    poison(engine);
    let first_row = engine.slots.len() as i32;
    let column = |i: i32| Column { slot: 0, position: i, live: 1, row: first_row + i };
    let pass = prepare(engine, (0..count as i32).map(column).collect(), 7 + layer as u32);
    run_layer(engine, layer, count, count);

    let normed = rounded(engine, buffers.hidden, count);
    let back: Vec<f32> = normed.q.iter().enumerate().map(|(i, &q)| f32::from(q) * normed.scale[i / GROUP]).collect();
    let mut expected = vec![0.0; count * hidden];
    for (x, out) in pass.x.chunks(hidden).zip(expected.chunks_mut(hidden)) {
        plain::layer_norm(x, &weights.norm, config.layer_norm_eps, out);
    }
    assert_close(&back, &expected, 4.0 * SUM_TOLERANCE, "LayerNorm, rounded");

    let product = |matrix: &crate::format::Int4Matrix, x: &Rounded| {
        let mut y = vec![0.0; matrix.n * count];
        plain::int4_rows(matrix, 0, x, &mut y);
        (0..count).flat_map(|c| y[c..].iter().step_by(count).copied().collect::<Vec<f32>>()).collect::<Vec<f32>>()
    };
    let rope = plain::Rope::new(config.rope_theta, dim, engine.info.positions);
    let turned = |mut x: Vec<f32>, width: usize| {
        if config.layer_types[layer] == LayerType::Sliding {
            x.chunks_mut(width).enumerate().for_each(|(position, x)| rope.rotate(x, position));
        }
        x
    };
    let q = turned(product(&weights.q, &normed), config.query_size());
    assert_same(&read::<f32>(engine, buffers.q, q.len()), &q, "queries");
    let cache = |x: &[f32]| {
        let at = |head: usize, p: usize, d: usize| f16::from_f32(x[(p * kv + head) * dim + d]).to_bits();
        let one = |head| (0..count).flat_map(move |p| (0..dim).map(move |d| (head, p, d)));
        (0..kv).flat_map(one).map(|(head, p, d)| at(head, p, d)).collect::<Vec<u16>>()
    };
    let stored = |from: Address| {
        let one =
            |head: usize| read::<u16>(engine, from + (head * engine.info.positions * dim * 2) as u64, count * dim);
        (0..kv).flat_map(one).collect::<Vec<u16>>()
    };
    let (keys, values) = (stored(engine.decoder.layers[layer].keys), stored(engine.decoder.layers[layer].values));
    assert!(keys == cache(&turned(product(&weights.k, &normed), config.key_value_size())), "keys differ");
    assert!(values == cache(&product(&weights.v, &normed)), "values differ");
    let mut mlp = vec![0.0; count * config.intermediate_size];
    plain::silu_up(&product(&weights.gate, &normed), &product(&weights.up, &normed), &mut mlp);
    assert_same(&read::<f32>(engine, buffers.mlp, mlp.len()), &mlp, "silu(gate) * up");
    let inner = rounded(engine, buffers.inner, count);
    assert_rounded(&inner, &mlp, "rounded MLP");

    let attention = rounded(engine, buffers.attention, count);
    let (mut scratch, mut attended) = (Vec::new(), vec![0.0; count * config.query_size()]);
    let shared = config.num_attention_heads / kv * dim;
    for p in 0..count {
        let oldest = match config.layer_types[layer] {
            LayerType::Sliding => (p + 1).saturating_sub(config.sliding_window),
            LayerType::Full => 0,
        };
        for head in 0..kv {
            let seen = (head * count + oldest) * dim..(head * count + p + 1) * dim;
            let at = p * config.query_size() + head * shared;
            let (q, out) = (&q[at..at + shared], &mut attended[at..at + shared]);
            plain::attend(q, &keys[seen.clone()], &values[seen], dim, &mut scratch, out);
        }
    }
    let back: Vec<f32> =
        attention.q.iter().enumerate().map(|(i, &q)| f32::from(q) * attention.scale[i / GROUP]).collect();
    assert_close(&back, &attended, 4.0 * SUM_TOLERANCE, "attention, rounded");

    let (o, down) = (product(&weights.o, &attention), product(&weights.down, &inner));
    let expected: Vec<f32> = pass.x.iter().zip(o.iter().zip(&down)).map(|(x, (o, d))| (x + o) + d).collect();
    assert_same(&rows(engine, &pass), &expected, "residual");
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_operation_of_a_layer_has_the_plain_meaning() {
    for export in [tiny(HeadKind::Int8), demo()] {
        let engine = open(&export, 2, 600);
        for (layer, count) in [(0, 9), (3, 33), (1, 64), (2, 21), (3, 13)] {
            check_layer(&engine, &export, layer, count);
        }
    }
}

/// The narrow kernels (1 to 8 columns) must give the bits of the wide ones, whatever the neighbours.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_column_has_the_same_bits_alone_and_in_any_company() {
    let export = demo();
    let (slots, past) = (8, 150);
    let engine = open(&export, slots, 600);
    let column =
        |slot: usize| Column { slot: slot as i32, position: past - slot as i32 * 17, live: 1, row: slot as i32 };
    for layer in [0, 3] {
        // A past for every slot, and 9 columns that run wide: 8 slots and a spare one.
        for slot in 0..slots as i32 {
            for first in (0..past).step_by(50) {
                let past = |i| Column { slot, position: first + i, live: 1, row: slots as i32 + i };
                prepare(&engine, (0..50).map(past).collect(), (slot * 7 + first) as u32);
                run_layer(&engine, layer, 50, past_end(first));
            }
        }
        let spare = Column { slot: 0, position: past + 1, live: 1, row: slots as i32 + 3 };
        let pass = prepare(&engine, (0..slots).map(column).chain([spare]).collect(), 99);
        run_layer(&engine, layer, slots + 1, 0);
        let wide = rows(&engine, &pass);
        let hidden = engine.info.config.hidden_size;
        for count in 1..=slots {
            for first in 0..=slots - count {
                let mut part: Vec<Column> = (first..first + count).map(column).collect();
                part.reverse(); // another place in the launch
                engine.device.write(&engine.main, engine.decoder.columns(), &part).unwrap();
                for slot in first..first + count {
                    let x = &pass.x[slot * hidden..][..hidden];
                    engine.device.write(&engine.main, engine.decoder.residual(slot), x).unwrap();
                }
                run_layer(&engine, layer, count, 0);
                for slot in first..first + count {
                    let found: Vec<f32> = read(&engine, engine.decoder.residual(slot), hidden);
                    assert_same(&found, &wide[slot * hidden..][..hidden], &format!("{count} columns, slot {slot}"));
                }
            }
        }
    }
}

fn past_end(first: i32) -> usize {
    first as usize + 50
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn heads_have_the_plain_meaning() {
    for kind in [HeadKind::Int8, HeadKind::Bf16] {
        let export = tiny(kind);
        let engine = open(&export, 1, 64);
        let config = &engine.info.config;
        let (hidden, rows) = (config.hidden_size, config.audio_rows());
        for count in [1, 4, 5, 11] {
            let column = |i: i32| Column { slot: 0, position: i, live: 1, row: 1 + i };
            let pass = prepare(&engine, (0..count as i32).map(column).collect(), 3);
            engine.decoder.scores(engine.main(), count, engine.normed.address()).unwrap();
            let normed: Vec<f32> = read(&engine, engine.normed.address(), count * hidden);
            let mut expected = vec![0.0; count * hidden];
            for (x, out) in pass.x.chunks(hidden).zip(expected.chunks_mut(hidden)) {
                plain::layer_norm(x, &export.norm, config.layer_norm_eps, out);
            }
            assert_close(&normed, &expected, SUM_TOLERANCE, "last LayerNorm");
            let logits: Vec<f32> = read(&engine, engine.decoder.logits(0), count * rows);
            let mut y = vec![0.0; rows * count];
            match &export.head {
                Head::Int8(matrix) => {
                    let mut x = Rounded::zeros(hidden, count, Order::Bytes);
                    plain::round(&normed, &mut x);
                    plain::int8_rows(matrix, 0, &x, &mut y);
                }
                Head::Bf16(tensor) => plain::bf16_rows(&tensor.data, &normed, hidden, &mut y),
            }
            let expected: Vec<f32> =
                (0..count).flat_map(|c| y[c..].iter().step_by(count).map(|y| y * config.logit_scale)).collect();
            match kind {
                HeadKind::Int8 => assert_same(&logits, &expected, "int8 logits"),
                HeadKind::Bf16 => assert_close(&logits, &expected, SUM_TOLERANCE, "bf16 logits"),
            }
            let terms: Vec<f32> = read(&engine, engine.decoder.stop_terms(0), count * export.stop.inner);
            for (terms, normed) in terms.chunks(export.stop.inner).zip(normed.chunks(hidden)) {
                let found = terms.iter().sum::<f32>() + export.stop.down_bias;
                let expected = stop_logit(&export, normed);
                assert!((found - expected).abs() < 1e-3, "stop logit {found} against {expected}");
            }
        }
    }
}

fn stop_logit(export: &Export, normed: &[f32]) -> f32 {
    let stop = &export.stop;
    let mut x = vec![0.0; normed.len()];
    plain::layer_norm(normed, &stop.norm_weight, 1e-5, &mut x);
    x.iter_mut().zip(&stop.norm_bias).for_each(|(x, bias)| *x += bias);
    let mut up = vec![0.0; stop.inner];
    plain::f32_rows(&stop.up_weight, &x, x.len(), &mut up);
    let terms = up.iter().zip(&stop.up_bias).zip(&stop.down_weight);
    terms.map(|((up, bias), down)| plain::gelu(up + bias) * down).sum::<f32>() + stop.down_bias
}

/// The choice of every kind of distribution, against the plain sampler.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_choice_is_the_plain_samplers() {
    let export = demo();
    let engine = open(&export, 1, 64);
    let (rows, inner) = (engine.info.audio_ids.len(), export.stop.inner);
    let end_row = rows - 1;
    let mut compared = 0;
    for case in 0..400u32 {
        let mut logits = noise(case, rows);
        match case % 4 {
            1 => logits.iter_mut().for_each(|l| *l = (*l * 2.0).round()), // many ties
            2 => logits.iter_mut().for_each(|l| *l = 0.25),               // nothing but ties
            3 => logits[end_row] = 50.0,
            _ => {}
        }
        let top_k = [30, 1, 128, 129, rows + 5][case as usize % 5];
        let temperature = [0.8, 0.0, 2.5][case as usize % 3];
        let (step, stop) = ([0, 7, 8, 40][case as usize / 4 % 4], [-3.0, 3.0][case as usize / 16 % 2]);
        let max_new = if case % 7 == 0 { step + 1 } else { 1000 };
        let seed = 0x1234_5678_9abc_def0 ^ u64::from(case) << 30;
        let mut terms = vec![0.0; inner];
        terms[3] = stop - export.stop.down_bias;
        let sequence = Sequence {
            temperature,
            top_k: top_k as i32,
            max_new,
            step,
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            sequence: case,
            ..Sequence::default()
        };
        let column = Column { slot: 0, position: 3, live: 1, row: 0 };
        engine.device.write(&engine.main, engine.decoder.logits(0), &logits).unwrap();
        engine.device.write(&engine.main, engine.decoder.stop_terms(0), &terms).unwrap();
        engine.device.write(&engine.main, engine.decoder.sequence(0), &[sequence]).unwrap();
        engine.device.write(&engine.main, engine.decoder.columns(), &[column]).unwrap();
        engine.device.fill(&engine.main, engine.decoder.out(), 0, size_of::<FrameOut>()).unwrap();
        engine.decoder.choose(engine.main(), 1).unwrap();
        let out = read::<FrameOut>(&engine, engine.decoder.out(), 1)[0];
        let outlook = Outlook { logits: &logits, stop_probability: 1.0 / (1.0 + (-stop).exp()), end_row };
        let noise = Noise { seed, sequence: case, step: step as u32 };
        let expected = sampler::next_token(outlook, Sampling { temperature, top_k }, noise, max_new as usize).unwrap();
        let end = match expected.end {
            None => 0,
            Some(End::StopHead) => END_STOP_HEAD,
            Some(End::AudioEnd) => END_AUDIO,
            Some(End::Length) => END_LENGTH,
        };
        assert_eq!((out.tokens, out.token[0], out.end), (1, engine.info.audio_ids[expected.row], end), "case {case}");
        let moved = read::<Column>(&engine, engine.decoder.columns(), 1)[0];
        assert_eq!((moved.position, moved.live), (4, i32::from(end == 0)));
        compared += 1;
    }
    assert_eq!(compared, 400);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_logit_that_is_not_finite_is_an_error() {
    let export = tiny(HeadKind::Int8);
    let mut engine = open(&export, 1, 64);
    let request = request(&[2, 5], 20, 0);
    engine.start(0, &request).unwrap();
    let poison = vec![f32::NAN; engine.info.config.hidden_size];
    engine.device.write(&engine.main, engine.decoder.residual(0), &poison).unwrap();
    let error = engine.step(&mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("finite"), "{error}");
    engine.reset(0);
    engine.start(0, &request).unwrap();
    engine.step(&mut |_| {}).unwrap();
}

fn request(prompt: &[u32], max_new_tokens: usize, seed: u64) -> Request<'_> {
    let sampling = if seed == 0 { Sampling { temperature: 0.0, top_k: 1 } } else { Sampling::default() };
    Request { prompt, sampling, max_new_tokens, seed, sequence: 0 }
}

/// Everything a slot made.
#[derive(Clone, Debug, Default, PartialEq)]
struct Made {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    pcm: Vec<f32>,
    end: Option<End>,
}

impl Made {
    fn take(&mut self, step: &Step<'_>) {
        assert_eq!(self.end, None, "a step after the end");
        self.tokens.extend(step.tokens);
        self.codes.extend(step.codes);
        self.pcm.extend(step.pcm);
        self.end = step.end;
    }
}

fn speak(engine: &mut CudaEngine, slot: usize, request: &Request<'_>) -> Made {
    let mut made = Made::default();
    engine.start(slot, request).unwrap();
    while made.end.is_none() {
        engine.step(&mut |step| made.take(&step)).unwrap();
    }
    engine.reset(slot);
    made
}

fn golden(folder: &str) -> TensorFile {
    TensorFile::open(&Path::new(folder).join("golden.safetensors")).unwrap()
}

fn ids(file: &TensorFile, name: &str) -> Vec<u32> {
    file.get(name).unwrap().to_i64().unwrap().into_iter().map(|id| id as u32).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn greedy_tokens_are_the_golden_ones() {
    let cases = [
        ("fixtures/golden/tiny", HeadKind::Int8, "gen_int4", 8),
        ("fixtures/golden/tiny", HeadKind::Bf16, "gen_int4_bf16head", 8),
        ("fixtures/demo", HeadKind::Int8, "gen_int4", 4),
    ];
    for (folder, head, name, prompts) in cases {
        let golden = golden(folder);
        let mut engine = open(&export(folder, head), 1, 1024);
        for prompt in 0..prompts {
            let expected = ids(&golden, &format!("{name}.{prompt}.ids"));
            let prompt_ids = ids(&golden, &format!("prompt.{prompt}.ids"));
            let made = speak(&mut engine, 0, &request(&prompt_ids, expected.len(), 0));
            assert_eq!(made.tokens, expected, "{folder} {name} {prompt}");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn scores_are_the_golden_ones() {
    /// Distance of the device's hidden states from the golden ones, relative to the largest: the golden ones round nothing to
    /// 16-bit integers or f16.
    const HIDDEN_TOLERANCE: f32 = 5e-3;
    struct Collect(Vec<f32>, usize);
    impl Observer for Collect {
        fn position(&mut self, scores: Scores<'_>) {
            self.0.extend(scores.hidden);
            self.1 += 1;
        }
    }
    let golden = golden("fixtures/golden/tiny");
    let mut engine = open(&tiny(HeadKind::Int8), 1, 256);
    for prompt in [0, 5, 7] {
        let ids = ids(&golden, &format!("prompt.{prompt}.ids"));
        let mut found = Collect(Vec::new(), 0);
        engine.score(0, &ids, &mut found).unwrap();
        assert_eq!(found.1, ids.len());
        let expected = golden.get(&format!("prompt.{prompt}.int4.hidden")).unwrap().to_f32().unwrap();
        assert_close(&found.0, &expected, HIDDEN_TOLERANCE, "hidden states");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn slots_sound_the_same_alone_and_together() {
    let export = demo();
    let golden = golden("fixtures/demo");
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| ids(&golden, &format!("prompt.{i}.ids"))).collect();
    let requests: Vec<Request<'_>> =
        (0..8).map(|i| request(&prompts[i % 4], 40 + 9 * i, 1000 * i as u64 + 1)).collect();
    let mut alone = open(&export, 1, 1024);
    let expected: Vec<Made> = requests.iter().map(|request| speak(&mut alone, 0, request)).collect();
    let mut engine = open(&export, 8, 1024);
    let mut made = vec![Made::default(); requests.len()];
    let mut slots = [None; 8];
    let (mut waiting, mut turn) = ((0..requests.len()).collect::<Vec<usize>>(), 0);
    while !waiting.is_empty() || slots.iter().any(Option::is_some) {
        // Join one at a time, in slots from the end, so that columns, slots and ages differ.
        let free = (0..8).rev().find(|&slot| slots[slot].is_none() && turn % 2 == 0);
        if let (Some(slot), Some(&index)) = (free, waiting.last()) {
            waiting.pop();
            engine.start(slot, &requests[index]).unwrap();
            slots[slot] = Some(index);
        }
        let mut ended = Vec::new();
        engine
            .step(&mut |step| {
                made[slots[step.slot].unwrap()].take(&step);
                ended.extend(step.end.map(|_| step.slot));
            })
            .unwrap();
        for slot in ended {
            engine.reset(slot);
            slots[slot] = None;
        }
        turn += 1;
    }
    for (index, (made, expected)) in made.iter().zip(&expected).enumerate() {
        assert!(made == expected, "request {index}: {:?} against {:?}", made.tokens, expected.tokens);
        assert!(!made.pcm.is_empty() || made.codes.is_empty());
    }
}

/// One persistent kernel and a launch a phase give the same tokens and samples.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_persistent_kernel_and_separate_phases_agree() {
    let export = demo();
    let prompt = ids(&golden("fixtures/demo"), "prompt.3.ids");
    for slots in [1, 3, 8] {
        let options = Options { slots, positions: 1024, ..Options::default() };
        let runs = [false, true].map(|persistent| {
            let mut engine = CudaEngine::open(&export, &Options { persistent, ..options }).unwrap();
            let mut made = vec![Made::default(); slots];
            for slot in 0..slots {
                engine.start(slot, &request(&prompt[..prompt.len() - 3 * slot], 90 + slot, slot as u64 + 3)).unwrap();
            }
            while made.iter().any(|made| made.end.is_none()) {
                engine.step(&mut |step| made[step.slot].take(&step)).unwrap();
            }
            made
        });
        assert!(runs[0] == runs[1], "{slots} slots");
    }
}

/// The cache after decoding a sequence holds the bits that prefilling the same ids leaves.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn decoding_and_prefilling_leave_the_same_cache() {
    let export = demo();
    let prompt = ids(&golden("fixtures/demo"), "prompt.0.ids");
    let mut engine = open(&export, 2, 512);
    let mut made = Made::default();
    engine.start(0, &request(&prompt, 200, 77)).unwrap();
    for _ in 0..12 {
        engine.step(&mut |step| made.take(&step)).unwrap();
    }
    assert_eq!((made.tokens.len(), made.end), (96, None), "the sequence should still run");
    let all = [prompt, made.tokens].concat();
    engine.start(1, &request(&all, 20, 1)).unwrap();
    let config: &ModelConfig = &engine.info.config;
    let head = engine.info.positions * config.head_dim;
    for (index, layer) in engine.decoder.layers.iter().enumerate() {
        for (what, at) in [("keys", layer.keys), ("values", layer.values)] {
            for kv in 0..config.num_key_value_heads {
                let of = |slot: usize| {
                    let from = at + ((slot * config.num_key_value_heads + kv) * head * 2) as u64;
                    read::<u16>(&engine, from, all.len() * config.head_dim)
                };
                assert!(of(0) == of(1), "{what} of layer {index}, head {kv}");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn samples_are_the_cpu_codecs() {
    for folder in ["fixtures/golden/tiny", "fixtures/demo"] {
        let export = export(folder, HeadKind::Int8);
        let codec = export.codec.as_ref().unwrap();
        let decoder = mimi::Decoder::load(&codec.config, &codec.weights, export.config.num_quantizers).unwrap();
        let prompt = ids(&golden(folder), "prompt.1.ids");
        let mut engine = open(&export, 1, 2048);
        // Long enough to pass the codec's attention window, twice in the same slot.
        for seed in [0, 5] {
            let made = speak(&mut engine, 0, &request(&prompt, 1400, seed));
            if made.codes.is_empty() {
                continue;
            }
            let mut expected = Vec::new();
            decoder.step(&mut decoder.state(), &made.codes, &mut expected).unwrap();
            let snr = snr_db(&made.pcm, &expected);
            assert!(snr > LEAST_SNR_DB, "{folder} seed {seed}: {snr:.1} dB over {} samples", expected.len());
        }
    }
}

fn snr_db(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let power = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let signal = power(&mut expected.iter().map(|&v| f64::from(v)));
    let error = power(&mut found.iter().zip(expected).map(|(f, e)| f64::from(*f) - f64::from(*e)));
    10.0 * (signal / error.max(1e-300)).log10()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn requests_that_cannot_run_are_refused() {
    let mut engine = open(&tiny(HeadKind::Int8), 1, 64);
    let refused = |engine: &mut CudaEngine, prompt: &[u32], max: usize, part: &str| {
        let error = engine.start(0, &request(prompt, max, 0)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&mut engine, &[], 8, "at least one id");
    refused(&mut engine, &[1 << 23], 8, "ids below");
    refused(&mut engine, &[2; 60], 8, "at most 64 positions");
    refused(&mut engine, &[2; 6], 0, "at least 1");
    engine.start(0, &request(&[2; 6], 8, 0)).unwrap();
    refused(&mut engine, &[2; 6], 8, "in use");
    let missing = CudaEngine::open(&tiny(HeadKind::Int8), &Options { ordinal: 99, ..Options::default() }).unwrap_err();
    assert!(missing.to_string().contains("cuda:99"), "{missing}");
}
