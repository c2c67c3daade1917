//! int4 in groups of 128 columns, by minimum and maximum: `w' = code * scale + min`.

use half::f16;

use super::matrix::{Flaw, RowError};
use super::simd::{Float, INFINITY_BITS, LANES, ROUND, Simd, largest_magnitude_bits, per_instruction_set, reduce};
use crate::format::layout::{GROUP, MAX_CODE};

/// Quantizes one row the plain way: the meaning of [`quantize_row_int4`].
///
/// `row: [k]`, k a multiple of 128; `codes: [k / 2]`, the low nibble is the even column; `scale`, `min`: `[k / 128]`.
///
/// # Errors
/// [`Flaw`] when a value is not finite, or a scale or minimum too large for f16.
///
/// # Panics
/// When an output is shorter than the row asks for.
///
/// Source: `docs/SPEC.md`, section 3.
pub fn quantize_row_int4_reference(
    row: &[f32],
    codes: &mut [u8],
    scale: &mut [f16],
    min: &mut [f16],
) -> Result<(), Flaw> {
    for (group, w) in row.chunks_exact(GROUP).enumerate() {
        if w.iter().any(|v| !v.is_finite()) {
            return Err(Flaw::find(w, group * GROUP));
        }
        let lowest = w.iter().fold(f32::INFINITY, |a, &b| a.min(b)) + 0.0; // -0 counts as +0
        let highest = w.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        let (s, m) = (f16::from_f32((highest - lowest) / f32::from(MAX_CODE)), f16::from_f32(lowest));
        if !s.is_finite() || !m.is_finite() {
            return Err(Flaw::find(w, group * GROUP));
        }
        (scale[group], min[group]) = (s, m);
        for (j, pair) in w.chunks_exact(2).enumerate() {
            let code = |w: f32| match s.to_f32() {
                0.0 => 0,
                s => ((w - m.to_f32()) / s).round_ties_even().clamp(0.0, f32::from(MAX_CODE)) as u8,
            };
            codes[group * GROUP / 2 + j] = code(pair[0]) | code(pair[1]) << 4;
        }
    }
    Ok(())
}

/// Quantizes one row and measures what it lost, with the best instructions of this machine.
///
/// `row`: k elements of `float`, k a multiple of 128; `codes: [k / 2]`; `scale`, `min`: `[k / 128]`.
///
/// # Errors
/// [`Flaw`] when a value is not finite, or a scale or minimum too large for f16.
///
/// # Panics
/// When an output is shorter than the row asks for.
pub fn quantize_row_int4(
    float: Float,
    row: &[u8],
    codes: &mut [u8],
    scale: &mut [f16],
    min: &mut [f16],
) -> Result<RowError, Flaw> {
    quantize_row_int4_with(Simd::best(), float, row, codes, scale, min)
}

per_instruction_set! {
    /// [`quantize_row_int4`] with a given instruction set.
    ///
    /// # Errors
    /// [`Flaw`] when a value is not finite, or a scale or minimum too large for f16.
    ///
    /// # Panics
    /// When an output is shorter than the row asks for.
    pub fn quantize_row_int4_with = row_body(
        float: Float,
        row: &[u8],
        codes: &mut [u8],
        scale: &mut [f16],
        min: &mut [f16],
    ) -> Result<RowError, Flaw>
}

#[inline(always)]
fn row_body(float: Float, row: &[u8], codes: &mut [u8], scale: &mut [f16], min: &mut [f16]) -> Result<RowError, Flaw> {
    let mut result = RowError::EMPTY;
    let mut w = [0f32; GROUP];
    let groups = row.chunks_exact(GROUP * float.width()).zip(codes.as_chunks_mut().0).enumerate();
    for (group, (bytes, codes)) in groups {
        float.load(bytes, &mut w);
        let (lowest, highest) = range(&w);
        let (s, m) = (f16::from_f32((highest - lowest) / f32::from(MAX_CODE)), f16::from_f32(lowest));
        if largest_magnitude_bits(&w) >= INFINITY_BITS || !s.is_finite() || !m.is_finite() {
            return Err(Flaw::find(&w, group * GROUP));
        }
        let (error, norm) = encode(&w, s.to_f32(), m.to_f32(), codes);
        (scale[group], min[group]) = (s, m);
        result.add(group, s, error, norm);
    }
    Ok(result)
}

/// Smallest and largest value. Comparisons, not `f32::min`, because a NaN is found elsewhere and one instruction is enough.
#[inline(always)]
fn range(w: &[f32; GROUP]) -> (f32, f32) {
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    for chunk in w.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            low[lane] = if chunk[lane] < low[lane] { chunk[lane] } else { low[lane] };
            high[lane] = if chunk[lane] > high[lane] { chunk[lane] } else { high[lane] };
        }
    }
    let lowest = reduce(low, |a, b| if a < b { a } else { b }) + 0.0; // -0 counts as +0
    (lowest, reduce(high, |a, b| if a > b { a } else { b }))
}

/// Codes of one group, and its sums of (w - w')² and w².
#[inline(always)]
fn encode(w: &[f32; GROUP], scale: f32, min: f32, codes: &mut [u8; GROUP / 2]) -> (f64, f64) {
    let (mut error, mut norm) = ([0f64; LANES], [0f64; LANES]);
    // a quotient of 0 for every column gives code 0 without a branch inside the loop
    let (divisor, keep) = if scale == 0.0 { (1.0, 0.0) } else { (scale, f32::from(MAX_CODE)) };
    let mut code = [0u8; GROUP];
    for (w, code) in w.as_chunks::<LANES>().0.iter().zip(code.as_chunks_mut::<LANES>().0) {
        for lane in 0..LANES {
            let quotient = (w[lane] - min) / divisor;
            let quotient = if quotient > 0.0 { quotient } else { 0.0 };
            let quotient = if quotient < keep { quotient } else { keep };
            let rounded = quotient + ROUND;
            code[lane] = rounded.to_bits() as u8; // the low byte of the sum is the integer
            let decoded = (rounded - ROUND) * scale + min;
            let (exact, difference) = (f64::from(w[lane]), f64::from(w[lane]) - f64::from(decoded));
            error[lane] += difference * difference;
            norm[lane] += exact * exact;
        }
    }
    for (byte, pair) in codes.iter_mut().zip(code.as_chunks().0) {
        let pair = u16::from_le_bytes(*pair);
        *byte = (pair | pair >> 4) as u8; // the high byte's nibble moves above the low byte's
    }
    (reduce(error, |a, b| a + b), reduce(norm, |a, b| a + b))
}
