//! The launches of a pass, one a phase: a layer's, scores and the choice.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::super::device::{Kernel, Launch, Queue, Start, pointer};
use super::super::kernels::{Address, Column, HeadBuffers};
use super::warpgroups::FEW_COLUMNS;
use super::{
    Decoder, ITEM_HEADS, MAX_CHUNKS, NARROW_COLUMNS, PART_BYTES, PROMPT_COLUMNS, PROMPT_DEPTH, PROMPT_STATIC_BYTES,
    RING_STEP, Reach, SPAN, STATIC_BYTES, THREADS, WARPS, WIDE_TILES, pack,
};
use crate::error::Result;
use crate::format::layout::GROUP;

impl Decoder {
    /// Runs `columns` columns through all layers; their x rows must hold the input.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn forward(&self, on: Queue<'_>, columns: usize, reach: Reach) -> Result<()> {
        match reach.decodes && self.persists(columns) {
            true => self.pass(on),
            false => {
                for layer in 0..self.layers.len() {
                    self.project_in(on, layer, columns, layer > 0)?;
                    self.attend_and_project_out(on, layer, columns, reach)?;
                }
                self.settle(on, columns)
            }
        }
    }

    /// Kernels that one token of so many columns takes; a share of one where a kernel makes a whole frame.
    pub fn launches_a_token(&self, columns: usize) -> f64 {
        match () {
            () if self.persists_choice(columns) => 2.0 / f64::from(self.head.quantizers),
            () if self.persists(columns) => 3.0,
            () if self.scores_by_warpgroups(columns) => (self.layers.len() * 4 + 4) as f64,
            () if self.by_warpgroups(columns) => (self.layers.len() * 4 + 3) as f64,
            () => (self.layers.len() * 3 + 2) as f64,
        }
    }

    /// Runs one layer; see [`Decoder::forward`].
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn layer(&self, on: Queue<'_>, layer: usize, columns: usize, reach: Reach) -> Result<()> {
        self.project_in(on, layer, columns, false)?;
        self.attend_and_project_out(on, layer, columns, reach)?;
        self.settle(on, columns)
    }

    /// [`Decoder::attend`] and [`Decoder::project_out`] right after [`Decoder::project_in`] of the same layer: each begins as soon as what it needs is
    /// there, where it can.
    ///
    /// # Errors
    /// [`Error::Device`].
    fn attend_and_project_out(&self, on: Queue<'_>, layer: usize, columns: usize, reach: Reach) -> Result<()> {
        self.attend_to(on, layer, columns, reach, self.attended_units(columns))?;
        self.project_out(on, layer, columns, true)
    }

    /// LayerNorm, then queries, keys, values and the MLP's activation. `pending`: the layer before was not settled.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_in(&self, on: Queue<'_>, layer: usize, columns: usize, pending: bool) -> Result<()> {
        if self.by_warpgroups(columns) {
            return self.project_in_by_warpgroups(on, layer, columns, pending);
        }
        let groups = self.shape.hidden as usize / GROUP;
        let (columns_arg, tiles_arg) = (columns as i32, self.tiles as i32);
        if columns > NARROW_COLUMNS {
            self.norm(on, layer, columns, false)?;
            let tile_bytes = groups * columns.min(PROMPT_COLUMNS) * pack::ROWS * 4;
            let rings = PROMPT_DEPTH * RING_STEP;
            let round = self.shared_bytes.saturating_sub(rings + PROMPT_STATIC_BYTES) / tile_bytes;
            let round = round.clamp(1, self.tiles.div_ceil(self.blocks));
            let round_arg = round as i32;
            let grid = [self.blocks.min(self.tiles), columns.div_ceil(PROMPT_COLUMNS), 1];
            let more = [pointer(&columns_arg), pointer(&tiles_arg), pointer(&round_arg)];
            let sizes = (grid, THREADS, rings + round * tile_bytes);
            self.launch(on, &self.functions.project_in_wide, layer, columns, sizes, &more)?;
            let sizes = ([self.shape.intermediate as usize / GROUP, columns.div_ceil(4), 1], 128, 0);
            return self.launch(on, &self.functions.round_columns, layer, columns, sizes, &more[..1]);
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
        self.launch(on, &self.functions.project_in[usize::from(columns > 4)], layer, columns, sizes, &more)
    }

    /// LayerNorm of every column, rounded once for all blocks; of the settled residual stream.
    pub(super) fn norm(&self, on: Queue<'_>, layer: usize, columns: usize, pending: bool) -> Result<()> {
        let (sizes, pending) = (([columns + 1, 1, 1], THREADS, 0), i32::from(pending));
        let kernel = &self.functions.norm[usize::from(columns > FEW_COLUMNS)];
        self.launch(on, kernel, layer, columns, sizes, &[pointer(&pending)])
    }

    /// Adds to the residual stream what [`Decoder::project_out`] of the last layer left, if it leaves something.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn settle(&self, on: Queue<'_>, columns: usize) -> Result<()> {
        match self.by_warpgroups(columns) {
            true => self.launch(on, &self.functions.add_partial_sums, 0, columns, ([columns, 1, 1], THREADS, 0), &[]),
            false => Ok(()),
        }
    }

    /// Attention, after whatever was launched before.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn attend(&self, on: Queue<'_>, layer: usize, columns: usize, reach: Reach) -> Result<()> {
        self.attend_to(on, layer, columns, reach, 0)
    }

    /// The same right after `project_in` by warpgroups, so many of whose `units` it waits for; 0: for all that was launched before.
    fn attend_to(&self, on: Queue<'_>, layer: usize, columns: usize, reach: Reach, units: i32) -> Result<()> {
        let (early, columns_arg) = (i32::from(reach.decodes), columns as i32);
        let (heads, kv_heads) = (self.shape.heads as usize, self.shape.kv_heads as usize);
        let items = kv_heads * (heads / kv_heads).div_ceil(ITEM_HEADS);
        // While slots decode, `project_out` begins when all of these blocks have, beside them: no more than find room at once. Many
        // columns have so much to read that more blocks are worth the delay.
        let blocks = if columns > NARROW_COLUMNS { 4 } else { 2 } * self.blocks;
        let most = if reach.decodes { (blocks - 1) / (items * columns) } else { MAX_CHUNKS };
        let chunks = reach.positions.div_ceil(SPAN).min(most).clamp(1, MAX_CHUNKS);
        let sizes = ([items * columns * chunks + 1, 1, 1], 128, 0);
        let more = [pointer(&columns_arg), pointer(&units), pointer(&early)];
        self.launch(on, &self.functions.attend, layer, columns, sizes, &more)
    }

    /// o_proj and down_proj, added to the residual stream, at once or by [`Decoder::settle`]. `early`: right after
    /// [`Decoder::attend`] of the same layer, whose work may hide down_proj.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_out(&self, on: Queue<'_>, layer: usize, columns: usize, early: bool) -> Result<()> {
        if self.by_warpgroups(columns) {
            return self.project_out_by_warpgroups(on, layer, columns, early);
        }
        let row_tiles = self.shape.hidden as usize / pack::ROWS;
        let columns_arg = columns as i32;
        let (kernel, grid, shared) = if columns > NARROW_COLUMNS {
            let grid = [row_tiles.div_ceil(2), columns.div_ceil(4 * WIDE_TILES), 1];
            (&self.functions.project_out_wide, grid, 2 * 2 * WARPS * 4 * WIDE_TILES * pack::ROWS * 4)
        } else {
            (&self.functions.project_out[usize::from(columns > 4)], [row_tiles, 1, 1], self.depth[1] * RING_STEP)
        };
        self.launch(on, kernel, layer, columns, (grid, THREADS, shared), &[pointer(&columns_arg)])
    }

    /// Launches a kernel of a layer: `(grid, block, shared bytes)` and what it takes beside the structs.
    pub(super) fn launch(
        &self,
        on: Queue<'_>,
        kernel: &Kernel,
        layer: usize,
        columns: usize,
        (grid, block, shared): ([usize; 3], usize, usize),
        more: &[*mut c_void],
    ) -> Result<()> {
        let (shape, layer, buffers) = (&self.shape, &self.layers[layer], &self.buffers(columns));
        let mut arguments = [&[pointer(shape), pointer(layer), pointer(buffers)], more].concat();
        let launch = Launch { grid, block, shared, start: Start::Early };
        // SAFETY: the kernels of a layer take these structs and integers; `load` reserved every buffer for MAX_COLUMNS
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

    /// The codebook as the kernels take it: -1 for all rows.
    pub(super) fn phase(&self, codebook: Option<usize>) -> i32 {
        codebook.filter(|_| self.phase_head()).map_or(-1, |codebook| codebook as i32)
    }

    /// Logits and stop head of `columns` columns; their normed hidden states go to `normed` unless it is 0. `codebook` restricts
    /// the logits to its rows and `</audio>`, where the head was loaded for it ([`Decoder::phase_head`]).
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn scores(&self, on: Queue<'_>, columns: usize, normed: Address, codebook: Option<usize>) -> Result<()> {
        if self.scores_by_warpgroups(columns) {
            return self.run_scores_by_warpgroups(on, columns, normed, codebook);
        }
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
            let (count_arg, round, phase) = (count as i32, self.scores_round(count) as i32, self.phase(codebook));
            let mut arguments =
                [pointer(&self.head), pointer(&buffers), pointer(&count_arg), pointer(&round), pointer(&phase)];
            // SAFETY: `scores` takes these; buffers hold MAX_COLUMNS columns.
            unsafe { on.launch(&self.functions.scores, launch, &mut arguments)? };
        }
        Ok(())
    }

    /// Chooses the next token of `columns` columns from their scores; `codebook` as for [`Decoder::scores`].
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn choose(&self, on: Queue<'_>, columns: usize, codebook: Option<usize>) -> Result<()> {
        let phase = self.phase(codebook);
        let mut arguments = [pointer(&self.head), pointer(&self.head_buffers), pointer(&phase)];
        let launch = Launch { grid: [columns, 1, 1], block: 1024, shared: 0, start: Start::Early };
        // SAFETY: `choose_token` takes these; buffers hold MAX_COLUMNS columns.
        unsafe { on.launch(&self.functions.choose, launch, &mut arguments) }
    }
}
