//! Every operation of the model in plain Rust: the executable meaning of each kernel, here and on other devices.
//!
//! Sums of floating-point numbers run over [`LANES`] partial sums (dot products over four times as many), element `i` into
//! partial sum `i % LANES`, which are then added by [`sum_lanes`]; that order is part of the meaning. Rust neither reorders nor contracts floating-point
//! arithmetic, so the same source compiled for wider registers computes the same bits. For that the functions here are
//! inlined into the dispatch table of each instruction set; only integer sums and dot products, which compilers do not
//! widen by themselves, have hand-written versions.

use half::f16;

use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

/// Partial sums of a floating-point sum; also the number of groups folded at a time.
pub const LANES: usize = 16;

/// Largest magnitude of a rounded activation: 127 * 256, so that both of its digits are signed bytes.
pub const LARGEST: f32 = 32512.0;

/// The two digits of each integer of a group, laid out in an [`Order`]. Aligned so that no load of 64 bytes crosses a
/// cache line, which would halve the speed of the widest kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Digits(pub [i8; 2 * GROUP]);

/// How the digits of a group of 128 columns are laid out for the code layout they meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// For int4 codes, two a byte: high digits of the even columns, of the odd ones, then the low digits likewise.
    Nibbles,
    /// For int8 codes: high digits in order, then the low digits.
    Bytes,
}

/// Activations rounded to 16-bit integers per group of 128 columns, ready to meet integer codes.
///
/// `x[c, i]` is close to `q[c, i] * scale[c, i / 128]`; the error is at most half of the scale, 2^-16 of the group's
/// largest value. A group that holds a value that is not finite has a scale that is not finite and integers of 0, so
/// that every product with it is NaN rather than a wrong number.
#[derive(Clone, Debug)]
pub struct Rounded {
    /// Columns of the matrices it can meet, a multiple of 128.
    pub k: usize,
    /// Activation vectors.
    pub columns: usize,
    /// Layout of `digits`.
    pub order: Order,
    /// `[columns, k]`, at most 32512 in magnitude.
    pub q: Vec<i16>,
    /// `[columns, k / 128]`: the same integers as two signed bytes, `q = 256 * high + low`.
    pub digits: Vec<Digits>,
    /// `[columns, k / 128]`: the value of an integer step.
    pub scale: Vec<f32>,
    /// `[columns, k / 128]`: the exact sum of the integers of a group.
    pub sum: Vec<i32>,
    /// `[columns, k / 128]`: `scale * sum`.
    pub offset: Vec<f32>,
}

impl Rounded {
    /// Room for `columns` vectors of `k` values, all zero.
    pub fn zeros(k: usize, columns: usize, order: Order) -> Rounded {
        assert!(k.is_multiple_of(GROUP), "activations of {k} columns do not split into groups of {GROUP}");
        let groups = columns * k / GROUP;
        Rounded {
            k,
            columns,
            order,
            q: vec![0; columns * k],
            digits: vec![Digits([0; 2 * GROUP]); groups],
            scale: vec![0.0; groups],
            sum: vec![0; groups],
            offset: vec![0.0; groups],
        }
    }

    /// Number of groups of a vector.
    pub fn groups(&self) -> usize {
        self.k / GROUP
    }
}

/// Rounds one group of 128 values: `q = round_half_even(x / scale)` with `scale = max|x| / 32512`.
///
/// Returns the scale. A scale of 0 (a group of zeros, or of values below the smallest float times 32512) and a scale
/// that is not finite have integers of 0.
#[inline(always)]
pub fn round_group(x: &[f32; GROUP], q: &mut [i16; GROUP]) -> f32 {
    // The order of floats without their sign is that of their bits, NaN above everything, so NaN is not lost.
    let bits = x.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(bits) / LARGEST;
    if scale == 0.0 || !scale.is_finite() {
        *q = [0; GROUP];
        return scale;
    }
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x / scale).round_ties_even().clamp(-LARGEST, LARGEST) as i16;
    }
    scale
}

