//! The language model on the device: its weights, its cache, one pass of columns through the layers, the choice of tokens.

#![allow(unsafe_code)]

use std::ffi::c_void;

use half::f16;

use super::device::{Device, Kernel, Launch, Memory, Start, Stream};
use super::kernels::{self, Address, Buffers, Column, Digits, FrameOut, Head, HeadBuffers, Pass, Sequence, Shape};
use super::pack;
use crate::config::{LayerType, MIN_NEW_TOKENS, ModelConfig, STOP_THRESHOLD};
use crate::engine::cpu::plain;
use crate::engine::kv::KvShape;
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::format::{self, Export};

/// Columns of one pass at most: a prompt's positions, or slots.
pub const MAX_COLUMNS: usize = 64;
/// Columns up to which the narrow kernels run.
const NARROW_COLUMNS: usize = 8;
/// Threads of a matrix block, and its warps.
const THREADS: usize = 512;
const WARPS: usize = 16;
/// Shared memory for one tile in flight in every warp of a block.
const RING_STEP: usize = WARPS * pack::INT4_TILE;
/// Tiles in flight, `project_in` and `project_out`: everywhere, and where a block has `DEEP_SHARED_BYTES` of shared memory
/// (compute capability 8.0 and 9.0).
const SHALLOW: [usize; 2] = [3, 3];
const DEEP: [usize; 2] = [6, 7];
const DEEP_SHARED_BYTES: usize = 160 << 10;
/// Tiles in flight in the persistent kernel (`DEPTH` of layers.cu).
const PASS_DEPTH: usize = 3;
/// More than the fixed shared memory of the persistent kernel.
const PASS_FIXED_BYTES: usize = 32 << 10;
/// Threads of a block of the persistent kernel.
const PASS_THREADS: usize = 640;
/// Column tiles of a wide block (`WIDE_TILES` of layer.cu).
const WIDE_TILES: usize = 5;
/// Positions of the shortest attention split and the most splits (`STEP` and `MAX_CHUNKS` of layer.cuh).
const STEP: usize = 16;
const MAX_CHUNKS: usize = 32;
/// Most positions of a slot.
const MAX_POSITIONS: usize = 8192;
/// More than the fixed shared memory of `project_in` and `scores`.
const STATIC_BYTES: usize = 4 << 10;
/// Shared memory for the partial sums of the narrow `project_in`.
const PART_BYTES: usize = 48 << 10;

#[derive(Debug)]
struct Functions {
    project_in: [Kernel; 2],
    project_out: [Kernel; 2],
    norm_columns: Kernel,
    project_in_wide: Kernel,
    round_columns: Kernel,
    project_out_wide: Kernel,
    attend: Kernel,
    scores: Kernel,
    choose: Kernel,
    passes: Option<[Kernel; 2]>,
}

/// The language model on a device.
#[derive(Debug)]
pub struct Decoder {
    functions: Functions,
    shape: Shape,
    pub(super) layers: Vec<kernels::Layer>,
    pub(super) buffers: Buffers,
    head: Head,
    pub(super) head_buffers: HeadBuffers,
    pass: Pass,
    depth: [usize; 2],
    tiles: usize,
    blocks: usize,
    shared_bytes: usize,
    head_columns: usize,
    memory: Vec<Memory>,
}

/// Collects what is reserved.
struct Arena<'a> {
    device: &'a Device,
    stream: &'a Stream,
    memory: Vec<Memory>,
}

impl Arena<'_> {
    fn zeros(&mut self, bytes: usize) -> Result<Address> {
        self.keep(self.device.zeros(self.stream, bytes)?)
    }

    fn upload<T: super::device::Plain>(&mut self, values: &[T]) -> Result<Address> {
        self.keep(self.device.upload(self.stream, values)?)
    }

    fn keep(&mut self, memory: Memory) -> Result<Address> {
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    fn digits(&mut self, k: usize) -> Result<Digits> {
        let tiles = MAX_COLUMNS / 4 * (k / GROUP);
        Ok(Digits { words: self.zeros(tiles * 1024)?, scales: self.zeros(tiles * 32)?, groups: (k / GROUP) as i32 })
    }
}

