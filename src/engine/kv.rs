//! The key/value cache: its shape, and the only code that computes an offset into it.

use std::ops::Range;

use crate::config::ModelConfig;

/// Shape of one half (keys or values) of the cache: `[layers, slots, heads, positions, dim]` of f16.
///
/// The positions of one head are contiguous, so that attention reads one straight run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub layers: usize,
    /// Sequences.
    pub slots: usize,
    /// Key/value heads.
    pub heads: usize,
    /// Positions a slot can hold.
    pub positions: usize,
    /// Columns per head.
    pub dim: usize,
}

impl KvShape {
    /// The shape a model needs.
    pub fn new(config: &ModelConfig, slots: usize, positions: usize) -> KvShape {
        KvShape {
            layers: config.num_layers(),
            slots,
            heads: config.num_key_value_heads,
            positions,
            dim: config.head_dim,
        }
    }

    /// Number of elements of one half.
    pub fn elements(&self) -> usize {
        self.layers * self.slots * self.heads * self.positions * self.dim
    }

    /// Offset of the first element of a run of positions of one head.
    pub fn offset(&self, layer: usize, slot: usize, head: usize, position: usize) -> usize {
        (((layer * self.slots + slot) * self.heads + head) * self.positions + position) * self.dim
    }
}

/// Keys and values of every layer, slot and head, as f16 bits.
///
/// All of it is reserved when it is made, so no step can run out of memory; the system provides a page when it is first
/// written. Slots need no clearing: attention reads only positions that its own sequence has written.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    keys: Vec<u16>,
    values: Vec<u16>,
}

impl KvCache {
    /// Reserves a cache.
    pub fn new(shape: KvShape) -> KvCache {
        KvCache { shape, keys: vec![0; shape.elements()], values: vec![0; shape.elements()] }
    }

    /// The shape.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Stores the key and the value of one position, both `[heads, dim]` f32, rounded to the nearest f16.
    ///
    /// Values beyond the range of f16 become infinite; the logits then are not finite, which ends the request.
    pub fn store(&mut self, layer: usize, slot: usize, position: usize, key: &[f32], value: &[f32]) {
        let dim = self.shape.dim;
        for head in 0..self.shape.heads {
            let to = self.shape.offset(layer, slot, head, position);
            let from = head * dim..(head + 1) * dim;
            narrow(&key[from.clone()], &mut self.keys[to..to + dim]);
            narrow(&value[from], &mut self.values[to..to + dim]);
        }
    }

    /// Keys and values of one head at a run of positions, both `[positions, dim]` f16 bits.
    pub fn run(&self, layer: usize, slot: usize, head: usize, positions: Range<usize>) -> (&[u16], &[u16]) {
        let first = self.shape.offset(layer, slot, head, positions.start);
        let run = first..first + positions.len() * self.shape.dim;
        (&self.keys[run.clone()], &self.values[run])
    }
}

fn narrow(from: &[f32], to: &mut [u16]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = half::f16::from_f32(*from).to_bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_of_every_position_has_its_own_place() {
        let shape = KvShape { layers: 2, slots: 3, heads: 2, positions: 5, dim: 4 };
        let mut cache = KvCache::new(shape);
        let marks = |layer, slot, position, sign: f32| -> Vec<f32> {
            let mark = |head: usize| sign * (((layer * 3 + slot) * 5 + position) * 2 + head) as f32;
            (0..8).map(|i| mark(i / 4)).collect()
        };
        for (layer, slot, position) in places() {
            let (key, value) = (marks(layer, slot, position, 1.0), marks(layer, slot, position, -1.0));
            cache.store(layer, slot, position, &key, &value);
        }
        for (layer, slot, position) in places() {
            for head in 0..2 {
                let (keys, values) = cache.run(layer, slot, head, position..position + 1);
                let expected = marks(layer, slot, position, 1.0)[head * 4];
                assert_eq!(keys, [half::f16::from_f32(expected).to_bits(); 4]);
                assert_eq!(values, [half::f16::from_f32(-expected).to_bits(); 4]);
            }
        }
    }

    fn places() -> impl Iterator<Item = (usize, usize, usize)> {
        (0..2).flat_map(|layer| (0..3).flat_map(move |slot| (0..5).map(move |position| (layer, slot, position))))
    }
}