/// Splits integers of magnitude up to 32512 into two signed bytes each, `q = 256 * high + low`.
#[inline(always)]
pub fn split_digits(q: &[i16; GROUP], order: Order, digits: &mut Digits) {
    let (high, low) = digits.0.split_at_mut(GROUP);
    let split = |q: i16| {
        let low = q as i8;
        ((q.wrapping_sub(low.into()) >> 8) as i8, low)
    };
    match order {
        Order::Bytes => {
            for ((q, high), low) in q.iter().zip(high).zip(low) {
                (*high, *low) = split(*q);
            }
        }
        Order::Nibbles => {
            let (high_even, high_odd) = high.split_at_mut(GROUP / 2);
            let (low_even, low_odd) = low.split_at_mut(GROUP / 2);
            for i in 0..GROUP / 2 {
                (high_even[i], low_even[i]) = split(q[2 * i]);
                (high_odd[i], low_odd[i]) = split(q[2 * i + 1]);
            }
        }
    }
}

/// Rounds activations `x: [columns, k]` into `out`, whose size fits.
#[inline(always)]
pub fn round(x: &[f32], out: &mut Rounded) {
    let inputs = x.as_chunks::<GROUP>().0.iter();
    let integers = out.q.as_chunks_mut::<GROUP>().0.iter_mut();
    for (g, ((x, q), digits)) in inputs.zip(integers).zip(&mut out.digits).enumerate() {
        out.scale[g] = round_group(x, q);
        out.sum[g] = q.iter().map(|&q| i32::from(q)).sum();
        out.offset[g] = out.scale[g] * out.sum[g] as f32;
        split_digits(q, out.order, digits);
    }
}

/// The value of f16 bits. Exact for every value; infinities and NaN stay what they are.
#[inline(always)]
pub fn widen(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let sign = u32::from(bits & 0x8000) << 16;
    // 2^112 moves the exponent from f16's bias to f32's, and makes normal numbers of f16's subnormal ones.
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if magnitude >= 0x0f80_0000 { special } else { finite };
    f32::from_bits(value.to_bits() | sign)
}

/// Adds the lanes: each four in order, then the four sums in order. So four blocks of a GPU can share a sum.
#[inline(always)]
pub fn sum_lanes(lanes: &[f32; LANES]) -> f32 {
    let [a, b, c, d] = lanes.as_chunks::<4>().0 else { unreachable!("16 lanes") };
    let sum = |four: &[f32; 4]| ((four[0] + four[1]) + four[2]) + four[3];
    ((sum(a) + sum(b)) + sum(c)) + sum(d)
}

/// Folds up to 16 groups of a row of int4 codes into its partial sums, given the integer sums `t` of code times `q`.
///
/// `scale`, `min`: of the row's groups; `step`, `offset`: `Rounded::scale` and `Rounded::offset` of the same groups.
#[inline(always)]
pub fn fold_int4(p: &mut [f32; LANES], t: &[i32; LANES], scale: &[f16], min: &[f16], step: &[f32], offset: &[f32]) {
    let fold = |p: f32, t: i32, scale: f16, min: f16, step: f32, offset: f32| {
        let p = (widen(scale.to_bits()) * step).mul_add(t as f32, p);
        widen(min.to_bits()).mul_add(offset, p)
    };
    // The full block apart, with sizes that the compiler knows: this is where nearly all the time goes.
    let full = (scale.first_chunk::<LANES>(), min.first_chunk::<LANES>());
    if let ((Some(scale), Some(min)), Some(step), Some(offset)) =
        (full, step.first_chunk::<LANES>(), offset.first_chunk::<LANES>())
    {
        for w in 0..LANES {
            p[w] = fold(p[w], t[w], scale[w], min[w], step[w], offset[w]);
        }
    } else {
        for w in 0..scale.len() {
            p[w] = fold(p[w], t[w], scale[w], min[w], step[w], offset[w]);
        }
    }
}

