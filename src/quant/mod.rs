//! Quantization: scales, rounding, packing and the error of one matrix (`int4`, `int8`, `float`), and the loop over a
//! checkpoint (`model`). `docs/SPEC.md`, section 3, is the law.
//!
//! Each format has a plain function that says what is meant and a fast one that gives the same bits. The fast one is
//! one generic body, compiled once per instruction set ([`Simd`]) and chosen at run time; it uses no intrinsics and no
//! fused multiply-add, so the compiler may use wider registers but not other arithmetic.

mod export;
mod float;
mod int4;
mod int8;
mod matrix;
mod model;
mod simd;

pub use export::{ExportOptions, Plan, export, plan};
pub use float::round_row_bf16;
pub use int4::{quantize_row_int4, quantize_row_int4_reference, quantize_row_int4_with};
pub use int8::{quantize_row_int8, quantize_row_int8_reference, quantize_row_int8_with};
pub use matrix::{Flaw, RowError};
pub use simd::{Float, Simd};