/// Checks that the kernels cover a model's sizes.
fn check(export: &Export, slots: usize, positions: usize) -> Result<()> {
    let config = &export.config;
    let refuse = |why: String| {
        let what = format!("{}: a model of this size on a GPU", export.name);
        Err(Error::Unsupported { what, why })
    };
    if config.hidden_size > WARPS * GROUP {
        return refuse(format!("hidden_size {}; up to {} is supported", config.hidden_size, WARPS * GROUP));
    }
    let shared = config.num_attention_heads / config.num_key_value_heads;
    if !matches!(config.head_dim, 64 | 128) || !(shared * config.head_dim).is_multiple_of(GROUP) {
        let found = format!("head_dim {} with {shared} query heads a key/value head", config.head_dim);
        return refuse(format!("{found}; head_dim 128, or 64 with an even number of them, is supported"));
    }
    if config.num_quantizers > kernels::FRAME {
        return refuse(format!("num_quantizers {}; up to {} is supported", config.num_quantizers, kernels::FRAME));
    }
    if slots == 0 || slots > MAX_COLUMNS {
        return Err(Error::input("slots", format!("expected 1 to {MAX_COLUMNS}, found {slots}")));
    }
    if positions == 0 || positions > MAX_POSITIONS {
        return Err(Error::input("positions", format!("expected 1 to {MAX_POSITIONS}, found {positions}")));
    }
    Ok(())
}

/// Refuses a card that is too small before anything is copied to it.
fn check_memory(device: &Device, export: &Export, kv: KvShape) -> Result<()> {
    let config = &export.config;
    let int4 = |m: &format::Int4Matrix| m.n * m.k / 2 + m.n * m.k / GROUP * 4;
    let layer =
        |l: &format::Layer| [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].into_iter().map(int4).sum::<usize>();
    let weights: usize = export.layers.iter().map(layer).sum::<usize>()
        + config.audio_rows() * config.hidden_size * if matches!(export.head, format::Head::Bf16(_)) { 3 } else { 2 }
        + export.stop.up_weight.len() * 4;
    let codec = export.codec.as_ref().map_or(0, |codec| {
        let decoder = |name: &str| !name.starts_with("encoder") && !name.starts_with("downsample");
        let tensors = codec.weights.tensors().iter().filter(|(name, _)| decoder(name));
        tensors.map(|(_, tensor)| tensor.data.len()).sum()
    });
    let cache = kv.elements() * 4;
    let working = MAX_COLUMNS * config.query_size() * MAX_CHUNKS * 4 + (128 << 20);
    let needed = weights + codec + cache + working;
    let (free, total) = device.memory()?;
    if needed > free {
        let gb = |bytes: usize| format!("{:.2} GB", bytes as f64 / 1e9);
        return Err(Error::Unsupported {
            what: format!("{}: {}", device.name, export.name),
            why: format!(
                "it needs {} of GPU memory (weights {}, codec {}, cache {} for {} slots of {} positions, working memory \
                 {}) and {} of {} are free; take fewer slots or positions, or the CPU",
                gb(needed),
                gb(weights),
                gb(codec),
                gb(cache),
                kv.slots,
                kv.positions,
                gb(working),
                gb(free),
                gb(total)
            ),
        });
    }
    Ok(())
}

