//! The streaming Mimi decoder on the device: one frame of many streams, as a fixed list of launches.
//!
//! Meaning: `engine::mimi`. The streams' state is what `engine::mimi::State` holds: past rows of every convolution, the ring
//! of keys and values, the position.

#![allow(unsafe_code)]

mod build;

use std::ffi::c_void;

use build::Builder;

use super::arena::Arena;
use super::decoder::Decoder;
use super::device::{Kernel, Launch, Memory, Plain, Queue, Start, pointer};
use super::kernels::{Address, Column, FrameOut};
use crate::config::CodecConfig;
use crate::error::{Error, Result};
use crate::format;

/// Positions of the transformer per frame.
const UPSAMPLING: usize = 2;
/// Threads of a block (`CODEC_THREADS` of codec.cu), and its warps.
const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// Rows of a block of `few_rows`, for one stream and for several, and the floats of each that it holds (`CHUNK`).
const FEW_ROWS: [usize; 2] = [2, 8];
const CHUNK: usize = 2048;
/// Outputs of a warp of `few_rows` at a time, likewise, and the most blocks that share some rows: with several streams, more would hold up the model.
const FEW_OUTPUTS: [usize; 2] = [1, 4];
const MOST_BLOCKS: [usize; 2] = [usize::MAX, 64];
/// Rows and outputs of a block of `many_rows`, likewise.
const MANY_ROWS: [usize; 2] = [4, 8];
const MANY_OUTPUTS: [usize; 2] = [WARPS * 4, WARPS * 8];
/// Positions that `attend_ring` holds at once, twice (`SPAN`).
const SPAN: usize = 32;
/// Shared memory of a block that decodes one stream, with Mimi's sizes: what the persistent kernel leaves to one beside it. A larger one waits
/// for the kernel's end.
pub(super) const BLOCK_BYTES: usize = 20 << 10;
/// More than the fixed shared memory of a kernel.
const STATIC_BYTES: usize = 64;
/// Frames of a stream for which there are rotations at least.
pub(super) const LEAST_FRAMES: usize = 64;
/// Blocks of the kernels that only move values.
const MOVERS: usize = 16;

/// `Streams` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Streams {
    columns: Address,
    out: Address,
    position: Address,
}

/// `Rows` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Rows {
    w: Address,
    bias: Address,
    past: Address,
    x: Address,
    y: Address,
    elu: Address,
    residual: Address,
    scale: Address,
    norm: Address,
    norm_bias: Address,
    t: i32,
    n: i32,
    k: i32,
    stride: i32,
    kept: i32,
    new_size: i32,
    finish: i32,
    eps: f32,
}

/// `Carry` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Carry {
    past: Address,
    x: Address,
    kept: i32,
    new_size: i32,
}

const _: () = assert!(size_of::<Streams>() == 24 && size_of::<Rows>() == 112 && size_of::<Carry>() == 24);

// SAFETY: a repr(C) struct of integers.
unsafe impl Plain for Carry {}
// SAFETY: any bits are a value.
unsafe impl Plain for i32 {}

const STORE: i32 = 0;
const ADD: i32 = 1;
const ADD_SCALED: i32 = 2;
const GELU: i32 = 3;

#[derive(Clone, Copy, Debug)]
struct Attend {
    qkv: Address,
    keys: Address,
    values: Address,
    y: Address,
    rope: Address,
}

#[derive(Debug)]
enum Step {
    LookUp { codebooks: Address, y: Address },
    Rows(Box<Rows>),
    Upsample { filter: Address, past: Address, x: Address, y: Address },
    Attend(Attend),
}

/// The codec on a device.
#[derive(Debug)]
pub struct Codec {
    config: CodecConfig,
    quantizers: usize,
    frames: usize,
    steps: Vec<Step>,
    carries: Address,
    carry_count: usize,
    /// State that a reset clears: addresses and bytes a slot.
    past: Vec<(Address, usize)>,
    streams: Streams,
    pcm: Address,
    take: Kernel,
    few_rows: [Kernel; 2],
    many_rows: [Kernel; 2],
    look_up: Kernel,
    upsample: Kernel,
    attend: Kernel,
    carry: Kernel,
    memory: Vec<Memory>,
}

