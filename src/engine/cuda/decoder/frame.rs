//! The persistent kernel: a whole frame period, or one pass, in one launch.

#![allow(unsafe_code)]

use super::super::device::{Device, Kernel, Launch, Queue, Start, pointer};
use super::super::kernels::{self, Frame};
use super::{Decoder, NARROW_COLUMNS, WARPS, pack};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::format::layout::GROUP;

/// Warps that sum tiles (`FINISHERS` of frame.cu).
pub const FINISHERS: usize = 2;
/// Threads of a block.
const THREADS: usize = 768;
/// Bytes of a packet of the ring, and the most packets in it.
const PACKET: usize = WARPS * pack::INT4_TILE;
const MOST_SLOTS: usize = 12;
/// Tiles whose partial sums are kept.
const PARTS: usize = 4;
/// More than `sizeof(Choice)`.
const CHOICE_BYTES: usize = 8704;
/// Most columns of each kernel.
const KERNEL_COLUMNS: [usize; 3] = [1, 4, 8];

/// Index of the smallest kernel that takes so many columns.
fn kernel_for(columns: usize) -> usize {
    KERNEL_COLUMNS.iter().position(|&most| columns <= most).unwrap_or(KERNEL_COLUMNS.len() - 1)
}

/// The kernels for 1, up to 4 and up to 8 columns, where the device can run them: compute capability 9.0, and a multiprocessor
/// for every 16 rows of the hidden state.
///
/// # Errors
/// [`crate::Error::Device`].
pub fn kernels(device: &Device, config: &ModelConfig) -> Result<Option<[Kernel; 3]>> {
    if device.capability.0 < 9 || config.hidden_size / pack::ROWS > device.multiprocessors {
        return Ok(None);
    }
    let names = match config.head_dim {
        128 => ["frame_1_128", "frame_4_128", "frame_8_128"],
        _ => ["frame_4_64", "frame_4_64", "frame_8_64"],
    };
    device.kernels(names).map(Some)
}

/// Shared memory of a launch.
#[derive(Clone, Copy, Debug)]
struct Room {
    slots: usize,
    bytes: usize,
}

impl Decoder {
    /// True when the persistent kernel runs passes of `columns` columns here.
    pub fn persists(&self, columns: usize) -> bool {
        self.functions.frame.is_some() && self.room(columns).is_some()
    }

    /// True when it also does their scores and choices.
    pub fn persists_choice(&self, columns: usize) -> bool {
        self.persists(columns) && self.head.bf16 == 0 && !self.phase_head()
    }

    fn room(&self, columns: usize) -> Option<Room> {
        if columns > NARROW_COLUMNS {
            return None;
        }
        let (tiles, groups) = (columns.div_ceil(4), self.shape.hidden as usize / GROUP);
        let work = match (KERNEL_COLUMNS[kernel_for(columns)], self.shape.head_dim) {
            (1, 128) => 39936,
            (4, 128) => 46464,
            (_, 128) => 55168,
            (1 | 4, _) => 29056,
            _ => 37760,
        };
        let layers = (self.layers.len() * size_of::<kernels::Layer>()).next_multiple_of(16);
        let words = (tiles * WARPS * 1024).max(CHOICE_BYTES);
        let fixed = work + layers + words + tiles * WARPS * 32 + PARTS * groups * columns * pack::ROWS * 4 + 128;
        let slots = (self.shared_bytes.checked_sub(fixed)? / PACKET).min(MOST_SLOTS);
        (slots > self.tuning.packets).then_some(Room { slots, bytes: fixed + slots * PACKET })
    }

    /// One pass of `columns` columns through the layers, as [`Decoder::forward`].
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub(super) fn pass(&self, on: Queue<'_>, columns: usize) -> Result<()> {
        self.run_frame(on, columns, Frame { steps: 1, last_pass: 1, ..self.frame })
    }

    /// `steps` times scores and a choice, with a pass between two of them.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn choices(&self, on: Queue<'_>, columns: usize, steps: usize) -> Result<()> {
        self.run_frame(on, columns, Frame { steps: steps as i32, head: 1, ..self.frame })
    }

    fn run_frame(&self, on: Queue<'_>, columns: usize, frame: Frame) -> Result<()> {
        let (Some(kernels), Some(room)) = (&self.functions.frame, self.room(columns)) else { return Ok(()) };
        let down_packets = (self.buffers.inner.groups as usize).div_ceil(WARPS);
        let frame = Frame {
            columns: columns as i32,
            depth: self.tuning.packets as i32,
            slots: room.slots as i32,
            first_down: down_packets.saturating_sub(self.tuning.late_packets) as i32,
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
        // SAFETY: the kernels of frame.cu take these; the cooperative launch refuses a grid that is not resident.
        unsafe { on.launch(&kernels[kernel_for(columns)], launch, &mut arguments) }
    }
}
