//! Side-by-side runs, named comparisons and a verdict.
//!
//! Everything that judges speaks one vocabulary: a [`Comparison`] has a name, a measured value and a limit; a
//! [`Verdict`] is a list of them. What is not a number never passes, and a verdict over nothing is not a pass.

pub mod agree;
pub mod asr;
pub mod audio;
pub mod behaviour;
pub mod check;
mod dequantize;
mod divergence;
mod edits;
pub mod golden;
pub mod html;
pub mod journal;
pub mod kernels;
pub mod limits;
pub mod listen;
mod measure;
pub mod number;
pub mod parity;
pub mod prompts;
pub mod quality;
pub mod record;
pub mod reference;
pub mod weights;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use dequantize::dequantized;
pub use divergence::{Divergence, DivergenceSummary, log_softmax, percentile};
pub use edits::edit_distance;
pub use measure::{differing, largest_difference, relative_norm, snr_db};

/// What a measured value must hold to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// An error: no larger than this.
    AtMost(f64),
    /// A quality: no smaller than this.
    AtLeast(f64),
}

impl Limit {
    /// True when `measured` holds to the limit; NaN never does.
    pub fn holds(self, measured: f64) -> bool {
        match self {
            Limit::AtMost(limit) => measured <= limit,
            Limit::AtLeast(limit) => measured >= limit,
        }
    }

    /// The number.
    pub fn bound(self) -> f64 {
        match self {
            Limit::AtMost(bound) | Limit::AtLeast(bound) => bound,
        }
    }

    /// True when `a` is further on the bad side than `b`; NaN is worse than any number.
    fn worse(self, a: f64, b: f64) -> bool {
        match self {
            _ if a.is_nan() || b.is_nan() => a.is_nan() && !b.is_nan(),
            Limit::AtMost(_) => a > b,
            Limit::AtLeast(_) => a < b,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Limit::AtMost(limit) => write!(f, "≤ {}", Figure(*limit)),
            Limit::AtLeast(limit) => write!(f, "≥ {}", Figure(*limit)),
        }
    }
}

/// One quantity held against one limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Who is judged and by what, dotted: `engine_int8_head.logits_relative`.
    pub name: String,
    /// The worst value measured. JSON has no numbers that are not finite: they are written as `"inf"`, `"NaN"`.
    #[serde(with = "number")]
    pub measured: f64,
    /// What it must hold to.
    pub limit: Limit,
    /// The verdict on it.
    pub passed: bool,
    /// How many values were measured.
    pub measurements: usize,
    /// Where the worst value was found.
    pub note: String,
}

/// Comparisons, in the order in which they were first made.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verdict {
    /// All comparisons.
    pub comparisons: Vec<Comparison>,
}

impl Verdict {
    /// Measures `name` once more: the comparison of that name keeps its worst value and where it was found.
    pub fn measure(&mut self, name: &str, limit: Limit, measured: f64, note: impl FnOnce() -> String) {
        let Some(known) = self.comparisons.iter_mut().find(|comparison| comparison.name == name) else {
            let (name, passed, note) = (name.to_owned(), limit.holds(measured), note());
            return self.comparisons.push(Comparison { name, measured, limit, passed, measurements: 1, note });
        };
        known.measurements += 1;
        known.passed &= limit.holds(measured);
        if limit.worse(measured, known.measured) {
            known.measured = measured;
            known.note = note();
        }
    }

    /// True when there are comparisons and every one of them passed.
    pub fn passed(&self) -> bool {
        !self.comparisons.is_empty() && self.failures().next().is_none()
    }

    /// The worst value measured for `name`; NaN for a comparison that was not made.
    pub fn measured(&self, name: &str) -> f64 {
        self.comparisons.iter().find(|c| c.name == name).map_or(f64::NAN, |c| c.measured)
    }

    /// The comparisons that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Comparison> {
        self.comparisons.iter().filter(|comparison| !comparison.passed)
    }
}

/// A table for people, and a last line with the verdict.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let width = self.comparisons.iter().map(|c| c.name.len()).max().unwrap_or(0).max("comparison".len());
        writeln!(f, "{:width$}  {:>9}  {:>9}  verdict  times  worst at", "comparison", "measured", "limit")?;
        for c in &self.comparisons {
            let (measured, limit) = (Figure(c.measured).to_string(), c.limit.to_string());
            let verdict = if c.passed { "pass" } else { "FAIL" };
            let place = if c.measured == 0.0 { "" } else { &c.note };
            let figures = format!("{:width$}  {measured:>9}  {limit:>9}  {verdict:7}", c.name);
            writeln!(f, "{}", format!("{figures}  {:>5}  {place}", c.measurements).trim_end())?;
        }
        let (failed, all) = (self.failures().count(), self.comparisons.len());
        match self.passed() {
            true => write!(f, "pass: {all} comparisons"),
            false if all == 0 => write!(f, "FAIL: nothing was compared"),
            false => write!(f, "FAIL: {failed} of {all} comparisons"),
        }
    }
}

/// A number in at most nine characters.
struct Figure(f64);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            x if !x.is_finite() => write!(f, "{x}"),
            x if x == x.trunc() && x.abs() < 1e6 => write!(f, "{x:.0}"),
            x if (0.1..1e4).contains(&x.abs()) => write!(f, "{x:.3}"),
            x => write!(f, "{x:.2e}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_worst_and_where_it_was() {
        let mut verdict = Verdict::default();
        for (value, place) in [(1.0, "a"), (3.0, "b"), (2.0, "c")] {
            verdict.measure("error", Limit::AtMost(5.0), value, || place.into());
            verdict.measure("quality", Limit::AtLeast(1.0), value, || place.into());
        }
        assert!(verdict.passed());
        let kept: Vec<_> = verdict.comparisons.iter().map(|c| (c.measured, c.note.as_str(), c.measurements)).collect();
        assert_eq!(kept, [(3.0, "b", 3), (1.0, "a", 3)]);
    }

    #[test]
    fn what_is_not_a_number_fails_and_stays() {
        for limit in [Limit::AtMost(1.0), Limit::AtLeast(1.0)] {
            let mut verdict = Verdict::default();
            for value in [1.0, f64::NAN, 1.0] {
                verdict.measure("x", limit, value, String::new);
            }
            assert!(!verdict.passed());
            assert!(verdict.comparisons[0].measured.is_nan());
        }
    }

    #[test]
    fn nothing_compared_is_not_a_pass() {
        assert!(!Verdict::default().passed());
        assert!(Verdict::default().to_string().ends_with("FAIL: nothing was compared"));
    }
}
