//! Products with packed weights, for few rows as for many.
//!
//! A sum is folded by fused multiply-add in order of its inputs, on every instruction set, for any number of threads and
//! of rows at a time. So a row's result is the same bits in any company, which is why streaming equals one-shot
//! exactly. A general GEMM blocks its sums by shape and would not; with one or two rows it also packs more than it
//! multiplies, which is most of this model.

use std::ops::Range;

use rayon::prelude::*;

use super::simd::Set;

/// Outputs a panel of weights holds side by side: two 512-bit or four 256-bit registers.
const PANEL: usize = 32;
/// Rows of weights that are fetched ahead; from 4 to 16 there is little difference.
const PREFETCH: usize = 8;
/// Values a cache line holds.
const LINE: usize = 16;
/// Multiply-adds below which waking a second thread costs more than it saves.
const PARALLEL_WORK: usize = 1 << 19;
/// Rows a task takes at most; 96 rows of the widest stage and their results fit the second-level cache.
const TASK_ROWS: usize = 96;

/// A weight matrix with bias, packed for [`Matrix::multiply`].
///
/// `panels: [ceil(n / 32), k, 32]`: for each input, 32 outputs side by side, so that a product reads weights in one
/// sequential stream. Outputs past `n` are zero.
#[derive(Debug)]
pub(crate) struct Matrix {
    k: usize,
    n: usize,
    panels: Vec<[f32; PANEL]>,
    bias: Vec<[f32; PANEL]>,
}

impl Matrix {
    /// Packs `weight(n, k)` and `bias(n)`.
    pub(crate) fn pack(
        n: usize,
        k: usize,
        weight: impl Fn(usize, usize) -> f32,
        bias: impl Fn(usize) -> f32,
    ) -> Matrix {
        let count = n.div_ceil(PANEL);
        let row = |panel: usize, value: &dyn Fn(usize) -> f32| -> [f32; PANEL] {
            std::array::from_fn(|j| if panel * PANEL + j < n { value(panel * PANEL + j) } else { 0.0 })
        };
        let weights = (0..count * k).map(|i| row(i / k, &|output| weight(output, i % k)));
        Matrix { k, n, panels: weights.collect(), bias: (0..count).map(|panel| row(panel, &bias)).collect() }
    }

    /// Outputs.
    pub(crate) fn outputs(&self) -> usize {
        self.n
    }

    /// `y[r, n] = bias[n] + sum_k x[r * stride + k] * w[n, k]`, the sum in order of `k`.
    ///
    /// Rows may overlap (`stride < k`): a convolution over time-major data is such a product.
    /// `x` holds at least `(rows - 1) * stride + k` values; `y: [rows, n]` is overwritten.
    pub(crate) fn multiply(&self, x: &[f32], stride: usize, y: &mut [f32]) {
        self.multiply_on(Set::best(), x, stride, y);
    }

    /// [`Matrix::multiply`] with the instructions of a set of [`Set::available`]; the bits are the same.
    pub(crate) fn multiply_on(&self, set: Set, x: &[f32], stride: usize, y: &mut [f32]) {
        let rows = y.len() / self.n;
        assert!(y.len() == rows * self.n && (rows == 0 || x.len() >= (rows - 1) * stride + self.k));
        let output = Output { base: y.as_mut_ptr(), stride: self.n };
        let blocks = rows.div_ceil(TASK_ROWS);
        let task = |task: usize| {
            let first = task % blocks * TASK_ROWS;
            self.part(task / blocks, x, stride, output).run(set, first..rows.min(first + TASK_ROWS));
        };
        let tasks = self.bias.len() * blocks;
        if rows * self.k * self.n < PARALLEL_WORK {
            (0..tasks).for_each(task);
        } else {
            let share = tasks.div_ceil(rayon::current_num_threads() * 2);
            (0..tasks).into_par_iter().with_min_len(share).for_each(task);
        }
    }

    fn part<'a>(&'a self, panel: usize, x: &'a [f32], stride: usize, output: Output) -> Part<'a> {
        let first_column = panel * PANEL;
        Part {
            weights: &self.panels[panel * self.k..][..self.k],
            bias: &self.bias[panel],
            x,
            stride,
            first_column,
            columns: PANEL.min(self.n - first_column),
            output,
        }
    }
}

/// Where tiles are written; every task of one product writes columns and rows of its own.
#[derive(Clone, Copy)]
struct Output {
    base: *mut f32,
    stride: usize,
}

// SAFETY: the pointer is only written through `store`, whose callers own disjoint tiles of a buffer that is mutably
// borrowed for the whole of `Matrix::multiply`.
#[allow(unsafe_code)]
unsafe impl Send for Output {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Output {}

impl Output {
    #[inline(always)]
    #[allow(unsafe_code)]
    fn store(self, row: usize, column: usize, values: &[f32]) {
        // SAFETY: `row` and `column..column + values.len()` lie inside the buffer (`multiply` derives them from its
        // length), and no other task writes this tile.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr(), self.base.add(row * self.stride + column), values.len())
        }
    }
}

/// A part of a product: rows times one panel.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// `[k, 32]`.
    weights: &'a [[f32; PANEL]],
    bias: &'a [f32; PANEL],
    x: &'a [f32],
    stride: usize,
    first_column: usize,
    columns: usize,
    output: Output,
}

impl<'a> Part<'a> {
    /// Inputs of `R` rows from `row` on, `k` values each.
    #[inline(always)]
    fn inputs<const R: usize>(&self, row: usize) -> [&'a [f32]; R] {
        std::array::from_fn(|r| &self.x[(row + r) * self.stride..][..self.weights.len()])
    }

