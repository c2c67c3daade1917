//! Every table against the plain operations, bit for bit.

use half::f16;
use proptest::prelude::*;

use super::plain::Order;
use super::*;
use crate::format::layout::GROUP;

/// A small generator, so that the shapes that matter can be listed and still hold arbitrary values.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// Uniform in -1..1.
    fn value(&mut self) -> f32 {
        self.bits() as f32 / (1u32 << 30) as f32 - 1.0
    }

    fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.value()).collect()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.bits() as u8).collect()
    }

    fn halves(&mut self, count: usize) -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(self.value())).collect()
    }

    fn int4(&mut self, n: usize, k: usize) -> Int4Matrix {
        let groups = n * k / GROUP;
        let codes = self.bytes(n * k / 2).into();
        Int4Matrix { n, k, codes, scale: self.halves(groups), min: self.halves(groups) }
    }

    fn int8(&mut self, n: usize, k: usize) -> Int8Matrix {
        Int8Matrix { n, k, codes: self.bytes(n * k).into(), scale: self.halves(n) }
    }

    /// Activations with groups of zeros, of tiny and of huge values among ordinary ones.
    fn activations(&mut self, count: usize) -> Vec<f32> {
        let mut x = self.values(count);
        for group in x.chunks_exact_mut(GROUP) {
            let factor = [1.0, 1.0, 0.0, 1e-38, 1e30, -3e4, 1e-42][self.bits() as usize % 7];
            group.iter_mut().for_each(|x| *x *= factor);
        }
        x
    }
}

fn rounded(table: &Kernels, x: &[f32], k: usize, order: Order) -> Rounded {
    let mut out = Rounded::zeros(k, x.len() / k, order);
    table.round(x, &mut out);
    out
}

fn assert_same(name: &str, what: &str, ours: &[f32], expected: &[f32]) {
    let different = ours.iter().zip(expected).position(|(a, b)| a.to_bits() != b.to_bits());
    if let Some(i) = different {
        panic!("{name}: {what}: element {i} is {:e}, plain has {:e}", ours[i], expected[i]);
    }
}

/// Compares every table on matrices `[n, k]` with `columns` vectors.
fn check_products(random: &mut Random, n: usize, k: usize, columns: usize) {
    let what = format!("{n} x {k}, {columns} columns");
    let (int4, int8) = (random.int4(n, k), random.int8(n, k));
    let x = random.activations(columns * k);
    let plain = &portable::KERNELS;
    for table in Kernels::available() {
        for order in [Order::Nibbles, Order::Bytes] {
            let (ours, expected) = (rounded(table, &x, k, order), rounded(plain, &x, k, order));
            assert_eq!((&ours.q, &ours.digits, &ours.sum), (&expected.q, &expected.digits, &expected.sum), "{what}");
            assert_same(table.name, &what, &ours.scale, &expected.scale);
            assert_same(table.name, &what, &ours.offset, &expected.offset);
            let (mut y, mut z) = (vec![f32::NAN; n * columns], vec![0.0; n * columns]);
            match order {
                Order::Nibbles => {
                    table.int4_rows(&int4, 0, &ours, &mut y);
                    plain.int4_rows(&int4, 0, &expected, &mut z);
                }
                Order::Bytes => {
                    table.int8_rows(&int8, 0, &ours, &mut y);
                    plain.int8_rows(&int8, 0, &expected, &mut z);
                }
            }
            assert_same(table.name, &format!("{order:?} {what}"), &y, &z);
        }
    }
}

#[test]
fn products_are_the_plain_ones_for_every_shape() {
    let mut random = Random(1);
    for k in [1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 86, 102].map(|groups| groups * GROUP) {
        for (n, columns) in [(1, 1), (3, 2), (2, 3), (5, 4), (2, 5), (1, 8), (3, 9)] {
            check_products(&mut random, n, k, columns);
        }
    }
}

#[test]
fn extreme_codes_and_activations_do_not_overflow() {
    let (n, k) = (3, 4 * GROUP);
    for byte in [0x00, 0xff, 0x0f, 0xf0, 0x80, 0x7f] {
        let codes = vec![byte; n * k];
        let groups = n * k / GROUP;
        let largest = vec![f16::MAX; groups];
        let int4 = Int4Matrix { n, k, codes: codes[..n * k / 2].to_vec().into(), scale: largest.clone(), min: largest };
        let int8 = Int8Matrix { n, k, codes: codes.into(), scale: vec![f16::MAX; n] };
        for sign in [1.0, -1.0] {
            let x: Vec<f32> = (0..k).map(|i| sign * if i < k / 2 { 1.0 } else { 32385.0 / 32512.0 }).collect();
            for table in Kernels::available() {
                let (mut y, mut z) = (vec![0.0; n], vec![0.0; n]);
                table.int4_rows(&int4, 0, &rounded(table, &x, k, Order::Nibbles), &mut y);
                plain::int4_rows(&int4, 0, &rounded(&portable::KERNELS, &x, k, Order::Nibbles), &mut z);
                assert_same(table.name, "int4", &y, &z);
                table.int8_rows(&int8, 0, &rounded(table, &x, k, Order::Bytes), &mut y);
                plain::int8_rows(&int8, 0, &rounded(&portable::KERNELS, &x, k, Order::Bytes), &mut z);
                assert_same(table.name, "int8", &y, &z);
            }
        }
    }
}

