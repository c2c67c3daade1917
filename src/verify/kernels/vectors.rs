//! Known answers of the operations on one vector: rounding, LayerNorm, silu(gate) * up, RoPE, the embedding row, GELU, and of
//! the key/value cache.

use half::f16;

use crate::engine::cpu::plain::{self, Digits, LARGEST, Order, Rope, Rounded};
use crate::engine::kv::{KvCache, KvShape};
use crate::format::Int8Matrix;
use crate::format::layout::GROUP;

use super::judge::{Judge, POISON};
use super::values::{activations, int8, noise, signs};

/// A few roundings of f32, relative to values of size 1.
pub(super) const FLOAT_TOLERANCE: f64 = 1e-6;

/// Rounds a vector.
pub(super) type Round<'a> = &'a dyn Fn(&[f32], Order) -> Rounded;

/// Holds the rounding of activations against its definition, which is computed here a second way.
pub(super) fn judge_round(judge: &mut Judge<'_>, kernel: &str, round: Round<'_>) {
    let mut ties = vec![0.0; GROUP];
    ties[..8].copy_from_slice(&[LARGEST, 0.5, 1.5, -2.5, 2.5001, -LARGEST, 127.5, -128.5]); // a scale of 1
    let found = round(&ties, Order::Bytes);
    judge.same(kernel, "half_to_even", &found.q[..9], &[32512, 0, 2, -2, 3, -32512, 128, -128, 0]);
    judge.exact(kernel, "scale", &[found.scale[0], found.offset[0]], &[1.0, 3.0]);
    for (seed, order) in [(1, Order::Nibbles), (2, Order::Bytes)] {
        let x = activations(seed, 12 * GROUP);
        let found = round(&x, order);
        let groups = x.as_chunks::<GROUP>().0.iter().map(by_definition);
        let (scale, q): (Vec<f32>, Vec<Vec<i16>>) = groups.unzip();
        let sum: Vec<i32> = q.iter().map(|q| q.iter().map(|&q| i32::from(q)).sum()).collect();
        let offset: Vec<f32> = scale.iter().zip(&sum).map(|(scale, sum)| scale * *sum as f32).collect();
        judge.exact(kernel, "scale", &found.scale, &scale);
        judge.same(kernel, "integers", &found.q, &q.concat());
        judge.same(kernel, "sum", &found.sum, &sum);
        judge.exact(kernel, "offset", &found.offset, &offset);
        judge.same(kernel, "digits", &joined(&found.digits, order), &q.concat());
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = noise(3, GROUP);
        x[77] = bad;
        let found = round(&x, Order::Nibbles);
        judge.same(kernel, "not_finite", &[found.scale[0].is_finite()], &[false]);
        judge.same(kernel, "not_finite", &found.q, &[0; GROUP]);
    }
}

/// Scale and integers of a group: the f32 quotient, correctly rounded, to the nearest integer, ties to even.
fn by_definition(x: &[f32; GROUP]) -> (f32, Vec<i16>) {
    let scale = x.iter().fold(0f32, |m, v| m.max(v.abs())) / LARGEST;
    let integer = |v: &f32| f64::from(v / scale).round_ties_even().clamp(-32512.0, 32512.0) as i16;
    (scale, x.iter().map(|v| if scale == 0.0 { 0 } else { integer(v) }).collect())
}

/// The integers that digits stand for, in order of columns.
fn joined(digits: &[Digits], order: Order) -> Vec<i16> {
    let of = |digits: &Digits, i: usize| {
        let place = if order == Order::Bytes { i } else { i % 2 * GROUP / 2 + i / 2 };
        256 * i16::from(digits.0[place]) + i16::from(digits.0[GROUP + place])
    };
    digits.iter().flat_map(|digits| (0..GROUP).map(move |i| of(digits, i))).collect()
}

/// LayerNorm of a vector: `x`, weight, epsilon.
pub(super) type LayerNorm<'a> = &'a dyn Fn(&[f32], &[f32], f32) -> Vec<f32>;

/// An epsilon that leaves a variance of 1 as it is.
pub(super) const NO_EPS: f32 = 1e-12;

/// Balanced signs: mean 0 and variance 1, so that LayerNorm with weight w gives exactly w with these signs.
pub(super) fn balanced(seed: u32, count: usize) -> Vec<f32> {
    signs(seed, count / 2).iter().flat_map(|sign| [*sign, -sign]).collect()
}

