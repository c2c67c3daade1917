//! MP3 with a LAME-style tag, whose counts a stream leaves open and a file has.

use rusty_mp3::encode::lametag::crc16;
use rusty_mp3::{Mp3Encoder, Mp3EncoderConfig};

use super::{Encoder, failed};
use crate::error::Result;

/// Bit rate: transparent for one voice at 24 kHz.
const KBPS: u32 = 96;

/// What the library writes into its tag frame: the mark, flags, then what the flags announce (frames, bytes, table of places,
/// quality), then LAME's part.
const MARK: &[u8; 4] = b"Info";
const COUNTS_BYTES: usize = 4 + 4 + 100 + 4;
/// LAME's part: from the name of the encoder to the checksum, and in it the length of the music.
const LAME_BYTES: usize = 36;
const MUSIC_LENGTH: std::ops::Range<usize> = 28..34;

pub(super) struct Mp3 {
    rate_hz: u32,
    encoder: Mp3Encoder,
    /// Whether the tag, the first packet of all, has left.
    tag_left: bool,
}

impl Mp3 {
    pub(super) fn new(rate_hz: u32) -> Mp3 {
        let encoder = Mp3Encoder::new(Mp3EncoderConfig { bitrate_kbps: KBPS, vbr_quality: None });
        Mp3 { rate_hz, encoder, tag_left: false }
    }

    fn drain(&mut self, out: &mut Vec<u8>) {
        while let Ok(mut packet) = self.encoder.next_packet() {
            if !std::mem::replace(&mut self.tag_left, true) {
                open(&mut packet);
            }
            out.extend_from_slice(&packet);
        }
    }
}

/// Takes the counts out of the tag of a stream: those that the library writes before it knows them are wrong, and a decoder that
/// believes them takes the rest for another file. The delay of the encoder stays.
fn open(tag: &mut [u8]) {
    let Some(mark) = tag.windows(MARK.len()).position(|window| window == MARK) else { return };
    let flags = mark + MARK.len();
    let lame = flags + 4;
    if tag.len() < lame + COUNTS_BYTES + LAME_BYTES {
        return;
    }
    tag[flags..lame].fill(0);
    tag.copy_within(lame + COUNTS_BYTES..lame + COUNTS_BYTES + LAME_BYTES, lame);
    tag[lame + LAME_BYTES..].fill(0);
    tag[lame + MUSIC_LENGTH.start..lame + MUSIC_LENGTH.end].fill(0); // and the checksum of the music
    let end = lame + LAME_BYTES - 2;
    let checksum = crc16(0, &tag[..end]);
    tag[end..end + 2].copy_from_slice(&checksum.to_be_bytes());
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
