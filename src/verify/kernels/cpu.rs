//! The kernels of the processor, on every instruction set that it has.

use crate::config::LayerType;
use crate::engine::Engine;
use crate::engine::cpu::plain::{self, Order, Rounded};
use crate::engine::cpu::{CpuEngine, Kernels, Options};
use crate::engine::frames::Frames;
use crate::engine::mimi;
use crate::engine::mimi::gemm::Matrix;
use crate::engine::mimi::simd::{self, Set};
use crate::error::Result;
use crate::format::{Export, Int4Matrix, Int8Matrix};
use crate::verify::Verdict;

use super::judge::{Judge, POISON};
use super::products::{self, Floats};
use super::values::transposed;
use super::{attention, choice, codec, model, registry, vectors};

/// Groups of the widest matrix of the tests; the tables take any number.
const ANY: usize = usize::MAX / 256;

/// Runs every known-answer test of the processor.
pub(super) fn run(verdict: &mut Verdict) -> Result<()> {
    for table in Kernels::available() {
        run_table(verdict, table)?;
    }
    for set in Set::available() {
        run_codec(verdict, set);
    }
    run_shared(verdict)
}

/// One dispatch table.
fn run_table(verdict: &mut Verdict, table: &'static Kernels) -> Result<()> {
    let mut judge = Judge::new(verdict, format!("cpu.{}", table.name()));
    vectors::judge_round(&mut judge, "round", &|x, order| round(table, x, x.len(), order));
    products::judge_int4(&mut judge, "int4_rows", ANY, &|w, x| int4(table, w, x));
    products::judge_int8(&mut judge, "int8_rows", ANY, &|w, x| int8(table, w, x));
    products::judge_floats(&mut judge, "bf16_rows", products::BF16, ANY, 0.0, &|w: &Floats, x| {
        let mut y = vec![POISON; w.n * x.len() / w.k];
        table.bf16_rows(&w.bf16(), x, w.k, &mut y);
        transposed(&y, x.len() / w.k)
    });
    products::judge_floats(&mut judge, "f32_rows", u32::MAX, ANY, 0.0, &|w: &Floats, x| {
        let mut y = vec![POISON; w.n * x.len() / w.k];
        table.f32_rows(&w.values, x, w.k, &mut y);
        transposed(&y, x.len() / w.k)
    });
    vectors::judge_layer_norm(&mut judge, "layer_norm", &[2, 18, 256, 2048], 0.0, &|x, weight, eps| {
        let mut out = vec![POISON; x.len()];
        table.layer_norm(x, weight, eps, &mut out);
        out
    });
    attention::judge(&mut judge, "attend", &[20, 64, 128], ANY, 0.0, &|q, cache, dim| {
        // Working memory as an earlier call over more positions leaves it.
        let (mut scratch, mut out) = (vec![POISON; 4000], vec![POISON; q.len()]);
        table.attend(q, cache, dim, &mut scratch, &mut out);
        out
    });
    vectors::judge_silu_up(&mut judge, "silu_up", &|gate, up| {
        let mut out = vec![POISON; gate.len()];
        table.silu_up(gate, up, &mut out);
        out
    });
    let open = |export: &Export, slots| {
        let options = Options { slots, positions: Some(model::POSITIONS), threads: Some(1) };
        Ok(Box::new(CpuEngine::with_kernels(export.clone(), options, table)?) as Box<dyn Engine>)
    };
    model::judge_scores(&mut judge, 64, 0.0, &open)?;
    model::judge_decode(&mut judge, 64, 2, &open)?;
    judge.finish(registry::table());
    Ok(())
}

fn round(table: &Kernels, x: &[f32], k: usize, order: Order) -> Rounded {
    let mut out = Rounded::zeros(k, x.len() / k, order);
    // As if other activations had been there before.
    out.q.fill(-77);
    out.digits.fill(plain::Digits([-77; 256]));
    out.scale.fill(POISON);
    out.offset.fill(POISON);
    out.sum.fill(-77);
    table.round(x, &mut out);
    out
}

/// The product in two parts, as two threads take it: rows before and from the middle.
fn int4(table: &Kernels, w: &Int4Matrix, x: &[f32]) -> Vec<f32> {
    let x = round(table, x, w.k, Order::Nibbles);
    let mut y = vec![POISON; w.n * x.columns];
    let (first, second) = y.split_at_mut(w.n / 2 * x.columns);
    table.int4_rows(w, 0, &x, first);
    table.int4_rows(w, w.n / 2, &x, second);
    transposed(&y, x.columns)
}

/// As [`int4`].
fn int8(table: &Kernels, w: &Int8Matrix, x: &[f32]) -> Vec<f32> {
    let x = round(table, x, w.k, Order::Bytes);
    let mut y = vec![POISON; w.n * x.columns];
    let (first, second) = y.split_at_mut(w.n / 2 * x.columns);
    table.int8_rows(w, 0, &x, first);
    table.int8_rows(w, w.n / 2, &x, second);
    transposed(&y, x.columns)
}

