//! Distances between what was computed and what was expected. Sums in f64; what is not a number comes out as NaN.

/// The largest absolute difference and its index; NaN at the first pair that has no difference.
///
/// Slices of different lengths differ by infinity where one of them ends.
pub fn largest_difference(found: &[f32], expected: &[f32]) -> (f64, usize) {
    let mut worst = match found.len() == expected.len() {
        true => (0.0, 0),
        false => (f64::INFINITY, found.len().min(expected.len())),
    };
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        let difference = (f64::from(*a) - f64::from(*b)).abs();
        if difference.is_nan() {
            return (f64::NAN, index);
        }
        if difference > worst.0 {
            worst = (difference, index);
        }
    }
    worst
}

/// `|found - expected| / |expected|` in the Euclidean norm; 0 for two zero vectors.
///
/// Slices of different lengths are infinitely far apart.
pub fn relative_norm(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let square = |x: f64| x * x;
    let error: f64 = found.iter().zip(expected).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let size: f64 = expected.iter().map(|b| square(f64::from(*b))).sum();
    if error == 0.0 && size == 0.0 { 0.0 } else { (error / size).sqrt() }
}

/// Signal-to-noise ratio of a waveform in dB; infinite for equal ones.
pub fn snr_db(found: &[f32], expected: &[f32]) -> f64 {
    -20.0 * relative_norm(found, expected).log10()
}

/// How many entries differ, entries that only one of the two has included, and the index of the first.
pub fn differing<T: PartialEq>(found: &[T], expected: &[T]) -> (f64, usize) {
    let same = |index: &usize| found.get(*index).is_some_and(|a| Some(a) == expected.get(*index));
    let mut different = (0..found.len().max(expected.len())).filter(|index| !same(index));
    match different.next() {
        Some(first) => ((1 + different.count()) as f64, first),
        None => (0.0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_a_number_is_never_close() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, f32::INFINITY)] {
            assert!(largest_difference(&[0.0, a], &[0.0, b]).0.is_nan());
            assert!(relative_norm(&[0.0, a], &[0.0, b]).is_nan());
            assert!(snr_db(&[0.0, a], &[0.0, b]).is_nan());
        }
    }

    #[test]
    fn measures_what_it_says() {
        assert_eq!(largest_difference(&[1.0, 2.0, 5.0], &[1.0, 4.0, 4.0]), (2.0, 1));
        assert_eq!(largest_difference(&[1.0], &[1.0, 4.0]), (f64::INFINITY, 1));
        assert_eq!(relative_norm(&[3.0, 3.0], &[3.0, 4.0]), 0.2);
        assert_eq!(relative_norm(&[0.0], &[0.0]), 0.0);
        assert_eq!(relative_norm(&[], &[0.0]), f64::INFINITY);
        assert!((snr_db(&[1.1], &[1.0]) - 20.0).abs() < 1e-5);
        assert_eq!(snr_db(&[1.0], &[1.0]), f64::INFINITY);
        assert_eq!(differing(&[1, 2, 3], &[1, 5, 3, 4]), (2.0, 1));
        assert_eq!(differing::<u32>(&[], &[]), (0.0, 0));
    }
}