impl Decoder {
    /// Copies a model to the device and reserves everything for `slots` sequences of `positions`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model the kernels do not cover or a card too small; [`Error::Input`] for slots or
    /// positions out of range; [`Error::Device`].
    pub fn load(device: &Device, stream: &Stream, export: &Export, slots: usize, positions: usize) -> Result<Decoder> {
        check(export, slots, positions)?;
        let config = &export.config;
        let kv = KvShape::new(config, slots, positions);
        check_memory(device, export, kv)?;
        let mut arena = Arena { device, stream, memory: Vec::new() };
        let (layers, mut pass) = load_layers(&mut arena, export, kv)?;
        let head = load_head(&mut arena, export)?;
        let shape = Shape {
            hidden: config.hidden_size as i32,
            intermediate: config.intermediate_size as i32,
            heads: config.num_attention_heads as i32,
            kv_heads: config.num_key_value_heads as i32,
            head_dim: config.head_dim as i32,
            positions: positions as i32,
            eps: config.layer_norm_eps,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
        };
        let columns = arena.zeros(MAX_COLUMNS * size_of::<Column>())?;
        let x = arena.zeros((slots + MAX_COLUMNS) * config.hidden_size * 4)?;
        let buffers = Buffers {
            x,
            q: arena.zeros(MAX_COLUMNS * config.query_size() * 4)?,
            mlp: arena.zeros(MAX_COLUMNS * config.intermediate_size * 4)?,
            hidden: arena.digits(config.hidden_size)?,
            attention: arena.digits(config.query_size())?,
            inner: arena.digits(config.intermediate_size)?,
            partial: arena.zeros(MAX_COLUMNS * config.query_size() * MAX_CHUNKS * 4)?,
            partial_ml: arena.zeros(MAX_COLUMNS * config.num_attention_heads * MAX_CHUNKS * 8)?,
            mlp_arrivals: arena.zeros(config.intermediate_size / GROUP * 4)?,
            attention_arrivals: arena.zeros(MAX_COLUMNS * config.query_size() / GROUP * 4)?,
            columns,
        };
        let head_buffers = HeadBuffers {
            x,
            columns,
            logits: arena.zeros(MAX_COLUMNS * config.audio_rows() * 4)?,
            stop: arena.zeros(MAX_COLUMNS * export.stop.inner * 4)?,
            normed: 0,
            sequences: arena.zeros(slots * size_of::<Sequence>())?,
            out: arena.zeros(MAX_COLUMNS * size_of::<FrameOut>())?,
        };
        let attend = if config.head_dim == 128 { "attend_128" } else { "attend_64" };
        let deep = device.shared_bytes >= DEEP_SHARED_BYTES;
        let narrow = match deep {
            true => ["project_in_4_deep", "project_in_8_deep", "project_out_4_deep", "project_out_8_deep"],
            false => ["project_in_4", "project_in_8", "project_out_4", "project_out_8"],
        };
        let [in_4, in_8, out_4, out_8] = device.kernels(narrow)?;
        let [norm_columns, project_in_wide, round_columns, project_out_wide, attend, scores, choose] =
            device.kernels([
                "norm_columns",
                "project_in_wide",
                "round_columns",
                "project_out_wide",
                attend,
                "scores",
                "choose_token",
            ])?;
        let rows = config.query_size() + 2 * config.key_value_size() + 2 * config.intermediate_size;
        pass.tiles = (rows / pack::ROWS) as i32;
        let passes = match config.head_dim {
            _ if config.hidden_size / pack::ROWS > device.multiprocessors => None,
            128 => Some(device.kernels(["layers_1_128", "layers_2_128"])?),
            _ => Some(device.kernels(["layers_1_64", "layers_2_64"])?),
        };
        let mut decoder = Decoder {
            functions: Functions {
                project_in: [in_4, in_8],
                project_out: [out_4, out_8],
                norm_columns,
                project_in_wide,
                round_columns,
                project_out_wide,
                attend,
                scores,
                choose,
                passes,
            },
            pass,
            depth: if deep { DEEP } else { SHALLOW },
            shared_bytes: device.shared_bytes,
            shape,
            layers,
            buffers,
            head,
            head_buffers,
            tiles: rows / pack::ROWS,
            blocks: device.multiprocessors,
            head_columns: NARROW_COLUMNS,
            memory: arena.memory,
        };
        if decoder.scores_bytes(NARROW_COLUMNS) + STATIC_BYTES > device.shared_bytes {
            decoder.head_columns = NARROW_COLUMNS / 2;
        }
        Ok(decoder)
    }

