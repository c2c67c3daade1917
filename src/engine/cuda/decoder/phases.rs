//! The launches of a pass: a layer's phases, the persistent kernel, scores and the choice.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::super::device::{Kernel, Launch, Queue, Start, pointer};
use super::super::kernels::{Address, Column, HeadBuffers, Pass};
use super::{
    Decoder, MAX_CHUNKS, NARROW_COLUMNS, PART_BYTES, PASS_DEPTH, PASS_FIXED_BYTES, PASS_THREADS, RING_STEP,
    STATIC_BYTES, STEP, THREADS, WARPS, WIDE_TILES, pack,
};
use crate::error::Result;
use crate::format::layout::GROUP;

impl Decoder {
    /// Runs `columns` columns through all layers; their x rows must hold the input. `positions` bounds what any of them
    /// attends to, 0 when unknown (decoding).
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn forward(&self, on: Queue<'_>, columns: usize, positions: usize) -> Result<()> {
        match self.pass_bytes(columns) {
            Some(shared) if positions == 0 => self.run_pass(on, columns, shared),
            _ => (0..self.layers.len()).try_for_each(|layer| self.layer(on, layer, columns, positions)),
        }
    }

    /// Forgets the persistent kernel, so that every pass is a launch a phase.
    pub fn separate_phases(&mut self) {
        self.functions.passes = None;
    }

    /// Dynamic shared memory of the persistent kernel, if it can run this many columns here.
    fn pass_bytes(&self, columns: usize) -> Option<usize> {
        let groups = self.shape.hidden as usize / GROUP;
        let part = self.tiles.div_ceil(self.blocks) * groups * columns * pack::ROWS * 4;
        let bytes = columns.div_ceil(4) * groups * (1024 + 32) + PASS_DEPTH * RING_STEP + part;
        let fits = columns <= NARROW_COLUMNS && bytes + PASS_FIXED_BYTES <= self.shared_bytes;
        (self.functions.passes.is_some() && fits).then_some(bytes)
    }

    fn run_pass(&self, on: Queue<'_>, columns: usize, shared: usize) -> Result<()> {
        let Some(kernels) = &self.functions.passes else { return Ok(()) };
        let pass = Pass { columns: columns as i32, ..self.pass };
        let mut arguments = [pointer(&self.shape), pointer(&self.buffers), pointer(&pass)];
        let launch = Launch { grid: [self.blocks, 1, 1], block: PASS_THREADS, shared, start: Start::Together };
        // SAFETY: the kernels of layers.cu take these; the cooperative launch refuses a grid that is not resident.
        unsafe { on.launch(&kernels[usize::from(columns > 4)], launch, &mut arguments) }
    }

    /// Runs one layer; see [`Decoder::forward`].
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn layer(&self, on: Queue<'_>, layer: usize, columns: usize, positions: usize) -> Result<()> {
        self.project_in(on, layer, columns)?;
        self.attend(on, layer, columns, positions)?;
        self.project_out(on, layer, columns)
    }

