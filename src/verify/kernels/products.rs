//! Known answers of the matrix products.
//!
//! Activations that are integers up to 32512 with 32512 itself in every group are rounded to themselves with a scale of 1
//! (`docs/architecture.md`, "What an int4 product means"). With scales and minima that are small integers every number
//! on the way is then exact, and the product is plain integer arithmetic, whatever the order of the sums.

use crate::engine::cpu::plain::{self, LARGEST, Order, Rounded};
use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

use super::judge::Judge;
use super::values::{activations, int4, int8, noise, random_int4, random_int8, transposed, words};

/// Multiplies: matrix and `x: [columns, k]` to `[columns, n]`.
pub(super) type Product<'a, W> = &'a dyn Fn(&W, &[f32]) -> Vec<f32>;

/// One product with a known answer.
pub(super) struct Case<W> {
    pub(super) test: &'static str,
    pub(super) w: W,
    /// `[columns, k]`.
    pub(super) x: Vec<f32>,
    /// `[columns, n]`.
    pub(super) expected: Vec<f32>,
}

/// Rounding x to 16 bits per group costs 2.4e-5 of a product's norm (`docs/architecture.md`); four times that is far below
/// what one wrong digit, column or group does.
pub(super) const ROUNDING_TOLERANCE: f64 = 1e-4;
/// f32 sums of up to 2048 products in any order, relative to the largest result.
pub(super) const SUM_TOLERANCE: f64 = 2e-5;

/// A matrix whose elements have a value.
pub(super) trait Weights {
    fn size(&self) -> [usize; 2];
    fn weight(&self, n: usize, k: usize) -> f64;
}

