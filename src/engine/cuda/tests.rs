//! The known answers of every kernel, and the engine against golden tokens and itself.
//!
//! All need a GPU: `cargo test --release --features cuda cuda -- --ignored`.

mod faults;
mod phase_head;

use std::path::Path;

use super::device::Plain;
use super::kernels::Address;
use super::*;
use crate::checkpoint::Checkpoint;
use crate::config::{LayerType, ModelConfig};
use crate::engine::{Sampling, mimi};
use crate::format::HeadKind;
use crate::quant::{self, ExportOptions};
use crate::tensors::TensorFile;

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

/// A random model with the head_dim of the persistent kernel, which sees far enough for several splits of the attention.
fn persistent() -> Export {
    let mut export =
        crate::verify::kernels::random_model(128, vec![LayerType::Full, LayerType::Sliding, LayerType::Full]);
    (export.config.max_position_embeddings, export.config.sliding_window) = (1024, 150);
    export
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

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differ = found.iter().zip(expected).position(|(f, e)| f.to_bits() != e.to_bits());
    if let Some(at) = differ {
        panic!("{what}: index {at} of {}: {} against {}", found.len(), found[at], expected[at]);
    }
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = found.iter().zip(expected).enumerate().map(|(i, (f, e))| ((f - e).abs(), i));
    let (error, at) = worst.fold((0f32, 0), |a, b| if b.0 > a.0 || b.0.is_nan() { b } else { a });
    assert!(error <= tolerance * largest, "{what}: index {at}: {} against {}", found[at], expected[at]);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_kernel_gives_its_known_answers() {
    let verdict = crate::verify::kernels::run(crate::verify::kernels::Backend::Cuda(0)).unwrap();
    assert!(verdict.passed(), "{verdict}");
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

/// The codec works beside the next frame: samples that it still has when their slot is held, or given up for another request, are
/// kept, or nobody's.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn held_and_abandoned_slots_hear_only_themselves() {
    let export = demo();
    let prompt = ids(&golden("fixtures/demo"), "prompt.1.ids");
    let [first, held, abandoned, next] =
        [(72, 1), (64, 2), (80, 3), (48, 4)].map(|(new, seed)| request(&prompt, new, seed));
    let mut alone = open(&export, 1, 1024);
    let [of_first, of_held, of_next] = [first, held, next].map(|request| speak(&mut alone, 0, &request));
    let mut engine = open(&export, 3, 1024);
    let mut made = vec![Made::default(); 3];
    for (slot, request) in [first, held, abandoned].iter().enumerate() {
        engine.start(slot, request).unwrap();
    }
    let frames = |engine: &mut CudaEngine, made: &mut [Made], most: usize| {
        for _ in 0..most {
            engine.step(&mut |step| made[step.slot].take(&step)).unwrap();
        }
    };
    frames(&mut engine, &mut made, 3);
    engine.hold(1, true);
    engine.reset(2);
    engine.start(2, &next).unwrap();
    made[2] = Made::default();
    frames(&mut engine, &mut made, 3);
    engine.hold(1, false);
    frames(&mut engine, &mut made, 10);
    for (slot, expected) in [of_first, of_held, of_next].iter().enumerate() {
        assert!(expected.end.is_some() && made[slot] == *expected, "slot {slot}: {} samples", made[slot].pcm.len());
    }
}

/// One persistent kernel and a launch a phase, with any rings, give the same tokens and samples.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn no_choice_of_kernels_changes_a_bit() {
    let of_demo = ids(&golden("fixtures/demo"), "prompt.3.ids");
    let short: Vec<u32> = (0..45).map(|i| 4 + i * 7 % 30).collect();
    for (export, prompt) in [(demo(), of_demo), (persistent(), short)] {
        choices_agree(&export, &prompt);
    }
}

/// Past 512 positions, and as if the GPU had fewer multiprocessors: other chunks of attention for a team, other shares of the
/// MLP for a block, the same tokens and samples.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn no_number_of_multiprocessors_changes_a_bit() {
    let export = persistent();
    let ids: Vec<u32> = (0..640).map(|i| 4 + i * 7 % 30).collect();
    let requests: Vec<Request<'_>> = (0..8).map(|i| request(&ids[..480 + 20 * i], 50, i as u64 + 1)).collect();
    let options = Options { slots: 8, positions: 1024, ..Options::default() };
    let mut alone = open(&export, 1, 1024);
    let expected: Vec<Made> = requests.iter().map(|request| speak(&mut alone, 0, request)).collect();
    for multiprocessors in [1, 2, 4, 5, 6, 7, 8, 9, 10, 12, 16, 40, usize::MAX] {
        let mut device = Device::open(0).unwrap();
        device.multiprocessors = multiprocessors.min(device.multiprocessors);
        let mut engine = CudaEngine::open_on(device, &export, &options).unwrap();
        let mut made = vec![Made::default(); requests.len()];
        for (slot, request) in requests.iter().enumerate() {
            engine.start(slot, request).unwrap();
        }
        while made.iter().any(|made| made.end.is_none()) {
            engine.step(&mut |step| made[step.slot].take(&step)).unwrap();
        }
        for (slot, (made, expected)) in made.iter().zip(&expected).enumerate() {
            assert!(made == expected, "{multiprocessors} multiprocessors, slot {slot}");
        }
    }
}

fn choices_agree(export: &Export, prompt: &[u32]) {
    for slots in [1, 3, 8] {
        let options = Options { slots, positions: 1024, ..Options::default() };
        let run = |tuning| {
            let mut engine = CudaEngine::open(export, &Options { tuning: Some(tuning), ..options }).unwrap();
            let mut made = vec![Made::default(); slots];
            for slot in 0..slots {
                engine.start(slot, &request(&prompt[..prompt.len() - 3 * slot], 290 + slot, slot as u64 + 3)).unwrap();
            }
            while made.iter().any(|made| made.end.is_none()) {
                engine.step(&mut |step| made[step.slot].take(&step)).unwrap();
            }
            made
        };
        let candidates = Tuning::candidates(identify(0).unwrap().0);
        let expected = run(candidates[0]);
        let mut differ = Vec::new();
        for &tuning in &candidates[1..] {
            let found = run(tuning);
            differ.extend((0..slots).filter(|&slot| found[slot] != expected[slot]).map(|slot| {
                let same = found[slot].tokens.iter().zip(&expected[slot].tokens).take_while(|(f, e)| f == e).count();
                format!("{tuning}: slot {slot} after {same} of {} tokens", expected[slot].tokens.len())
            }));
        }
        assert!(differ.is_empty(), "{slots} slots: {differ:#?}");
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
    let (dim, capacity, used) = (config.head_dim, engine.decoder.positions(), all.len());
    for (index, layer) in engine.decoder.layers.iter().enumerate() {
        for kv in 0..config.num_key_value_heads {
            let of = |at: Address, slot: usize| {
                let from = at + ((slot * config.num_key_value_heads + kv) * capacity * dim * 2) as u64;
                read::<u16>(&engine, from, capacity * dim)
            };
            let keys = |slot| of(layer.keys, slot)[..used * dim].to_vec();
            let values = |slot| {
                let all = of(layer.values, slot);
                (0..used * dim).map(|i| all[probe::value_place(dim, i / dim, i % dim)]).collect::<Vec<u16>>()
            };
            assert!(keys(0) == keys(1), "keys of layer {index}, head {kv}");
            assert!(values(0) == values(1), "values of layer {index}, head {kv}");
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
