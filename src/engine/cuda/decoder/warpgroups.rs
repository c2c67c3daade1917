//! The products by warpgroups (`kernels/wgmma.cu`, of the head `kernels/head_wgmma.cu`): several columns on compute capability 9.0.

#![allow(unsafe_code)]

use super::super::device::{Device, Kernel, Launch, Queue, Start, pointer};
use super::super::kernels::{Address, Buffers, Digits, HeadBuffers};
use super::{Decoder, MAX_COLUMNS, RING_STEP, THREADS, WARPS, pack};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::format::layout::GROUP;

/// A width of the products: n-tiles of four columns that a block takes; the tiles of weights that a warp has under way, in `project_in`
/// and `project_out`; groups of digits that a warpgroup of `project_out` has places for.
#[derive(Clone, Copy, Debug)]
struct Width {
    tiles: usize,
    depth: [usize; 2],
    slots: usize,
    scores: Scores,
}

/// The same of the head: tiles of weights that a warp has under way, n-tiles whose sums meet at a time, warps that do the stop head
/// beside the others (with none it is done after the tiles).
#[derive(Clone, Copy, Debug)]
struct Scores {
    depth: usize,
    part: usize,
    stop_warps: usize,
}

/// As in `wgmma.cu` and `head_wgmma.cu`.
const WIDTHS: [Width; 2] = [
    Width { tiles: 2, depth: [6, 4], slots: 7, scores: Scores { depth: 3, part: 2, stop_warps: 4 } },
    Width { tiles: 10, depth: [3, 4], slots: 3, scores: Scores { depth: 1, part: 5, stop_warps: 0 } },
];
/// n-tiles that a vector of activations has places for.
pub(super) const MOST_TILES: usize = MAX_COLUMNS.div_ceil(4 * WIDTHS[1].tiles) * WIDTHS[1].tiles;
/// Blocks of `project_out` that share rows (`OUT_SPLITS`).
pub(super) const OUT_SPLITS: usize = 4;
/// Least columns: one is left to the kernels that read it from registers.
const LEAST_COLUMNS: usize = 2;
/// Bytes of the digits and scales of an n-tile and group.
const DIGIT_BYTES: usize = 1024 + 32;
/// Rows of a warpgroup.
const UNIT: usize = 64;
/// Floats between two columns of 128 rows (`PITCH`), and of 64 (`UNIT_PITCH`).
const PITCH: usize = 136;
const UNIT_PITCH: usize = 72;
/// Columns of the stop head at a time (`STOP_COLUMNS`).
const STOP_COLUMNS: usize = 8;
/// Units of a group of the MLP: as many rows of gate and of up as it has values.
const GROUP_UNITS: usize = 2 * GROUP / UNIT;
/// Columns of the narrow width, where MLP groups may be several blocks'.
pub(super) const FEW_COLUMNS: usize = 4 * WIDTHS[0].tiles;
/// Warpgroups of a block.
const WARPGROUPS: usize = THREADS / 128;
/// More than the fixed shared memory.
const STATIC_BYTES: usize = 2 << 10;

/// `project_in`, `project_out` and the scores of each width, and the LayerNorm of the last.
#[derive(Debug)]
pub struct Kernels {
    project_in: [Kernel; 2],
    project_out: [Kernel; 2],
    norm_head: Kernel,
    scores: [Kernel; 2],
}

/// The kernels, where they fit: compute capability 9.0, and shared memory for the digits of the widest block.
///
/// # Errors
/// [`crate::Error::Device`].
pub fn kernels(device: &Device, config: &ModelConfig) -> Result<Option<Kernels>> {
    let groups = |k: usize| k / GROUP;
    let room = device.shared_bytes.saturating_sub(STATIC_BYTES);
    let input = WIDTHS.iter().map(|width| input_bytes(width, groups(config.hidden_size)));
    let whole_units = (config.query_size() + 2 * config.key_value_size()).is_multiple_of(UNIT);
    let scores = WIDTHS.iter().map(|width| scores_bytes(width, groups(config.hidden_size)));
    let most = input.chain(WIDTHS.iter().map(output_bytes)).chain(scores).max().unwrap_or(0);
    // A warp of `project_in` copies two tiles at a time.
    let pairs = groups(config.hidden_size).is_multiple_of(2);
    if device.capability != (9, 0) || !whole_units || !pairs || most > room {
        return Ok(None);
    }
    let project_in = device.kernels(["project_in_wgmma_8", "project_in_wgmma_40"])?;
    let project_out = device.kernels(["project_out_wgmma_8", "project_out_wgmma_40"])?;
    let [norm_head, narrow, wide] = device.kernels(["norm_head", "scores_wgmma_8", "scores_wgmma_40"])?;
    Ok(Some(Kernels { project_in, project_out, norm_head, scores: [narrow, wide] }))
}

