//! The operations of [`plain`], compiled for each instruction set, and the choice among them at run time.
//!
//! `kernel_table!` builds the whole table of one set: the floating-point operations are the plain ones, inlined and
//! thereby compiled for its registers; the int4 and int8 products are the loops below around two hand-written functions
//! that compute integer sums. Every table computes the same bits as [`plain`].

use super::plain::{self, Digits, Rounded};
use crate::error::{Error, Result};
use crate::format::{Int4Matrix, Int8Matrix};

/// Environment variable that names the instruction set to use instead of the best one.
pub const ISA_VARIABLE: &str = "RUMIK_CPU_ISA";

type Attend = unsafe fn(&[f32], &[u16], &[u16], usize, &mut Vec<f32>, &mut [f32]);

/// Defines [`Kernels`] and the list of its operations together, so that no operation is missing from the list.
macro_rules! operations {
    ($($operation:ident: $signature:ty,)+) => {
        /// The operations compiled for one instruction set.
        ///
        /// Outside this module a table can only be had from [`Kernels::available`], so the machine has its instructions.
        pub struct Kernels {
            pub(super) name: &'static str,
            $(pub(super) $operation: $signature,)+
        }

        impl Kernels {
            /// Names of the operations of a table; each must have a known-answer test (`verify::kernels`).
            pub const OPERATIONS: &[&str] = &[$(stringify!($operation)),+];
        }
    };
}

operations! {
    round: unsafe fn(&[f32], &mut Rounded),
    int4_rows: unsafe fn(&Int4Matrix, usize, &Rounded, &mut [f32]),
    int8_rows: unsafe fn(&Int8Matrix, usize, &Rounded, &mut [f32]),
    bf16_rows: unsafe fn(&[u8], &[f32], usize, &mut [f32]),
    f32_rows: unsafe fn(&[f32], &[f32], usize, &mut [f32]),
    layer_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    attend: Attend,
    silu_up: unsafe fn(&[f32], &[f32], &mut [f32]),
}

/// Up to 16 groups of one activation vector.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub q: &'a [i16],
    pub digits: &'a [Digits],
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
            digits: &self.digits[start..end],
            sum: &self.sum[start..end],
            step: &self.scale[start..end],
            offset: &self.offset[start..end],
        }
    }
}

/// Activation vectors that share the unpacking of a row. They take a tile of rows 16 groups at a time, so that their
/// digits stay in the first-level cache; a vector alone takes whole rows, so that the codes are one stream.
pub(super) const TOGETHER: usize = 4;