/// Positions the ring of keys and values holds: all that the newest of a frame's positions and the oldest one see.
fn ring_rows(config: &CodecConfig) -> usize {
    (config.sliding_window + UPSAMPLING - 1).next_multiple_of(4)
}

impl Step {
    /// Dynamic shared memory of a block, for one stream or several.
    fn shared_bytes(&self, config: &CodecConfig, several: bool) -> usize {
        let index = usize::from(several);
        let floats = match self {
            Step::Rows(rows) if rows.t as usize <= UPSAMPLING => FEW_ROWS[index] * (rows.k as usize).min(CHUNK),
            Step::Rows(rows) => (MANY_ROWS[index] - 1) * rows.stride as usize + rows.k as usize,
            Step::Attend(_) => UPSAMPLING * (ring_rows(config) + config.head_dim) + 2 * SPAN * (config.head_dim + 4),
            Step::LookUp { .. } | Step::Upsample { .. } => 0,
        };
        floats * size_of::<f32>()
    }
}

/// Cosines and sines of the transformer's positions, `[positions, head_dim / 2]`.
fn rope(config: &CodecConfig, positions: usize) -> Vec<[f32; 2]> {
    let half = config.head_dim / 2;
    let frequency = |j: usize| config.rope_theta.powf(-2.0 * j as f64 / config.head_dim as f64);
    let turn = |i: usize| {
        let (sine, cosine) = ((i / half) as f64 * frequency(i % half)).sin_cos();
        [cosine as f32, sine as f32]
    };
    (0..positions * half).map(turn).collect()
}

/// Checks that the kernels cover a codec.
fn check(codec: &format::Codec, model: &crate::config::ModelConfig) -> Result<()> {
    let config = &codec.config;
    let refuse =
        |why: String| Err(Error::Unsupported { what: format!("{}: this codec on a GPU", codec.weights.place()), why });
    if config.num_residual_layers > 1 && config.dilation_growth_rate > 1 {
        return refuse("dilated convolutions are not implemented".into());
    }
    if !config.head_dim.is_multiple_of(4) || 128 % config.head_dim != 0 {
        return refuse(format!("head_dim {}; a divisor of 128 from 4 up is supported", config.head_dim));
    }
    if config.hidden_size > CHUNK {
        return refuse(format!("hidden_size {}; up to {CHUNK} is supported", config.hidden_size));
    }
    let narrowest = config.num_filters / config.compress;
    if !narrowest.is_multiple_of(4) || !config.num_filters.is_multiple_of(4) || !config.codebook_dim.is_multiple_of(2) {
        return refuse(format!("{narrowest} channels in the narrowest convolution; multiples of 4 are supported"));
    }
    if !config.hidden_size.is_multiple_of(4) || !config.intermediate_size.is_multiple_of(4) {
        let found = format!("hidden_size {} and intermediate_size {}", config.hidden_size, config.intermediate_size);
        return refuse(format!("{found}; multiples of 4 are supported"));
    }
    if model.codebook_size > config.codebook_size || model.num_quantizers > config.num_quantizers {
        let found = format!("{} codebooks of {}", config.num_quantizers, config.codebook_size);
        return refuse(format!("{found}; the model makes {} of {}", model.num_quantizers, model.codebook_size));
    }
    Ok(())
}

