//! The language model on the device: its weights, its cache, one pass of columns through the layers, the choice of tokens.

mod frame;
mod limits;
mod load;
mod phases;
mod warpgroups;

use super::device::{Kernel, Memory};
use super::kernels::{self, Address, Buffers, Frame, Head, HeadBuffers, Sequence, Shape};
use super::pack;
use crate::engine::tuning::Tuning;

/// Columns of one pass at most: a prompt's positions, or slots.
pub const MAX_COLUMNS: usize = 64;
/// Columns up to which the narrow kernels run.
const NARROW_COLUMNS: usize = 8;
/// Threads of a matrix block, and its warps.
const THREADS: usize = 512;
const WARPS: usize = 16;
/// Shared memory for one tile in flight in every warp of a block.
const RING_STEP: usize = WARPS * pack::INT4_TILE;
/// Tiles in flight, `project_in` and `project_out`: with shallow and with deep rings.
const SHALLOW: [usize; 2] = [3, 3];
const DEEP: [usize; 2] = [6, 7];
/// Column tiles of a block of `project_out_wide` (`WIDE_TILES` of layer.cu).
const WIDE_TILES: usize = 5;
/// Columns of a block of `project_in_wide`, the tiles under way in each of its warps, and more than its fixed shared memory.
const PROMPT_COLUMNS: usize = 36;
const PROMPT_DEPTH: usize = 3;
const PROMPT_STATIC_BYTES: usize = 5 << 10;
/// Positions of the shortest attention split, the most splits, and the query heads of an item (`SPAN`, `MAX_CHUNKS` and
/// `ITEM_HEADS` of attend.cuh).
const SPAN: usize = 64;
const MAX_CHUNKS: usize = 32;
const ITEM_HEADS: usize = 4;
/// Most positions of a slot.
const MAX_POSITIONS: usize = 8192;
/// More than the fixed shared memory of `project_in` and `scores`.
const STATIC_BYTES: usize = 4 << 10;
/// Shared memory for the partial sums of the narrow `project_in`.
const PART_BYTES: usize = 48 << 10;

/// What the columns of a pass attend to.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// Positions of each of them, at most.
    positions: usize,
    /// Each adds a position to a slot of its own; a prompt's columns are each other's past.
    decodes: bool,
}

impl Reach {
    /// Of slots that decode.
    pub fn decoding(positions: usize) -> Reach {
        Reach { positions, decodes: true }
    }

    /// Of the positions of a prompt.
    pub fn prompt(positions: usize) -> Reach {
        Reach { positions, decodes: false }
    }
}

/// The kernels of a model.
#[derive(Debug)]
pub struct Functions {
    project_in: [Kernel; 2],
    project_out: [Kernel; 2],
    /// Of few columns, of many.
    norm: [Kernel; 2],
    project_in_wide: Kernel,
    round_columns: Kernel,
    project_out_wide: Kernel,
    attend: Kernel,
    add_partial_sums: Kernel,
    scores: Kernel,
    choose: Kernel,
    frame: Option<Kernel>,
    warpgroups: Option<warpgroups::Kernels>,
}

/// The language model on a device.
#[derive(Debug)]
pub struct Decoder {
    functions: Functions,
    shape: Shape,
    pub(super) layers: Vec<kernels::Layer>,
    pub(super) buffers: Buffers,
    pub(super) head: Head,
    pub(super) head_buffers: HeadBuffers,
    /// `[MAX_COLUMNS, hidden]` f32: what the stop head multiplies, where a kernel of its own makes it.
    pub(super) stop_input: Address,
    frame: Frame,
    depth: [usize; 2],
    tuning: Tuning,
    tiles: usize,
    blocks: usize,
    shared_bytes: usize,
    head_columns: usize,
    memory: Vec<Memory>,
}

impl Decoder {
    /// Masks the end for good; for measurements.
    pub fn never_end(&mut self) {
        self.head.min_new_tokens = i32::MAX;
    }

    /// Whether the head's rows are grouped by codebook.
    pub fn phase_head(&self) -> bool {
        self.head.row_of != 0
    }

    /// Takes other kernels of the same model, and returns those in use so far; for measurements.
    pub fn exchange_kernels(&mut self, functions: Functions) -> Functions {
        std::mem::replace(&mut self.functions, functions)
    }

    /// Bytes reserved on the device.
    pub fn bytes(&self) -> usize {
        self.memory.iter().map(Memory::bytes).sum()
    }

    /// Weight bytes that `project_in` and `project_out` read a layer.
    pub fn layer_bytes(&self) -> (usize, usize) {
        (self.frame.input_stride as usize, self.frame.output_stride as usize)
    }

    /// Weight bytes that `scores` reads for a token.
    pub fn head_bytes(&self) -> usize {
        let Head { bf16, count, hidden, inner, quantizers, .. } = self.head;
        let rows = if self.phase_head() { (count - 1) / quantizers + 1 } else { count };
        (rows * hidden * (1 + bf16) + inner * hidden * 4) as usize
    }

    /// Positions of a slot's cache: those asked for, rounded up.
    pub fn positions(&self) -> usize {
        self.shape.positions as usize
    }

    /// Address of the columns of a pass, `[MAX_COLUMNS]` of [`Column`].
    pub fn columns(&self) -> Address {
        self.buffers.columns
    }

    /// Address of row `row` of the residual stream: slots first, then [`MAX_COLUMNS`] rows for prompts.
    pub fn residual(&self, row: usize) -> Address {
        self.buffers.x + (row * self.shape.hidden as usize * 4) as u64
    }

    /// Address of a slot's [`Sequence`].
    pub fn sequence(&self, slot: usize) -> Address {
        self.head_buffers.sequences + (slot * size_of::<Sequence>()) as u64
    }

    /// Address of the columns' [`FrameOut`].
    pub fn out(&self) -> Address {
        self.head_buffers.out
    }

    /// Address of column `column`'s logits, `[audio rows]` f32.
    pub fn logits(&self, column: usize) -> Address {
        self.head_buffers.logits + (column * self.head.count as usize * 4) as u64
    }

    /// Address of column `column`'s inner values of the stop head, whose sum with the bias is the logit of P(stop).
    pub fn stop_terms(&self, column: usize) -> Address {
        self.head_buffers.stop + (column * self.head.inner as usize * 4) as u64
    }

    /// Width of the stop head's inner layer.
    pub fn stop_inner(&self) -> usize {
        self.head.inner as usize
    }
}