/// Folds up to 16 groups of a row of int8 codes into its partial sums.
#[inline(always)]
pub fn fold_int8(p: &mut [f32; LANES], t: &[i32; LANES], step: &[f32]) {
    for (w, step) in step.iter().enumerate() {
        p[w] = step.mul_add(t[w] as f32, p[w]);
    }
}

/// Multiplies rows `first..` of an int4 matrix by rounded activations.
///
/// `y: [rows, columns]`, overwritten; its length says how many rows. `x.k == w.k`.
pub fn int4_rows(w: &Int4Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
    let groups = x.groups();
    for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
        let codes = &w.codes[row * w.k / 2..(row + 1) * w.k / 2];
        let (scale, min) = (&w.scale[row * groups..][..groups], &w.min[row * groups..][..groups]);
        for (c, y) in y.iter_mut().enumerate() {
            let q = &x.q[c * x.k..][..x.k];
            let (step, offset) = (&x.scale[c * groups..][..groups], &x.offset[c * groups..][..groups]);
            let mut p = [0.0; LANES];
            for g in 0..groups {
                let code = |i: usize| i32::from(codes[i / 2] >> (4 * (i % 2)) & 15);
                let t: i32 = (g * GROUP..(g + 1) * GROUP).map(|i| code(i) * i32::from(q[i])).sum();
                let p = &mut p[g % LANES];
                *p = (widen(scale[g].to_bits()) * step[g]).mul_add(t as f32, *p);
                *p = widen(min[g].to_bits()).mul_add(offset[g], *p);
            }
            *y = sum_lanes(&p);
        }
    }
}

/// Multiplies rows `first..` of an int8 matrix by rounded activations.
///
/// `y: [rows, columns]`, overwritten; its length says how many rows. `x.k == w.k`.
pub fn int8_rows(w: &Int8Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
    let groups = x.groups();
    for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
        let codes = &w.codes[row * w.k..(row + 1) * w.k];
        for (c, y) in y.iter_mut().enumerate() {
            let q = &x.q[c * x.k..][..x.k];
            let mut p = [0.0; LANES];
            for g in 0..groups {
                let columns = g * GROUP..(g + 1) * GROUP;
                let t: i32 = columns.map(|i| i32::from(codes[i] as i8) * i32::from(q[i])).sum();
                p[g % LANES] = x.scale[c * groups + g].mul_add(t as f32, p[g % LANES]);
            }
            *y = sum_lanes(&p) * widen(w.scale[row].to_bits());
        }
    }
}

/// A weight in memory that has an exact value in f32.
pub(super) trait Weight: Copy {
    /// Its value.
    fn value(self) -> f32;
}

impl Weight for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

/// Little-endian bf16.
impl Weight for [u8; 2] {
    #[inline(always)]
    fn value(self) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes(self)) << 16)
    }
}

/// The product of two vectors of the same length.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dot_of(a, b)
}

/// Sums of a dot product: element `i` goes to lane `i % 16` of sum `i / 16 % 4`. Four, because a sum has to wait for its
/// last addition: one would keep the widest registers idle most of the time.
pub(super) type DotSums = [[f32; LANES]; 4];

/// [`dot`] for weights of any kind.
#[inline(always)]
pub(super) fn dot_of<W: Weight>(a: &[W], b: &[f32]) -> f32 {
    let mut sums = DotSums::default();
    for (a, b) in a.chunks(4 * LANES).zip(b.chunks(4 * LANES)) {
        add_products(&mut sums, a, b);
    }
    finish_dot(&sums)
}

/// Adds up to 64 products to the sums.
#[inline(always)]
pub(super) fn add_products<W: Weight>(sums: &mut DotSums, a: &[W], b: &[f32]) {
    for (sum, (a, b)) in sums.as_flattened_mut().iter_mut().zip(a.iter().zip(b)) {
        *sum = a.value().mul_add(*b, *sum);
    }
}