impl Weights for Int4Matrix {
    fn size(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    fn weight(&self, n: usize, k: usize) -> f64 {
        let at = n * self.k + k;
        let code = self.codes[at / 2] >> (4 * (at % 2)) & 15;
        f64::from(code) * self.scale[at / GROUP].to_f64() + self.min[at / GROUP].to_f64()
    }
}

impl Weights for Int8Matrix {
    fn size(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    fn weight(&self, n: usize, k: usize) -> f64 {
        f64::from(self.codes[n * self.k + k] as i8) * self.scale[n].to_f64()
    }
}

/// The product in f64, `[columns, n]`.
pub(super) fn in_f64(w: &impl Weights, x: &[f32]) -> Vec<f32> {
    let [n, k] = w.size();
    let row =
        |x: &[f32], n: usize| x.iter().enumerate().map(|(k, &x)| w.weight(n, k) * f64::from(x)).sum::<f64>() as f32;
    x.chunks(k).flat_map(|x| (0..n).map(move |n| row(x, n))).collect()
}

/// `columns` vectors of `k` values.
fn vectors(columns: usize, k: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..columns * k).map(|i| value(i / k, i % k)).collect()
}

/// A code for every place that no permutation of columns, rows or nibbles leaves as it is.
fn scattered(n: usize, k: usize) -> u32 {
    ((n * 2048 + k) as u32).wrapping_mul(2_654_435_761) >> 20
}

/// Values with a high digit, a low digit, both, and every sign of them.
const DIGITS: [f32; 17] = [
    1.0, -1.0, 2.0, 127.0, 128.0, -127.0, -128.0, -129.0, 129.0, 255.0, 256.0, -256.0, -257.0, 16384.0, 32511.0,
    -32511.0, -32512.0,
];

/// Activations of the cases over `[columns, k]`: test and values.
fn inputs() -> Vec<(&'static str, usize, Vec<f32>)> {
    let at = |hit: bool| if hit { LARGEST } else { 0.0 };
    let k = 3 * GROUP;
    let wide = 33 * GROUP;
    let digits = vectors(DIGITS.len(), GROUP, |c, i| match i {
        0 => LARGEST,
        i if i == 1 + (c * 37) % 126 => DIGITS[c],
        _ => 0.0,
    });
    let ramp = vectors(2, k, |c, i| match i % GROUP {
        0 => LARGEST,
        within => (within as f32 - 64.0) * if c == 0 { 1.0 } else { -2.0 },
    });
    vec![
        ("one_hot", k, vectors(k, k, |c, i| at(c == i))),
        ("constant", k, vectors(1, k, |_, _| LARGEST)),
        ("negative", 16 * GROUP, vectors(1, 16 * GROUP, |_, _| -LARGEST)),
        ("alternating", k, vectors(2, k, |c, i| if (i + c).is_multiple_of(2) { LARGEST } else { -LARGEST })),
        ("one_group", wide, vectors(33, wide, |c, i| at(i / GROUP == c))),
        ("digits", GROUP, digits),
        ("ramp", k, ramp),
    ]
}

/// Cases of int4 products that have a closed form.
pub(super) fn int4_cases() -> Vec<Case<Int4Matrix>> {
    let scale = |n: usize, g: usize| (1 + (n * 7 + g * 3) % 11) as f32;
    let min = |n: usize, g: usize| -((1 + (n * 5 + g) % 13) as f32);
    // The anchor of `digits` and `ramp`, the first of each group, meets a code of 0.
    let anchored = |n: usize, k: usize| if k.is_multiple_of(GROUP) { 0 } else { scattered(n, k) };
    let mut cases = Vec::new();
    for (test, k, x) in inputs() {
        let w = match test {
            "digits" | "ramp" => int4([5, k], anchored, scale, |_, _| 0.0),
            _ => int4([5, k], scattered, scale, min),
        };
        let expected = in_f64(&w, &x);
        cases.push(Case { test, w, x, expected });
    }
    let constant = vectors(1, 18 * GROUP, |_, _| LARGEST);
    let mut more = |test, w: Int4Matrix| {
        let expected = in_f64(&w, &constant);
        cases.push(Case { test, w, x: constant.clone(), expected });
    };
    more("min_alone", int4([3, 18 * GROUP], scattered, |_, _| 0.0, |n, g| (1 + (n + g) % 3) as f32));
    more("scale_alone", int4([3, 18 * GROUP], |_, _| 15, |n, g| (1 + (n + g) % 3) as f32, |_, _| 0.0));
    cases.push(fold_order());
    cases
}

/// Groups whose f32 sum depends on the order: group w and w + 16 first, then each four of the sixteen sums, then the four.
///
/// Row 0: a big term in group 0, which swallows the small one of group 16 folded into it and those of groups 1 and 2 after
/// it; group 3 takes it away. Row 1: the three small ones of groups 4 to 6 come together before the big term of group 0 meets
/// them, and reach its last place; group 8 takes it away.
fn fold_order() -> Case<Int4Matrix> {
    const BIG: f32 = 1024.0; // times code 1 times q 32512: just below 2^25, where the last place is 2
    const SMALL: f32 = 1.0 / 32768.0; // 0.992: lost alone, three of them are not
    let scale = |n: usize, g: usize| match (n, g) {
        (0, 0 | 3) | (1, 0 | 8) => BIG,
        (0, 16 | 1 | 2) | (1, 4..=6) => SMALL,
        _ => 0.0,
    };
    let k = 17 * GROUP;
    let w = int4([2, k], |_, k| u32::from(k.is_multiple_of(GROUP)), scale, |_, _| 0.0);
    let x = vectors(1, k, |_, i| match (i % GROUP, i / GROUP) {
        (0, 3 | 8) => -LARGEST,
        (0, _) => LARGEST,
        _ => 0.0,
    });
    Case { test: "fold_order", w, x, expected: vec![0.0, 2.0] }
}

/// Cases of int8 products that have a closed form.
pub(super) fn int8_cases() -> Vec<Case<Int8Matrix>> {
    let scale = |n: usize| (1 + n * 3 % 7) as f32 * 0.25;
    let code = |n: usize, k: usize| match (n, k % 19) {
        (0, _) => -128, // beyond what a sign-flipped byte can hold
        (1, _) => 127,
        (_, 3) => -128,
        _ => scattered(n, k) as u8 as i8,
    };
    let small = |n: usize, k: usize| if k.is_multiple_of(GROUP) { 0 } else { code(n, k) };
    let case = |(test, k, x): (&'static str, usize, Vec<f32>)| {
        let w = match test {
            "digits" | "ramp" => int8([5, k], small, scale),
            _ => int8([5, k], code, scale),
        };
        let expected = in_f64(&w, &x);
        Case { test, w, x, expected }
    };
    inputs().into_iter().map(case).collect()
}

/// Awkward shapes `(n, groups, columns)`: one, odd, one past a tile of rows, of groups folded together, of columns.
pub(super) const SHAPES: [(usize, usize, usize); 9] =
    [(1, 1, 1), (3, 2, 2), (5, 5, 4), (2, 15, 5), (33, 16, 3), (17, 17, 9), (2, 33, 8), (7, 86, 1), (16, 3, 13)];

/// Groups with a value that is not finite: every product with them is NaN.
fn not_finite(k: usize) -> Vec<f32> {
    let mut x = noise(9, 3 * k);
    (x[5], x[k + GROUP + 77], x[2 * k + GROUP - 1]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    x
}

/// Holds int4 products against their known answers and the plain product.
///
/// `most`: groups of the widest matrix that the kernel takes, at least 2.
pub(super) fn judge_int4(judge: &mut Judge<'_>, kernel: &str, most: usize, product: Product<'_, Int4Matrix>) {
    for case in int4_cases().iter().filter(|case| case.w.k <= most * GROUP) {
        judge.exact(kernel, case.test, &product(&case.w, &case.x), &case.expected);
    }
    for (seed, (n, groups, columns)) in (0..).zip(SHAPES).filter(|(_, (_, groups, _))| *groups <= most) {
        let (w, x) = (random_int4(seed, n, groups * GROUP), activations(seed + 70, columns * groups * GROUP));
        judge.exact(kernel, "random", &product(&w, &x), &plain_int4(&w, &x));
    }
    let k = most.min(4) * GROUP;
    let (w, x) = (random_int4(3, 19, k), noise(4, 2 * k));
    judge.close(kernel, "meaning", &product(&w, &x), &in_f64(&w, &x), ROUNDING_TOLERANCE);
    let w = random_int4(5, 4, 2 * GROUP);
    judge.exact(kernel, "not_finite", &product(&w, &not_finite(2 * GROUP)), &[f32::NAN; 12]);
}

/// Holds int8 products against their known answers and the plain product.
///
/// `most`: groups of the widest matrix that the kernel takes, at least 2.
pub(super) fn judge_int8(judge: &mut Judge<'_>, kernel: &str, most: usize, product: Product<'_, Int8Matrix>) {
    for case in int8_cases().iter().filter(|case| case.w.k <= most * GROUP) {
        judge.exact(kernel, case.test, &product(&case.w, &case.x), &case.expected);
    }
    for (seed, (n, groups, columns)) in (0..).zip(SHAPES).filter(|(_, (_, groups, _))| *groups <= most) {
        let (w, x) = (random_int8(seed, n, groups * GROUP), activations(seed + 70, columns * groups * GROUP));
        judge.exact(kernel, "random", &product(&w, &x), &plain_int8(&w, &x));
    }
    let k = most.min(4) * GROUP;
    let (w, x) = (random_int8(3, 19, k), noise(4, 2 * k));
    judge.close(kernel, "meaning", &product(&w, &x), &in_f64(&w, &x), ROUNDING_TOLERANCE);
    let w = random_int8(5, 4, 2 * GROUP);
    judge.exact(kernel, "not_finite", &product(&w, &not_finite(2 * GROUP)), &[f32::NAN; 12]);
}

/// bf16 or f32 weights, `[n, k]`.
pub(super) struct Floats {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) values: Vec<f32>,
}

impl Weights for Floats {
    fn size(&self) -> [usize; 2] {
        [self.n, self.k]
    }

