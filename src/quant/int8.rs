//! int8 with one symmetric scale a row: `w' = code * scale`.

use half::f16;

use super::matrix::{Flaw, RowError};
use super::simd::{Float, INFINITY_BITS, LANES, ROUND, Simd, largest_magnitude_bits, per_instruction_set, reduce};

/// Largest code; -128 is never written, so that a row and its negative have the same codes.
const LARGEST: f32 = 127.0;

/// Quantizes one row the plain way and returns its scale: the meaning of [`quantize_row_int8`].
///
/// `row: [k]`; `codes: [k]`, i8 in two's complement.
///
/// # Errors
/// [`Flaw`] when a value is not finite, or the scale too large for f16.
///
/// Source: `docs/SPEC.md`, section 3.
pub fn quantize_row_int8_reference(row: &[f32], codes: &mut [u8]) -> Result<f16, Flaw> {
    let largest = row.iter().fold(0.0, |a: f32, b| a.max(b.abs()));
    let scale = f16::from_f32(largest / LARGEST);
    if row.iter().any(|v| !v.is_finite()) || !scale.is_finite() {
        return Err(Flaw::find(row, 0));
    }
    for (code, w) in codes.iter_mut().zip(row) {
        let quotient = if scale == f16::ZERO { 0.0 } else { w / scale.to_f32() };
        *code = quotient.round_ties_even().clamp(-LARGEST, LARGEST) as i8 as u8;
    }
    Ok(scale)
}

/// Quantizes one row and measures what it lost, with the best instructions of this machine.
///
/// `row`: k elements of `float`; `work: [k]`, overwritten; `codes: [k]`, i8 in two's complement.
///
/// # Errors
/// [`Flaw`] when a value is not finite, or the scale too large for f16.
///
/// # Panics
/// When `work` or `codes` has another length than the row.
pub fn quantize_row_int8(
    float: Float,
    row: &[u8],
    work: &mut [f32],
    codes: &mut [u8],
) -> Result<(f16, RowError), Flaw> {
    quantize_row_int8_with(Simd::best(), float, row, work, codes)
}

per_instruction_set! {
    /// [`quantize_row_int8`] with a given instruction set.
    ///
    /// # Errors
    /// [`Flaw`] when a value is not finite, or the scale too large for f16.
    ///
    /// # Panics
    /// When `work` or `codes` has another length than the row.
    pub fn quantize_row_int8_with = row_body(
        float: Float,
        row: &[u8],
        work: &mut [f32],
        codes: &mut [u8],
    ) -> Result<(f16, RowError), Flaw>
}

#[inline(always)]
fn row_body(float: Float, row: &[u8], work: &mut [f32], codes: &mut [u8]) -> Result<(f16, RowError), Flaw> {
    assert!(
        row.len() == work.len() * float.width() && codes.len() == work.len(),
        "operands of one row differ in length"
    );
    float.load(row, work);
    let largest = largest_magnitude_bits(work);
    let scale = f16::from_f32(f32::from_bits(largest) / LARGEST);
    if largest >= INFINITY_BITS || !scale.is_finite() {
        return Err(Flaw::find(work, 0));
    }
    let (error, norm) = encode(work, scale.to_f32(), codes);
    let mut result = RowError::EMPTY;
    result.add(0, scale, error, norm);
    Ok((scale, result))
}

#[inline(always)]
fn encode(w: &[f32], scale: f32, codes: &mut [u8]) -> (f64, f64) {
    let (mut error, mut norm) = ([0f64; LANES], [0f64; LANES]);
    let (divisor, keep) = if scale == 0.0 { (1.0, 0.0) } else { (scale, LARGEST) };
    let mut one = |lane: usize, w: f32, code: &mut u8| {
        let quotient = w / divisor;
        let quotient = if quotient > -keep { quotient } else { -keep };
        let quotient = if quotient < keep { quotient } else { keep };
        let rounded = quotient + ROUND;
        *code = rounded.to_bits() as u8; // the low byte of the sum is the integer in two's complement
        let decoded = (rounded - ROUND) * scale;
        let (exact, difference) = (f64::from(w), f64::from(w) - f64::from(decoded));
        error[lane] += difference * difference;
        norm[lane] += exact * exact;
    };
    let (chunks, rest) = w.as_chunks::<LANES>();
    let (code_chunks, code_rest) = codes.as_chunks_mut::<LANES>();
    for (w, codes) in chunks.iter().zip(code_chunks) {
        for lane in 0..LANES {
            one(lane, w[lane], &mut codes[lane]);
        }
    }
    for (lane, (w, code)) in rest.iter().zip(code_rest).enumerate() {
        one(lane, *w, code);
    }
    (reduce(error, |a, b| a + b), reduce(norm, |a, b| a + b))
}
