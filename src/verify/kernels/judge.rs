//! From found and expected values to named comparisons.

use std::collections::BTreeSet;

use crate::verify::{Limit, Verdict, differing, largest_difference};

/// Pattern of outputs and caches before a kernel runs: a NaN whose bits no kernel makes, so that a value that was never
/// written, or was read from where nothing was written, shows.
pub(super) const POISON: f32 = f32::from_bits(0x7fc0_dead);

/// Collects the comparisons of one path (an instruction set, a device); they are called `path.kernel.test`.
pub(super) struct Judge<'a> {
    verdict: &'a mut Verdict,
    path: String,
    tested: BTreeSet<String>,
}

impl<'a> Judge<'a> {
    /// A judge that has seen nothing.
    pub(super) fn new(verdict: &'a mut Verdict, path: impl ToString) -> Judge<'a> {
        Judge { verdict, path: path.to_string(), tested: BTreeSet::new() }
    }

    fn measure(&mut self, kernel: &str, test: &str, limit: f64, measured: f64, note: String) {
        self.tested.insert(kernel.to_owned());
        let name = format!("{}.{kernel}.{test}", self.path);
        self.verdict.measure(&name, Limit::AtMost(limit), measured, || note);
    }

    /// The same bits: counts the values that differ. Any NaN equals any other, since its bits carry no meaning.
    pub(super) fn exact(&mut self, kernel: &str, test: &str, found: &[f32], expected: &[f32]) {
        let bits = |values: &[f32]| values.iter().map(|v| if v.is_nan() { NAN_BITS } else { v.to_bits() }).collect();
        let (found_bits, expected_bits): (Vec<u32>, Vec<u32>) = (bits(found), bits(expected));
        let (count, at) = differing(&found_bits, &expected_bits);
        let poisoned = found.iter().zip(expected).any(|(f, e)| f.to_bits() == POISON.to_bits() && !e.is_nan());
        let note = note(found, expected, at) + if poisoned { "; some outputs were never written" } else { "" };
        self.measure(kernel, test, 0.0, count, note);
    }

    /// Close values: the largest difference over the largest expected magnitude (or 1, if that is smaller), at most
    /// `tolerance`. What is not finite on either side fails.
    pub(super) fn close(&mut self, kernel: &str, test: &str, found: &[f32], expected: &[f32], tolerance: f64) {
        let largest = expected.iter().fold(1.0, |m: f64, v| m.max(f64::from(v.abs())));
        let (difference, at) = largest_difference(found, expected);
        self.measure(kernel, test, tolerance, difference / largest, note(found, expected, at));
    }

    /// Equal things: counts those that differ.
    pub(super) fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        kernel: &str,
        test: &str,
        found: &[T],
        expected: &[T],
    ) {
        let (count, at) = differing(found, expected);
        self.measure(kernel, test, 0.0, count, note(found, expected, at));
    }

    /// Counts kernels as tested that ran inside a comparison of something larger.
    pub(super) fn covers<'k>(&mut self, kernels: impl IntoIterator<Item = &'k str>) {
        self.tested.extend(kernels.into_iter().map(str::to_owned));
    }

    /// Closes the path: every kernel of `registry` must have been tested here. Called once for every path, so that a path on
    /// which nothing ran fails as well.
    pub(super) fn finish<'k>(mut self, registry: impl IntoIterator<Item = &'k str>) {
        let known: BTreeSet<&str> = registry.into_iter().collect();
        let untested: Vec<&str> = known.iter().copied().filter(|kernel| !self.tested.contains(*kernel)).collect();
        let count = if known.is_empty() { f64::NAN } else { untested.len() as f64 };
        let note = format!("{} of {} kernels without a test: {}", untested.len(), known.len(), untested.join(", "));
        self.measure("registry", "untested", 0.0, count, note);
    }
}

const NAN_BITS: u32 = f32::NAN.to_bits();

fn note<T: std::fmt::Debug>(found: &[T], expected: &[T], at: usize) -> String {
    match (found.get(at), expected.get(at)) {
        (Some(found), Some(expected)) => format!("element {at} is {found:?}, expected {expected:?}"),
        _ => format!("{} elements, expected {}", found.len(), expected.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(work: impl FnOnce(&mut Judge<'_>)) -> bool {
        let mut verdict = Verdict::default();
        work(&mut Judge::new(&mut verdict, "test"));
        verdict.passed()
    }

    #[test]
    fn a_value_that_was_not_written_fails_and_a_meant_nan_passes() {
        assert!(!passed(|j| j.exact("k", "t", &[1.0, POISON], &[1.0, 2.0])));
        assert!(!passed(|j| j.close("k", "t", &[1.0, POISON], &[1.0, 2.0], 1.0)));
        assert!(!passed(|j| j.close("k", "t", &[1.0], &[1.0, 2.0], 1.0)));
        assert!(!passed(|j| j.exact("k", "t", &[0.0], &[-0.0])));
        assert!(passed(|j| j.exact("k", "t", &[f32::NAN, 2.0], &[-f32::NAN, 2.0])));
    }

    #[test]
    fn a_kernel_without_a_test_fails_and_so_does_a_path_without_kernels() {
        let finished = |tested: &[&str], registry: &[&str]| {
            let mut verdict = Verdict::default();
            let mut judge = Judge::new(&mut verdict, "test");
            tested.iter().for_each(|kernel| judge.same(kernel, "t", &[1], &[1]));
            judge.finish(registry.iter().copied());
            verdict.passed()
        };
        assert!(finished(&["a", "b"], &["b", "a"]));
        assert!(!finished(&["a"], &["a", "b"]));
        assert!(!finished(&[], &[]));
    }
}
