//! The operations of [`plain`], compiled for each instruction set, and the choice among them at run time.
//!
//! [`kernel_table!`] builds the whole table of one set: the floating-point operations are the plain ones, inlined and
//! thereby compiled for its registers; the int4 and int8 products are the loops below around two hand-written functions
//! that compute integer sums. Every table computes the same bits as [`plain`].

use super::plain::{self, Rounded};
use crate::error::{Error, Result};
use crate::format::{Int4Matrix, Int8Matrix};

/// Environment variable that names the instruction set to use instead of the best one.
pub const ISA_VARIABLE: &str = "RUMIK_CPU_ISA";

type Attend = unsafe fn(&[f32], &[u16], &[u16], usize, &mut Vec<f32>, &mut [f32]);

/// The operations compiled for one instruction set.
///
/// Outside this module a table can only be had from [`Kernels::available`], so the machine has its instructions.
pub struct Kernels {
    pub(super) name: &'static str,
    pub(super) round: unsafe fn(&[f32], &mut Rounded),
    pub(super) int4_rows: unsafe fn(&Int4Matrix, usize, &Rounded, &mut [f32]),
    pub(super) int8_rows: unsafe fn(&Int8Matrix, usize, &Rounded, &mut [f32]),
    pub(super) bf16_rows: unsafe fn(&[u8], &[f32], usize, &mut [f32]),
    pub(super) f32_rows: unsafe fn(&[f32], &[f32], usize, &mut [f32]),
    pub(super) layer_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    pub(super) attend: Attend,
    pub(super) silu_up: unsafe fn(&[f32], &[f32], &mut [f32]),
}

/// Up to 16 groups of one activation vector.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub q: &'a [i16],
    pub digits: &'a [i8],
    pub sum: &'a [i32],
    pub step: &'a [f32],
    pub offset: &'a [f32],
}

impl Rounded {
    /// Groups `first..first + count` of vector `c`.
    #[inline(always)]
    pub(super) fn block(&self, c: usize, first: usize, count: usize) -> Block<'_> {
        use crate::format::layout::GROUP;
        let start = c * self.groups() + first;
        let end = start + count;
        Block {
            q: &self.q[start * GROUP..end * GROUP],
            digits: &self.digits[start * plain::GROUP_DIGITS..end * plain::GROUP_DIGITS],
            sum: &self.sum[start..end],
            step: &self.scale[start..end],
            offset: &self.offset[start..end],
        }
    }
}

