//! Logits of one step in little space: the likely rows exactly, all the others as one.
//!
//! The reference computes in bf16, so its logits are bf16 values and two bytes hold each of them exactly. Rows that
//! together have less than [`TAIL`] of the probability become one row. A KL divergence over the rest can only come out
//! smaller than the whole one, and [`Step::compare`](super::super::quality) knows by how much at most.

use half::bf16;

use crate::error::{Error, Result};

/// Probability of the rows that are not stored one by one.
pub const TAIL: f64 = 1e-6;
/// Rows that are stored whatever their probability: more than top-k sampling and top-5 agreement look at.
pub const FEWEST_ROWS: usize = 32;

/// What the reference makes of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Compact {
    /// Rows of the audio head, ascending.
    pub rows: Vec<u16>,
    /// Their logits.
    pub logits: Vec<bf16>,
    /// Logarithm of the sum of `exp(logit)` over all other rows; minus infinity when there are none.
    pub tail: f32,
    /// Entropy over all rows in nats.
    pub entropy: f32,
}

impl Compact {
    /// Stores the logits of one step, `[audio_rows]`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for logits that are not finite bf16 values, or more rows than a `u16` can number.
    pub fn of(logits: &[f32]) -> Result<Compact> {
        let exact = |logit: &f32| logit.is_finite() && bf16::from_f32(*logit).to_f32() == *logit;
        if let Some(row) = logits.iter().position(|logit| !exact(logit)) {
            return Err(Error::invalid("the reference", format!("logit of row {row}"), "a bf16 value", logits[row]));
        }
        if logits.is_empty() || logits.len() > usize::from(u16::MAX) + 1 {
            return Err(Error::invalid("the reference", "audio rows", "1 to 65536", logits.len()));
        }
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let weight = |row: usize| (f64::from(logits[row]) - largest).exp();
        let total: f64 = (0..logits.len()).map(weight).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a])); // stable: equals keep their order
        let mut rest = total;
        let kept = order.iter().take_while(|row| {
            let more = rest > TAIL * total;
            rest -= weight(**row);
            more
        });
        let kept = kept.count().max(FEWEST_ROWS.min(logits.len()));
        let tail: f64 = order[kept..].iter().map(|row| weight(*row)).sum();
        let mut rows = order;
        rows.truncate(kept);
        rows.sort_unstable();
        let log_total = total.ln();
        let entropy = (0..logits.len()).map(|row| (weight(row) / total, f64::from(logits[row]) - largest - log_total));
        Ok(Compact {
            logits: rows.iter().map(|row| bf16::from_f32(logits[*row])).collect(),
            rows: rows.into_iter().map(|row| row as u16).collect(),
            tail: if tail > 0.0 { (tail.ln() + largest) as f32 } else { f32::NEG_INFINITY },
            entropy: -entropy.map(|(p, log_p)| if p == 0.0 { 0.0 } else { p * log_p }).sum::<f64>() as f32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likely_rows_are_exact_and_the_others_one() {
        let logits: Vec<f32> = (0..100).map(|row| if row == 70 { 20.0 } else { -(row as f32) }).collect();
        let compact = Compact::of(&logits).unwrap();
        assert_eq!(compact.rows.len(), FEWEST_ROWS);
        assert!(compact.rows.contains(&70) && compact.rows.is_sorted());
        assert!(compact.rows.iter().zip(&compact.logits).all(|(row, kept)| kept.to_f32() == logits[usize::from(*row)]));
        let tail = (31..100).filter(|row| *row != 70).map(|row| f64::from(logits[row]).exp()).sum::<f64>().ln();
        assert!((f64::from(compact.tail) - tail).abs() < 1e-5);
        let flat = Compact::of(&[1.5; 1000]).unwrap();
        assert_eq!((flat.rows.len(), flat.tail), (1000, f32::NEG_INFINITY));
        assert!((f64::from(flat.entropy) - 1000f64.ln()).abs() < 1e-6);
    }

    #[test]
    fn what_cannot_be_stored_exactly_is_refused() {
        for wrong in [f32::NAN, f32::INFINITY, 1.0 + f32::EPSILON] {
            assert!(Compact::of(&[0.0, wrong]).unwrap_err().to_string().contains("logit of row 1"));
        }
        assert!(Compact::of(&[]).is_err());
    }
}