/// Holds LayerNorm against known answers. `sizes` that the kernel takes, all even; a sum in another order than the plain one
/// is within `tolerance`.
pub(super) fn judge_layer_norm(
    judge: &mut Judge<'_>,
    kernel: &str,
    sizes: &[usize],
    tolerance: f64,
    norm: LayerNorm<'_>,
) {
    for (seed, &n) in (10..).zip(sizes) {
        let (x, weight) = (balanced(seed, n), noise(seed + 1, n));
        let products: Vec<f32> = x.iter().zip(&weight).map(|(x, weight)| x * weight).collect();
        judge.exact(kernel, "signs", &norm(&x, &weight, NO_EPS), &products);
        let shifted: Vec<f32> = x.iter().map(|x| x + 1024.0).collect();
        judge.exact(kernel, "mean", &norm(&shifted, &weight, NO_EPS), &products);
        // Variance and epsilon together 2^-18: a deviation of 2^-10 becomes 2^-1. An epsilon outside of the root would not.
        let small: Vec<f32> = x.iter().map(|x| x * 2f32.powi(-10)).collect();
        let half: Vec<f32> = products.iter().map(|y| y * 0.5).collect();
        judge.exact(kernel, "epsilon", &norm(&small, &weight, 3.0 * 2f32.powi(-20)), &half);
        judge.exact(kernel, "constant", &norm(&vec![7.0; n], &vec![1.0; n], 1e-5), &vec![0.0; n]);
        let x: Vec<f32> = noise(seed + 2, n).iter().map(|x| 3.0 * x + 0.5).collect();
        let (found, mut plain) = (norm(&x, &weight, 1e-5), vec![0.0; n]);
        plain::layer_norm(&x, &weight, 1e-5, &mut plain);
        match tolerance {
            0.0 => judge.exact(kernel, "random", &found, &plain),
            _ => judge.close(kernel, "random", &found, &plain, tolerance),
        }
        judge.close(kernel, "meaning", &found, &layer_norm_in_f64(&x, &weight, 1e-5), 10.0 * FLOAT_TOLERANCE);
    }
}

fn layer_norm_in_f64(x: &[f32], weight: &[f32], eps: f64) -> Vec<f32> {
    let (n, x) = (x.len() as f64, x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    x.iter().zip(weight).map(|(x, &w)| ((x - mean) / (variance + eps).sqrt() * f64::from(w)) as f32).collect()
}

/// `silu(gate) * up`.
pub(super) type SiluUp<'a> = &'a dyn Fn(&[f32], &[f32]) -> Vec<f32>;

/// Holds silu(gate) * up against known answers.
pub(super) fn judge_silu_up(judge: &mut Judge<'_>, kernel: &str, silu_up: SiluUp<'_>) {
    // silu(1) = 0.7310585786, silu(-1) = silu(1) - 1.
    let (gate, up) = ([0.0, 1.0, 1.0, -1.0, 2.0, 0.0, 30.0], [5.0, 1.0, -2.0, 1.0, 0.0, -1.0, 3.0]);
    let known = [0.0, 0.731_058_6, -1.462_117_2, -0.268_941_43, 0.0, 0.0, 90.0];
    judge.close(kernel, "known", &silu_up(&gate, &up), &known, FLOAT_TOLERANCE);
    let far = silu_up(&[-60.0, -1e4, 1e4], &[1.0, 1.0, 1.0]);
    judge.close(kernel, "far", &far, &[0.0, 0.0, 1e4], FLOAT_TOLERANCE);
    for (seed, n) in (20..).zip([1, 7, 16, 33, 299]) {
        let (gate, up): (Vec<f32>, _) = (noise(seed, n).iter().map(|x| 9.0 * x).collect(), noise(seed + 1, n));
        let mut plain = vec![POISON; n];
        plain::silu_up(&gate, &up, &mut plain);
        judge.exact(kernel, "random", &silu_up(&gate, &up), &plain);
        let meaning = |(&g, &u): (&f32, &f32)| (f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u)) as f32;
        let meant: Vec<f32> = gate.iter().zip(&up).map(meaning).collect();
        judge.close(kernel, "meaning", &silu_up(&gate, &up), &meant, FLOAT_TOLERANCE);
    }
}

/// Rotates `x: [heads, dim]` to a position.
pub(super) type Rotate<'a> = &'a dyn Fn(&mut [f32], usize);

/// Base of the angles in [`judge_rope`].
pub(super) const THETA: f64 = 10_000.0;

/// Holds RoPE against known answers: pairs are neighbours, the pair j turns by `position * theta^(-2 j / dim)`.
pub(super) fn judge_rope(judge: &mut Judge<'_>, kernel: &str, dim: usize, rotate: Rotate<'_>) {
    let heads = 3;
    for position in [0, 1, 2, 63] {
        let angle = |j: usize| position as f64 * THETA.powf(-((2 * j) as f64) / dim as f64);
        for (test, values) in [("even", [1.0, 0.0]), ("odd", [0.0, 1.0]), ("both", [0.5, -2.0])] {
            let mut x: Vec<f32> = (0..heads * dim).map(|i| values[i % 2] * (1 + i / dim) as f32).collect();
            let turned = |i: usize| {
                let (head, (sin, cos)) = ((1 + i / dim) as f64, angle(i % dim / 2).sin_cos());
                let [a, b] = values.map(f64::from);
                (head * if i.is_multiple_of(2) { a * cos - b * sin } else { a * sin + b * cos }) as f32
            };
            let expected: Vec<f32> = (0..heads * dim).map(turned).collect();
            rotate(&mut x, position);
            // Angles are rounded to f32 as in training: 2^-24 of 63 and of what is made of it.
            judge.close(kernel, test, &x, &expected, 10.0 * FLOAT_TOLERANCE);
        }
    }
    let mut x = noise(30, dim);
    rotate(&mut x, 0);
    judge.exact(kernel, "position_zero", &x, &noise(30, dim));
}

