//! One phase at a time on buffers that hold a poison: what the known-answer tests (`verify::kernels`) need of the device.
//!
//! Every layout of the device that a test has to know is turned into the plain one here.

use std::collections::BTreeSet;

use super::codec::Codec;
use super::decoder::{Decoder, MAX_COLUMNS, Reach};
use super::device::{self, Device, Memory, Plain, Queue, Stream};
use super::kernels::{Address, Column, Digits, FrameOut, Sequence};
use crate::config::ModelConfig;
use crate::engine::cpu::plain::{Order, Rounded};
use crate::engine::tuning::Tuning;
use crate::error::Result;
use crate::format::layout::GROUP;
use crate::format::{self, Export, Head, Layer};

/// Byte of the poison: as f32 and as f16 a NaN, as a digit -1.
const POISON: u8 = 0xff;
/// Shared memory of a block on GPUs that take the shallow kernels, as on compute capability 8.6.
const SHALLOW_SHARED_BYTES: usize = 99 << 10;
/// Slots of a probe.
pub(crate) const SLOTS: usize = 8;
/// Positions of a slot, a multiple of 64.
pub(crate) const POSITIONS: usize = 192;

/// Which of the kernels that a device can run a probe takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Products {
    /// Those of the table ([`Tuning::of`]).
    Table,
    /// Those that multiply warp by warp.
    Warps,
    /// Those for blocks with little shared memory.
    Shallow,
}

/// A model on a device, phase by phase.
pub(crate) struct Probe {
    device: Device,
    stream: Stream,
    decoder: Decoder,
    normed: Memory,
    config: ModelConfig,
    stop_inner: usize,
}

/// Starts a list of the kernels that are launched from now on, and returns the one before.
pub(crate) fn take_launched() -> BTreeSet<&'static str> {
    device::take_launched()
}

/// Names of all kernels that this program holds for a GPU.
pub(crate) fn kernels(ordinal: usize) -> Result<Vec<String>> {
    Device::open(ordinal)?.kernel_names()
}

impl Probe {
    /// Copies a model to a GPU, with [`SLOTS`] slots of [`POSITIONS`].
    pub(crate) fn open(ordinal: usize, export: &Export, products: Products) -> Result<Probe> {
        let mut device = Device::open(ordinal)?;
        if products == Products::Shallow {
            device.shared_bytes = device.shared_bytes.min(SHALLOW_SHARED_BYTES);
        }
        let stream = device.stream(true)?;
        let options = super::Options { slots: SLOTS, positions: POSITIONS, codec: false, ..super::Options::default() };
        let table = Tuning::of(device.card());
        let tuning = Tuning { warpgroups: table.warpgroups && products == Products::Table, ..table };
        let decoder = Decoder::load(Queue { device: &device, stream: &stream }, export, &options, tuning)?;
        let normed = device.zeros(&stream, MAX_COLUMNS * export.config.hidden_size * 4)?;
        Ok(Probe { device, stream, decoder, normed, config: export.config.clone(), stop_inner: export.stop.inner })
    }

