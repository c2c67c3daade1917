//! How far one model's next-token distribution is from another's, in f64 from full logits.

use serde::Serialize;

use crate::reference::argmax;

/// Two distributions over the same rows, at one position, the first of them the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// `KL(reference ‖ candidate)` in nats.
    pub kl: f64,
    /// Entropy of the reference in nats: how much it leaves open itself.
    pub entropy: f64,
    /// Whether both have the same best row (the lowest of equals).
    pub same_top: bool,
}

impl Divergence {
    /// Compares softmax distributions, temperature 1, given as logits `[v]` each.
    ///
    /// A row of minus infinity is masked: it has probability 0. Logits that are not a number, or of which there are
    /// none, make `kl` NaN; slices of different lengths are infinitely far apart.
    pub fn between(reference: &[f32], candidate: &[f32]) -> Divergence {
        let (p, q) = (log_softmax(reference), log_softmax(candidate));
        let kl = match reference.len() == candidate.len() {
            true => p.iter().zip(&q).map(|(p, q)| weighted(*p, p - q)).sum(),
            false => f64::INFINITY,
        };
        let entropy = p.iter().map(|p| weighted(*p, -p)).sum();
        let kl = if reference.is_empty() { f64::NAN } else { kl };
        Divergence { kl, entropy, same_top: argmax(reference) == argmax(candidate) }
    }
}

/// `e^log_p * value`, and 0 where the probability is 0, whatever the value.
fn weighted(log_p: f64, value: f64) -> f64 {
    let p = log_p.exp();
    if p == 0.0 { 0.0 } else { p * value }
}

/// Natural logarithms of the softmax of `logits: [v]`.
pub fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = |logit: f32| f64::from(logit) - f64::from(largest);
    let log_total = logits.iter().map(|&logit| shifted(logit).exp()).sum::<f64>().ln();
    logits.iter().map(|&logit| shifted(logit) - log_total).collect()
}

/// Divergences at many positions. Of none, everything but the count is NaN.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DivergenceSummary {
    /// How many.
    pub positions: usize,
    /// Mean KL in nats.
    pub mean_kl: f64,
    /// 99th percentile of the KL (nearest rank) in nats.
    pub p99_kl: f64,
    /// Share of positions whose best row is the same.
    pub top1: f64,
    /// Mean entropy of the reference in nats.
    pub mean_entropy: f64,
}

impl FromIterator<Divergence> for DivergenceSummary {
    fn from_iter<I: IntoIterator<Item = Divergence>>(positions: I) -> DivergenceSummary {
        let all: Vec<Divergence> = positions.into_iter().collect();
        let mean = |value: fn(&Divergence) -> f64| all.iter().map(value).sum::<f64>() / all.len() as f64;
        DivergenceSummary {
            positions: all.len(),
            mean_kl: mean(|d| d.kl),
            p99_kl: percentile(all.iter().map(|d| d.kl).collect(), 99),
            top1: mean(|d| f64::from(u8::from(d.same_top))),
            mean_entropy: mean(|d| d.entropy),
        }
    }
}

/// The smallest value that `percent` of the values do not exceed; NaN where there is none or any is NaN.
pub fn percentile(mut values: Vec<f64>, percent: usize) -> f64 {
    if values.is_empty() || values.iter().any(|value| value.is_nan()) {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * percent).div_ceil(100).clamp(1, values.len());
    values[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits are f32: logarithms of probabilities come back within its rounding.
    const ROUNDING: f64 = 1e-6;

    #[test]
    fn agrees_with_a_hand_computation() {
        let logits = |p: [f32; 2]| p.map(|p| p.ln() + 7.0); // a constant changes nothing
        let found = Divergence::between(&logits([0.75, 0.25]), &logits([0.5, 0.5]));
        let kl = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        let entropy = -(0.75 * 0.75f64.ln() + 0.25 * 0.25f64.ln());
        assert!((found.kl - kl).abs() < ROUNDING && (found.entropy - entropy).abs() < ROUNDING, "{found:?}");
        assert!(found.same_top); // row 0 is the lowest of equals
        assert!(!Divergence::between(&[1.0, 0.0], &[0.0, 1.0]).same_top);
        assert_eq!(Divergence::between(&[1.0, 9.0], &[1.0, 9.0]).kl, 0.0);
    }

    #[test]
    fn survives_large_logits_and_tiny_differences() {
        let found = Divergence::between(&[3e4, -3e4], &[3e4, -3e4]);
        assert_eq!((found.kl, found.entropy), (0.0, 0.0));
        // for a small shift d of one of two equal logits, KL = d^2 / 8: far below what f32 sums could show
        let d = 2f32.powi(-10);
        let found = Divergence::between(&[0.0, 0.0], &[0.0, d]).kl;
        assert!((found / (f64::from(d).powi(2) / 8.0) - 1.0).abs() < 1e-6, "{found}");
    }

    #[test]
    fn masked_rows_count_for_nothing_and_broken_ones_for_everything() {
        let masked = f32::NEG_INFINITY;
        assert_eq!(Divergence::between(&[1.0, masked], &[1.0, masked]).kl, 0.0);
        assert_eq!(Divergence::between(&[0.0, 0.0], &[0.0, masked]).kl, f64::INFINITY);
        assert_eq!(Divergence::between(&[0.0], &[0.0, 0.0]).kl, f64::INFINITY);
        assert!(Divergence::between(&[], &[]).kl.is_nan());
        for (a, b) in [([f32::NAN, 0.0], [0.0; 2]), ([0.0; 2], [0.0, f32::NAN]), ([0.0; 2], [f32::INFINITY, 0.0])] {
            assert!(Divergence::between(&a, &b).kl.is_nan(), "{a:?} {b:?}");
        }
    }

    #[test]
    fn summaries_are_means_and_a_rank() {
        let position = |kl: f64| Divergence { kl, entropy: 2.0, same_top: kl < 50.5 };
        let summary: DivergenceSummary = (1..=100).map(|kl| position(f64::from(kl))).collect();
        let expected = DivergenceSummary { positions: 100, mean_kl: 50.5, p99_kl: 99.0, top1: 0.5, mean_entropy: 2.0 };
        assert_eq!(summary, expected);
        assert_eq!(percentile(vec![3.0], 99), 3.0);
        let none: DivergenceSummary = std::iter::empty().collect();
        assert!(none.mean_kl.is_nan() && none.p99_kl.is_nan() && none.top1.is_nan());
        let broken: DivergenceSummary = [1.0, f64::NAN].map(position).into_iter().collect();
        assert!(broken.mean_kl.is_nan() && broken.p99_kl.is_nan());
    }
}
