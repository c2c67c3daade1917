//! Inputs of the tests: reproducible noise, and matrices given by a formula.

use half::f16;

use crate::engine::sampler::philox;
use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

/// Reproducible words.
pub(super) fn words(seed: u32, count: usize) -> impl Iterator<Item = u32> {
    (0..count).map(move |i| philox([i as u32, seed, 0, 0], [5, 6])[0])
}

/// Reproducible values in ±1.
pub(super) fn noise(seed: u32, count: usize) -> Vec<f32> {
    words(seed, count).map(|word| word as f32 / 2f32.powi(31) - 1.0).collect()
}

/// Reproducible signs.
pub(super) fn signs(seed: u32, count: usize) -> Vec<f32> {
    words(seed, count).map(|word| if word & 1 == 0 { 1.0 } else { -1.0 }).collect()
}

/// Activations `[columns, k]` with groups of zeros, of tiny and of huge values among ordinary ones.
pub(super) fn activations(seed: u32, count: usize) -> Vec<f32> {
    const SIZES: [f32; 7] = [1.0, 1.0, 0.0, 1e-38, 1e20, -3e4, 1e-42];
    let sizes: Vec<u32> = words(seed ^ 0x5a5a, count / GROUP).collect();
    noise(seed, count).iter().enumerate().map(|(i, x)| x * SIZES[sizes[i / GROUP] as usize % 7]).collect()
}

/// Reproducible f16 values in ±1.
pub(super) fn halves(seed: u32, count: usize) -> Vec<f16> {
    noise(seed, count).into_iter().map(f16::from_f32).collect()
}

/// The bits of values as f16.
pub(super) fn bits(values: &[f32]) -> Vec<u16> {
    values.iter().map(|&v| f16::from_f32(v).to_bits()).collect()
}

/// An int4 matrix from formulas of code `(n, k)`, scale `(n, group)` and minimum `(n, group)`.
pub(super) fn int4(
    [n, k]: [usize; 2],
    code: impl Fn(usize, usize) -> u32,
    scale: impl Fn(usize, usize) -> f32,
    min: impl Fn(usize, usize) -> f32,
) -> Int4Matrix {
    let groups = k / GROUP;
    let byte = |i: usize| {
        let (row, column) = (i / (k / 2), i % (k / 2) * 2);
        (code(row, column) & 15 | (code(row, column + 1) & 15) << 4) as u8
    };
    let values = |of: &dyn Fn(usize, usize) -> f32| {
        (0..n * groups).map(|i| f16::from_f32(of(i / groups, i % groups))).collect::<Vec<f16>>()
    };
    let codes: Vec<u8> = (0..n * k / 2).map(byte).collect();
    Int4Matrix { n, k, codes: codes.into(), scale: values(&scale), min: values(&min) }
}

/// A random int4 matrix.
pub(super) fn random_int4(seed: u32, n: usize, k: usize) -> Int4Matrix {
    let codes: Vec<u8> = words(seed, n * k / 2).map(|word| (word >> 9) as u8).collect();
    let groups = n * k / GROUP;
    Int4Matrix { n, k, codes: codes.into(), scale: halves(seed + 1, groups), min: halves(seed + 2, groups) }
}

/// An int8 matrix from formulas of code `(n, k)` and scale `(n)`.
pub(super) fn int8([n, k]: [usize; 2], code: impl Fn(usize, usize) -> i8, scale: impl Fn(usize) -> f32) -> Int8Matrix {
    let codes: Vec<u8> = (0..n * k).map(|i| code(i / k, i % k) as u8).collect();
    Int8Matrix { n, k, codes: codes.into(), scale: (0..n).map(|n| f16::from_f32(scale(n))).collect() }
}

/// A random int8 matrix.
pub(super) fn random_int8(seed: u32, n: usize, k: usize) -> Int8Matrix {
    let codes: Vec<u8> = words(seed, n * k).map(|word| (word >> 9) as u8).collect();
    Int8Matrix { n, k, codes: codes.into(), scale: halves(seed + 1, n) }
}

/// A matrix `[rows, columns]` the other way round.
pub(super) fn transposed<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|c| values[c..].iter().step_by(columns)).copied().collect()
}