/// Dynamic shared memory of a block: digits, then rings, and the block's part of the MLP or sums of a unit, in the rings' place or (few columns) behind
/// them.
fn input_bytes(width: &Width, groups: usize) -> usize {
    let digits = groups * width.tiles * DIGIT_BYTES;
    let (rings, columns) = (width.depth[0] * RING_STEP, 4 * width.tiles);
    let sums = (2 * columns * PITCH * 4).max(WARPGROUPS * columns * UNIT_PITCH * 4);
    digits + if width.tiles == WIDTHS[0].tiles { rings + sums } else { rings.max(sums) }
}

fn output_bytes(width: &Width) -> usize {
    WARPGROUPS * width.slots * width.tiles * DIGIT_BYTES + width.depth[1] * RING_STEP
}

/// Digits, rings, sums that meet, and the stop head's input if it has a place of its own.
fn scores_bytes(width: &Width, groups: usize) -> usize {
    let Scores { depth, part, stop_warps } = width.scores;
    let stop = if stop_warps > 0 { STOP_COLUMNS * groups * GROUP * 4 } else { 0 };
    groups * width.tiles * DIGIT_BYTES + WARPS * depth * pack::INT8_TILE + part * 4 * UNIT * WARPGROUPS * 4 + stop
}

/// Groups of the MLP that a block of `project_in` takes as a whole, as few as possible: the other blocks take two units at most, of keys, values, queries
/// (`attended`) and of the other groups. All of them where that cannot be.
fn whole_groups(blocks: usize, groups: usize, attended: usize) -> usize {
    let units = attended + groups * GROUP_UNITS;
    let whole = units.saturating_sub(2 * blocks).div_ceil(GROUP_UNITS - 2);
    if whole < groups.min(blocks) { whole } else { groups }
}

impl Decoder {
    /// Index of the width that takes so many columns; `None` where other kernels do.
    fn width(&self, columns: usize) -> Option<usize> {
        let runs = self.functions.warpgroups.is_some() && columns >= LEAST_COLUMNS;
        runs.then_some(usize::from(columns > FEW_COLUMNS))
    }

    /// True when warpgroups make the products of so many columns.
    pub(super) fn by_warpgroups(&self, columns: usize) -> bool {
        self.width(columns).is_some()
    }

    /// The working memory with the order of digits that the kernels for so many columns read.
    pub(in super::super) fn buffers(&self, columns: usize) -> Buffers {
        let beside = self.width(columns).map_or(1, |width| WIDTHS[width].tiles) as i32;
        let ordered = |digits: Digits| Digits { beside, ..digits };
        let Buffers { hidden, attention, inner, .. } = self.buffers;
        Buffers { hidden: ordered(hidden), attention: ordered(attention), inner: ordered(inner), ..self.buffers }
    }

    /// Units of keys, values and queries.
    fn attended(&self) -> usize {
        self.first_mlp_tile() * pack::ROWS / UNIT
    }

    /// Units of keys, values and queries that [`Decoder::project_in`] counts for so many columns; 0 where warpgroups do not make it.
    pub(super) fn attended_units(&self, columns: usize) -> i32 {
        self.width(columns).map_or(0, |width| (self.attended() * columns.div_ceil(4 * WIDTHS[width].tiles)) as i32)
    }

    /// [`Decoder::project_in`] by warpgroups, with the LayerNorm before it.
    pub(super) fn project_in_by_warpgroups(
        &self,
        on: Queue<'_>,
        layer: usize,
        columns: usize,
        pending: bool,
    ) -> Result<()> {
        let (Some(kernels), Some(index)) = (&self.functions.warpgroups, self.width(columns)) else { return Ok(()) };
        let width = &WIDTHS[index];
        self.norm(on, layer, columns, pending)?;
        let (groups, attended) = (self.buffers.inner.groups as usize, self.attended());
        let whole = if index == 0 { whole_groups(self.blocks, groups, attended) } else { groups };
        let units = attended + (groups - whole) * GROUP_UNITS;
        let blocks = self.blocks.saturating_sub(whole).clamp(attended.div_ceil(WARPGROUPS), units);
        let grid = [whole + blocks, columns.div_ceil(4 * width.tiles), 1];
        let shared = input_bytes(width, self.shape.hidden as usize / GROUP);
        let (columns_arg, whole) = (columns as i32, whole as i32);
        let more = [pointer(&columns_arg), pointer(&whole)];
        self.launch(on, &kernels.project_in[index], layer, columns, (grid, THREADS, shared), &more)
    }