impl Codec {
    /// Copies the decoder half to the device and reserves the state of `slots` streams of at most `frames` frames.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a codec the kernels do not cover; [`Error::Invalid`] naming a tensor; [`Error::Device`].
    pub fn load(
        on: Queue<'_>,
        codec: &format::Codec,
        model: &crate::config::ModelConfig,
        slots: usize,
        frames: usize,
    ) -> Result<Codec> {
        check(codec, model)?;
        let config = codec.config.clone();
        let mut build =
            Builder { arena: Arena::new(on), file: &codec.weights, slots, steps: Vec::new(), carries: Vec::new() };
        let frames = frames.max(LEAST_FRAMES);
        let rope = rope(&config, frames * UPSAMPLING);
        let rope = build.arena.upload(&rope)?;
        let mut x = build.quantizer(&config, model.num_quantizers)?;
        x = build.upsample(&config, x)?;
        for layer in 0..config.num_hidden_layers {
            x = build.transformer_layer(&config, layer, rope, x)?;
        }
        let pcm = build.seanet(&config, x)?;
        let most = build.steps.iter().map(|step| step.shared_bytes(&config, slots > 1)).max().unwrap_or(0);
        if most + STATIC_BYTES > on.device.shared_bytes {
            let why = format!("its codec wants {most} bytes of shared memory, a block has {}", on.device.shared_bytes);
            return Err(Error::Unsupported { what: on.device.name.clone(), why });
        }
        let position = build.arena.upload(&vec![0i32; slots])?;
        let columns = build.arena.upload(&vec![Column::default(); slots])?;
        let out = build.arena.upload(&vec![FrameOut::default(); slots])?;
        let carries = build.carries.clone();
        let carry_address = build.arena.upload(&carries)?;
        let [take, few_2, few_8, many_4, many_8, look_up, upsample, attend, carry] = on.device.kernels([
            "take_frame",
            "few_rows_2",
            "few_rows_8",
            "many_rows_4",
            "many_rows_8",
            "look_up",
            "upsample",
            "attend_ring",
            "carry",
        ])?;
        Ok(Codec {
            quantizers: model.num_quantizers,
            frames,
            carry_count: carries.len(),
            past: carries.iter().map(|carry| (carry.past, carry.kept as usize * 4)).collect(),
            steps: build.steps,
            carries: carry_address,
            streams: Streams { columns, out, position },
            pcm: pcm.at,
            take,
            few_rows: [few_2, few_8],
            many_rows: [many_4, many_8],
            look_up,
            upsample,
            attend,
            carry,
            memory: build.arena.into_memory(),
            config,
        })
    }

    /// Bytes reserved on the device.
    pub fn bytes(&self) -> usize {
        self.memory.iter().map(Memory::bytes).sum()
    }

    /// Samples a frame.
    pub fn samples_per_frame(&self) -> usize {
        self.config.samples_per_frame()
    }

    /// Address of the samples, `[columns, samples_per_frame]` f32; a column without a frame keeps older ones.
    pub fn pcm(&self) -> Address {
        self.pcm
    }