/// The codec's own product and loops on one instruction set.
fn run_codec(verdict: &mut Verdict, set: Set) {
    let mut judge = Judge::new(verdict, format!("cpu.codec_{}", set.name()));
    products::judge_floats(
        &mut judge,
        registry::CODEC_PRODUCT,
        u32::MAX,
        ANY,
        products::SUM_TOLERANCE,
        &|w: &Floats, x| {
            let matrix = Matrix::pack(w.n, w.k, |n, k| w.values[n * w.k + k], |_| 0.0);
            let mut y = vec![POISON; w.n * x.len() / w.k];
            matrix.multiply_on(set, x, w.k, &mut y);
            y
        },
    );
    judge_overlapping_rows(&mut judge, set);
    let values: Vec<f32> = (-400..100).map(|i| i as f32 / 10.0).collect();
    let mut found = vec![7.0];
    simd::extend_elu(set, &values, &mut found);
    let elu = |x: &f32| if *x > 0.0 { *x } else { f64::from(*x).exp_m1() as f32 };
    let expected: Vec<f32> = [7.0].into_iter().chain(values.iter().map(elu)).collect();
    judge.close("extend_elu", "definition", &found, &expected, vectors::FLOAT_TOLERANCE);
    vectors::judge_gelu(&mut judge, "gelu", vectors::FLOAT_TOLERANCE, &|x| {
        let mut x = x.to_vec();
        simd::gelu(set, &mut x);
        x
    });
    for case in [16, 64, 20].iter().flat_map(|&dim| attention::cases(dim)) {
        let wide = |bits: &[u16]| bits.iter().map(|&bits| plain::widen(bits)).collect::<Vec<f32>>();
        let (keys, values) = (wide(&case.keys), wide(&case.values));
        let mut out = vec![POISON; case.q.len()];
        for (q, out) in case.q.chunks(case.dim).zip(out.chunks_mut(case.dim)) {
            let mut scores = vec![POISON; keys.len() / case.dim];
            simd::attend(set, q, &keys, &values, 1.0 / (case.dim as f32).sqrt(), &mut scores, out);
        }
        judge.close("attend", case.test, &out, &case.expected, case.tolerance);
    }
    judge.finish(registry::codec());
}

/// A convolution is a product over rows that overlap: two taps of three channels, and a bias.
fn judge_overlapping_rows(judge: &mut Judge<'_>, set: Set) {
    let (channels, outputs, rows) = (3, 33, 30);
    let weight = |n: usize, k: usize| (1 + (n * 7 + k * 3) % 11) as f32;
    let x: Vec<f32> = (0..(rows + 1) * channels).map(|i| (i * i % 13) as f32 - 6.0).collect();
    let matrix = Matrix::pack(outputs, 2 * channels, weight, |n| n as f32);
    let mut found = vec![POISON; rows * outputs];
    matrix.multiply_on(set, &x, channels, &mut found);
    let sum = |row: usize, n: usize| (0..2 * channels).map(|k| weight(n, k) * x[row * channels + k]).sum::<f32>();
    let expected: Vec<f32> =
        (0..rows * outputs).map(|i| (i % outputs) as f32 + sum(i / outputs, i % outputs)).collect();
    judge.exact(registry::CODEC_PRODUCT, "overlapping_rows", &found, &expected);
}

/// What all instruction sets share.
fn run_shared(verdict: &mut Verdict) -> Result<()> {
    let mut judge = Judge::new(verdict, "cpu");
    vectors::judge_embedding(&mut judge, "embedding_row", &|w, row| {
        let mut x = vec![POISON; w.k];
        plain::embedding_row(w, row, &mut x);
        x
    });
    for dim in [4, 64, 128] {
        let rope = vectors::plain_rope(dim);
        vectors::judge_rope(&mut judge, "rope", dim, &|x, position| rope.rotate(x, position));
    }
    let gelu = |x: &[f32]| x.iter().map(|&x| plain::gelu(x)).collect();
    vectors::judge_gelu(&mut judge, "gelu", vectors::FLOAT_TOLERANCE, &gelu);
    vectors::judge_cache(&mut judge, "kv_cache");
    choice::judge(&mut judge, "sampler", 385, &choice::plain);
    choice::judge_noise(&mut judge, "noise");
    judge_frames(&mut judge);
    codec::judge(&mut judge, "codec_stream", &|codec, codes, sizes, twice| {
        let decoder = mimi::Decoder::load(&codec.config, &codec.weights, 3)?;
        let mut state = decoder.state();
        let mut out = Vec::new();
        for _ in 0..=usize::from(twice) {
            state.reset();
            out.clear();
            let mut rest = codes;
            for size in sizes.iter().cycle().map_while(|&size| (!rest.is_empty()).then_some(size)) {
                let (now, later) = rest.split_at(rest.len().min(size * 3));
                decoder.step(&mut state, now, &mut out)?;
                rest = later;
            }
        }
        Ok(out)
    })?;
    judge.finish(registry::SHARED.iter().copied());
    Ok(())
}

/// The frames of [`choice::SEQUENCES`], all by one assembler, which is reset between them.
fn judge_frames(judge: &mut Judge<'_>) {
    let config = model::config(64, vec![LayerType::Full], 1e-5);
    let mut frames = Frames::new(&config);
    for sequence in &choice::SEQUENCES {
        let mut found = Vec::new();
        frames.reset();
        for unit in sequence.units {
            frames.push(
                unit.map_or(config.audio_end_token_id, |(code, q)| config.first_unit_id + code * 3 + q),
                &mut found,
            );
        }
        judge.same("frames", sequence.test, &found, sequence.frames.as_flattened());
    }
}