    /// Masks the end for good; for measurements.
    pub fn never_end(&mut self) {
        self.head.min_new_tokens = i32::MAX;
    }

    /// Bytes reserved on the device.
    pub fn bytes(&self) -> usize {
        self.memory.iter().map(Memory::bytes).sum()
    }

    /// Weight bytes that `project_in` and `project_out` read a layer.
    pub fn layer_bytes(&self) -> (usize, usize) {
        (self.pass.input_stride as usize, self.pass.output_stride as usize)
    }

    /// Weight bytes that `scores` reads.
    pub fn head_bytes(&self) -> usize {
        let Head { bf16, count, hidden, inner, .. } = self.head;
        (count * hidden * (1 + bf16) + inner * hidden * 4) as usize
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

    /// Runs `columns` columns through all layers; their x rows must hold the input. `positions` bounds what any of them
    /// attends to, 0 when unknown (decoding).
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn forward(&self, device: &Device, stream: &Stream, columns: usize, positions: usize) -> Result<()> {
        match self.pass_bytes(columns) {
            Some(shared) if positions == 0 => self.run_pass(device, stream, columns, shared),
            _ => (0..self.layers.len()).try_for_each(|layer| self.layer(device, stream, layer, columns, positions)),
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

    fn run_pass(&self, device: &Device, stream: &Stream, columns: usize, shared: usize) -> Result<()> {
        let Some(kernels) = &self.functions.passes else { return Ok(()) };
        let pass = Pass { columns: columns as i32, ..self.pass };
        let mut arguments = [pointer(&self.shape), pointer(&self.buffers), pointer(&pass)];
        let launch = Launch { grid: [self.blocks, 1, 1], block: PASS_THREADS, shared, start: Start::Together };
        // SAFETY: the kernels of layers.cu take these; the cooperative launch refuses a grid that is not resident.
        unsafe { device.launch(stream, &kernels[usize::from(columns > 4)], launch, &mut arguments) }
    }

    /// Runs one layer; see [`Decoder::forward`].
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn layer(
        &self,
        device: &Device,
        stream: &Stream,
        layer: usize,
        columns: usize,
        positions: usize,
    ) -> Result<()> {
        self.project_in(device, stream, layer, columns)?;
        self.attend(device, stream, layer, columns, positions)?;
        self.project_out(device, stream, layer, columns)
    }

    /// LayerNorm, then queries, keys, values and the MLP's activation.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_in(&self, device: &Device, stream: &Stream, layer: usize, columns: usize) -> Result<()> {
        let groups = self.shape.hidden as usize / GROUP;
        let (columns_arg, tiles_arg) = (columns as i32, self.tiles as i32);
        if columns > NARROW_COLUMNS {
            let grid = [columns, 1, 1];
            self.launch(device, stream, &self.functions.norm_columns, layer, (grid, THREADS, 0), &[])?;
            let sizes = ([self.tiles.div_ceil(8), columns.div_ceil(4 * WIDE_TILES), 1], 128, 0);
            let more = [pointer(&columns_arg), pointer(&tiles_arg)];
            self.launch(device, stream, &self.functions.project_in_wide, layer, sizes, &more)?;
            let sizes = ([self.shape.intermediate as usize / GROUP, columns.div_ceil(4), 1], 128, 0);
            return self.launch(device, stream, &self.functions.round_columns, layer, sizes, &more[..1]);
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
        self.launch(device, stream, &self.functions.project_in[usize::from(columns > 4)], layer, sizes, &more)
    }

    /// Attention.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn attend(
        &self,
        device: &Device,
        stream: &Stream,
        layer: usize,
        columns: usize,
        positions: usize,
    ) -> Result<()> {
        let positions = if positions == 0 { self.shape.positions as usize } else { positions };
        let units = self.buffers.attention.groups as usize;
        let sizes = ([units.div_ceil(4), positions.div_ceil(STEP).min(MAX_CHUNKS), columns], 128, 0);
        self.launch(device, stream, &self.functions.attend, layer, sizes, &[])
    }

    /// o_proj and down_proj, added to the residual stream.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn project_out(&self, device: &Device, stream: &Stream, layer: usize, columns: usize) -> Result<()> {
        let row_tiles = self.shape.hidden as usize / pack::ROWS;
        let columns_arg = columns as i32;
        let (kernel, grid, shared) = if columns > NARROW_COLUMNS {
            let grid = [row_tiles.div_ceil(2), columns.div_ceil(4 * WIDE_TILES), 1];
            (&self.functions.project_out_wide, grid, 2 * 2 * WARPS * 4 * WIDE_TILES * pack::ROWS * 4)
        } else {
            (&self.functions.project_out[usize::from(columns > 4)], [row_tiles, 1, 1], self.depth[1] * RING_STEP)
        };
        self.launch(device, stream, kernel, layer, (grid, THREADS, shared), &[pointer(&columns_arg)])
    }

    /// Launches a kernel of layer.cu: `(grid, block, shared bytes)` and what it takes beside the structs.
    fn launch(
        &self,
        device: &Device,
        stream: &Stream,
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
        unsafe { device.launch(stream, kernel, launch, &mut arguments) }
    }

    fn scores_bytes(&self, columns: usize) -> usize {
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
    pub fn scores(&self, device: &Device, stream: &Stream, columns: usize, normed: Address) -> Result<()> {
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
            unsafe { device.launch(stream, &self.functions.scores, launch, &mut arguments)? };
        }
        Ok(())
    }

    /// Chooses the next token of `columns` columns from their scores.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn choose(&self, device: &Device, stream: &Stream, columns: usize) -> Result<()> {
        let mut arguments = [pointer(&self.head), pointer(&self.head_buffers)];
        let launch = Launch { grid: [columns, 1, 1], block: 1024, shared: 0, start: Start::Early };
        // SAFETY: `choose_token` takes these; buffers hold MAX_COLUMNS columns.
        unsafe { device.launch(stream, &self.functions.choose, launch, &mut arguments) }
    }
}

