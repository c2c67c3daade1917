//! From the codec's rate to Whisper's: a windowed sinc, evaluated where the output's samples lie.

use super::mel::RATE_HZ;
use crate::error::{Error, Result};

/// Zero crossings of the sinc on either side: a transition band of about a tenth of the pass band.
const CROSSINGS: f64 = 24.0;
/// Edge of the pass band in parts of what the lower rate can hold.
const PASS: f64 = 0.94;

/// The same sound at 16 kHz, aligned with the original; silence is taken for what lies before and after it.
///
/// # Errors
/// [`Error::Input`] for samples that are not finite or a rate of 0.
pub fn resample(pcm: &[f32], rate_hz: usize) -> Result<Vec<f32>> {
    let refused = |reason: &str| Error::input("speech", format!("cannot be resampled: {reason}"));
    if pcm.iter().any(|sample| !sample.is_finite()) {
        return Err(refused("it holds samples that are not finite"));
    }
    if rate_hz == 0 {
        return Err(refused("its rate is 0"));
    }
    if rate_hz == RATE_HZ {
        return Ok(pcm.to_vec());
    }
    let common = common_divisor(rate_hz, RATE_HZ);
    let (up, down) = (RATE_HZ / common, rate_hz / common);
    let kernels: Vec<Kernel> = (0..up).map(|phase| Kernel::new(phase as f64 / up as f64, up, down)).collect();
    let sample = |n: usize| {
        let at = n * down; // in parts of 1 / up of an input sample
        kernels[at % up].apply(pcm, at / up)
    };
    Ok((0..(pcm.len() * up).div_ceil(down)).map(sample).collect())
}

/// Weights of the input samples around one output sample.
struct Kernel {
    /// Input samples before the one that the output lies on or behind.
    before: usize,
    weights: Vec<f64>,
}

impl Kernel {
    /// Weights for an output that lies `fraction` of a sample behind an input sample.
    fn new(fraction: f64, up: usize, down: usize) -> Kernel {
        let cutoff = PASS * (up as f64 / down as f64).min(1.0);
        let half = CROSSINGS / cutoff;
        let before = half.floor() as usize;
        let weight = |i: usize| {
            let x = i as f64 - before as f64 - fraction;
            if x.abs() >= half {
                0.0
            } else {
                sinc(cutoff * x) * (std::f64::consts::FRAC_PI_2 * x / half).cos().powi(2)
            }
        };
        let mut weights: Vec<f64> = (0..2 * before + 2).map(weight).collect();
        let sum: f64 = weights.iter().sum(); // so that every phase keeps a constant
        weights.iter_mut().for_each(|weight| *weight /= sum);
        Kernel { before, weights }
    }

    fn apply(&self, pcm: &[f32], at: usize) -> f32 {
        let skipped = self.before.saturating_sub(at);
        let inputs = &pcm[(at + skipped - self.before.min(at + skipped)).min(pcm.len())..];
        let sum: f64 = self.weights[skipped..].iter().zip(inputs).map(|(w, x)| w * f64::from(*x)).sum();
        sum as f32
    }
}

fn sinc(x: f64) -> f64 {
    let angle = std::f64::consts::PI * x;
    if x == 0.0 { 1.0 } else { angle.sin() / angle }
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resampling_keeps_place_level_and_pitch() {
        let sine =
            |rate: usize, hz: f64| move |i: usize| (std::f64::consts::TAU * hz * i as f64 / rate as f64).sin() as f32;
        let expected: Vec<f32> = (0..16_000).map(sine(16_000, 440.0)).collect();
        for rate in [24_000, 44_100, 8_000] {
            let pcm: Vec<f32> = (0..rate).map(sine(rate, 440.0)).collect();
            let found = resample(&pcm, rate).unwrap();
            assert_eq!(found.len(), 16_000);
            let worst = (200..15_800).map(|i| (found[i] - expected[i]).abs()).fold(0.0, f32::max); // edges ring
            assert!(worst < 2e-3, "{rate}: {worst}");
        }
        // what 16 kHz cannot hold must not fold back
        let high: Vec<f32> = (0..24_000).map(sine(24_000, 10_000.0)).collect();
        let left = resample(&high, 24_000).unwrap()[200..15_800].iter().fold(0f32, |most, x| most.max(x.abs()));
        assert!(left < 1e-2, "{left}");
    }

    #[test]
    fn what_cannot_be_resampled_is_refused() {
        assert!(resample(&[0.0, f32::NAN], 24_000).unwrap_err().to_string().contains("not finite"));
        assert!(resample(&[0.0; 10], 0).is_err());
        assert!(resample(&[], 24_000).unwrap().is_empty());
        assert_eq!(resample(&[0.5; 3], 24_000).unwrap().len(), 2);
        assert_eq!(resample(&[0.5; 3], 16_000).unwrap(), [0.5; 3]);
    }
}
