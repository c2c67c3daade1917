//! MP3 with a LAME-style tag, whose counts a stream leaves open and a file has.

use rusty_mp3::{Mp3Encoder, Mp3EncoderConfig};

use super::{Encoder, failed};
use crate::error::Result;

/// Bit rate: transparent for one voice at 24 kHz.
const KBPS: u32 = 96;

pub(super) struct Mp3 {
    rate_hz: u32,
    encoder: Mp3Encoder,
}

impl Mp3 {
    pub(super) fn new(rate_hz: u32) -> Mp3 {
        Mp3 { rate_hz, encoder: Mp3Encoder::new(Mp3EncoderConfig { bitrate_kbps: KBPS, vbr_quality: None }) }
    }

    fn drain(&mut self, out: &mut Vec<u8>) {
        while let Ok(packet) = self.encoder.next_packet() {
            out.extend_from_slice(&packet);
        }
    }
}

impl Encoder for Mp3 {
    fn push(&mut self, pcm: &[i16], out: &mut Vec<u8>) -> Result<()> {
        self.encoder.push_pcm_s16(pcm, 1, self.rate_hz).map_err(|e| failed("mp3", format!("{e:?}")))?;
        self.drain(out);
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<Vec<u8>> {
        self.encoder.finish();
        self.drain(out);
        Ok(self.encoder.lame_tag_frame().map_or_else(Vec::new, <[u8]>::to_vec))
    }
}