    #[allow(unsafe_code)]
    fn run(&self, set: Set, rows: Range<usize>) {
        match set {
            // SAFETY: only a machine with the features of a set has it.
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => unsafe { avx512::rows(self, rows) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => unsafe { avx2::rows(self, rows) },
            _ => rows.for_each(|row| self.plain_row(row)),
        }
    }

    /// The meaning of the vector code, and its stand-in on other machines.
    fn plain_row(&self, row: usize) {
        let [x] = self.inputs(row);
        let mut sums = *self.bias;
        for (x, weights) in x.iter().zip(self.weights) {
            sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum = x.mul_add(*weight, *sum));
        }
        self.output.store(row, self.first_column, &sums[..self.columns]);
    }
}

/// Writes the module of one instruction set: tiles of several rows whose sums stay in registers.
macro_rules! kernel {
    ($module:ident, $features:literal, $lanes:literal, $load:ident, $store:ident, $broadcast:ident, $fma:ident, $($tile:literal),+) => {
        #[cfg(target_arch = "x86_64")]
        #[allow(unsafe_code)]
        mod $module {
            use std::arch::x86_64::{
                $broadcast as broadcast, $fma as fma, $load as load, $store as store, _MM_HINT_T0, _mm_prefetch,
            };
            use std::ops::Range;

            use super::{LINE, PANEL, PREFETCH, Part};

            /// Registers a panel is wide.
            const WIDTH: usize = PANEL / $lanes;

            #[target_feature(enable = $features)]
            pub(crate) fn rows(part: &Part<'_>, rows: Range<usize>) {
                let mut row = rows.start;
                $(while rows.end - row >= $tile {
                    tile::<$tile>(part, row);
                    row += $tile;
                })+
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn tile<const R: usize>(part: &Part<'_>, row: usize) {
                let x = part.inputs::<R>(row).map(<[f32]>::as_ptr);
                // SAFETY: every load is of `$lanes` of the `PANEL` values of a row of weights or of the bias.
                let bias: [_; WIDTH] = std::array::from_fn(|v| unsafe { load(part.bias.as_ptr().add(v * $lanes)) });
                let mut sums = [bias; R];
                for (k, weights) in part.weights.iter().enumerate() {
                    // With few rows the weights come from memory once and only this keeps enough of them on the way.
                    let ahead = weights.as_ptr().wrapping_add(PREFETCH * PANEL);
                    for line in 0..PANEL / LINE {
                        _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(line * LINE).cast());
                    }
                    let weights: [_; WIDTH] =
                        // SAFETY: as above.
                        std::array::from_fn(|v| unsafe { load(weights.as_ptr().add(v * $lanes)) });
                    for r in 0..R {
                        // SAFETY: the inputs have as many values as there are rows of weights.
                        let x = broadcast(unsafe { *x[r].add(k) });
                        for v in 0..WIDTH {
                            sums[r][v] = fma(x, weights[v], sums[r][v]);
                        }
                    }
                }
                for (r, sums) in sums.iter().enumerate() {
                    let mut values = [0.0f32; PANEL];
                    for (v, sum) in sums.iter().enumerate() {
                        // SAFETY: `values` has `PANEL` elements.
                        unsafe { store(values.as_mut_ptr().add(v * $lanes), *sum) };
                    }
                    part.output.store(row + r, part.first_column, &values[..part.columns]);
                }
            }
        }
    };
}

// With 32 registers of 512 bits, twelve rows keep 24 sums in registers; with 16 of 256 bits, three rows keep twelve.
kernel!(avx512, "avx512f", 16, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, 12, 8, 4, 2, 1);
kernel!(avx2, "avx2,fma", 8, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, 3, 2, 1);

#[cfg(test)]
mod tests {
    use super::super::ops;
    use super::super::testing::{assert_close, noise};
    use super::*;

    /// Sums of a few hundred f32 products of size 1, against f64.
    const TOLERANCE: f32 = 2e-5;

    #[test]
    fn a_product_of_any_shape_means_linear() {
        for (rows, n, k) in [(1, 1, 1), (2, 31, 5), (13, 33, 64), (27, 32, 100), (200, 70, 129)] {
            let (x, w) = (noise(1, rows * k), noise(2, n * k));
            let matrix = Matrix::pack(n, k, |n, j| w[n * k + j], |_| 0.0);
            let mut y = vec![f32::NAN; rows * n];
            matrix.multiply(&x, k, &mut y);
            assert_close(&y, &ops::linear(&x, &w, k), TOLERANCE);
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_any_company() {
        let (k, n, rows) = (96, 200, 61);
        let (x, w) = (noise(3, rows * k), noise(4, n * k));
        let matrix = Matrix::pack(n, k, |n, j| w[n * k + j], |n| n as f32);
        let (mut all, mut one) = (vec![0.0; rows * n], vec![0.0; n]);
        matrix.multiply(&x, k, &mut all);
        for r in 0..rows {
            matrix.multiply(&x[r * k..], k, &mut one);
            assert_eq!(one, all[r * n..(r + 1) * n], "row {r}");
        }
    }

    #[test]
    fn every_instruction_set_gives_the_bits_of_the_plain_loop() {
        let (k, n, rows) = (77, 40, 23);
        let (x, w) = (noise(5, rows * k), noise(6, n * k));
        let matrix = Matrix::pack(n, k, |n, j| w[n * k + j], |n| n as f32);
        let product = |set: Set| {
            let mut y = vec![f32::NAN; rows * n];
            matrix.multiply_on(set, &x, k, &mut y);
            y
        };
        for set in Set::available() {
            assert_eq!(product(set), product(Set::Plain));
        }
    }
}
