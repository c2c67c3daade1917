//! Integer sums for x86: AVX2, AVX-512 and AVX-512 with VNNI.
//!
//! The 64 bytes of a group of int4 codes hold the even columns in their low nibbles and the odd ones in their high
//! nibbles; [`Order::Nibbles`](super::plain::Order) lays the digits out to match, so no code is ever moved. All codes
//! meet the digits as unsigned bytes. No sum of two products leaves 16 bits: 2 * 15 * 128 = 3840, times 4 in the AVX2
//! accumulators 15360.

#![allow(unsafe_code)] // loads from byte arrays, each of a stated length

use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;

use super::kernels::{Block, Kernels, float_operations, kernel_table};
use super::plain::{self, GROUP_DIGITS, LANES, Rounded};
use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

/// The tables this machine can run, best first.
pub(super) fn available() -> Vec<&'static Kernels> {
    let mut tables = Vec::new();
    let avx2 = has!("avx2") && has!("fma");
    let avx512 = avx2 && has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
    if avx512 && has!("avx512vnni") {
        tables.push(&vnni::KERNELS);
    }
    if avx512 {
        tables.push(&avx512::KERNELS);
    }
    if avx2 {
        tables.push(&avx2::KERNELS);
    }
    tables
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load_512<T>(values: &[T]) -> __m512i {
    assert!(size_of_val(values) >= 64);
    // SAFETY: 64 bytes are readable, by the assertion; the load needs no alignment and takes any bits.
    unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_256<T>(values: &[T]) -> __m256i {
    assert!(size_of_val(values) >= 32);
    // SAFETY: 32 bytes are readable, by the assertion; the load needs no alignment and takes any bits.
    unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
}

/// The sums of four vectors' lanes, one in each lane of every 128-bit part that is then still to be added.
#[target_feature(enable = "avx512f")]
#[inline]
fn sum_four(v: [__m512i; 4]) -> __m512i {
    let pair = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let (ab, cd) = (pair(v[0], v[1]), pair(v[2], v[3]));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// The sums of sixteen vectors' lanes, from four results of [`sum_four`].
#[target_feature(enable = "avx512f")]
#[inline]
fn sum_sixteen(v: [__m512i; 4]) -> [i32; LANES] {
    const LOW_PARTS: i32 = 0b01_00_01_00;
    const HIGH_PARTS: i32 = 0b11_10_11_10;
    const EVEN_PARTS: i32 = 0b10_00_10_00;
    const ODD_PARTS: i32 = 0b11_01_11_01;
    let halves =
        |a, b| _mm512_add_epi32(_mm512_shuffle_i32x4::<LOW_PARTS>(a, b), _mm512_shuffle_i32x4::<HIGH_PARTS>(a, b));
    let (low, high) = (halves(v[0], v[1]), halves(v[2], v[3]));
    let (even, odd) = (_mm512_shuffle_i32x4::<EVEN_PARTS>(low, high), _mm512_shuffle_i32x4::<ODD_PARTS>(low, high));
    let mut sums = [0; LANES];
    // SAFETY: the array has 64 bytes; the store needs no alignment.
    unsafe { _mm512_storeu_si512(sums.as_mut_ptr().cast(), _mm512_add_epi32(even, odd)) };
    sums
}

/// Runs `$group` (an expression for the 16-lane sums of group `$g` for vector `$c`, after `$codes` was unpacked) over up
/// to 16 groups and adds the lanes of each. A macro, because a function over closures could not be compiled for more than
/// one instruction set.
macro_rules! sums_by_group {
    ($codes:expr, $bytes:literal, $C:ident, |$g:ident, $group:ident| $unpack:expr, |$code:ident, $c:ident| $sum:expr) => {{
        let mut fours = [[_mm512_setzero_si512(); 4]; $C];
        for (four, codes) in $codes.chunks(4 * $bytes).enumerate() {
            let mut sums = [[_mm512_setzero_si512(); 4]; $C];
            let groups = codes.as_chunks::<$bytes>().0;
            for i in 0..4 {
                if let Some($group) = groups.get(i) {
                    let $g = 4 * four + i;
                    let $code = $unpack;
                    for $c in 0..$C {
                        sums[$c][i] = $sum;
                    }
                }
            }
            for c in 0..$C {
                fours[c][four] = sum_four(sums[c]);
            }
        }
        let mut out = [[0; LANES]; $C];
        for c in 0..$C {
            out[c] = sum_sixteen(fours[c]);
        }
        out
    }};
}

/// Even and odd columns of the 64 bytes of an int4 group.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn nibbles(group: &[u8; GROUP / 2]) -> (__m512i, __m512i) {
    let (codes, mask) = (load_512(group), _mm512_set1_epi8(15));
    (_mm512_and_si512(codes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(codes), mask))
}

mod vnni {
    use super::*;

    kernel_table!("avx512-vnni", "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c");

    /// Sums of the products of two 64-byte vectors of codes with the digits of a group.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn products((a, b): (__m512i, __m512i), x: &Block<'_>, g: usize) -> __m512i {
        let digits = &x.digits[g * GROUP_DIGITS..(g + 1) * GROUP_DIGITS];
        let zero = _mm512_setzero_si512();
        let high = _mm512_dpbusd_epi32(zero, a, load_512(&digits[..64]));
        let high = _mm512_dpbusd_epi32(high, b, load_512(&digits[64..128]));
        let low = _mm512_dpbusd_epi32(_mm512_slli_epi32::<8>(high), a, load_512(&digits[128..192]));
        _mm512_dpbusd_epi32(low, b, load_512(&digits[192..256]))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn int4_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        sums_by_group!(codes, 64, C, |g, group| nibbles(group), |code, c| products(code, &x[c], g))
    }

    /// The codes meet the digits as `code + 128`; 128 times the sum of the integers is taken off afterwards.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    #[inline]
    fn int8_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        let bias = _mm512_set1_epi8(-128);
        let mut sums = sums_by_group!(
            codes,
            128,
            C,
            |g, group| (_mm512_xor_si512(load_512(&group[..64]), bias), _mm512_xor_si512(load_512(&group[64..]), bias)),
            |code, c| products(code, &x[c], g)
        );
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, integers) in sums.iter_mut().zip(x.sum) {
                *sum -= 128 * integers;
            }
        }
        sums
    }
}

