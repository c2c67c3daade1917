//! Matrix-vector products of the CPU engine against their read-only twins, and whole tokens of a full-size model.
//!
//! A twin reads the same bytes in the same tiles by the same threads and computes nothing: what the memory gives. The
//! matrices are rotated so that each pass reads more than 1 GB, beyond any cache. Products and twins take turns, and the
//! best pass of each counts, because a shared machine only ever adds time. Run alone: `cargo bench --bench matvec`.

#![allow(unsafe_code)] // the twins' loads

use std::hint::black_box;
use std::time::Instant;

use half::{bf16, f16};
use rayon::prelude::*;
use rumik::config::{LayerType, ModelConfig};
use rumik::engine::cpu::plain::{Order, Rounded};
use rumik::engine::cpu::{CpuEngine, Kernels, Options};
use rumik::engine::{Engine, Request, Sampling};
use rumik::format::layout::GROUP;
use rumik::format::{Export, Head, Int4Matrix, Int8Matrix, Layer, StopHead};
use rumik::tensors::Bytes;

/// As in the engine.
const TILE_ROWS: usize = 32;
const ROTATED_BYTES: usize = 1 << 30;
const PASSES: usize = 9;

fn main() {
    let kernels = Kernels::choose().expect("an instruction set");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("instruction set {}, {cores} cores", kernels.name());
    println!("{:<28} {:>7} {:>10} {:>10} {:>8}", "matrix", "threads", "GB/s", "twin GB/s", "of twin");
    let mut thread_counts = vec![cores, 1];
    thread_counts.dedup();
    for (name, n, k) in [("int4 q,k,v,gate,up", 25088, 2048), ("int4 down", 2048, 11008), ("int4 o", 2048, 2048)] {
        let matrices = rotated(n * k / 2 + n * k / GROUP * 4, |random| random.int4(n, k));
        for &threads in &thread_counts {
            measure(&format!("{name} {n}x{k}"), threads, kernels, &matrices);
        }
    }
    let heads = rotated(16385 * 2050, |random| random.int8(16385, 2048));
    for &threads in &thread_counts {
        measure("int8 head 16385x2048", threads, kernels, &heads);
    }
    drop(heads);
    let heads = rotated(16385 * 4096, |random| random.bf16(16385, 2048));
    for &threads in &thread_counts {
        measure("bf16 head 16385x2048", threads, kernels, &heads);
    }
    drop(heads);
    for &threads in &thread_counts {
        whole_tokens(threads);
    }
}

/// An activation vector in the forms that matrices want.
struct Activations {
    values: Vec<f32>,
    for_int4: Rounded,
    for_int8: Rounded,
}

/// bf16 weights.
struct Bf16Matrix {
    n: usize,
    k: usize,
    weights: Bytes,
}

/// Something with rows to multiply and to read.
trait Matrix: Sync {
    fn shape(&self) -> (usize, usize);
    fn rows(&self, kernels: &Kernels, first: usize, x: &Activations, y: &mut [f32]);
    /// The pieces of memory that hold rows `first..last`.
    fn bytes(&self, first: usize, last: usize) -> [&[u8]; 3];
}

impl Matrix for Int4Matrix {
    fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    fn rows(&self, kernels: &Kernels, first: usize, x: &Activations, y: &mut [f32]) {
        kernels.int4_rows(self, first, &x.for_int4, y);
    }

    fn bytes(&self, first: usize, last: usize) -> [&[u8]; 3] {
        let groups = self.k / GROUP;
        let halves = |of: &'_ [f16]| {
            let of = &of[first * groups..last * groups];
            // SAFETY: f16 is two bytes of any bits.
            unsafe { std::slice::from_raw_parts(of.as_ptr().cast::<u8>(), size_of_val(of)) }
        };
        [&self.codes[first * self.k / 2..last * self.k / 2], halves(&self.scale), halves(&self.min)]
    }
}

impl Matrix for Int8Matrix {
    fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    fn rows(&self, kernels: &Kernels, first: usize, x: &Activations, y: &mut [f32]) {
        kernels.int8_rows(self, first, &x.for_int8, y);
    }