/// The plain RoPE, over the positions of [`judge_rope`].
pub(super) fn plain_rope(dim: usize) -> Rope {
    Rope::new(THETA, dim, 64)
}

/// An embedding matrix whose rows are told apart by code and scale.
pub(super) fn embedding(rows: usize, k: usize) -> Int8Matrix {
    int8([rows, k], |n, k| (n * 37 + k * 11 + 128) as u8 as i8, |n| 0.25 * (1 + n) as f32)
}

/// Holds the embedding row against `code * scale`.
pub(super) fn judge_embedding(judge: &mut Judge<'_>, kernel: &str, row: &dyn Fn(&Int8Matrix, usize) -> Vec<f32>) {
    let (rows, k) = (5, 256); // every code once in every row, -128 among them
    let w = embedding(rows, k);
    for n in 0..rows {
        let code = |k: usize| f32::from((n * 37 + k * 11 + 128) as u8 as i8);
        let expected: Vec<f32> = (0..k).map(|k| code(k) * 0.25 * (1 + n) as f32).collect();
        judge.exact(kernel, "rows", &row(&w, n), &expected);
    }
}

/// Holds GELU against tabulated values of `x * Phi(x)`; the tanh approximation is 2e-4 off.
pub(super) fn judge_gelu(judge: &mut Judge<'_>, kernel: &str, tolerance: f64, gelu: &dyn Fn(&[f32]) -> Vec<f32>) {
    let x = [0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 9.0, -20.0];
    let known = [0.0, 0.841_344_8, -0.158_655_25, 1.954_499_7, -0.045_500_264, 0.345_731_23, 9.0, 0.0];
    judge.close(kernel, "known", &gelu(&x), &known, tolerance);
}

/// Holds the key/value cache against its contract: a place for every layer, slot, head and position, and rounding to f16.
pub(super) fn judge_cache(judge: &mut Judge<'_>, kernel: &str) {
    let shape = KvShape { layers: 2, slots: 3, heads: 2, positions: 5, dim: 4 };
    let mut cache = KvCache::new(shape);
    let places: Vec<[usize; 3]> = (0..30).map(|i| [i / 15, i / 5 % 3, i % 5]).collect();
    let mark =
        |[layer, slot, position]: [usize; 3], head: usize| (1 + layer * 100 + slot * 30 + position * 4 + head) as f32;
    let both =
        |place, sign: f32| (0..8).map(|i| sign * mark(place, i / 4) + 0.25 * (i % 4) as f32).collect::<Vec<f32>>();
    for &[layer, slot, position] in &places {
        cache.store(layer, slot, position, &[POISON; 8], &[POISON; 8]);
    }
    for (i, &[layer, slot, position]) in places.iter().enumerate() {
        let place = [layer, slot, position];
        cache.store(layer, slot, position, &both(place, 1.0), &both(place, -1.0));
        let later = places.get(i + 1).map(|&[l, s, p]| cache.run(l, s, 1, p..p + 1).0[3]);
        let untouched = later.is_none_or(|bits| f16::from_bits(bits).is_nan());
        judge.same(kernel, "touches_its_place_only", &[untouched], &[true]);
    }
    for &[layer, slot, position] in &places {
        for head in 0..2 {
            let (keys, values) = cache.run(layer, slot, head, position..position + 1);
            let expected = |sign| super::values::bits(&both([layer, slot, position], sign)[head * 4..][..4]);
            judge.same(kernel, "places", keys, &expected(1.0));
            judge.same(kernel, "places", values, &expected(-1.0));
        }
    }
    // Ties go to even, in the last place of 2048 (2) and among subnormals (2^-24); beyond the largest comes infinity.
    let (x, tiny) = ([2049.0, 2051.0, 65_520.0, -65_519.0], 2f32.powi(-25));
    cache.store(1, 1, 1, &[x, [tiny, 3.0 * tiny, -tiny, 0.0]].concat(), &[0.0; 8]);
    let stored = [0, 1].map(|head| cache.run(1, 1, head, 1..2).0.to_vec()).concat();
    judge.same(kernel, "rounding", &stored, &[0x6800, 0x6802, 0x7c00, 0xfbff, 0, 2, 0x8000, 0]);
}