mod avx512 {
    use super::*;

    kernel_table!("avx512", "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn int4_products((even, odd): (__m512i, __m512i), x: &Block<'_>, g: usize) -> __m512i {
        let digits = &x.digits[g * GROUP_DIGITS..(g + 1) * GROUP_DIGITS];
        let pair = |at: usize| {
            _mm512_add_epi16(
                _mm512_maddubs_epi16(even, load_512(&digits[at..at + 64])),
                _mm512_maddubs_epi16(odd, load_512(&digits[at + 64..at + 128])),
            )
        };
        let high = _mm512_madd_epi16(pair(0), _mm512_set1_epi16(256));
        _mm512_add_epi32(high, _mm512_madd_epi16(pair(128), _mm512_set1_epi16(1)))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn int4_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        sums_by_group!(codes, 64, C, |g, group| nibbles(group), |code, c| int4_products(code, &x[c], g))
    }

    /// Widened to 16 bits: products of whole bytes would leave them.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn int8_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        sums_by_group!(codes, 128, C, |g, group| wide(group), |code, c| int8_products(&code, &x[c], g))
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn wide(group: &[u8; GROUP]) -> [__m512i; 4] {
        let part = |i: usize| _mm512_cvtepi8_epi16(load_256(&group[32 * i..32 * i + 32]));
        [part(0), part(1), part(2), part(3)]
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn int8_products(codes: &[__m512i; 4], x: &Block<'_>, g: usize) -> __m512i {
        let q = &x.q[g * GROUP..(g + 1) * GROUP];
        let product = |i: usize| _mm512_madd_epi16(codes[i], load_512(&q[32 * i..32 * i + 32]));
        _mm512_add_epi32(_mm512_add_epi32(product(0), product(1)), _mm512_add_epi32(product(2), product(3)))
    }
}

mod avx2 {
    use super::*;

    kernel_table!("avx2", "avx2,fma,f16c");

    /// The sums of four vectors' lanes.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum_four(v: [__m256i; 4]) -> [i32; 4] {
        let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        let mut out = [0; 4];
        // SAFETY: the array has 16 bytes; the store needs no alignment.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), sums) };
        out
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn int4_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        let mut out = [[0; LANES]; C];
        for (four, codes) in codes.chunks(4 * 64).enumerate() {
            let mut sums = [[_mm256_setzero_si256(); 4]; C];
            for (i, group) in codes.as_chunks::<64>().0.iter().enumerate() {
                let code = nibbles(group);
                for c in 0..C {
                    sums[c][i] = int4_products(&code, &x[c], 4 * four + i);
                }
            }
            for c in 0..C {
                out[c][4 * four..4 * four + 4].copy_from_slice(&sum_four(sums[c]));
            }
        }
        out
    }

    /// Even columns, then odd columns, in two registers each.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn nibbles(group: &[u8; 64]) -> [__m256i; 4] {
        let mask = _mm256_set1_epi8(15);
        let (first, second) = (load_256(&group[..32]), load_256(&group[32..]));
        let odd = |codes| _mm256_and_si256(_mm256_srli_epi16::<4>(codes), mask);
        [_mm256_and_si256(first, mask), _mm256_and_si256(second, mask), odd(first), odd(second)]
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn int4_products(code: &[__m256i; 4], x: &Block<'_>, g: usize) -> __m256i {
        let digits = &x.digits[g * GROUP_DIGITS..(g + 1) * GROUP_DIGITS];
        let sum = |at: usize| {
            let product = |i: usize| _mm256_maddubs_epi16(code[i], load_256(&digits[at + 32 * i..at + 32 * i + 32]));
            _mm256_add_epi16(_mm256_add_epi16(product(0), product(1)), _mm256_add_epi16(product(2), product(3)))
        };
        let high = _mm256_madd_epi16(sum(0), _mm256_set1_epi16(256));
        _mm256_add_epi32(high, _mm256_madd_epi16(sum(128), _mm256_set1_epi16(1)))
    }

    /// Widened to 16 bits: products of whole bytes would leave them.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn int8_sums<const C: usize>(codes: &[u8], x: &[Block<'_>; C]) -> [[i32; LANES]; C] {
        let mut out = [[0; LANES]; C];
        for (four, codes) in codes.chunks(4 * GROUP).enumerate() {
            let mut sums = [[_mm256_setzero_si256(); 4]; C];
            for (i, group) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
                for part in 0..GROUP / 16 {
                    let code = _mm256_cvtepi8_epi16(load_128(&group[16 * part..16 * part + 16]));
                    for c in 0..C {
                        let at = (4 * four + i) * GROUP + 16 * part;
                        let product = _mm256_madd_epi16(code, load_256(&x[c].q[at..at + 16]));
                        sums[c][i] = _mm256_add_epi32(sums[c][i], product);
                    }
                }
            }
            for c in 0..C {
                out[c][4 * four..4 * four + 4].copy_from_slice(&sum_four(sums[c]));
            }
        }
        out
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn load_128(bytes: &[u8]) -> __m128i {
        assert!(bytes.len() >= 16);
        // SAFETY: 16 bytes are readable, by the assertion; the load needs no alignment.
        unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
    }
}