/// Adds the sums in order, then their lanes.
#[inline(always)]
pub(super) fn finish_dot(sums: &DotSums) -> f32 {
    let mut p = sums[0];
    for sum in &sums[1..] {
        for w in 0..LANES {
            p[w] += sum[w];
        }
    }
    sum_lanes(&p)
}

/// Multiplies rows of bf16 weights by activations.
///
/// `w: [rows, k]` little-endian; `x: [columns, k]`; `y: [rows, columns]`, overwritten.
pub fn bf16_rows(w: &[u8], x: &[f32], k: usize, y: &mut [f32]) {
    rows_by(dot_of, w.as_chunks::<2>().0, x, k, y);
}

/// Multiplies rows of f32 weights by activations.
///
/// `w: [rows, k]`; `x: [columns, k]`; `y: [rows, columns]`, overwritten.
pub fn f32_rows(w: &[f32], x: &[f32], k: usize, y: &mut [f32]) {
    rows_by(dot_of, w, x, k, y);
}

/// Rows of weights times activations, by a given dot product.
#[inline(always)]
pub(super) fn rows_by<W>(dot: impl Fn(&[W], &[f32]) -> f32, w: &[W], x: &[f32], k: usize, y: &mut [f32]) {
    for (w, y) in w.chunks_exact(k).zip(y.chunks_exact_mut(x.len() / k)) {
        for (x, y) in x.chunks_exact(k).zip(y) {
            *y = dot(w, x);
        }
    }
}

/// A row of the embedding: `x[i] = code[i] * scale`.
///
/// `row` is below `w.n`; `x: [k]`, overwritten.
pub fn embedding_row(w: &Int8Matrix, row: usize, x: &mut [f32]) {
    let scale = widen(w.scale[row].to_bits());
    for (x, code) in x.iter_mut().zip(w.row(row)) {
        *x = f32::from(code) * scale;
    }
}

/// LayerNorm: `out = (x - mean) / sqrt(variance + eps) * weight`, with the variance over all `x.len()` values.
///
/// `x`, `weight`, `out`: the same length.
#[inline(always)]
pub fn layer_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let count = x.len() as f32;
    let mean = sum_by_lanes(x.iter().copied()) / count;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x - mean;
    }
    let inverse = 1.0 / (dot(out, out) / count + eps).sqrt();
    for (out, weight) in out.iter_mut().zip(weight) {
        *out = *out * inverse * weight;
    }
}

#[inline(always)]
fn sum_by_lanes(values: impl Iterator<Item = f32>) -> f32 {
    let mut p = [0.0; LANES];
    for (i, value) in values.enumerate() {
        p[i % LANES] += value;
    }
    sum_lanes(&p)
}

/// Cosines and sines of the rotary angles.
#[derive(Clone, Debug)]
pub struct Rope {
    pairs: usize,
    /// `[positions, pairs]` of (cosine, sine).
    table: Vec<(f32, f32)>,
}

impl Rope {
    /// Angles `position * theta^(-2j / dim)` for every position and pair.
    ///
    /// Frequencies and angles are rounded to f32, as the model was trained with; only the functions of them are more
    /// precise.
    pub fn new(theta: f64, dim: usize, positions: usize) -> Rope {
        let pairs = dim / 2;
        let frequency = |j: usize| theta.powf(-((2 * j) as f64) / dim as f64) as f32;
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        let angle = |position: usize, j: usize| f64::from(position as f32 * frequencies[j]);
        let turn = |angle: f64| (angle.cos() as f32, angle.sin() as f32);
        let places = (0..positions).flat_map(|position| (0..pairs).map(move |j| (position, j)));
        Rope { pairs, table: places.map(|(position, j)| turn(angle(position, j))).collect() }
    }

