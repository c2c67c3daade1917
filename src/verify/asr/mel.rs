//! Log-mel spectrograms as Whisper was trained on: 16 kHz, windows of 25 ms every 10 ms, Slaney's mel scale.
//!
//! Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), and the reference
//! implementation's feature extraction; filters as `librosa.filters.mel(sr=16000, n_fft=400)` makes them.

/// Samples a second that everything here expects.
pub const RATE_HZ: usize = 16_000;
/// Samples between two columns.
pub const HOP: usize = 160;
/// Samples of a window, and size of its Fourier transform.
const WINDOW: usize = 400;
const BINS: usize = WINDOW / 2 + 1;
/// Power below which a band is as good as silent.
const FLOOR: f32 = 1e-10;
/// Range kept below the loudest point, in powers of ten.
const RANGE: f32 = 8.0;

/// Mel filters and a Fourier transform, for spectrograms of any length.
#[derive(Debug)]
pub struct Mel {
    /// `[bands, BINS]`
    filters: Vec<f32>,
    bands: usize,
    /// `[WINDOW, 2, BINS]`: cosine and sine of each bin at a sample, times the window there. A window of 400 is short
    /// enough for the transform by its definition; written so that the bins lie side by side, it runs at vector speed.
    waves: Vec<f32>,
}

impl Mel {
    /// Filters for `bands` bands from 0 to 8 kHz: 80 in most Whisper models, 128 in the largest.
    pub fn new(bands: usize) -> Mel {
        Mel { filters: filters(bands), bands, waves: waves() }
    }

    /// Bands of a column.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Power in each band: `[columns, bands]`, a column for every [`HOP`] samples of `pcm`, centred on the first of them.
    pub fn power(&self, pcm: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(pcm.len() / HOP * self.bands);
        for column in 0..pcm.len() / HOP {
            let mut sums = [0.0; 2 * BINS];
            for (i, waves) in self.waves.chunks_exact(2 * BINS).enumerate() {
                let sample = reflected(pcm, column * HOP + i);
                sums.iter_mut().zip(waves).for_each(|(sum, wave)| *sum += sample * wave);
            }
            let (real, imaginary) = sums.split_at(BINS);
            let power: Vec<f32> = real.iter().zip(imaginary).map(|(re, im)| re * re + im * im).collect();
            let bands = self.filters.chunks_exact(BINS);
            out.extend(bands.map(|filter| filter.iter().zip(&power).map(|(f, p)| f * p).sum::<f32>()));
        }
        out
    }

    /// What Whisper's encoder takes: `[bands, columns]`, logarithms of the power, scaled to about ±1.
    pub fn whisper(&self, pcm: &[f32]) -> Vec<f32> {
        let power = self.power(pcm);
        let columns = power.len() / self.bands;
        let logs: Vec<f32> = power.iter().map(|power| power.max(FLOOR).log10()).collect();
        let least = logs.iter().copied().fold(f32::NEG_INFINITY, f32::max) - RANGE;
        let value = |column: usize, band: usize| (logs[column * self.bands + band].max(least) + 4.0) / 4.0;
        (0..self.bands)
            .flat_map(|band| (0..columns).map(move |column| (column, band)))
            .map(|(c, b)| value(c, b))
            .collect()
    }
}

/// The transform's waves under the periodic window of Hann.
fn waves() -> Vec<f32> {
    let angle = |turns: usize| std::f64::consts::TAU * (turns % WINDOW) as f64 / WINDOW as f64;
    let wave = |i: usize, wave: fn(f64) -> f64| {
        let window = 0.5 - 0.5 * angle(i).cos();
        (0..BINS).map(move |bin| (window * wave(angle(i * bin))) as f32)
    };
    (0..WINDOW).flat_map(|i| wave(i, f64::cos).chain(wave(i, f64::sin))).collect()
}

/// Sample `i` of `pcm` with half a window of its mirror image on either side; silence where that ends.
fn reflected(pcm: &[f32], i: usize) -> f32 {
    let at = i.abs_diff(WINDOW / 2);
    let last = pcm.len() - 1;
    let at = if at > last { (2 * last).checked_sub(at) } else { Some(at) };
    at.map_or(0.0, |at| pcm[at])
}

/// Triangles on Slaney's mel scale, each of area 1 in hertz: `[bands, BINS]`.
fn filters(bands: usize) -> Vec<f32> {
    let top = mel_of_hz(RATE_HZ as f64 / 2.0);
    let edges: Vec<f64> = (0..bands + 2).map(|i| hz_of_mel(top * i as f64 / (bands + 1) as f64)).collect();
    let weight = |band: usize, bin: usize| {
        let [low, centre, high] = [edges[band], edges[band + 1], edges[band + 2]];
        let hz = bin as f64 * RATE_HZ as f64 / WINDOW as f64;
        let height = ((hz - low) / (centre - low)).min((high - hz) / (high - centre)).max(0.0);
        (height * 2.0 / (high - low)) as f32
    };
    (0..bands).flat_map(|band| (0..BINS).map(move |bin| (band, bin))).map(|(band, bin)| weight(band, bin)).collect()
}

