//! Known answers of attention: uniform and sharp distributions, ratios that show the scale, and the plain operation.

use crate::engine::cpu::plain;

use super::judge::Judge;
use super::values::{bits, noise};

/// Attention of the query heads that share a key/value head, over the positions given.
pub(super) struct Case {
    pub(super) test: &'static str,
    pub(super) dim: usize,
    /// `[heads, dim]`.
    pub(super) q: Vec<f32>,
    /// `[t, dim]`.
    pub(super) keys: Vec<u16>,
    /// `[t, dim]`.
    pub(super) values: Vec<u16>,
    /// `[heads, dim]`.
    pub(super) expected: Vec<f32>,
    /// Allowed difference, relative to the largest value.
    pub(super) tolerance: f64,
}

/// f32 sums of weights that add up to 1, and an exponential within 2 units in the last place.
const TOLERANCE: f64 = 5e-6;

/// A vector `[rows, dim]` by formula.
fn table(rows: usize, dim: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..rows * dim).map(|i| value(i / dim, i % dim)).collect()
}

/// Values told apart by position and column, small integers.
fn marks(t: usize, dim: usize) -> Vec<f32> {
    table(t, dim, |j, d| ((j * 3 + d) % 61) as f32 - 20.0)
}

/// All keys equal: the mean of the values, which any position too many or too few moves.
fn uniform(t: usize, dim: usize, heads: usize) -> Case {
    let values = marks(t, dim);
    let mean = |d: usize| (0..t).map(|j| f64::from(values[j * dim + d])).sum::<f64>() / t as f64;
    let expected = table(heads, dim, |_, d| mean(d) as f32);
    let (q, keys) = (noise(1, heads * dim), bits(&table(t, dim, |_, d| (d % 3) as f32)));
    Case { test: "uniform", dim, q, keys, values: bits(&values), expected, tolerance: TOLERANCE }
}

/// Each head finds one position: its value and no other. The first head finds the oldest, the last the newest.
fn sharp(t: usize, dim: usize, heads: usize) -> Case {
    let values = marks(t, dim);
    let place = |head: usize| head * (t - 1) / (heads - 1).max(1);
    // Position j has a key of length 64 and an angle of its own, and the query is 64 times the key it looks for: up to 33
    // positions and 128 columns, the next best score is at least 400 less, and e^-400 is nothing to f32.
    let angle = |j: usize| j as f64 / t as f64 * std::f64::consts::TAU;
    let turn = |j: usize, d: usize| match d {
        0 => (64.0 * angle(j).cos()) as f32,
        1 => (64.0 * angle(j).sin()) as f32,
        _ => 0.0,
    };
    let q = table(heads, dim, |head, d| turn(place(head), d) * 64.0);
    let expected = table(heads, dim, |head, d| values[place(head) * dim + d]);
    let keys = bits(&table(t, dim, turn));
    Case { test: "sharp", dim, q, keys, values: bits(&values), expected, tolerance: TOLERANCE }
}

/// Two positions whose scores differ by ln 3 after the scale `dim^-0.5`: weights 1/4 and 3/4, under a common score so large
/// that its exponential alone overflows.
fn ratio(dim: usize) -> Case {
    let difference = 3f64.ln() * (dim as f64).sqrt();
    let mut q = vec![0.0; dim];
    (q[0], q[dim - 1]) = (difference as f32, 128.0 * (dim as f32).sqrt());
    let keys = bits(&table(2, dim, |j, d| f32::from(u8::from(d == dim - 1 || (d == 0 && j == 1)))));
    let values = bits(&table(2, dim, |j, d| if j == 0 { -8.0 } else { (d % 7) as f32 }));
    let expected = table(1, dim, |_, d| -2.0 + 0.75 * (d % 7) as f32);
    // The common score of 128 leaves the difference an error of 2^-17, and that is its effect on the weights.
    Case { test: "ratio", dim, q, keys, values, expected, tolerance: 1e-5 }
}

/// Cases with a closed form for one head size.
pub(super) fn cases(dim: usize) -> Vec<Case> {
    let lengths = [1, 2, 15, 16, 17, 33, 64, 100];
    let mut cases: Vec<Case> = lengths.iter().map(|&t| uniform(t, dim, 2)).collect();
    cases.extend(lengths.iter().filter(|&&t| t <= 33).map(|&t| sharp(t, dim, 2)));
    cases.push(ratio(dim));
    cases
}

/// Attention over `(q, keys, values, dim)`.
pub(super) type Attend<'a> = &'a dyn Fn(&[f32], (&[u16], &[u16]), usize) -> Vec<f32>;

/// Holds attention of up to `most` heads at once against known answers and the plain operation, which sums in another order
/// unless `tolerance` is 0; a result that is rounded afterwards is within `tolerance` of every answer.
pub(super) fn judge(
    judge: &mut Judge<'_>,
    kernel: &str,
    dims: &[usize],
    most: usize,
    tolerance: f64,
    attend: Attend<'_>,
) {
    for &dim in dims {
        for case in cases(dim) {
            let found = attend(&case.q, (&case.keys, &case.values), dim);
            judge.close(kernel, case.test, &found, &case.expected, case.tolerance.max(tolerance));
        }
        for (seed, (heads, t)) in (40..).zip([(1, 1), (3, 5), (4, 40), (1, 129)]) {
            let heads = heads.min(most);
            let (q, cache) = (noise(seed, heads * dim), bits(&noise(seed + 10, 2 * t * dim)));
            let (keys, values) = cache.split_at(t * dim);
            let mut plain = vec![0.0; heads * dim];
            plain::attend(&q, keys, values, dim, &mut Vec::new(), &mut plain);
            let found = attend(&q, (keys, values), dim);
            match tolerance {
                0.0 => judge.exact(kernel, "random", &found, &plain),
                _ => judge.close(kernel, "random", &found, &plain, tolerance),
            }
        }
    }
}