    fn weight(&self, n: usize, k: usize) -> f64 {
        f64::from(self.values[n * self.k + k])
    }
}

impl Floats {
    /// Values that bf16 holds exactly, of all sizes from subnormal to almost 2.
    fn scattered(n: usize, k: usize) -> Floats {
        let values = words(21, n * k).map(|word| f32::from_bits(word & 0xbfff_0000)).collect();
        Floats { n, k, values }
    }

    /// The weights as little-endian bf16.
    pub(super) fn bf16(&self) -> Vec<u8> {
        self.values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
    }
}

/// Bits of an f32 that bf16 keeps.
pub(super) const BF16: u32 = 0xffff_0000;

/// Holds products of weights of some bits (`mask`) with f32 activations against their known answers; sums in another order
/// than the plain one are within `tolerance` of it, relative to the largest. `most`: columns of the widest matrix.
pub(super) fn judge_floats(
    judge: &mut Judge<'_>,
    kernel: &str,
    mask: u32,
    most: usize,
    tolerance: f64,
    product: Product<'_, Floats>,
) {
    let k = 136;
    let w = Floats::scattered(5, k);
    let one_hot = vectors(k, k, |c, i| f32::from(u8::from(c == i)));
    judge.exact(kernel, "one_hot", &product(&w, &one_hot), &in_f64(&w, &one_hot));
    // Integers of both signs whose sums stay exact in any order.
    let integers = |seed, count| words(seed, count).map(|word| (word % 255) as f32 - 127.0).collect::<Vec<f32>>();
    let shapes = [(1, 8, 1), (3, 64, 2), (17, 72, 5), (2, 1032, 4), (31, 2048, 1)];
    for (seed, (n, k, columns)) in (0..).zip(shapes).filter(|(_, (_, k, _))| *k <= most) {
        let (w, x) = (Floats { n, k, values: integers(seed, n * k) }, integers(seed + 40, columns * k));
        judge.exact(kernel, "integers", &product(&w, &x), &in_f64(&w, &x));
        let w =
            Floats { n, k, values: noise(seed, n * k).iter().map(|v| f32::from_bits(v.to_bits() & mask)).collect() };
        let x = noise(seed + 50, columns * k);
        let mut plain = vec![0.0; n * columns];
        plain::f32_rows(&w.values, &x, k, &mut plain);
        let plain = transposed(&plain, columns);
        match tolerance {
            0.0 => judge.exact(kernel, "random", &product(&w, &x), &plain),
            _ => judge.close(kernel, "random", &product(&w, &x), &plain, tolerance),
        }
        judge.close(kernel, "meaning", &product(&w, &x), &in_f64(&w, &x), SUM_TOLERANCE);
    }
}

/// Rounds `x: [columns, k]` the plain way.
pub(super) fn rounded(x: &[f32], k: usize, order: Order) -> Rounded {
    let mut out = Rounded::zeros(k, x.len() / k, order);
    plain::round(x, &mut out);
    out
}

/// The plain int4 product, `[columns, n]`.
pub(super) fn plain_int4(w: &Int4Matrix, x: &[f32]) -> Vec<f32> {
    let x = rounded(x, w.k, Order::Nibbles);
    let mut y = vec![0.0; w.n * x.columns];
    plain::int4_rows(w, 0, &x, &mut y);
    transposed(&y, x.columns)
}

/// The plain int8 product, `[columns, n]`.
pub(super) fn plain_int8(w: &Int8Matrix, x: &[f32]) -> Vec<f32> {
    let x = rounded(x, w.k, Order::Bytes);
    let mut y = vec![0.0; w.n * x.columns];
    plain::int8_rows(w, 0, &x, &mut y);
    transposed(&y, x.columns)
}