/// A launch argument: the driver copies the value during the launch, so `value` must be a variable that lives until then.
pub(super) fn pointer<T>(value: &T) -> *mut c_void {
    std::ptr::from_ref(value).cast_mut().cast()
}

fn load_layers(arena: &mut Arena<'_>, export: &Export, kv: KvShape) -> Result<(Vec<kernels::Layer>, Pass)> {
    let config = &export.config;
    let rope = plain::Rope::new(config.rope_theta, config.head_dim, kv.positions);
    let rope = arena.upload(&rope.table().iter().map(|&(cos, sin)| [cos, sin]).collect::<Vec<[f32; 2]>>())?;
    let per_layer = (kv.elements() / kv.layers * 2) as u64;
    let (keys, values) = (arena.zeros(kv.elements() * 2)?, arena.zeros(kv.elements() * 2)?);
    let (input_bytes, output_bytes) = layer_bytes(config);
    let (input, output) = (arena.zeros(kv.layers * input_bytes)?, arena.zeros(kv.layers * output_bytes)?);
    let mut layers = Vec::with_capacity(kv.layers);
    for (index, layer) in export.layers.iter().enumerate() {
        let sliding = config.layer_types[index] == LayerType::Sliding;
        let at = index as u64;
        let this = kernels::Layer {
            input: input + at * input_bytes as u64,
            output: output + at * output_bytes as u64,
            norm: arena.upload(&layer.norm)?,
            rope: if sliding { rope } else { 0 },
            keys: keys + at * per_layer,
            values: values + at * per_layer,
            window: if sliding { config.sliding_window as i32 } else { 0 },
        };
        arena.device.write(arena.stream, this.input, &input_tiles(layer))?;
        arena.device.write(arena.stream, this.output, &pack::int4_beside(&layer.down, &layer.o))?;
        layers.push(this);
    }
    let pass = Pass {
        input,
        output,
        input_stride: input_bytes as u64,
        output_stride: output_bytes as u64,
        layers: arena.upload(&layers)?,
        counters: arena.zeros(5 * 32 * 4)?,
        count: kv.layers as i32,
        ..Pass::default()
    };
    Ok((layers, pass))
}