/// Defines `KERNELS` for the instruction set of a module that has four functions: `int4_sums` and `int8_sums`, both
/// `fn<const C: usize>(codes: &[u8], x: &[Block; C]) -> [[i32; 16]; C]`, the sums of code times integer of up to 16
/// groups of a row for `C` activation vectors (the codes are unpacked once for all of them); and `dot(&[f32], &[f32])` and
/// `dot_bf16(&[[u8; 2]], &[f32])`, which are [`plain::dot_of`].
macro_rules! kernel_table {
    ($name:literal, $features:literal) => {
        pub(super) static KERNELS: Kernels =
            Kernels { name: $name, round, int4_rows, int8_rows, bf16_rows, f32_rows, layer_norm, attend, silu_up };

        #[target_feature(enable = $features)]
        fn int4_rows(w: &Int4Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
            let together = x.columns / TOGETHER * TOGETHER;
            if together > 0 {
                let mut p = vec![[[0.0; LANES]; TOGETHER]; y.len() / x.columns];
                for column in (0..together).step_by(TOGETHER) {
                    int4_tile(w, first, x, column, &mut p, y);
                }
            }
            for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
                for column in together..x.columns {
                    int4_tile(w, row, x, column, &mut [[[0.0; LANES]; 1]], y);
                }
            }
        }

        /// `p.len()` rows from `first`, `C` columns from `column`; `p` is working memory.
        #[target_feature(enable = $features)]
        #[inline]
        fn int4_tile<const C: usize>(
            w: &Int4Matrix,
            first: usize,
            x: &Rounded,
            column: usize,
            p: &mut [[[f32; LANES]; C]],
            y: &mut [f32],
        ) {
            let groups = x.groups();
            p.fill([[0.0; LANES]; C]);
            for start in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - start);
                let mut block = [x.block(column, start, count); C];
                for c in 1..C {
                    block[c] = x.block(column + c, start, count);
                }
                for (row, p) in (first..).zip(&mut *p) {
                    let at = row * groups + start;
                    let sums = int4_sums(&w.codes[at * GROUP / 2..(at + count) * GROUP / 2], &block);
                    let (scale, min) = (&w.scale[at..at + count], &w.min[at..at + count]);
                    for c in 0..C {
                        plain::fold_int4(&mut p[c], &sums[c], scale, min, block[c].step, block[c].offset);
                    }
                }
            }
            for (p, y) in p.iter().zip(y.chunks_exact_mut(x.columns)) {
                for (p, y) in p.iter().zip(&mut y[column..column + C]) {
                    *y = plain::sum_lanes(p);
                }
            }
        }

        #[target_feature(enable = $features)]
        fn int8_rows(w: &Int8Matrix, first: usize, x: &Rounded, y: &mut [f32]) {
            let together = x.columns / TOGETHER * TOGETHER;
            if together > 0 {
                let mut p = vec![[[0.0; LANES]; TOGETHER]; y.len() / x.columns];
                for column in (0..together).step_by(TOGETHER) {
                    int8_tile(w, first, x, column, &mut p, y);
                }
            }
            for (row, y) in (first..).zip(y.chunks_exact_mut(x.columns)) {
                for column in together..x.columns {
                    int8_tile(w, row, x, column, &mut [[[0.0; LANES]; 1]], y);
                }
            }
        }

        /// As `int4_tile`.
        #[target_feature(enable = $features)]
        #[inline]
        fn int8_tile<const C: usize>(
            w: &Int8Matrix,
            first: usize,
            x: &Rounded,
            column: usize,
            p: &mut [[[f32; LANES]; C]],
            y: &mut [f32],
        ) {
            let groups = x.groups();
            p.fill([[0.0; LANES]; C]);
            for start in (0..groups).step_by(LANES) {
                let count = LANES.min(groups - start);
                let mut block = [x.block(column, start, count); C];
                for c in 1..C {
                    block[c] = x.block(column + c, start, count);
                }
                for (row, p) in (first..).zip(&mut *p) {
                    let at = row * groups + start;
                    let sums = int8_sums(&w.codes[at * GROUP..(at + count) * GROUP], &block);
                    for c in 0..C {
                        plain::fold_int8(&mut p[c], &sums[c], block[c].step);
                    }
                }
            }
            for (row, (p, y)) in (first..).zip(p.iter().zip(y.chunks_exact_mut(x.columns))) {
                let scale = plain::widen(w.scale[row].to_bits());
                for (p, y) in p.iter().zip(&mut y[column..column + C]) {
                    *y = plain::sum_lanes(p) * scale;
                }
            }
        }

        #[target_feature(enable = $features)]
        fn round(x: &[f32], out: &mut Rounded) {
            plain::round(x, out);
        }

        #[target_feature(enable = $features)]
        fn bf16_rows(w: &[u8], x: &[f32], k: usize, y: &mut [f32]) {
            plain::rows_by(|w, x| dot_bf16(w, x), w.as_chunks::<2>().0, x, k, y);
        }

        #[target_feature(enable = $features)]
        fn f32_rows(w: &[f32], x: &[f32], k: usize, y: &mut [f32]) {
            plain::rows_by(|w, x| dot(w, x), w, x, k, y);
        }

        #[target_feature(enable = $features)]
        fn layer_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
            plain::layer_norm(x, weight, eps, out);
        }

        #[target_feature(enable = $features)]
        fn attend(q: &[f32], keys: &[u16], values: &[u16], dim: usize, scratch: &mut Vec<f32>, out: &mut [f32]) {
            plain::attend_by(|a, b| dot(a, b), q, (keys, values), dim, scratch, out);
        }

        #[target_feature(enable = $features)]
        fn silu_up(gate: &[f32], up: &[f32], out: &mut [f32]) {
            plain::silu_up(gate, up, out);
        }
    };
}

pub(super) use kernel_table;

/// The table for machines that have nothing better.
static PLAIN: Kernels = Kernels {
    name: "plain",
    round: plain::round,
    int4_rows: plain::int4_rows,
    int8_rows: plain::int8_rows,
    bf16_rows: plain::bf16_rows,
    f32_rows: plain::f32_rows,
    layer_norm: plain::layer_norm,
    attend: plain::attend,
    silu_up: plain::silu_up,
};

#[allow(unsafe_code)]
impl Kernels {
    /// The tables this machine can run, best first; the last is the plain one.
    pub fn available() -> Vec<&'static Kernels> {
        let mut tables = Vec::new();
        #[cfg(target_arch = "x86_64")]
        tables.extend(super::x86::available());
        #[cfg(target_arch = "aarch64")]
        tables.extend(super::neon::available());
        tables.push(&PLAIN);
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
