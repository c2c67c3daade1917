//! The products of a layer by warpgroups (`kernels/wgmma.cu`): several columns on compute capability 9.0.

#![allow(unsafe_code)]

use super::super::device::{Device, Kernel, Queue, pointer};
use super::super::kernels::{Buffers, Digits};
use super::{Decoder, MAX_COLUMNS, RING_STEP, THREADS, WARPS, pack};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::format::layout::GROUP;

/// A width of `project_in`: n-tiles of four columns that a block takes, and the tiles of weights that a warp has under way.
#[derive(Clone, Copy, Debug)]
struct Width {
    tiles: usize,
    depth: usize,
}

/// As in `wgmma.cu`.
const WIDTHS: [Width; 2] = [Width { tiles: 2, depth: 6 }, Width { tiles: 10, depth: 3 }];
/// Tiles of weights that a warp of `project_out` has under way: two of its blocks fit a multiprocessor, because not all of their
/// clusters fit with one.
const DEPTH_OUT: usize = 3;
/// n-tiles that a vector of activations has places for.
pub(super) const MOST_TILES: usize = MAX_COLUMNS.div_ceil(4 * WIDTHS[1].tiles) * WIDTHS[1].tiles;
/// Least columns: one is left to the kernels that read it from registers.
const LEAST_COLUMNS: usize = 2;
/// Bytes of the digits and scales of an n-tile and group.
const DIGIT_BYTES: usize = 1024 + 32;
/// Rows of a warpgroup, and blocks of a cluster, which makes 128 rows.
const UNIT: usize = 64;
const CLUSTER: usize = 8;
/// Floats between two columns of 128 rows (`PITCH`).
const PITCH: usize = 136;
/// Warpgroups of a block.
const WARPGROUPS: usize = THREADS / 128;
/// More than the fixed shared memory.
const STATIC_BYTES: usize = 2 << 10;

/// `project_in` of each width, and `project_out` of the first.
#[derive(Debug)]
pub struct Kernels {
    project_in: [Kernel; 2],
    project_out: Kernel,
}

/// The kernels, where they fit: compute capability 9.0, and shared memory for the digits of the widest block.
///
/// # Errors
/// [`crate::Error::Device`].
pub fn kernels(device: &Device, config: &ModelConfig) -> Result<Option<Kernels>> {
    let groups = |k: usize| k / GROUP;
    let room = device.shared_bytes.saturating_sub(STATIC_BYTES);
    let input = WIDTHS.iter().map(|width| input_bytes(width, groups(config.hidden_size)));
    let output = output_bytes(groups(config.intermediate_size), groups(config.query_size()));
    let whole_units = (config.query_size() + 2 * config.key_value_size()).is_multiple_of(UNIT);
    if device.capability != (9, 0) || !whole_units || input.chain([output]).any(|bytes| bytes > room) {
        return Ok(None);
    }
    let project_in = device.kernels(["project_in_wgmma_8", "project_in_wgmma_40"])?;
    let [project_out] = device.kernels(["project_out_wgmma_8"])?;
    Ok(Some(Kernels { project_in, project_out }))
}

/// Dynamic shared memory of a block: digits, then rings or the block's part of the MLP.
fn input_bytes(width: &Width, groups: usize) -> usize {
    let digits = groups * width.tiles * DIGIT_BYTES;
    digits + (width.depth * RING_STEP).max(4 * width.tiles * PITCH * 4)
}

fn output_bytes(down: usize, o: usize) -> usize {
    let (own, tiles) = (2 * (down.div_ceil(WARPS) + o.div_ceil(WARPS)), WIDTHS[0].tiles);
    (own * tiles * DIGIT_BYTES + DEPTH_OUT * RING_STEP).max(2 * 2 * 4 * tiles * PITCH * 4)
}

impl Decoder {
    /// Index of the width that takes so many columns; `None` where other kernels do.
    fn width(&self, columns: usize) -> Option<usize> {
        let runs = self.functions.warpgroups.is_some() && columns >= LEAST_COLUMNS;
        runs.then_some(usize::from(columns > 4 * WIDTHS[0].tiles))
    }

    /// True when warpgroups make the products of so many columns.
    pub(super) fn by_warpgroups(&self, columns: usize) -> bool {
        self.width(columns).is_some()
    }

    /// True when `project_out` is theirs, too: in the first width.
    pub(super) fn out_by_warpgroups(&self, columns: usize) -> bool {
        self.width(columns) == Some(0)
    }

    /// The working memory with the order of digits that the kernels for so many columns read: beyond the first width,
    /// `project_out` is that of the warps.
    pub(in super::super) fn buffers(&self, columns: usize) -> Buffers {
        let hidden = self.width(columns).map_or(1, |width| WIDTHS[width].tiles);
        let others = if self.out_by_warpgroups(columns) { hidden } else { 1 };
        let ordered = |digits: Digits, beside: usize| Digits { beside: beside as i32, ..digits };
        Buffers {
            hidden: ordered(self.buffers.hidden, hidden),
            attention: ordered(self.buffers.attention, others),
            inner: ordered(self.buffers.inner, others),
            ..self.buffers
        }
    }

    /// [`Decoder::project_in`] by warpgroups, with the LayerNorm before it.
    pub(super) fn project_in_by_warpgroups(&self, on: Queue<'_>, layer: usize, columns: usize) -> Result<()> {
        let (Some(kernels), Some(index)) = (&self.functions.warpgroups, self.width(columns)) else { return Ok(()) };
        let width = &WIDTHS[index];
        self.norm(on, layer, columns)?;
        let mlp_blocks = self.buffers.inner.groups as usize;
        let units = self.first_mlp_tile() * pack::ROWS / UNIT;
        let blocks = self.blocks.saturating_sub(mlp_blocks).clamp(units.div_ceil(WARPGROUPS), units);
        let grid = [mlp_blocks + blocks, columns.div_ceil(4 * width.tiles), 1];
        let shared = input_bytes(width, self.shape.hidden as usize / GROUP);
        let columns_arg = columns as i32;
        self.launch(on, &kernels.project_in[index], layer, columns, (grid, THREADS, shared), &[pointer(&columns_arg)])
    }

    /// [`Decoder::project_out`] by warpgroups, of the first width.
    pub(super) fn project_out_by_warpgroups(&self, on: Queue<'_>, layer: usize, columns: usize) -> Result<()> {
        let Some(kernels) = &self.functions.warpgroups else { return Ok(()) };
        let (down, o) = (self.buffers.inner.groups as usize, self.buffers.attention.groups as usize);
        let sizes = ([CLUSTER * self.shape.hidden as usize / GROUP, 1, 1], THREADS, output_bytes(down, o));
        let columns_arg = columns as i32;
        self.launch(on, &kernels.project_out, layer, columns, sizes, &[pointer(&columns_arg)])
    }
}