/// Rounding x to 16 bits per group costs at most 2^-16 of each group's largest value per element; for random values
/// that is 2.4e-5 of the norm of a product. Four times that is far below what a wrong digit or column would do.
const ROUNDING_TOLERANCE: f64 = 1e-4;

#[test]
fn products_are_close_to_those_of_the_unrounded_activations() {
    let mut random = Random(5);
    let (n, k) = (64, 2048);
    let w = random.int4(n, k);
    let x = random.values(k);
    let mut y = vec![0.0; n];
    plain::int4_rows(&w, 0, &rounded(&portable::KERNELS, &x, k, Order::Nibbles), &mut y);
    let (mut error, mut norm) = (0.0, 0.0);
    for (row, y) in y.iter().enumerate() {
        let weight = |i: usize| {
            let code = w.codes[(row * k + i) / 2] >> (4 * (i % 2)) & 15;
            let g = (row * k + i) / GROUP;
            f64::from(code) * w.scale[g].to_f64() + w.min[g].to_f64()
        };
        let exact: f64 = (0..k).map(|i| weight(i) * f64::from(x[i])).sum();
        error += (f64::from(*y) - exact).powi(2);
        norm += exact.powi(2);
    }
    assert!((error / norm).sqrt() < ROUNDING_TOLERANCE, "relative error {:e}", (error / norm).sqrt());
}

#[test]
fn rows_can_be_taken_in_any_tiles_and_columns_in_any_company() {
    let mut random = Random(2);
    let (n, k, columns) = (7, 3 * GROUP, 6);
    let w = random.int4(n, k);
    let x = random.activations(columns * k);
    for table in Kernels::available() {
        let mut whole = vec![0.0; n * columns];
        table.int4_rows(&w, 0, &rounded(table, &x, k, Order::Nibbles), &mut whole);
        for c in 0..columns {
            let alone = rounded(table, &x[c * k..(c + 1) * k], k, Order::Nibbles);
            for row in 0..n {
                let mut y = [0.0];
                table.int4_rows(&w, row, &alone, &mut y);
                assert_same(table.name, "one row, one column", &y, &whole[row * columns + c..][..1]);
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_makes_every_product_nan() {
    let mut random = Random(3);
    let (w, head) = (random.int4(4, 2 * GROUP), random.int8(4, 2 * GROUP));
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = random.values(2 * GROUP);
        x[200] = bad;
        for table in Kernels::available() {
            let (mut y, mut z) = ([0.0; 4], [0.0; 4]);
            table.int4_rows(&w, 0, &rounded(table, &x, 2 * GROUP, Order::Nibbles), &mut y);
            table.int8_rows(&head, 0, &rounded(table, &x, 2 * GROUP, Order::Bytes), &mut z);
            assert!(y.iter().chain(&z).all(|y| y.is_nan()), "{}: {y:?} {z:?}", table.name);
        }
    }
}

#[test]
fn an_unknown_instruction_set_is_named_with_the_known_ones() {
    let error = Kernels::named("mmx").err().unwrap().to_string();
    assert!(error.contains("RUMIK_CPU_ISA") && error.contains("plain") && error.contains("mmx"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn products_are_the_plain_ones(seed: u64, n in 1usize..12, groups in 1usize..40, columns in 1usize..10) {
        check_products(&mut Random(seed), n, groups * GROUP, columns);
    }

    #[test]
    fn float_operations_are_the_plain_ones(seed: u64, size in 1usize..300, t in 1usize..40, half_dim in 1usize..70) {
        let mut random = Random(seed);
        let (x, weight) = (random.values(3 * size), random.values(size));
        let w = random.bytes(4 * size).chunks_exact(2).flat_map(|b| [b[0], b[1] & 0xbf]).collect::<Vec<_>>();
        let dim = 2 * half_dim;
        let q = random.values(3 * dim);
        let cache: Vec<u16> = random.halves(2 * t * dim).iter().map(|v| v.to_bits()).collect();
        let results = |table: &Kernels| {
            let mut out = [vec![0.0; size], vec![0.0; size], vec![0.0; 6], vec![0.0; 3], vec![0.0; 3 * dim]];
            table.layer_norm(&x[..size], &weight, 1e-5, &mut out[0]);
            table.silu_up(&x[..size], &weight, &mut out[1]);
            table.bf16_rows(&w, &x, size, &mut out[2]);
            table.f32_rows(&weight, &x, size, &mut out[3]);
            table.attend(&q, cache.split_at(t * dim), dim, &mut Vec::new(), &mut out[4]);
            out.concat()
        };
        let expected = results(&portable::KERNELS);
        for table in Kernels::available() {
            assert_same(table.name, "floating point", &results(table), &expected);
        }
    }
}