    /// The model's sizes.
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn on(&self) -> Queue<'_> {
        Queue { device: &self.device, stream: &self.stream }
    }

    fn read<T: Plain>(&self, from: Address, len: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); len];
        self.device.read(&self.stream, from, &mut values)?;
        self.device.synchronize(&self.stream)?;
        Ok(values)
    }

    fn write<T: Plain>(&self, to: Address, values: &[T]) -> Result<()> {
        self.device.write(&self.stream, to, values)?;
        self.device.synchronize(&self.stream)
    }

    /// Fills caches and working memory with the poison.
    pub(crate) fn poison(&self) -> Result<()> {
        let (config, buffers) = (&self.config, self.decoder.buffers);
        let fill = |at: Address, bytes: usize| self.device.fill(&self.stream, at, POISON, bytes);
        let cache = SLOTS * config.key_value_size() * POSITIONS * 2;
        for layer in &self.decoder.layers {
            fill(layer.keys, cache)?;
            fill(layer.values, cache)?;
        }
        fill(buffers.q, MAX_COLUMNS * config.query_size() * 4)?;
        fill(buffers.mlp, MAX_COLUMNS * config.intermediate_size * 4)?;
        fill(buffers.out_partial, MAX_COLUMNS * 8 * config.hidden_size * 4)?;
        for digits in [buffers.hidden, buffers.attention, buffers.inner] {
            let tiles = MAX_COLUMNS.div_ceil(4) * digits.groups as usize;
            fill(digits.words, tiles * 1024)?;
            fill(digits.scales, tiles * 32)?;
        }
        fill(self.decoder.logits(0), MAX_COLUMNS * config.audio_rows() * 4)?;
        fill(self.decoder.stop_terms(0), MAX_COLUMNS * self.stop_inner * 4)?;
        fill(self.normed.address(), MAX_COLUMNS * config.hidden_size * 4)?;
        fill(self.decoder.stop_input, MAX_COLUMNS * config.hidden_size * 4)?;
        fill(self.decoder.residual(0), (SLOTS + MAX_COLUMNS) * config.hidden_size * 4)
    }

    /// Sets the columns of the next launches and the rows of the residual stream that they name, `x: [columns, hidden]`. Rows
    /// between those are poisoned.
    pub(crate) fn set_columns(&self, columns: &[Column], x: &[f32]) -> Result<()> {
        let (hidden, rows) = (self.config.hidden_size, columns.iter().map(|column| column.row as usize));
        let (first, last) = (rows.clone().min().unwrap_or(0), rows.clone().max().unwrap_or(0));
        let mut all = vec![f32::NAN; (last + 1 - first) * hidden];
        for (row, x) in rows.zip(x.chunks(hidden)) {
            all[(row - first) * hidden..][..hidden].copy_from_slice(x);
        }
        self.write(self.decoder.residual(first), &all)?;
        self.write(self.decoder.columns(), columns)
    }

    /// The residual rows of columns, `[columns, hidden]`.
    pub(crate) fn residual(&self, columns: &[Column]) -> Result<Vec<f32>> {
        let row = |column: &Column| self.read(self.decoder.residual(column.row as usize), self.config.hidden_size);
        Ok(columns.iter().map(row).collect::<Result<Vec<Vec<f32>>>>()?.concat())
    }

    /// Replaces the matrices of a layer by others of the same sizes.
    pub(crate) fn set_layer(&self, index: usize, layer: &Layer) -> Result<()> {
        self.decoder.replace_layer(self.on(), index, layer)?;
        self.device.synchronize(&self.stream)
    }

    /// Replaces the weight of a layer's LayerNorm.
    pub(crate) fn set_norm(&self, index: usize, weight: &[f32]) -> Result<()> {
        self.write(self.decoder.layers[index].norm, weight)
    }

    /// Replaces the rows of the audio head by others of the same kind and sizes.
    pub(crate) fn set_head(&self, head: &Head) -> Result<()> {
        self.decoder.replace_head(self.on(), head)?;
        self.device.synchronize(&self.stream)
    }

    /// Replaces weight and epsilon of the last LayerNorm.
    pub(crate) fn set_last_norm(&mut self, weight: &[f32], eps: f32) -> Result<()> {
        self.decoder.head.eps = eps;
        self.write(self.decoder.head.norm, weight)
    }

    /// Positions that a layer sees; 0 for all.
    pub(crate) fn set_window(&mut self, layer: usize, window: usize) {
        self.decoder.layers[layer].window = window as i32;
    }

    /// LayerNorm, queries, keys, values and the MLP's activation of the columns set.
    pub(crate) fn project_in(&self, layer: usize, columns: usize) -> Result<()> {
        self.decoder.project_in(self.on(), layer, columns, false)
    }

    /// Attention of the columns set, which are at most `positions` long; 0: as when decoding.
    pub(crate) fn attend(&self, layer: usize, columns: usize, positions: usize) -> Result<()> {
        self.decoder.attend(self.on(), layer, columns, reach(positions))
    }

    /// o_proj, down_proj and the residual of the columns set.
    pub(crate) fn project_out(&self, layer: usize, columns: usize) -> Result<()> {
        self.decoder.project_out(self.on(), layer, columns, false)?;
        self.decoder.settle(self.on(), columns)
    }

    /// A whole layer, one launch a phase.
    pub(crate) fn layer(&self, layer: usize, columns: usize, positions: usize) -> Result<()> {
        self.decoder.layer(self.on(), layer, columns, reach(positions))
    }

    /// All layers as when decoding: in the persistent kernel where the device has it.
    pub(crate) fn forward(&self, columns: usize) -> Result<()> {
        self.decoder.forward(self.on(), columns, reach(0))
    }

    /// Queries, `[columns, query]`.
    pub(crate) fn queries(&self, columns: usize) -> Result<Vec<f32>> {
        self.read(self.decoder.buffers.q, columns * self.config.query_size())
    }

    /// Sets the queries, `[columns, query]`.
    pub(crate) fn set_queries(&self, q: &[f32]) -> Result<()> {
        self.write(self.decoder.buffers.q, q)
    }

    /// silu(gate) * up, `[columns, intermediate]`.
    pub(crate) fn activated(&self, columns: usize) -> Result<Vec<f32>> {
        self.read(self.decoder.buffers.mlp, columns * self.config.intermediate_size)
    }

    /// LayerNorm of the residual stream, rounded; only the wide kernels leave it.
    pub(crate) fn rounded_norm(&self, columns: usize) -> Result<Rounded> {
        self.rounded(self.decoder.buffers(columns).hidden, columns)
    }

    /// The output of attention, rounded.
    pub(crate) fn rounded_attention(&self, columns: usize) -> Result<Rounded> {
        self.rounded(self.decoder.buffers(columns).attention, columns)
    }

    /// The MLP's activation, rounded.
    pub(crate) fn rounded_inner(&self, columns: usize) -> Result<Rounded> {
        self.rounded(self.decoder.buffers(columns).inner, columns)
    }

    /// Sets what project_out multiplies: attention's output and the MLP's activation, both of all columns.
    pub(crate) fn set_rounded(&self, attention: &Rounded, inner: &Rounded) -> Result<()> {
        let buffers = self.decoder.buffers(attention.columns);
        self.write_rounded(buffers.attention, attention)?;
        self.write_rounded(buffers.inner, inner)
    }

    fn rounded(&self, digits: Digits, columns: usize) -> Result<Rounded> {
        let groups = digits.groups as usize;
        let tiles = tiles_of(digits, columns);
        let words: Vec<u32> = self.read(digits.words, tiles * 256)?;
        let scales: Vec<[f32; 2]> = self.read(digits.scales, tiles * 4)?;
        let mut out = Rounded::zeros(groups * GROUP, columns, Order::Bytes);
        for group in 0..columns * groups {
            let (c, g) = (group / groups, group % groups);
            let tile = tile_of(digits, c, g);
            [out.scale[group], out.offset[group]] = scales[tile * 4 + c % 4];
            for k in 0..GROUP {
                let digit = |digit: usize| {
                    let (word, byte) = place(digits, c, k, digit);
                    i16::from((words[tile * 256 + word] >> (8 * byte)) as u8 as i8)
                };
                out.q[group * GROUP + k] = 256 * digit(0) + digit(1);
            }
            out.sum[group] = out.q[group * GROUP..][..GROUP].iter().map(|&q| i32::from(q)).sum();
        }
        Ok(out)
    }

    fn write_rounded(&self, digits: Digits, x: &Rounded) -> Result<()> {
        let groups = x.groups();
        let tiles = tiles_of(digits, x.columns);
        // Columns past the last of a tile stay poison.
        let mut words = vec![u32::from_ne_bytes([POISON; 4]); tiles * 256];
        let mut scales = vec![[f32::NAN; 2]; tiles * 4];
        for group in 0..x.columns * groups {
            let (c, g) = (group / groups, group % groups);
            let tile = tile_of(digits, c, g);
            scales[tile * 4 + c % 4] = [x.scale[group], x.offset[group]];
            for (k, &q) in x.q[group * GROUP..][..GROUP].iter().enumerate() {
                let low = q as i8;
                let high = ((q - i16::from(low)) >> 8) as i8;
                for (digit, value) in [high, low].into_iter().enumerate() {
                    let (word, byte) = place(digits, c, k, digit);
                    let word = &mut words[tile * 256 + word];
                    *word = *word & !(0xff << (8 * byte)) | u32::from(value as u8) << (8 * byte);
                }
            }
        }
        self.write(digits.words, &words)?;
        self.write(digits.scales, &scales)
    }

    /// Keys and values of the first `t` positions of a slot's head, both `[t, dim]` f16 bits.
    pub(crate) fn cache(&self, layer: usize, slot: usize, head: usize, t: usize) -> Result<(Vec<u16>, Vec<u16>)> {
        let (dim, [keys, values]) = (self.config.head_dim, self.cache_of(layer, slot, head));
        let (keys, values) = (self.read::<u16>(keys, POSITIONS * dim)?, self.read::<u16>(values, POSITIONS * dim)?);
        let value = |i: usize| values[value_place(dim, i / dim, i % dim)];
        Ok((keys[..t * dim].to_vec(), (0..t * dim).map(value).collect()))
    }

    /// Writes keys and values `[t, dim]` at the positions from `first`.
    pub(crate) fn set_cache(
        &self,
        [layer, slot, head]: [usize; 3],
        first: usize,
        (keys, values): (&[u16], &[u16]),
    ) -> Result<()> {
        let (dim, [keys_at, values_at]) = (self.config.head_dim, self.cache_of(layer, slot, head));
        let mut all = self.read::<u16>(values_at, POSITIONS * dim)?;
        for (i, &value) in values.iter().enumerate() {
            all[value_place(dim, first + i / dim, i % dim)] = value;
        }
        self.write(values_at, &all)?;
        self.write(keys_at + (first * dim * 2) as u64, keys)
    }

    /// Addresses of keys and values of a slot's head.
    fn cache_of(&self, layer: usize, slot: usize, head: usize) -> [Address; 2] {
        let run = (slot * self.config.num_key_value_heads + head) * POSITIONS * self.config.head_dim * 2;
        let layer = &self.decoder.layers[layer];
        [layer.keys + run as u64, layer.values + run as u64]
    }

    /// Logits `[columns, rows]`, and normed states `[columns, hidden]`, of the columns set.
    pub(crate) fn scores(&self, columns: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        self.decoder.scores(self.on(), columns, self.normed.address(), None)?;
        let logits = self.read(self.decoder.logits(0), columns * self.config.audio_rows())?;
        Ok((logits, self.read(self.normed.address(), columns * self.config.hidden_size)?))
    }

    /// What the stop head's inner layer added up to, `[columns, inner]`, after [`Probe::scores`].
    pub(crate) fn stop_terms(&self, columns: usize) -> Result<Vec<f32>> {
        self.read(self.decoder.stop_terms(0), columns * self.stop_inner)
    }

    /// Chooses a token for column 0, slot 0 and row 0, from logits and the logit of P(stop); returns what came out, the column
    /// and the slot's state after it, and the embedding put into the residual row.
    pub(crate) fn choose(
        &self,
        logits: &[f32],
        stop: f32,
        sequence: Sequence,
    ) -> Result<(FrameOut, Column, Sequence, Vec<f32>)> {
        let mut terms = vec![0.0; self.stop_inner];
        terms[self.stop_inner / 2] = stop - self.decoder.head.stop_down_bias;
        self.write(self.decoder.logits(0), logits)?;
        self.write(self.decoder.stop_terms(0), &terms)?;
        self.write(self.decoder.sequence(0), &[sequence])?;
        self.write(self.decoder.columns(), &[Column { slot: 0, position: 3, live: 1, row: 0 }])?;
        self.device.fill(&self.stream, self.decoder.out(), 0, size_of::<FrameOut>())?;
        self.device.fill(&self.stream, self.decoder.residual(0), POISON, self.config.hidden_size * 4)?;
        self.decoder.choose(self.on(), 1, None)?;
        let out = self.read::<FrameOut>(self.decoder.out(), 1)?[0];
        let column = self.read::<Column>(self.decoder.columns(), 1)?[0];
        let sequence = self.read::<Sequence>(self.decoder.sequence(0), 1)?[0];
        Ok((out, column, sequence, self.read(self.decoder.residual(0), self.config.hidden_size)?))
    }

    /// Loads a codec beside the model and decodes `codes: [frames, quantizers]` in stream `slot`, frame by frame, alone now and then and else
    /// while another stream beside it decodes other frames; `twice`: once more after a reset, whose samples are returned.
    pub(crate) fn decode(&self, codec: &format::Codec, codes: &[u32], slot: usize, twice: bool) -> Result<Vec<f32>> {
        let frames = codes.len().div_ceil(self.config.num_quantizers);
        let decoder = Codec::load(self.on(), codec, &self.config, SLOTS, frames)?;
        let (samples, mut pcm) = (decoder.samples_per_frame(), Vec::new());
        let column = |slot: usize| Column { slot: slot as i32, position: 0, live: 1, row: 0 };
        for _ in 0..=usize::from(twice) {
            decoder.reset(self.on(), slot)?;
            pcm.clear();
            for (index, frame) in codes.chunks(self.config.num_quantizers).enumerate() {
                let mut out = [FrameOut { frames: 1, ..FrameOut::default() }; 2];
                out[0].frames = i32::from(!index.is_multiple_of(3)); // the neighbour rests now and then
                out[1].code[..frame.len()].copy_from_slice(frame);
                let columns = [column((slot + 3) % SLOTS), column(slot)];
                let first = usize::from(index % 4 == 1); // and is not there
                self.write(self.decoder.columns(), &columns[first..])?;
                self.write(self.decoder.out(), &out[first..])?;
                decoder.take(self.on(), 2 - first, &self.decoder)?;
                decoder.frame(self.on(), 2 - first)?;
                pcm.extend(self.read::<f32>(decoder.pcm() + ((1 - first) * samples * 4) as u64, samples)?);
            }
        }
        Ok(pcm)
    }
}

