//! Rows of the bf16 head: copied from bf16, rounded from f16 and f32.

use half::bf16;

use super::matrix::{Flaw, RowError};
use super::simd::Float;

/// Rounds one row to bf16, nearest, ties to even, and measures what it lost.
///
/// `row`: k elements of `float`; `work: [k]`, overwritten; `out: [2 k]`, bf16 little-endian.
///
/// # Errors
/// [`Flaw`] when a value is not finite or would become infinite.
///
/// # Panics
/// When `work` or `out` has another length than the row.
pub fn round_row_bf16(float: Float, row: &[u8], work: &mut [f32], out: &mut [u8]) -> Result<RowError, Flaw> {
    assert!(
        row.len() == work.len() * float.width() && out.len() == 2 * work.len(),
        "operands of one row differ in length"
    );
    float.load(row, work);
    let (mut error, mut norm, mut finite) = (0.0, 0.0, true);
    for (w, out) in work.iter().zip(out.as_chunks_mut().0) {
        let rounded = bf16::from_f32(*w);
        finite &= rounded.is_finite();
        let (exact, difference) = (f64::from(*w), f64::from(*w) - rounded.to_f64());
        error += difference * difference;
        norm += exact * exact;
        *out = rounded.to_le_bytes();
    }
    if !finite {
        return Err(Flaw::find(work, 0));
    }
    let worst = (0, if norm > 0.0 { error / norm } else { 0.0 });
    Ok(RowError { error, norm, worst, scale_min: 0.0, scale_max: 0.0, zero_scales: 0 })
}