    fn bytes(&self, first: usize, last: usize) -> [&[u8]; 3] {
        [&self.codes[first * self.k..last * self.k], &[], &[]]
    }
}

impl Matrix for Bf16Matrix {
    fn shape(&self) -> (usize, usize) {
        (self.n, self.k)
    }

    fn rows(&self, kernels: &Kernels, first: usize, x: &Activations, y: &mut [f32]) {
        let [weights, ..] = self.bytes(first, first + y.len());
        kernels.bf16_rows(weights, &x.values, self.k, y);
    }

    fn bytes(&self, first: usize, last: usize) -> [&[u8]; 3] {
        [&self.weights[first * 2 * self.k..last * 2 * self.k], &[], &[]]
    }
}

fn rotated<M>(bytes: usize, make: impl Fn(&mut Random) -> M) -> Vec<M> {
    let mut random = Random(bytes as u64);
    (0..ROTATED_BYTES.div_ceil(bytes)).map(|_| make(&mut random)).collect()
}

fn measure<M: Matrix>(name: &str, threads: usize, kernels: &Kernels, matrices: &[M]) {
    let (n, k) = matrices[0].shape();
    let mut random = Random(7);
    let values: Vec<f32> = (0..k).map(|_| random.value()).collect();
    let round = |order| {
        let mut rounded = Rounded::zeros(k, 1, order);
        kernels.round(&values, &mut rounded);
        rounded
    };
    let x = Activations { for_int4: round(Order::Nibbles), for_int8: round(Order::Bytes), values: values.clone() };
    let mut y = vec![0.0; n];
    let bytes: usize = matrices.iter().map(|m| m.bytes(0, n).iter().map(|part| part.len()).sum::<usize>()).sum();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let (mut product, mut twin) = (f64::MAX, f64::MAX);
    for _ in 0..PASSES {
        let start = Instant::now();
        pool.install(|| {
            for matrix in matrices {
                let tiles = y.par_chunks_mut(TILE_ROWS).enumerate();
                tiles.for_each(|(tile, y)| matrix.rows(kernels, tile * TILE_ROWS, &x, y));
            }
        });
        product = product.min(start.elapsed().as_secs_f64());
        black_box(&y);
        let start = Instant::now();
        pool.install(|| {
            for matrix in matrices {
                let tiles = y.par_chunks_mut(TILE_ROWS).enumerate();
                tiles.for_each(|(tile, y)| {
                    let first = tile * TILE_ROWS;
                    let read = matrix.bytes(first, first + y.len()).map(read);
                    y[0] = f32::from_bits((read[0] ^ read[1] ^ read[2]) as u32);
                });
            }
        });
        twin = twin.min(start.elapsed().as_secs_f64());
        black_box(&y);
    }
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    println!("{name:<28} {threads:>7} {:>10.2} {:>10.2} {:>7.0}%", rate(product), rate(twin), 100.0 * twin / product);
}

/// Reads every whole 64 bytes, with the widest loads there are.
fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature is there.
        return unsafe { read_avx512(bytes) };
    } else if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature is there.
        return unsafe { read_avx2(bytes) };
    }
    read_words(bytes)
}