    /// Makes a slot's stream new.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn reset(&self, on: Queue<'_>, slot: usize) -> Result<()> {
        for &(past, bytes) in &self.past {
            on.device.fill(on.stream, past + (slot * bytes) as u64, 0, bytes)?;
        }
        on.device.fill(on.stream, self.streams.position + slot as u64 * 4, 0, 4)
    }

    /// For measurements: a slot's stream has had as many frames as its attention sees, or fewer if [`LEAST_FRAMES`] would not follow.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn grow_old(&self, on: Queue<'_>, slot: usize) -> Result<()> {
        let frames = self.config.sliding_window.div_ceil(UPSAMPLING).min(self.frames - LEAST_FRAMES);
        let position = (frames * UPSAMPLING) as i32;
        on.device.write(on.stream, self.streams.position + slot as u64 * 4, &[position])
    }

    /// Copies the decoder's columns and what they completed, for [`Codec::frame`]; they may change afterwards.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn take(&self, on: Queue<'_>, columns: usize, decoder: &Decoder) -> Result<()> {
        let (from, out) = (decoder.columns(), decoder.out());
        let arguments = [pointer(&self.streams), pointer(&from), pointer(&out)];
        self.launch(on, &self.take, [columns, 1, 1], 0, &arguments, Start::InOrder)
    }

    /// Decodes the frame that each of `columns` columns completed, if it did, as [`Codec::take`] found them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn frame(&self, on: Queue<'_>, columns: usize) -> Result<()> {
        // What begins early and waits takes its room from the model's kernels, which several columns need.
        let early = if columns == 1 { Start::Early } else { Start::InOrder };
        for (index, step) in self.steps.iter().enumerate() {
            let start = if index == 0 { Start::InOrder } else { early };
            self.run(on, step, columns, start)?;
        }
        let (count, t) = (self.carry_count as i32, UPSAMPLING as i32);
        let most = self.past.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let arguments = [pointer(&self.streams), pointer(&self.carries), pointer(&count), pointer(&t)];
        self.launch(on, &self.carry, [self.carry_count + 1, columns, 1], most, &arguments, early)
    }

    fn launch(
        &self,
        on: Queue<'_>,
        kernel: &Kernel,
        grid: [usize; 3],
        shared: usize,
        arguments: &[*mut c_void],
        start: Start,
    ) -> Result<()> {
        // SAFETY: callers pass what the kernels of codec.cu take; the builder sized every buffer for `slots` columns.
        unsafe { on.launch(kernel, Launch { grid, block: THREADS, shared, start }, &mut arguments.to_vec()) }
    }

    fn run(&self, on: Queue<'_>, step: &Step, columns: usize, start: Start) -> Result<()> {
        let config = &self.config;
        let (channels, stride) = (config.hidden_size as i32, UPSAMPLING as i32);
        let shared = step.shared_bytes(config, columns > 1);
        match step {
            Step::LookUp { codebooks, y } => {
                let sizes =
                    [self.quantizers, config.num_semantic_quantizers, config.codebook_size, config.codebook_dim];
                let [q, semantic, codes, dim] = sizes.map(|n| n as i32);
                let arguments = [
                    pointer(&self.streams),
                    pointer(codebooks),
                    pointer(y),
                    pointer(&q),
                    pointer(&semantic),
                    pointer(&codes),
                    pointer(&dim),
                ];
                self.launch(on, &self.look_up, [MOVERS, columns, 1], 0, &arguments, start)
            }
            Step::Upsample { filter, past, x, y } => {
                let arguments = [
                    pointer(&self.streams),
                    pointer(filter),
                    pointer(past),
                    pointer(x),
                    pointer(y),
                    pointer(&channels),
                    pointer(&stride),
                ];
                self.launch(on, &self.upsample, [MOVERS, columns, 1], 0, &arguments, start)
            }
            Step::Attend(Attend { qkv, keys, values, y, rope }) => {
                let (heads, dim, window) = (config.num_attention_heads, config.head_dim, config.sliding_window);
                let rows = ring_rows(config);
                let [heads_arg, dim_arg, ring, window_arg] = [heads, dim, rows, window].map(|n| n as i32);
                let arguments = [
                    pointer(&self.streams),
                    pointer(qkv),
                    pointer(keys),
                    pointer(values),
                    pointer(y),
                    pointer(rope),
                    pointer(&heads_arg),
                    pointer(&dim_arg),
                    pointer(&ring),
                    pointer(&window_arg),
                ];
                self.launch(on, &self.attend, [heads, columns, 1], shared, &arguments, start)
            }
            Step::Rows(rows) => {
                let (t, n) = (rows.t as usize, rows.n as usize);
                let columns_arg = columns as i32;
                let arguments = [pointer(&self.streams), pointer(&**rows), pointer(&columns_arg)];
                let index = usize::from(columns > 1);
                if t <= UPSAMPLING {
                    // A warp makes all of its outputs or none; one at a time divides any number of them.
                    let index = if n.is_multiple_of(FEW_OUTPUTS[index]) { index } else { 0 };
                    let blocks = n.div_ceil(WARPS * FEW_OUTPUTS[index]).min(MOST_BLOCKS[index]);
                    let grid = [blocks, (columns * t).div_ceil(FEW_ROWS[index]), 1];
                    return self.launch(on, &self.few_rows[index], grid, shared, &arguments, start);
                }
                let r = MANY_ROWS[index];
                let grid = [n.div_ceil(MANY_OUTPUTS[index]), t.div_ceil(r), columns];
                self.launch(on, &self.many_rows[index], grid, shared, &arguments[..2], start)
            }
        }
    }
}

// STORE is what `Rows::default()` asks for.
const _: () = assert!(STORE == 0);
