//! FLAC: frames as they come, behind a STREAMINFO block of our own, because the library writes that only to seekable places.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use flac_codec::encode::{FlacStreamWriter, Options};

use super::{Encoder, failed};
use crate::error::{Error, Result};

/// `fLaC`, the header of the only metadata block, and STREAMINFO.
const HEAD_BYTES: usize = 4 + 4 + 34;
/// Block sizes that the format and its streamable subset allow.
const BLOCKS: std::ops::RangeInclusive<usize> = 16..=16_384;

/// Where the library writes; read after every frame.
#[derive(Clone, Default)]
struct Tap(Arc<Mutex<Vec<u8>>>);

impl Tap {
    fn drain(&self, out: &mut Vec<u8>) {
        out.append(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Write for Tap {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

pub(super) struct Flac {
    rate_hz: u32,
    block: usize,
    writer: FlacStreamWriter<Tap>,
    tap: Tap,
    /// Samples that do not fill a block yet.
    rest: Vec<i32>,
    samples: u64,
    md5: md5::Context,
}

impl Flac {
    pub(super) fn new(rate_hz: u32, block: usize, out: &mut Vec<u8>) -> Result<Flac> {
        if !BLOCKS.contains(&block) {
            return Err(failed("flac", format!("a block of {block} samples")));
        }
        let tap = Tap::default();
        let writer = FlacStreamWriter::new(tap.clone(), Options::default());
        out.extend_from_slice(&head(rate_hz, block, 0, [0; 16]));
        Ok(Flac { rate_hz, block, writer, tap, rest: Vec::new(), samples: 0, md5: md5::Context::new() })
    }

    fn frame(&mut self, samples: usize, out: &mut Vec<u8>) -> Result<()> {
        let block: Vec<i32> = self.rest.drain(..samples).collect();
        let broken = |error: flac_codec::Error| -> Error { failed("flac", error) };
        self.writer.write(self.rate_hz, 1, 16, &block).map_err(broken)?;
        self.tap.drain(out);
        Ok(())
    }
}

impl Encoder for Flac {
    fn push(&mut self, pcm: &[i16], out: &mut Vec<u8>) -> Result<()> {
        self.samples += pcm.len() as u64;
        pcm.iter().for_each(|sample| self.md5.consume(sample.to_le_bytes()));
        self.rest.extend(pcm.iter().map(|&sample| i32::from(sample)));
        while self.rest.len() >= self.block {
            self.frame(self.block, out)?;
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Vec<u8>) -> Result<Vec<u8>> {
        if !self.rest.is_empty() {
            self.frame(self.rest.len(), out)?;
        }
        Ok(head(self.rate_hz, self.block, self.samples, self.md5.clone().finalize().0).to_vec())
    }
}

/// The head of a stream; 0 samples and a checksum of zeros mean that they are not known (RFC 9639, section 8.2).
fn head(rate_hz: u32, block: usize, samples: u64, md5: [u8; 16]) -> [u8; HEAD_BYTES] {
    const LAST_BLOCK: u8 = 0x80;
    const BITS_MINUS_ONE: u64 = 15;
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(b"fLaC");
    head[4..8].copy_from_slice(&[LAST_BLOCK, 0, 0, 34]);
    head[8..10].copy_from_slice(&(block as u16).to_be_bytes()); // smallest block, the last one apart
    head[10..12].copy_from_slice(&(block as u16).to_be_bytes()); // largest block; the frame sizes stay unknown
    let format = u64::from(rate_hz) << 44 | BITS_MINUS_ONE << 36 | samples & ((1 << 36) - 1); // one channel is 0
    head[18..26].copy_from_slice(&format.to_be_bytes());
    head[26..].copy_from_slice(&md5);
    head
}
