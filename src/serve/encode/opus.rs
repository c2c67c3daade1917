//! Opus in Ogg: packets of 20 ms, pages of a few packets, and a last page that says where the speech ends.

use opus_pure::{Application, MAX_PACKET_BYTES, OggOpusWriter, OpusEncoder, OpusHead};

use super::{Encoder, failed};
use crate::error::Result;

/// Packets a second.
const PACKETS_PER_SECOND: u32 = 50;
/// Rate at which Ogg counts, whatever the rate of the sound (RFC 7845, section 4).
const GRANULE_HZ: u32 = 48_000;
/// Bit rate: transparent for one voice.
const BITS_PER_SECOND: i32 = 48_000;
/// Bytes after which a page ends: about three packets, so that a page is never much late.
const PAGE_BYTES: usize = 320;

pub(super) struct Opus {
    encoder: OpusEncoder,
    writer: Option<OggOpusWriter<Vec<u8>>>,
    pre_skip: u64,
    /// Samples of a packet.
    packet: usize,
    /// Ticks of the Ogg clock in a sample.
    ticks: u64,
    /// Samples that do not fill a packet yet.
    rest: Vec<f32>,
    samples: u64,
}

impl Opus {
    pub(super) fn new(rate_hz: u32, out: &mut Vec<u8>) -> Result<Opus> {
        let mut encoder = OpusEncoder::new(rate_hz as i32, 1, Application::Audio).map_err(broken)?;
        encoder.bitrate_bps = BITS_PER_SECOND;
        let head = OpusHead::for_encoder(&encoder, rate_hz);
        let pre_skip = u64::from(head.pre_skip);
        let mut writer = OggOpusWriter::new(Vec::new(), head).map_err(broken)?;
        writer.set_page_target(PAGE_BYTES);
        drain(&mut writer, out);
        Ok(Opus {
            encoder,
            writer: Some(writer),
            pre_skip,
            packet: (rate_hz / PACKETS_PER_SECOND) as usize,
            ticks: u64::from(GRANULE_HZ / rate_hz),
            rest: Vec::new(),
            samples: 0,
        })
    }

    /// Encodes one packet of samples; `ticks` is its length where that is not its own.
    fn write(&mut self, ticks: Option<u64>) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let block: Vec<f32> = self.rest.drain(..self.packet).collect();
        let mut bytes = [0; MAX_PACKET_BYTES];
        let length = self.encoder.encode(&block, self.packet, &mut bytes).map_err(broken)?;
        match ticks {
            Some(ticks) => writer.write_packet_with_duration(&bytes[..length], ticks as u32),
            None => writer.write_packet(&bytes[..length]),
        }
        .map_err(broken)
    }
}

impl Encoder for Opus {
    fn push(&mut self, pcm: &[i16], out: &mut Vec<u8>) -> Result<()> {
        self.samples += pcm.len() as u64;
        self.rest.extend(pcm.iter().map(|&sample| f32::from(sample) / 32768.0));
        while self.rest.len() >= self.packet {
            self.write(None)?;
        }
        self.writer.iter_mut().for_each(|writer| drain(writer, out));
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<Vec<u8>> {
        // The encoder runs `pre_skip` behind: silence brings the last samples out, and the end of the last page cuts it off.
        let end = self.pre_skip + self.samples * self.ticks;
        let silence = self.rest.len() + (self.pre_skip as usize).div_ceil(self.ticks as usize);
        self.rest.resize(silence.next_multiple_of(self.packet), 0.0);
        while let Some(writer) = &self.writer {
            let left = end.saturating_sub(writer.granule() as u64);
            let last = self.rest.len() <= self.packet;
            self.write(last.then_some(left))?;
            if last {
                break;
            }
        }
        if let Some(writer) = self.writer.take() {
            out.append(&mut writer.finish().map_err(broken)?);
        }
        Ok(Vec::new())
    }
}

fn drain(writer: &mut OggOpusWriter<Vec<u8>>, out: &mut Vec<u8>) {
    writer.get_mut().into_iter().for_each(|bytes| out.append(bytes));
}

fn broken(error: opus_pure::Error) -> crate::error::Error {
    failed("opus", error)
}