/// Defines `KERNELS` for the instruction set of a module that has two functions: `int4_sums` and `int8_sums`, both
/// `fn<const C: usize>(codes: &[u8], x: &[Block; C]) -> [[i32; 16]; C]`, the sums of code times integer of up to 16
/// groups of a row for `C` activation vectors. The codes are unpacked once for all of them.
macro_rules! kernel_table {
    ($name:literal, $features:literal) => {
        pub(super) static KERNELS: Kernels =
            Kernels { name: $name, round, int4_rows, int8_rows, bf16_rows, f32_rows, layer_norm, attend, silu_up };

        /// Activation vectors that share the unpacking of a row.
        const TOGETHER: usize = 4;

        #[target_feature(enable = $features)]
        fn int4_rows(w: &Int4Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
            for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
                let (together, rest) = y.as_chunks_mut::<TOGETHER>();
                for (i, y) in together.iter_mut().enumerate() {
                    *y = int4_row(w, row, x, i * TOGETHER);
                }
                let done = x.columns - rest.len();
                for (i, y) in rest.iter_mut().enumerate() {
                    [*y] = int4_row(w, row, x, done + i);
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn int4_row<const C: usize>(w: &Int4Matrix, row: usize, x: &Rounded, column: usize) -> [f32; C] {
            let groups = x.groups();
            let codes = &w.codes[row * w.k / 2..(row + 1) * w.k / 2];
            let (scale, min) = (&w.scale[row * groups..][..groups], &w.min[row * groups..][..groups]);
            let mut p = [[0.0; LANES]; C];
            for first in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - first);
                let x: [Block<'_>; C] = std::array::from_fn(|c| x.block(column + c, first, count));
                let sums = int4_sums(&codes[first * GROUP / 2..(first + count) * GROUP / 2], &x);
                let (scale, min) = (&scale[first..first + count], &min[first..first + count]);
                for c in 0..C {
                    plain::fold_int4(&mut p[c], &sums[c], scale, min, x[c].step, x[c].offset);
                }
            }
            let mut y = [0.0; C];
            for c in 0..C {
                y[c] = plain::sum_lanes(&p[c]);
            }
            y
        }

        #[target_feature(enable = $features)]
        fn int8_rows(w: &Int8Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
            for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
                let (together, rest) = y.as_chunks_mut::<TOGETHER>();
                for (i, y) in together.iter_mut().enumerate() {
                    *y = int8_row(w, row, x, i * TOGETHER);
                }
                let done = x.columns - rest.len();
                for (i, y) in rest.iter_mut().enumerate() {
                    [*y] = int8_row(w, row, x, done + i);
                }
            }
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn int8_row<const C: usize>(w: &Int8Matrix, row: usize, x: &Rounded, column: usize) -> [f32; C] {
            let groups = x.groups();
            let codes = &w.codes[row * w.k..(row + 1) * w.k];
            let mut p = [[0.0; LANES]; C];
            for first in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - first);
                let x: [Block<'_>; C] = std::array::from_fn(|c| x.block(column + c, first, count));
                let sums = int8_sums(&codes[first * GROUP..(first + count) * GROUP], &x);
                for c in 0..C {
                    plain::fold_int8(&mut p[c], &sums[c], x[c].step);
                }
            }
            let scale = plain::widen(w.scale[row].to_bits());
            let mut y = [0.0; C];
            for c in 0..C {
                y[c] = plain::sum_lanes(&p[c]) * scale;
            }
            y
        }

        float_operations! { #[target_feature(enable = $features)] }
    };
}

/// Defines the floating-point operations of a table: the plain ones, compiled with the given attributes.
macro_rules! float_operations {
    ($(#[$attribute:meta])*) => {
        $(#[$attribute])*
        fn round(x: &[f32], out: &mut Rounded) {
            plain::round(x, out);
        }

        $(#[$attribute])*
        fn bf16_rows(w: &[u8], x: &[f32], k: usize, y: &mut [f32]) {
            plain::bf16_rows(w, x, k, y);
        }

        $(#[$attribute])*
        fn f32_rows(w: &[f32], x: &[f32], k: usize, y: &mut [f32]) {
            plain::f32_rows(w, x, k, y);
        }

        $(#[$attribute])*
        fn layer_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
            plain::layer_norm(x, weight, eps, out);
        }

        $(#[$attribute])*
        fn attend(q: &[f32], keys: &[u16], values: &[u16], dim: usize, scratch: &mut Vec<f32>, out: &mut [f32]) {
            plain::attend(q, keys, values, dim, scratch, out);
        }

        $(#[$attribute])*
        fn silu_up(gate: &[f32], up: &[f32], out: &mut [f32]) {
            plain::silu_up(gate, up, out);
        }
    };
}

pub(super) use {float_operations, kernel_table};

/// The table for machines that have nothing better.
mod portable {
    use super::{Kernels, Rounded, plain};

    pub(super) static KERNELS: Kernels = Kernels {
        name: "plain",
        round,
        int4_rows: plain::int4_rows,
        int8_rows: plain::int8_rows,
        bf16_rows,
        f32_rows,
        layer_norm,
        attend,
        silu_up,
    };

    float_operations! {}
}

#[allow(unsafe_code)]
impl Kernels {
    /// The tables this machine can run, best first; the last is the plain one.
    pub fn available() -> Vec<&'static Kernels> {
        let mut tables = Vec::new();
        #[cfg(target_arch = "x86_64")]
        tables.extend(super::x86::available());
        #[cfg(target_arch = "aarch64")]
        tables.extend(super::neon::available());
        tables.push(&portable::KERNELS);
        tables
    }

    /// The best table, or the one that `RUMIK_CPU_ISA` names.
    ///
    /// # Errors
    /// [`Error::Input`] when the variable names a set that this machine does not have.
    pub fn choose() -> Result<&'static Kernels> {
        match std::env::var(ISA_VARIABLE) {
            Ok(name) if !name.is_empty() => Kernels::named(&name),
            _ => Ok(Kernels::available()[0]),
        }
    }

    /// The table of a name.
    ///
    /// # Errors
    /// [`Error::Input`] when this machine does not have it.
    pub fn named(name: &str) -> Result<&'static Kernels> {
        let tables = Kernels::available();
        tables.iter().copied().find(|table| table.name == name).ok_or_else(|| {
            let names: Vec<_> = tables.iter().map(|table| table.name).collect();
            Error::input(ISA_VARIABLE, format!("this machine has {}, not {name:?}", names.join(", ")))
        })
    }

    /// Name of the instruction set.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// [`plain::round`].
    ///
    /// # Panics
    /// When the sizes do not fit.
    pub fn round(&self, x: &[f32], out: &mut Rounded) {
        assert_eq!(x.len(), out.columns * out.k, "round: values");
        // SAFETY: the table came from `available`, so the machine has the instructions it was compiled for.
        unsafe { (self.round)(x, out) }
    }

    /// [`plain::int4_rows`].
    ///
    /// # Panics
    /// When the sizes do not fit.
    pub fn int4_rows(&self, w: &Int4Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
        assert_eq!((w.k, plain::Order::Nibbles), (x.k, x.order), "int4_rows: activations");
        assert!(y.len().is_multiple_of(x.columns) && first + y.len() / x.columns <= w.n, "int4_rows: rows");
        // SAFETY: as in `round`.
        unsafe { (self.int4_rows)(w, first, x, y) }
    }

    /// [`plain::int8_rows`].
    ///
    /// # Panics
    /// When the sizes do not fit.
    pub fn int8_rows(&self, w: &Int8Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
        assert_eq!((w.k, plain::Order::Bytes), (x.k, x.order), "int8_rows: activations");
        assert!(y.len().is_multiple_of(x.columns) && first + y.len() / x.columns <= w.n, "int8_rows: rows");
        // SAFETY: as in `round`.
        unsafe { (self.int8_rows)(w, first, x, y) }
    }

    /// [`plain::bf16_rows`].
    pub fn bf16_rows(&self, w: &[u8], x: &[f32], k: usize, y: &mut [f32]) {
        // SAFETY: as in `round`.
        unsafe { (self.bf16_rows)(w, x, k, y) }
    }

    /// [`plain::f32_rows`].
    pub fn f32_rows(&self, w: &[f32], x: &[f32], k: usize, y: &mut [f32]) {
        // SAFETY: as in `round`.
        unsafe { (self.f32_rows)(w, x, k, y) }
    }

    /// [`plain::layer_norm`].
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        // SAFETY: as in `round`.
        unsafe { (self.layer_norm)(x, weight, eps, out) }
    }

    /// [`plain::attend`].
    pub fn attend(
        &self,
        q: &[f32],
        (keys, values): (&[u16], &[u16]),
        dim: usize,
        scratch: &mut Vec<f32>,
        out: &mut [f32],
    ) {
        // SAFETY: as in `round`.
        unsafe { (self.attend)(q, keys, values, dim, scratch, out) }
    }

    /// [`plain::silu_up`].
    pub fn silu_up(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        // SAFETY: as in `round`.
        unsafe { (self.silu_up)(gate, up, out) }
    }
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
