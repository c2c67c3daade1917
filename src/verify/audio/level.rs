//! Loudness over time: silence, level, liveliness and clipping of a waveform.

/// Length of a window of the measurements, in milliseconds: two pitch periods of a low voice.
pub const WINDOW_MS: usize = 20;
/// Windows below this level are silence. Pauses of the demonstration model's speech lie at −80 to −92 dBFS, four fifths
/// of its windows above −45.
const SILENCE_DBFS: f64 = -50.0;
/// A sample from here on is clipped when it is played: the largest 16-bit value is 0.99997.
const FULL_SCALE: f32 = 0.9999;

/// What a waveform sounds like, in figures. Of no samples, everything but the counts is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sound {
    /// Samples that are not finite; if there are any, every level is NaN.
    pub not_finite: usize,
    /// Share of windows that are silent.
    pub silent_share: f64,
    /// Longest stretch of silence between two sounds, in seconds.
    pub longest_pause_s: f64,
    /// Share of samples at full scale.
    pub clipped_share: f64,
    /// Root mean square of the windows that are not silent, in dB of full scale.
    pub level_dbfs: f64,
    /// Standard deviation of their levels in dB: 6 to 9 in speech, next to nothing in a tone, a buzz or a hiss.
    pub liveliness_db: f64,
    /// Level of the waveform's differences against its own, in dB: how much of it is high, so hiss and harsh sibilants
    /// raise it.
    pub brightness_db: f64,
}

impl Sound {
    /// Measures `pcm`, full scale ±1.
    pub fn of(pcm: &[f32], sample_rate_hz: usize) -> Sound {
        let window = (sample_rate_hz * WINDOW_MS / 1000).max(1);
        let levels: Vec<f64> = pcm.chunks(window).map(|window| decibels(power(window))).collect();
        let sounding: Vec<f64> = levels.iter().copied().filter(|level| !is_silent(*level)).collect();
        let share = |part: usize, whole: usize| part as f64 / whole as f64;
        Sound {
            not_finite: pcm.iter().filter(|sample| !sample.is_finite()).count(),
            silent_share: share(levels.len() - sounding.len(), levels.len()),
            longest_pause_s: (longest_pause(&levels) * WINDOW_MS) as f64 / 1000.0,
            clipped_share: share(pcm.iter().filter(|sample| sample.abs() >= FULL_SCALE).count(), pcm.len()),
            level_dbfs: decibels(mean(sounding.iter().map(|level| 10f64.powf(level / 10.0)))),
            liveliness_db: deviation(&sounding),
            brightness_db: brightness(pcm),
        }
    }
}

/// NaN is not silence: it must not vanish from a level.
fn is_silent(level: f64) -> bool {
    level < SILENCE_DBFS
}

/// Mean square of some samples.
fn power(samples: &[f32]) -> f64 {
    mean(samples.iter().map(|sample| f64::from(*sample).powi(2)))
}

fn decibels(power: f64) -> f64 {
    10.0 * power.log10()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn deviation(values: &[f64]) -> f64 {
    let centre = mean(values.iter().copied());
    mean(values.iter().map(|value| (value - centre).powi(2))).sqrt()
}

/// Windows of the longest silence that has sound on both sides.
fn longest_pause(levels: &[f64]) -> usize {
    let sounds: Vec<usize> = (0..levels.len()).filter(|&i| !is_silent(levels[i])).collect();
    sounds.windows(2).map(|pair| pair[1] - pair[0] - 1).max().unwrap_or(0)
}

fn brightness(pcm: &[f32]) -> f64 {
    let steps: Vec<f32> = pcm.windows(2).map(|pair| pair[1] - pair[0]).collect();
    decibels(power(&steps)) - decibels(power(pcm))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::audio::testing::{RATE_HZ, speech, tone};

    #[test]
    fn a_sine_has_the_level_brightness_and_liveliness_of_a_sine() {
        let sound = Sound::of(&tone(1000.0, 0.5, 1.0), RATE_HZ);
        assert!((sound.level_dbfs - 10.0 * 0.125f64.log10()).abs() < 0.01, "{sound:?}");
        // a sample-to-sample difference of a sine is a sine of 2 sin(pi f / rate) times the size
        let high = 2.0 * (std::f64::consts::PI * 1000.0 / RATE_HZ as f64).sin();
        assert!((sound.brightness_db - 20.0 * high.log10()).abs() < 0.05, "{sound:?}");
        assert!(sound.liveliness_db < 0.01 && sound.silent_share == 0.0 && sound.clipped_share == 0.0, "{sound:?}");
    }

    #[test]
    fn silence_is_counted_and_a_pause_lies_between_sounds() {
        let quiet = |seconds: f64| vec![0.0; (seconds * RATE_HZ as f64) as usize];
        let pcm = [quiet(1.0), tone(300.0, 0.1, 0.5), quiet(0.4), tone(300.0, 0.1, 0.5), quiet(2.0)].concat();
        let sound = Sound::of(&pcm, RATE_HZ);
        assert!((sound.silent_share - 3.4 / 4.4).abs() < 0.01, "{sound:?}");
        assert!((sound.longest_pause_s - 0.4).abs() < 0.03, "{sound:?}");
        let all = Sound::of(&quiet(1.0), RATE_HZ);
        assert!(all.silent_share == 1.0 && all.level_dbfs.is_nan() && all.liveliness_db.is_nan(), "{all:?}");
    }

    #[test]
    fn a_louder_copy_differs_in_level_alone_until_it_clips() {
        let pcm = speech(3, 2.0);
        let louder: Vec<f32> = pcm.iter().map(|sample| sample * 2.0).collect();
        let (a, b) = (Sound::of(&pcm, RATE_HZ), Sound::of(&louder, RATE_HZ));
        assert!((b.level_dbfs - a.level_dbfs - 6.02).abs() < 0.2, "{a:?} {b:?}");
        assert!((b.brightness_db - a.brightness_db).abs() < 1e-6);
        let clipped: Vec<f32> = pcm.iter().map(|sample| (sample * 40.0).clamp(-1.0, 1.0)).collect();
        assert!(a.clipped_share == 0.0 && Sound::of(&clipped, RATE_HZ).clipped_share > 0.1);
    }

    #[test]
    fn what_is_not_a_number_is_counted_and_spreads() {
        let mut pcm = speech(3, 1.0);
        pcm[100] = f32::NAN;
        pcm[200] = f32::INFINITY;
        let sound = Sound::of(&pcm, RATE_HZ);
        assert!(sound.not_finite == 2 && sound.level_dbfs.is_nan() && sound.brightness_db.is_nan(), "{sound:?}");
        let none = Sound::of(&[], RATE_HZ);
        assert!(none.silent_share.is_nan() && none.level_dbfs.is_nan() && none.clipped_share.is_nan(), "{none:?}");
    }
}
