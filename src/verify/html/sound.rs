//! Sound inside the page: WAV as base64, and a spectrogram as bytes that the script paints.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::audio::{append_i16, wav_header};
use crate::verify::asr::mel::{HOP, Mel, RATE_HZ};
use crate::verify::asr::resample;

/// Sound that a page holds at most, in bytes of WAV. What does not fit is cut, and the page says so.
pub const LARGEST_SOUND_BYTES: usize = 4 << 20;

/// Bands of a spectrogram.
const BANDS: usize = 64;
/// Hops of the transform in a column: 20 ms.
const COLUMN_HOPS: usize = 2;
/// Power of a band in loud speech, in dB as [`Mel::power`] has it; drawn strongest.
const LOUD_DB: f32 = 5.0;
/// Range below it that is drawn.
const RANGE_DB: f32 = 75.0;

/// A player's source: a `data:` address of a 16-bit WAV file of the first `most` samples.
pub(super) fn wav(pcm: &[f32], sample_rate_hz: usize, most: usize) -> String {
    let mut data = Vec::new();
    append_i16(&pcm[..pcm.len().min(most)], &mut data);
    let mut file = wav_header(sample_rate_hz as u32, data.len() as u32).to_vec();
    file.extend(data);
    format!("data:audio/wav;base64,{}", STANDARD.encode(file))
}

/// A mel spectrogram.
pub(super) struct Spectrogram {
    /// Columns of 20 ms.
    pub columns: usize,
    /// Bands, low to high.
    pub bands: usize,
    /// `[columns, bands]`, 0 silent to 255 loud, as base64.
    pub levels: String,
}

/// The spectrogram of the first `most` samples; `None` for a waveform that has none.
pub(super) fn spectrogram(pcm: &[f32], sample_rate_hz: usize, most: usize) -> Option<Spectrogram> {
    let speech = resample(&pcm[..pcm.len().min(most)], sample_rate_hz).ok()?;
    let power = Mel::new(BANDS).power(&speech);
    let columns: Vec<u8> = power.chunks_exact(BANDS * COLUMN_HOPS).flat_map(column).collect();
    let count = columns.len() / BANDS;
    (count > 0).then(|| Spectrogram { columns: count, bands: BANDS, levels: STANDARD.encode(columns) })
}

/// The largest sample of each of the `columns` columns of 20 ms against `loudest`, 0 to 255, as base64.
pub(super) fn outline(pcm: &[f32], columns: usize, sample_rate_hz: usize, loudest: f32) -> String {
    let width = (sample_rate_hz * COLUMN_HOPS * HOP / RATE_HZ).max(1);
    let largest = |samples: &[f32]| samples.iter().fold(0f32, |most, sample| most.max(sample.abs()));
    let level = |samples: &[f32]| (255.0 * largest(samples) / loudest.max(f32::MIN_POSITIVE)).min(255.0) as u8;
    let mut levels: Vec<u8> = pcm.chunks(width).take(columns).map(level).collect();
    levels.resize(columns, 0);
    STANDARD.encode(levels)
}

/// One column of the picture, from neighbouring columns of the transform.
fn column(hops: &[f32]) -> impl Iterator<Item = u8> + '_ {
    (0..BANDS).map(|band| {
        let power = hops.iter().skip(band).step_by(BANDS).sum::<f32>() / COLUMN_HOPS as f32;
        let above = 10.0 * power.max(f32::MIN_POSITIVE).log10() - LOUD_DB + RANGE_DB;
        (255.0 * above / RANGE_DB).clamp(0.0, 255.0) as u8
    })
}

/// Seconds of a column.
pub(super) fn column_seconds() -> f64 {
    (COLUMN_HOPS * HOP) as f64 / RATE_HZ as f64
}
