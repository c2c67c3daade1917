//! Integer sums for 64-bit Arm: NEON, and NEON with the dot product instruction.
//!
//! `sdot` adds four products of signed bytes to each 32-bit lane; without it products of bytes are widened to 16 bits
//! and added in pairs. int4 codes are at most 15 and int8 codes are signed already, so both meet the digits as they are.

#![allow(unsafe_code)] // loads from byte arrays, each of a stated length

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected as has;

use super::kernels::{Block, Kernels, float_operations, kernel_table};
use super::plain::{self, GROUP_DIGITS, LANES, Rounded};
use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

/// The tables this machine can run, best first.
pub(super) fn available() -> Vec<&'static Kernels> {
    let mut tables = Vec::new();
    if has!("dotprod") {
        tables.push(&dotprod::KERNELS);
    }
    tables.push(&neon::KERNELS);
    tables
}

#[target_feature(enable = "neon")]
#[inline]
fn load_unsigned(bytes: &[u8]) -> uint8x16_t {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, by the assertion; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn load_signed(bytes: &[i8]) -> int8x16_t {
    assert!(bytes.len() >= 16);
    // SAFETY: 16 bytes are readable, by the assertion; the load needs no alignment.
    unsafe { vld1q_s8(bytes.as_ptr()) }
}

/// Even columns, then odd columns, in four registers each.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles(group: &[u8; GROUP / 2]) -> [int8x16_t; 8] {
    std::array::from_fn(|i| {
        let codes = load_unsigned(&group[16 * (i % 4)..16 * (i % 4) + 16]);
        let nibble = if i < 4 { vandq_u8(codes, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(codes) };
        vreinterpretq_s8_u8(nibble)
    })
}

#[target_feature(enable = "neon")]
#[inline]
fn bytes(group: &[u8; GROUP]) -> [int8x16_t; 8] {
    std::array::from_fn(|i| vreinterpretq_s8_u8(load_unsigned(&group[16 * i..16 * i + 16])))
}

/// Defines the two sums of an instruction set around its `dot(sum, a, b)`.
macro_rules! sums {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        #[inline]
        fn int4_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
            let mut out = [[0; LANES]; C];
            for (g, group) in codes.as_chunks::<{ GROUP / 2 }>().0.iter().enumerate() {
                let codes = nibbles(group);
                for c in 0..C {
                    out[c][g] = products(&codes, &x[c].digits[g * GROUP_DIGITS..(g + 1) * GROUP_DIGITS]);
                }
            }
            out
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn int8_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
            let mut out = [[0; LANES]; C];
            for (g, group) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
                let codes = bytes(group);
                for c in 0..C {
                    out[c][g] = products(&codes, &x[c].digits[g * GROUP_DIGITS..(g + 1) * GROUP_DIGITS]);
                }
            }
            out
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn products(codes: &[int8x16_t; 8], digits: &[i8]) -> i32 {
            let (mut high, mut low) = (vdupq_n_s32(0), vdupq_n_s32(0));
            for (i, code) in codes.iter().enumerate() {
                high = dot(high, *code, load_signed(&digits[16 * i..16 * i + 16]));
                low = dot(low, *code, load_signed(&digits[GROUP + 16 * i..GROUP + 16 * i + 16]));
            }
            256 * vaddvq_s32(high) + vaddvq_s32(low)
        }
    };
}

mod dotprod {
    use super::*;

    kernel_table!("neon-dotprod", "neon,dotprod");
    sums!("neon,dotprod");

    /// Adds four products to each lane. In assembly, because the intrinsic is not in stable Rust.
    #[target_feature(enable = "neon,dotprod")]
    #[inline]
    fn dot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        // SAFETY: one instruction of the enabled feature on registers; no memory, no flags.
        unsafe {
            std::arch::asm!(
                "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
}

// The name of the instruction set.
#[allow(clippy::module_inception)]
mod neon {
    use super::*;

    kernel_table!("neon", "neon");
    sums!("neon");

    /// Adds the products to the lanes. A sum of two products of signed bytes fits 17 bits, so they are widened first.
    #[target_feature(enable = "neon")]
    #[inline]
    fn dot(sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
        let sum = vpadalq_s16(sum, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
        vpadalq_s16(sum, vmull_high_s8(a, b))
    }
}
