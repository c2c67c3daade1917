//! Samples to the bytes of a container, while they are made.
//!
//! Every format works the same way: a head when the encoder is made, bytes as samples come, a tail at the end. What can only
//! be known at the end (sizes, checksums) stands in the head, so [`Encoder::finish`] also returns the final head: whoever kept
//! the whole stream puts it over the first bytes, and a file with exact sizes is the stream collected.

mod flac;
mod mp3;
mod opus;

use crate::audio::{UNKNOWN_LENGTH, wav_header};
use crate::error::{Error, Result};

/// What speech is sent as: mono, at the model's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// RIFF WAV, 16 bits.
    Wav,
    /// 16-bit little-endian samples.
    Pcm,
    /// MPEG Layer III, constant bit rate.
    Mp3,
    /// Opus in Ogg (RFC 7845).
    Opus,
    /// FLAC, 16 bits (RFC 9639).
    Flac,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 5] = [Format::Wav, Format::Pcm, Format::Mp3, Format::Opus, Format::Flac];

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Format::Wav => "wav",
            Format::Pcm => "pcm",
            Format::Mp3 => "mp3",
            Format::Opus => "opus",
            Format::Flac => "flac",
        }
    }

    /// The format of a name in a request.
    pub fn of(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Media type of a response.
    pub fn media_type(self, rate_hz: u32) -> String {
        match self {
            Format::Wav => "audio/wav".to_owned(),
            Format::Pcm => format!("audio/pcm; rate={rate_hz}; channels=1"),
            Format::Mp3 => "audio/mpeg".to_owned(),
            Format::Opus => "audio/ogg; codecs=opus".to_owned(),
            Format::Flac => "audio/flac".to_owned(),
        }
    }

    /// Starts a stream: `out` gets its head. `block` samples are the usual size of a push.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a rate the format does not have.
    pub fn encoder(self, rate_hz: u32, block: usize, out: &mut Vec<u8>) -> Result<Box<dyn Encoder>> {
        Ok(match self {
            Format::Wav => {
                out.extend_from_slice(&wav_header(rate_hz, UNKNOWN_LENGTH));
                Box::new(Plain { header_rate_hz: Some(rate_hz), bytes: 0 })
            }
            Format::Pcm => Box::new(Plain { header_rate_hz: None, bytes: 0 }),
            Format::Mp3 => Box::new(mp3::Mp3::new(rate_hz)),
            Format::Opus => Box::new(opus::Opus::new(rate_hz, out)?),
            Format::Flac => Box::new(flac::Flac::new(rate_hz, block, out)?),
        })
    }
}

/// A stream being written.
pub trait Encoder: Send {
    /// Takes samples and appends the bytes that are ready.
    ///
    /// # Errors
    /// Those of the format's library.
    fn push(&mut self, pcm: &[i16], out: &mut Vec<u8>) -> Result<()>;

    /// Appends the rest and returns the final head, which takes the place of as many bytes at the stream's beginning.
    ///
    /// # Errors
    /// Those of the format's library.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<Vec<u8>>;
}

/// Samples as they are, with a WAV header or none.
struct Plain {
    header_rate_hz: Option<u32>,
    bytes: u64,
}

impl Encoder for Plain {
    fn push(&mut self, pcm: &[i16], out: &mut Vec<u8>) -> Result<()> {
        out.extend(pcm.iter().flat_map(|sample| sample.to_le_bytes()));
        self.bytes += 2 * pcm.len() as u64;
        Ok(())
    }

    fn finish(&mut self, _: &mut Vec<u8>) -> Result<Vec<u8>> {
        let length = u32::try_from(self.bytes).unwrap_or(UNKNOWN_LENGTH);
        Ok(self.header_rate_hz.map_or_else(Vec::new, |rate| wav_header(rate, length).to_vec()))
    }
}

/// A failure of a format's library, of which none is known for samples of a rate that was accepted.
fn failed(format: &str, error: impl std::fmt::Display) -> Error {
    Error::Unsupported { what: format!("speech as {format}"), why: error.to_string() }
}

/// Encodes a whole piece of sound.
///
/// # Errors
/// As [`Format::encoder`].
pub fn whole(format: Format, rate_hz: u32, block: usize, pcm: &[i16]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = format.encoder(rate_hz, block, &mut bytes)?;
    for block in pcm.chunks(block) {
        encoder.push(block, &mut bytes)?;
    }
    let head = encoder.finish(&mut bytes)?;
    bytes[..head.len()].copy_from_slice(&head);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
