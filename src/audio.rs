//! f32 PCM to bytes: 16-bit samples and the WAV header. No I/O.
//!
//! WAV after Microsoft's RIFF specification (format tag 1, 44-byte header, little-endian).

/// Size of the header that [`wav_header`] makes.
pub const WAV_HEADER_BYTES: usize = 44;

/// Data length to put into the header of a stream whose end is not known yet; players read to the end of the stream.
pub const UNKNOWN_LENGTH: u32 = u32::MAX - WAV_HEADER_BYTES as u32;

/// Rounds a sample of full scale ±1 to 16 bits.
///
/// A louder sample is clipped; one that is not a number becomes silence.
pub fn to_i16(sample: f32) -> i16 {
    (sample * 32767.0).round().clamp(-32768.0, 32767.0) as i16 // a cast of NaN gives 0
}

/// Rounds samples as [`to_i16`] and appends them, little-endian.
pub fn append_i16(pcm: &[f32], bytes: &mut Vec<u8>) {
    bytes.extend(pcm.iter().flat_map(|&sample| to_i16(sample).to_le_bytes()));
}

/// Header of a mono 16-bit WAV file with `data_bytes` bytes of samples.
pub fn wav_header(sample_rate_hz: u32, data_bytes: u32) -> [u8; WAV_HEADER_BYTES] {
    const BYTES_PER_SAMPLE: u16 = 2;
    let mut header = [0; WAV_HEADER_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"RIFF");
    put(&(data_bytes.saturating_add(WAV_HEADER_BYTES as u32 - 8)).to_le_bytes());
    put(b"WAVEfmt ");
    put(&16u32.to_le_bytes()); // size of the format chunk
    put(&1u16.to_le_bytes()); // integer PCM
    put(&1u16.to_le_bytes()); // channels
    put(&sample_rate_hz.to_le_bytes());
    put(&(sample_rate_hz * u32::from(BYTES_PER_SAMPLE)).to_le_bytes());
    put(&BYTES_PER_SAMPLE.to_le_bytes());
    put(&(8 * BYTES_PER_SAMPLE).to_le_bytes());
    put(b"data");
    put(&data_bytes.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_and_clips() {
        let mut bytes = Vec::new();
        append_i16(&[0.0, 1.0, -1.0, 2.0, -2.0, 0.5, f32::NAN], &mut bytes);
        let samples: Vec<i16> = bytes.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(samples, [0, 32767, -32767, 32767, -32768, 16384, 0]);
    }

    #[test]
    fn a_strict_reader_accepts_the_file() {
        let mut data = Vec::new();
        append_i16(&[0.25, -0.25, 0.125], &mut data);
        let mut file = wav_header(24_000, data.len() as u32).to_vec();
        file.extend(&data);
        let reader = hound::WavReader::new(file.as_slice()).unwrap();
        let spec = reader.spec();
        assert_eq!((spec.channels, spec.sample_rate, spec.bits_per_sample), (1, 24_000, 16));
        let samples: Vec<i16> = reader.into_samples().collect::<Result<_, _>>().unwrap();
        assert_eq!(samples, [8192, -8192, 4096]);
    }

    #[test]
    fn the_unknown_length_does_not_overflow_the_riff_size() {
        let header = wav_header(24_000, UNKNOWN_LENGTH);
        assert_eq!(header[4..8], (UNKNOWN_LENGTH + 36).to_le_bytes());
    }
}