/// Slaney's scale is linear up to here, at three mel in 200 Hz, and logarithmic above.
const BREAK_HZ: f64 = 1000.0;
const HZ_PER_MEL: f64 = 200.0 / 3.0;
/// Mel for a factor of 6.4 in frequency.
const MEL_PER_FACTOR: f64 = 27.0;

fn mel_of_hz(hz: f64) -> f64 {
    if hz < BREAK_HZ {
        return hz / HZ_PER_MEL;
    }
    BREAK_HZ / HZ_PER_MEL + (hz / BREAK_HZ).ln() * MEL_PER_FACTOR / 6.4f64.ln()
}

fn hz_of_mel(mel: f64) -> f64 {
    let break_mel = BREAK_HZ / HZ_PER_MEL;
    if mel < break_mel {
        return mel * HZ_PER_MEL;
    }
    BREAK_HZ * ((mel - break_mel) * 6.4f64.ln() / MEL_PER_FACTOR).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by librosa 0.11: `filters.mel(sr=16000, n_fft=400, n_mels=80)`.
    const LIBROSA: &[(usize, usize, f32)] = &[
        (0, 1, 2.486259e-02),
        (1, 2, 2.287177e-02),
        (10, 10, 1.990822e-02),
        (25, 24, 2.087401e-02),
        (26, 25, 2.211422e-02),
        (40, 43, 1.473557e-02),
        (60, 93, 6.591093e-03),
        (79, 192, 3.164712e-03),
        (79, 190, 2.232055e-03),
        (40, 60, 0.00000000e+00),
        (30, 0, 0.00000000e+00),
        (5, 8, 0.00000000e+00),
    ];
    /// Made by numpy after the reference implementation, of [`chirp`]: column, band, value.
    const NUMPY: &[(usize, usize, f32)] = &[
        (0, 0, 1.200354),
        (0, 20, 0.304282),
        (0, 50, -0.192254),
        (0, 79, -0.514861),
        (1, 0, 0.683983),
        (1, 20, -0.196685),
        (1, 50, -0.702454),
        (1, 79, -0.732324),
        (10, 0, -0.732324),
        (10, 20, -0.502843),
        (10, 50, -0.732324),
        (10, 79, -0.732324),
        (25, 0, -0.732324),
        (25, 20, -0.732324),
        (25, 50, -0.481886),
        (25, 79, -0.732324),
        (49, 0, -0.514447),
        (49, 20, -0.508396),
        (49, 50, -0.446278),
        (49, 79, -0.125671),
        (50, 0, -0.004440),
        (50, 20, 0.001598),
        (50, 50, 0.063901),
        (50, 79, 0.384753),
        (99, 0, -0.732324),
        (99, 20, -0.732324),
        (99, 50, -0.732324),
        (99, 79, -0.732324),
    ];

    /// Half a second that sweeps from 100 Hz to 6 kHz, then silence up to a second.
    fn chirp() -> Vec<f32> {
        let sample = |i: usize| {
            let t = i as f64 / RATE_HZ as f64;
            0.3 * (std::f64::consts::TAU * (100.0 * t + 5900.0 * t * t)).sin()
        };
        (0..RATE_HZ).map(|i| if i < RATE_HZ / 2 { sample(i) as f32 } else { 0.0 }).collect()
    }

    #[test]
    fn filters_are_those_of_librosa() {
        let filters = filters(80);
        for &(band, bin, expected) in LIBROSA {
            let found = filters[band * BINS + bin];
            assert!((found - expected).abs() <= 1e-6 * expected.max(1e-2), "{band} {bin}: {found} {expected}");
        }
    }

    #[test]
    fn the_spectrogram_is_that_of_the_reference_implementation() {
        let mel = Mel::new(80);
        let found = mel.whisper(&chirp());
        assert_eq!(found.len(), 80 * 100);
        for &(column, band, expected) in NUMPY {
            let found = found[band * 100 + column];
            assert!((found - expected).abs() < 1e-4, "column {column}, band {band}: {found} {expected}");
        }
    }

    #[test]
    fn a_tone_lies_in_its_band() {
        let tone: Vec<f32> = (0..RATE_HZ).map(|i| (std::f32::consts::TAU * 440.0 * i as f32 / 16e3).sin()).collect();
        let mel = Mel::new(80);
        let power = mel.power(&tone);
        let column = &power[50 * 80..51 * 80];
        let loudest = (0..80).max_by(|&a, &b| column[a].total_cmp(&column[b])).unwrap();
        let expected = mel_of_hz(440.0) / mel_of_hz(8000.0) * 81.0 - 1.0; // the band's centre is one edge on
        assert!((loudest as f64 - expected).abs() <= 1.0, "{loudest} {expected}");
    }
}