#[inline(always)]
fn read_words(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    for bytes in bytes.as_chunks::<256>().0 {
        for (sum, word) in sums.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *sum ^= u64::from_le_bytes(*word);
        }
    }
    sums.iter().fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn read_avx512(bytes: &[u8]) -> u64 {
    read_words(bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(bytes: &[u8]) -> u64 {
    read_words(bytes)
}

/// Tokens a second of a random model of the published size, after a prompt of 34 tokens.
fn whole_tokens(threads: usize) {
    const PROMPT: usize = 34;
    const FRAMES: usize = 4;
    let options = Options { threads: Some(threads), positions: Some(1024), ..Options::default() };
    let mut engine = CpuEngine::new(full_size_export(), options).expect("an engine");
    let prompt: Vec<u32> = (0..PROMPT as u32).collect();
    let sampling = Sampling::default();
    let start = Instant::now();
    let request = Request { prompt: &prompt, sampling, max_new_tokens: 900, seed: 1, sequence: 0 };
    engine.start(0, &request).expect("a prompt");
    let prefill = start.elapsed().as_secs_f64();
    engine.step(&mut |_| {}).expect("a frame");
    let start = Instant::now();
    let mut tokens = 0;
    for _ in 0..FRAMES {
        engine.step(&mut |step| tokens += step.tokens.len()).expect("a frame");
    }
    let rate = tokens as f64 / start.elapsed().as_secs_f64();
    println!(
        "whole token, 36 layers, int8 head, {}: {rate:.1} tokens/s ({:.0} ms for a prompt of {PROMPT})",
        engine.info().backend,
        1e3 * prefill
    );
}

/// The published shape with a small text vocabulary.
fn full_size_export() -> Export {
    let mut random = Random(3);
    let config = ModelConfig {
        vocab_size: 17_000,
        hidden_size: 2048,
        intermediate_size: 11_008,
        num_attention_heads: 16,
        num_key_value_heads: 4,
        head_dim: 128,
        sliding_window: 4096,
        layer_types: (0..36).map(|i| if i % 4 == 3 { LayerType::Full } else { LayerType::Sliding }).collect(),
        max_position_embeddings: 8192,
        rope_theta: 10_000.0,
        logit_scale: 0.1,
        layer_norm_eps: 1e-5,
        num_quantizers: 8,
        codebook_size: 2048,
        first_unit_id: 500,
        last_unit_id: 500 + 16_383,
        text_start_token_id: 16_900,
        audio_start_token_id: 16_901,
        audio_end_token_id: 16_902,
        bos_token_id: 2,
        frame_rate_hz: 12.5,
        speakers: vec!["Ira".into()],
    };
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let layer = |_| Layer {
        norm: vec![1.0; hidden],
        q: random.int4(2048, hidden),
        k: random.int4(512, hidden),
        v: random.int4(512, hidden),
        o: random.int4(hidden, 2048),
        gate: random.int4(wide, hidden),
        up: random.int4(wide, hidden),
        down: random.int4(hidden, wide),
    };
    Export {
        name: "random weights".into(),
        layers: (0..36).map(layer).collect(),
        embedding: random.int8(config.vocab_size, hidden),
        head: Head::Int8(random.int8(config.audio_rows(), hidden)),
        audio_ids: config.audio_ids(),
        norm: vec![1.0; hidden],
        stop: StopHead {
            inner: 512,
            norm_weight: vec![1.0; hidden],
            norm_bias: vec![0.0; hidden],
            up_weight: vec![0.0; 512 * hidden],
            up_bias: vec![0.0; 512],
            down_weight: vec![0.0; 512],
            down_bias: -9.0, // never stops
        },
        codec: None,
        tokenizer: Bytes::from(Vec::new()),
        report: None,
        config,
    }
}

struct Random(u64);

impl Random {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn value(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn bytes(&mut self, count: usize) -> Bytes {
        Bytes::from((0..count.div_ceil(8)).flat_map(|_| self.word().to_le_bytes()).collect::<Vec<u8>>())
    }

    /// Weights between -0.06 and 0.06. Random bits would not do: one in 128 would be subnormal, which no checkpoint's
    /// weights are, and each of those costs the processor a hundred cycles.
    fn bf16(&mut self, n: usize, k: usize) -> Bf16Matrix {
        let weights = (0..n * k).flat_map(|_| bf16::from_f32(0.06 * self.value()).to_le_bytes());
        Bf16Matrix { n, k, weights: Bytes::from(weights.collect::<Vec<u8>>()) }
    }

    /// Weights between -0.06 and 0.06.
    fn int4(&mut self, n: usize, k: usize) -> Int4Matrix {
        let groups = n * k / GROUP;
        let constant = |value: f32| vec![f16::from_f32(value); groups];
        Int4Matrix { n, k, codes: self.bytes(n * k / 2), scale: constant(0.008), min: constant(-0.06) }
    }

    fn int8(&mut self, n: usize, k: usize) -> Int8Matrix {
        Int8Matrix { n, k, codes: self.bytes(n * k), scale: vec![f16::from_f32(0.0005); n] }
    }
}