/// Bytes of a layer's tiles for `project_in` and `project_out`.
fn layer_bytes(config: &ModelConfig) -> (usize, usize) {
    let rows = config.query_size() + 2 * config.key_value_size() + 2 * config.intermediate_size;
    let columns = config.query_size() + config.intermediate_size;
    let tile = |rows: usize, columns: usize| rows / pack::ROWS * (columns / GROUP) * pack::INT4_TILE;
    (tile(rows, config.hidden_size), tile(config.hidden_size, columns))
}

/// Keys, values, queries, then gate and up interleaved 8 and 8, so that a tile holds what belongs together.
fn input_tiles(layer: &format::Layer) -> Vec<u8> {
    let (k, v, q) = (layer.k.n, layer.v.n, layer.q.n);
    let row = |i: usize| {
        let (matrix, row) = match i {
            i if i < k => (&layer.k, i),
            i if i < k + v => (&layer.v, i - k),
            i if i < k + v + q => (&layer.q, i - k - v),
            i => {
                let (tile, within) = ((i - k - v - q) / 16, (i - k - v - q) % 16);
                (if within < 8 { &layer.gate } else { &layer.up }, tile * 8 + within % 8)
            }
        };
        pack::Row { matrix, row }
    };
    pack::int4_stack(k + v + q + 2 * layer.gate.n, layer.q.k / GROUP, row)
}

fn load_head(arena: &mut Arena<'_>, export: &Export) -> Result<Head> {
    let (config, stop) = (&export.config, &export.stop);
    let scales = |scales: &[f16]| scales.iter().map(|scale| scale.to_f32()).collect::<Vec<f32>>();
    let (rows, row_scale, bf16) = match &export.head {
        format::Head::Bf16(tensor) => (arena.upload::<u8>(&tensor.data)?, 0, 1),
        format::Head::Int8(matrix) => (arena.upload(&pack::int8(matrix))?, arena.upload(&scales(&matrix.scale))?, 0),
    };
    let embedding = &export.embedding;
    let gathered = export.audio_ids.iter().flat_map(|&id| embedding.row(id as usize)).collect::<Vec<i8>>();
    let gathered_scale: Vec<f32> = export.audio_ids.iter().map(|&id| embedding.scale[id as usize].to_f32()).collect();
    let end_row = export.audio_ids.iter().position(|&id| id == config.audio_end_token_id);
    let end_row =
        end_row.ok_or_else(|| Error::invalid(&export.name, "head.audio_ids", "the id of </audio>", "none"))?;
    Ok(Head {
        rows,
        row_scale,
        norm: arena.upload(&export.norm)?,
        stop_norm: arena.upload(&stop.norm_weight)?,
        stop_norm_bias: arena.upload(&stop.norm_bias)?,
        stop_up: arena.upload(&stop.up_weight)?,
        stop_up_bias: arena.upload(&stop.up_bias)?,
        stop_down: arena.upload(&stop.down_weight)?,
        embedding_scale: arena.upload(&gathered_scale)?,
        embedding: arena.upload(&gathered)?,
        ids: arena.upload(&export.audio_ids)?,
        stop_down_bias: stop.down_bias,
        logit_scale: config.logit_scale,
        eps: config.layer_norm_eps,
        bf16,
        count: export.audio_ids.len() as i32,
        hidden: config.hidden_size as i32,
        inner: stop.inner as i32,
        end_row: end_row as i32,
        first_unit: config.first_unit_id,
        quantizers: config.num_quantizers as i32,
        min_new_tokens: MIN_NEW_TOKENS as i32,
        stop_threshold: STOP_THRESHOLD,
    })
}