    /// [`Decoder::project_out`] by warpgroups; its sums are left for [`Decoder::settle`] or the next layer.
    pub(super) fn project_out_by_warpgroups(
        &self,
        on: Queue<'_>,
        layer: usize,
        columns: usize,
        early: bool,
    ) -> Result<()> {
        let (Some(kernels), Some(index)) = (&self.functions.warpgroups, self.width(columns)) else { return Ok(()) };
        let width = &WIDTHS[index];
        let (rows, parts) = (OUT_SPLITS * self.shape.hidden as usize / UNIT, columns.div_ceil(4 * width.tiles));
        // Blocks without rows keep the other multiprocessors until the blocks of the next kernel are placed.
        let grid = [if parts == 1 { rows.max(self.blocks) } else { rows }, parts, 1];
        let (columns_arg, early) = (columns as i32, i32::from(early));
        let (sizes, more) = ((grid, THREADS, output_bytes(width)), [pointer(&columns_arg), pointer(&early)]);
        self.launch(on, &kernels.project_out[index], layer, columns, sizes, &more)
    }

    /// True when warpgroups also make the scores of so many columns: of an int8 head.
    pub(super) fn scores_by_warpgroups(&self, columns: usize) -> bool {
        self.by_warpgroups(columns) && self.head.bf16 == 0
    }

    /// [`Decoder::scores`] by warpgroups, all columns at once, with the LayerNorm before it.
    pub(super) fn run_scores_by_warpgroups(
        &self,
        on: Queue<'_>,
        columns: usize,
        normed: Address,
        codebook: Option<usize>,
    ) -> Result<()> {
        let (Some(kernels), Some(index)) = (&self.functions.warpgroups, self.width(columns)) else { return Ok(()) };
        let width = &WIDTHS[index];
        let (digits, buffers) = (self.buffers(columns).hidden, HeadBuffers { normed, ..self.head_buffers });
        let (columns_arg, phase) = (columns as i32, self.phase(codebook));
        let mut arguments = vec![pointer(&self.head), pointer(&buffers), pointer(&digits), pointer(&self.stop_input)];
        let norm = Launch { grid: [columns, 1, 1], block: THREADS, shared: 0, start: Start::Early };
        // SAFETY: `norm_head` takes these; buffers hold MAX_COLUMNS columns, which no caller exceeds.
        unsafe { on.launch(&kernels.norm_head, norm, &mut arguments)? };
        arguments.extend([pointer(&columns_arg), pointer(&phase)]);
        let launch = Launch {
            // A block for every chunk of columns of the stop head, at least.
            grid: [self.blocks.max(4 * width.tiles / STOP_COLUMNS), columns.div_ceil(4 * width.tiles), 1],
            block: THREADS + 32 * width.scores.stop_warps,
            shared: scores_bytes(width, self.shape.hidden as usize / GROUP),
            start: Start::Early,
        };
        // SAFETY: the kernels of head_wgmma.cu take these and two integers; buffers as above.
        unsafe { on.launch(&kernels.scores[index], launch, &mut arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_few_groups_as_possible_are_whole() {
        // The real model on an H200: 64 blocks with four units, 68 with two.
        assert_eq!(whole_groups(132, 86, 48), 64);
        for blocks in 1..200 {
            let whole = whole_groups(blocks, 86, 48);
            let units = |whole: usize| 48 + (86 - whole) * GROUP_UNITS;
            if whole < 86 {
                assert!(units(whole) <= 2 * (blocks - whole), "{blocks} blocks: two units each at most");
                assert!(
                    whole == 0 || units(whole - 1) > 2 * (blocks - whole + 1),
                    "{blocks} blocks: one less would do"
                );
            } else {
                assert!((0..86.min(blocks)).all(|whole| units(whole) > 2 * (blocks - whole)), "{blocks} blocks");
            }
        }
    }
}