fn reach(positions: usize) -> Reach {
    if positions == 0 { Reach::decoding(POSITIONS) } else { Reach::prompt(positions) }
}

/// Index of the tile of column `c` and group `g`, as `digit_tile` of common.cuh.
fn tile_of(digits: Digits, c: usize, g: usize) -> usize {
    let (groups, beside, tile) = (digits.groups as usize, digits.beside as usize, c / 4);
    (tile / beside * groups + g) * beside + tile % beside
}

/// Tiles that hold so many columns.
fn tiles_of(digits: Digits, columns: usize) -> usize {
    columns.div_ceil(4 * digits.beside as usize) * (digits.beside * digits.groups) as usize
}

/// Word and byte, within a tile of four columns by one group, of digit 0 (high) or 1 (low) of column `c` and activation `k`, as
/// `store_digits` of common.cuh.
fn place(digits: Digits, c: usize, k: usize, digit: usize) -> (usize, usize) {
    let (of_column, four, sixteen) = (c % 4 * 2 + digit, k % 16 / 4, k / 16);
    let word = match digits.beside {
        1 => (of_column * 4 + four) * 8 + sixteen,
        _ => sixteen * 32 + of_column * 4 + four,
    };
    (word, k % 4)
}

/// Place of column `d` of `dim` of the value of a position within a head's cache.
pub(super) fn value_place(dim: usize, position: usize, d: usize) -> usize {
    (position / 32 * dim + d) * 32 + position % 32
}
