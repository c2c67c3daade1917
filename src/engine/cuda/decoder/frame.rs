//! The persistent kernel: a whole frame period, or one pass, in one launch.

#![allow(unsafe_code)]

use super::super::codec;
use super::super::device::{Device, Kernel, Launch, Queue, Start, pointer};
use super::super::kernels::{self, Frame};
use super::{Decoder, WARPS, pack};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::format::layout::GROUP;

/// Threads of a block.
const THREADS: usize = 768;
/// Bytes of a packet of the ring, and the most packets in it.
const PACKET: usize = WARPS * pack::INT4_TILE;
const MOST_SLOTS: usize = 12;
/// Least tiles with a place for their partial sums (x waits there for its LayerNorm), and most that finishers wait for (`MOST_TILES`).
const LEAST_ROUND: usize = 8;
const MOST_TILES: usize = 24;
/// More than `sizeof(Choice)`, and what it has places for.
const CHOICE_BYTES: usize = 14336;
const MOST_BLOCKS: usize = 256;
const MOST_HEAD_TILES: usize = 3 * 512;
/// More than `sizeof(Shared)`.
const SHARED_BYTES: usize = 39936;
/// Left to a block of the codec beside it, with the kilobyte that the driver takes for each block.
const BESIDE_BYTES: usize = codec::BLOCK_BYTES + 1024;
/// Columns of the kernel.
const COLUMNS: usize = 1;

/// The kernel, where it fits: compute capability 9.0 (setmaxnreg, bulk copies, clusters of two), an even number of multiprocessors, one for every
/// 16 rows of the hidden state, and a head_dim of 128.
///
/// # Errors
/// [`crate::Error::Device`].
pub fn kernel(device: &Device, config: &ModelConfig) -> Result<Option<Kernel>> {
    let blocks = device.multiprocessors;
    let fits = blocks.is_multiple_of(2) && config.hidden_size / pack::ROWS <= blocks;
    if device.capability != (9, 0) || !fits || config.head_dim != 128 {
        return Ok(None);
    }
    let [kernel] = device.kernels(["frame_1_128"])?;
    Ok(Some(kernel))
}

/// Shared memory of a launch.
#[derive(Clone, Copy, Debug)]
struct Room {
    slots: usize,
    round: usize,
    places: [u32; 5],
    bytes: usize,
}

impl Decoder {
    /// True when the persistent kernel runs passes of `columns` columns here.
    pub fn persists(&self, columns: usize) -> bool {
        columns == COLUMNS && self.functions.frame.is_some() && self.room().is_some()
    }

    /// True when it also does their scores and choices.
    pub fn persists_choice(&self, columns: usize) -> bool {
        let fits = self.blocks <= MOST_BLOCKS && self.head.count as usize <= MOST_HEAD_TILES * pack::ROWS;
        fits && self.persists(columns) && self.head.bf16 == 0 && !self.phase_head()
    }

    /// How a block's shared memory is divided; none where it is too small.
    fn room(&self) -> Option<Room> {
        let groups = self.shape.hidden as usize / GROUP;
        // The values of the MLP, which each warp rounds in place.
        let own = (self.buffers.inner.groups as usize).next_multiple_of(WARPS);
        let words = (WARPS * 1024).max(CHOICE_BYTES).max(own * GROUP * 4);
        let scales = (WARPS * 32).max(own * 8);
        let layers = (self.layers.len() * size_of::<kernels::Layer>()).next_multiple_of(16);
        // Every tile of a layer or of the head keeps its place until it is summed.
        let tiles = self.tiles.max((self.head.count as usize).div_ceil(pack::ROWS)).div_ceil(self.blocks);
        if tiles > MOST_TILES {
            return None;
        }
        let round = tiles.max(LEAST_ROUND);
        let tile_bytes = groups * COLUMNS * pack::ROWS * 4;
        let mut at = SHARED_BYTES;
        let places = [words, scales, layers, round * tile_bytes, 0].map(|bytes| {
            let place = at.next_multiple_of(128);
            at = place + bytes;
            place as u32
        });
        let ring = places[4] as usize;
        let slots = (self.shared_bytes.checked_sub(ring + BESIDE_BYTES)? / PACKET).min(MOST_SLOTS);
        (slots > self.tuning.packets).then_some(Room { slots, round, places, bytes: ring + slots * PACKET })
    }

    /// First tile of gate and up.
    pub(super) fn first_mlp_tile(&self) -> usize {
        let kernels::Shape { heads, kv_heads, head_dim, .. } = self.shape;
        ((2 * kv_heads + heads) * head_dim) as usize / pack::ROWS
    }

    /// One pass of one column through the layers, as [`Decoder::forward`].
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub(super) fn pass(&self, on: Queue<'_>) -> Result<()> {
        self.run_frame(on, Frame { steps: 1, last_pass: 1, ..self.frame })
    }

    /// `steps` times scores and a choice, with a pass between two of them.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn choices(&self, on: Queue<'_>, steps: usize) -> Result<()> {
        self.run_frame(on, Frame { steps: steps as i32, head: 1, ..self.frame })
    }

    fn run_frame(&self, on: Queue<'_>, frame: Frame) -> Result<()> {
        let (Some(kernel), Some(room)) = (&self.functions.frame, self.room()) else { return Ok(()) };
        // A third of down_proj begins before the last tiles of gate and up are finished. A packet has WARPS groups, a group 16 tiles.
        let early_packets = (self.buffers.inner.groups as usize).div_ceil(WARPS) / 3;
        let frame = Frame {
            columns: COLUMNS as i32,
            depth: self.tuning.packets as i32,
            slots: room.slots as i32,
            round: room.round as i32,
            early_packets: early_packets as i32,
            early_tiles: (self.first_mlp_tile() + early_packets * WARPS * WARPS).div_ceil(self.blocks) as i32,
            places: room.places,
            ..frame
        };
        let mut arguments = [
            pointer(&self.shape),
            pointer(&self.buffers),
            pointer(&frame),
            pointer(&self.head),
            pointer(&self.head_buffers),
        ];
        let launch = Launch { grid: [self.blocks, 1, 1], block: THREADS, shared: room.bytes, start: Start::Together };
        // SAFETY: the kernel of frame.cu takes these; the cooperative launch refuses a grid that is not resident.
        unsafe { on.launch(kernel, launch, &mut arguments) }
    }
}