    /// `[positions, dim / 2]` of (cosine, sine).
    pub fn table(&self) -> &[(f32, f32)] {
        &self.table
    }

    /// Rotates neighbouring pairs `(2j, 2j + 1)` of each head of `x: [heads, dim]` to a position.
    pub fn rotate(&self, x: &mut [f32], position: usize) {
        let turns = &self.table[position * self.pairs..(position + 1) * self.pairs];
        for head in x.chunks_exact_mut(2 * self.pairs) {
            for ([a, b], (cos, sin)) in head.as_chunks_mut::<2>().0.iter_mut().zip(turns) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}

/// Attention of the query heads that share a key/value head.
///
/// `q`, `out`: `[heads, dim]` f32; `keys`, `values`: `[t, dim]` f16 bits, the positions that are seen, oldest first.
/// Scores are scaled by `dim^-0.5`; softmax in f32. `scratch` is resized as needed.
pub fn attend(q: &[f32], keys: &[u16], values: &[u16], dim: usize, scratch: &mut Vec<f32>, out: &mut [f32]) {
    attend_by(dot, q, (keys, values), dim, scratch, out);
}

/// [`attend`] by a given dot product.
#[inline(always)]
pub(super) fn attend_by(
    dot: impl Fn(&[f32], &[f32]) -> f32,
    q: &[f32],
    (keys, values): (&[u16], &[u16]),
    dim: usize,
    scratch: &mut Vec<f32>,
    out: &mut [f32],
) {
    let (heads, t) = (q.len() / dim, keys.len() / dim);
    let scale = 1.0 / (dim as f32).sqrt();
    scratch.resize(dim + heads * t, 0.0);
    let (wide, scores) = scratch.split_at_mut(dim);
    for (j, key) in keys.chunks_exact(dim).enumerate() {
        wide.iter_mut().zip(key).for_each(|(wide, bits)| *wide = widen(*bits));
        for (head, q) in q.chunks_exact(dim).enumerate() {
            scores[head * t + j] = dot(q, wide) * scale;
        }
    }
    for scores in scores.chunks_exact_mut(t) {
        softmax(scores);
    }
    out.fill(0.0);
    for (j, value) in values.chunks_exact(dim).enumerate() {
        wide.iter_mut().zip(value).for_each(|(wide, bits)| *wide = widen(*bits));
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            let weight = scores[head * t + j];
            out.iter_mut().zip(&*wide).for_each(|(out, value)| *out = weight.mul_add(*value, *out));
        }
    }
}

/// Replaces scores by their softmax.
#[inline(always)]
pub fn softmax(scores: &mut [f32]) {
    let mut largest = f32::NEG_INFINITY;
    for score in &*scores {
        largest = if *score > largest { *score } else { largest };
    }
    for score in &mut *scores {
        *score = exp(*score - largest);
    }
    let inverse = 1.0 / sum_by_lanes(scores.iter().copied());
    for score in scores {
        *score *= inverse;
    }
}

/// `e^x` in f32, within 2 units in the last place between -87 and 88, and no further than at these ends beyond them.
///
/// Not the standard library's, which is another on every system. Source: the range reduction and polynomial of Cephes
/// `expf`.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512, so that its product with a small integer is exact
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = x.clamp(-87.0, 88.0);
    let power = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = (-power).mul_add(LN2_LOW, (-power).mul_add(LN2_HIGH, x));
    let mut sum = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        sum = sum.mul_add(r, *coefficient);
    }
    let value = sum.mul_add(r * r, r) + 1.0;
    value * f32::from_bits(((power as i32 + 127) << 23) as u32)
}

/// `out = silu(gate) * up`, with `silu(x) = x / (1 + e^-x)`. All the same length.
#[inline(always)]
pub fn silu_up(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

/// GELU with the exact error function, in f64.
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

#[cfg(test)]
#[path = "plain_tests.rs"]
mod tests;