    /// LayerNorm, then queries, keys, values and the MLP's activation.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_in(&self, on: Queue<'_>, layer: usize, columns: usize) -> Result<()> {
        let groups = self.shape.hidden as usize / GROUP;
        let (columns_arg, tiles_arg) = (columns as i32, self.tiles as i32);
        if columns > NARROW_COLUMNS {
            let grid = [columns, 1, 1];
            self.launch(on, &self.functions.norm_columns, layer, (grid, THREADS, 0), &[])?;
            let sizes = ([self.tiles.div_ceil(8), columns.div_ceil(4 * WIDE_TILES), 1], 128, 0);
            let more = [pointer(&columns_arg), pointer(&tiles_arg)];
            self.launch(on, &self.functions.project_in_wide, layer, sizes, &more)?;
            let sizes = ([self.shape.intermediate as usize / GROUP, columns.div_ceil(4), 1], 128, 0);
            return self.launch(on, &self.functions.round_columns, layer, sizes, &more[..1]);
        }
        let tile_bytes = groups * columns * pack::ROWS * 4;
        let most = self.tiles.div_ceil(self.blocks);
        let fixed = columns.div_ceil(4) * groups * (1024 + 32) + self.depth[0] * RING_STEP;
        let room = PART_BYTES.min(self.shared_bytes.saturating_sub(fixed + STATIC_BYTES));
        let round = (room / tile_bytes).clamp(1, most);
        let shared = fixed + round * tile_bytes;
        let round_arg = round as i32;
        let more = [pointer(&columns_arg), pointer(&tiles_arg), pointer(&round_arg)];
        let sizes = ([self.blocks.min(self.tiles), 1, 1], THREADS, shared);
        self.launch(on, &self.functions.project_in[usize::from(columns > 4)], layer, sizes, &more)
    }

    /// Attention.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn attend(&self, on: Queue<'_>, layer: usize, columns: usize, positions: usize) -> Result<()> {
        let positions = if positions == 0 { self.shape.positions as usize } else { positions };
        let units = self.buffers.attention.groups as usize;
        let sizes = ([units.div_ceil(4), positions.div_ceil(STEP).min(MAX_CHUNKS), columns], 128, 0);
        self.launch(on, &self.functions.attend, layer, sizes, &[])
    }

    /// o_proj and down_proj, added to the residual stream.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_out(&self, on: Queue<'_>, layer: usize, columns: usize) -> Result<()> {
        let row_tiles = self.shape.hidden as usize / pack::ROWS;
        let columns_arg = columns as i32;
        let (kernel, grid, shared) = if columns > NARROW_COLUMNS {
            let grid = [row_tiles.div_ceil(2), columns.div_ceil(4 * WIDE_TILES), 1];
            (&self.functions.project_out_wide, grid, 2 * 2 * WARPS * 4 * WIDE_TILES * pack::ROWS * 4)
        } else {
            (&self.functions.project_out[usize::from(columns > 4)], [row_tiles, 1, 1], self.depth[1] * RING_STEP)
        };
        self.launch(on, kernel, layer, (grid, THREADS, shared), &[pointer(&columns_arg)])
    }

    /// Launches a kernel of layer.cu: `(grid, block, shared bytes)` and what it takes beside the structs.
    fn launch(
        &self,
        on: Queue<'_>,
        kernel: &Kernel,
        layer: usize,
        (grid, block, shared): ([usize; 3], usize, usize),
        more: &[*mut c_void],
    ) -> Result<()> {
        let (shape, layer, buffers) = (&self.shape, &self.layers[layer], &self.buffers);
        let mut arguments = [&[pointer(shape), pointer(layer), pointer(buffers)], more].concat();
        let launch = Launch { grid, block, shared, start: Start::Early };
        // SAFETY: the kernels of layer.cu take these structs and integers; `load` reserved every buffer for MAX_COLUMNS
        // columns, which no caller exceeds.
        unsafe { on.launch(kernel, launch, &mut arguments) }
    }

    pub(super) fn scores_bytes(&self, columns: usize) -> usize {
        let (hidden, groups) = (self.shape.hidden as usize, self.shape.hidden as usize / GROUP);
        let part = self.scores_round(columns) * groups * columns * pack::ROWS * 4;
        columns * hidden * 4 + columns.div_ceil(4) * groups * (1024 + 32) + part
    }

    /// Tiles of the head whose partial sums a block holds: all of them if they fit, an even number.
    fn scores_round(&self, columns: usize) -> usize {
        let tile_bytes = self.shape.hidden as usize / GROUP * columns * pack::ROWS * 4;
        let all = (self.head.count as usize).div_ceil(pack::ROWS).div_ceil(self.blocks);
        (PART_BYTES / tile_bytes).min(all).next_multiple_of(2)
    }

    /// Logits and stop head of `columns` columns; their normed hidden states go to `normed` unless it is 0.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn scores(&self, on: Queue<'_>, columns: usize, normed: Address) -> Result<()> {
        for first in (0..columns).step_by(self.head_columns) {
            let count = self.head_columns.min(columns - first);
            let at = |address: Address, bytes: usize| address + (first * bytes) as u64;
            let hidden = self.shape.hidden as usize;
            let buffers = HeadBuffers {
                columns: at(self.head_buffers.columns, size_of::<Column>()),
                logits: self.logits(first),
                stop: self.stop_terms(first),
                normed: if normed == 0 { 0 } else { at(normed, hidden * 4) },
                ..self.head_buffers
            };
            let launch = Launch {
                grid: [self.blocks, 1, 1],
                block: THREADS,
                shared: self.scores_bytes(count),
                start: if first == 0 { Start::Early } else { Start::InOrder },
            };
            let (count_arg, round) = (count as i32, self.scores_round(count) as i32);
            let mut arguments = [pointer(&self.head), pointer(&buffers), pointer(&count_arg), pointer(&round)];
            // SAFETY: `scores` takes these; buffers hold MAX_COLUMNS columns.
            unsafe { on.launch(&self.functions.scores, launch, &mut arguments)? };
        }
        Ok(())
    }

    /// Chooses the next token of `columns` columns from their scores.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn choose(&self, on: Queue<'_>, columns: usize) -> Result<()> {
        let mut arguments = [pointer(&self.head), pointer(&self.head_buffers)];
        let launch = Launch { grid: [columns, 1, 1], block: 1024, shared: 0, start: Start::Early };
        // SAFETY: `choose_token` takes these; buffers hold MAX_COLUMNS columns.
        unsafe { on.launch(&self.functions.choose, launch, &mut arguments) }
    }
}
