//! What the CPU engine costs.

use std::time::Instant;

use rayon::prelude::*;

use super::CpuEngine;
use crate::engine::{KernelTime, MemoryUse, Metered, Spread, Traffic};
use crate::error::Result;
use crate::format::Head;

/// Bytes copied to measure the copy rate: more than the caches of a desktop hold.
const COPY_BYTES: usize = 256 << 20;
/// Bytes a thread copies at a time.
const PIECE_BYTES: usize = 1 << 20;

impl Metered for CpuEngine {
    fn traffic(&self) -> Traffic {
        let (export, config) = (&self.model.export, &self.info.config);
        let head = match self.phases.first().map_or(&export.head, |(_, head)| head) {
            Head::Bf16(tensor) => tensor.data.len(),
            Head::Int8(matrix) => matrix.codes.len() + matrix.scale.len() * 2,
        };
        let layers: usize = export.layers.iter().map(crate::format::Layer::bytes).sum();
        Traffic {
            weight_bytes: layers + head + export.stop.up_weight.len() * 4,
            cache_bytes_per_position: config.num_layers() * config.key_value_size() * 4,
            launches: None,
        }
    }

    fn copy_rate(&self) -> Result<f64> {
        let (from, mut to) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
        let mut copy = || {
            let begun = Instant::now();
            let pieces = to.par_chunks_mut(PIECE_BYTES).zip(from.par_chunks(PIECE_BYTES));
            self.model.in_pool(|| pieces.for_each(|(to, from)| to.copy_from_slice(from)));
            begun.elapsed().as_secs_f64()
        };
        let best = (0..5).map(|_| copy()).fold(f64::INFINITY, f64::min);
        Ok(2.0 * COPY_BYTES as f64 / best)
    }

    fn codec_ms(&mut self, repeats: usize) -> Result<Option<Spread>> {
        let Some((decoder, _)) = &self.codec else { return Ok(None) };
        let (mut state, mut pcm, mut times) = (decoder.state(), Vec::new(), Vec::new());
        let size = self.info.config.codebook_size;
        for frame in 0..repeats {
            let codes: Vec<u32> =
                (0..self.info.config.num_quantizers).map(|q| ((frame * 7 + q * 31) % size) as u32).collect();
            pcm.clear();
            let begun = Instant::now();
            self.model.in_pool(|| decoder.step(&mut state, &codes, &mut pcm))?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(Some(Spread::of(times)))
    }

    fn memory(&self) -> Result<Option<MemoryUse>> {
        Ok(None)
    }

    fn kernel_times(&mut self, _: usize, _: usize, _: usize) -> Result<Vec<KernelTime>> {
        Ok(Vec::new())
    }
}
