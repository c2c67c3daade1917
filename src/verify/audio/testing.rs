//! Takes made up for the tests of the gates: something that is shaped like speech, without a model.

use super::facts::{Layout, TakeFacts};
use super::{PairFacts, Take};
use crate::engine::End;

pub const RATE_HZ: usize = 24_000;
pub const LAYOUT: Layout = Layout {
    num_quantizers: 8,
    first_unit_id: 1000,
    last_unit_id: 2999,
    samples_per_frame: 1920,
    sample_rate_hz: RATE_HZ,
};

/// Reproducible numbers, uniform in ±1.
pub fn noise(seed: u32) -> impl Iterator<Item = f32> {
    std::iter::successors(Some(seed), |s| Some(s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)))
        .skip(1)
        .map(|s| (s >> 8) as f32 / (1 << 23) as f32 - 1.0)
}

/// A sine.
pub fn tone(frequency_hz: f64, size: f64, seconds: f64) -> Vec<f32> {
    let sample = |i: usize| size * (std::f64::consts::TAU * frequency_hz * i as f64 / RATE_HZ as f64).sin();
    (0..(seconds * RATE_HZ as f64).round() as usize).map(|i| sample(i) as f32).collect()
}

/// A voice of three harmonics, five syllables a second, with a breath of noise and short pauses.
pub fn speech(seed: u32, seconds: f64) -> Vec<f32> {
    let voiced = [130.0, 260.0, 1170.0].map(|hz| tone(hz, 0.1, seconds));
    let envelope = |i: usize| {
        let syllable = (std::f64::consts::TAU * 5.0 * i as f64 / RATE_HZ as f64).sin();
        10f64.powf(0.6 * syllable - 0.4) as f32
    };
    let sample = |(i, breath): (usize, f32)| envelope(i) * (voiced.iter().map(|v| v[i]).sum::<f32>() + 0.02 * breath);
    noise(seed).take(voiced[0].len()).enumerate().map(sample).collect()
}

/// A sound take of `frames` frames: codes that do not repeat, whole frames, an end of its own.
pub fn take(seed: u32, frames: usize) -> Take {
    let code = |v: f32| ((v + 1.0) * 100.0) as u32;
    let codes: Vec<u32> = noise(seed).take(8 * frames).map(code).collect();
    let mut tokens: Vec<u32> = codes.iter().enumerate().map(|(i, code)| 1000 + code * 8 + i as u32 % 8).collect();
    tokens.push(9000); // the end
    let pcm = speech(seed, frames as f64 * 0.08);
    Take { tokens, codes, pcm, end: End::StopHead }
}

/// A prompt spoken well by both models, in takes that differ.
pub fn pair(number: u32) -> PairFacts {
    let frames = 30 + number as usize % 20;
    PairFacts {
        id: format!("p-{number}"),
        reference: TakeFacts::of(&take(2 * number + 1, frames), &LAYOUT),
        engine: TakeFacts::of(&take(2 * number + 2, frames + number as usize % 3), &LAYOUT),
        streaming_snr_db: 110.0,
    }
}
