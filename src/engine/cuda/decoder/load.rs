//! Copying a model to the device: weights in the kernels' order, cache and working memory reserved.

use half::f16;

use super::super::Options;
use super::super::arena::Arena;
use super::super::device::{Device, Queue};
use super::super::kernels::{
    self, Address, Buffers, Column, Digits, Frame, FrameOut, Head, HeadBuffers, Sequence, Shape,
};
use super::{
    DEEP, Decoder, Functions, MAX_CHUNKS, MAX_COLUMNS, NARROW_COLUMNS, SHALLOW, SPAN, STATIC_BYTES, frame, limits,
    pack, warpgroups,
};
use crate::config::{LayerType, MIN_NEW_TOKENS, ModelConfig, STOP_THRESHOLD};
use crate::engine::cpu::plain;
use crate::engine::kv::KvShape;
use crate::engine::phase;
use crate::engine::tuning::Tuning;
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::format::{self, Export};

impl Decoder {
    /// Copies a model to the device and reserves everything for its slots and positions.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model the kernels do not cover or a card too small; [`Error::Input`] for slots or
    /// positions out of range; [`Error::Device`].
    pub fn load(on: Queue<'_>, export: &Export, options: &Options, tuning: Tuning) -> Result<Decoder> {
        let Options { slots, positions, phase_head, codec, .. } = *options;
        limits::check(export, slots, positions)?;
        let (device, config) = (on.device, &export.config);
        let positions = positions.next_multiple_of(SPAN);
        let kv = KvShape::new(config, slots, positions);
        limits::check_memory(device, export, kv, codec)?;
        let mut arena = Arena::new(on);
        let (layers, frame) = load_layers(&mut arena, export, kv)?;
        let head = load_head(&mut arena, export, phase_head)?;
        let x = arena.zeros((slots + MAX_COLUMNS) * config.hidden_size * 4)?;
        let buffers = buffers(&mut arena, config, x)?;
        let head_buffers = HeadBuffers {
            x,
            columns: buffers.columns,
            logits: arena.zeros(MAX_COLUMNS * config.audio_rows() * 4)?,
            stop: arena.zeros(MAX_COLUMNS * export.stop.inner * 4)?,
            normed: 0,
            sequences: arena.zeros(slots * size_of::<Sequence>())?,
            out: arena.zeros(MAX_COLUMNS * size_of::<FrameOut>())?,
        };
        let stop_input = arena.zeros(MAX_COLUMNS * config.hidden_size * 4)?;
        let deep = tuning.deep_rings;
        let mut decoder = Decoder {
            functions: functions(device, config, tuning)?,
            depth: if deep { DEEP } else { SHALLOW },
            tuning,
            shared_bytes: device.shared_bytes,
            shape: shape(config, positions),
            layers,
            buffers,
            head,
            head_buffers,
            stop_input,
            tiles: frame.tiles as usize,
            frame,
            blocks: device.multiprocessors,
            head_columns: NARROW_COLUMNS,
            memory: arena.into_memory(),
        };
        if decoder.scores_bytes(NARROW_COLUMNS) + STATIC_BYTES > device.shared_bytes {
            decoder.head_columns = NARROW_COLUMNS / 2;
        }
        Ok(decoder)
    }

    /// The same kernels of a device with another variant of them.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn find_kernels(&self, device: &Device, config: &ModelConfig) -> Result<Functions> {
        functions(device, config, self.tuning)
    }
}

fn shape(config: &ModelConfig, positions: usize) -> Shape {
    Shape {
        hidden: config.hidden_size as i32,
        intermediate: config.intermediate_size as i32,
        heads: config.num_attention_heads as i32,
        kv_heads: config.num_key_value_heads as i32,
        head_dim: config.head_dim as i32,
        positions: positions as i32,
        eps: config.layer_norm_eps,
        scale: 1.0 / (config.head_dim as f32).sqrt(),
    }
}

fn digits(arena: &mut Arena<'_>, k: usize) -> Result<Digits> {
    let tiles = warpgroups::MOST_TILES.max(MAX_COLUMNS / 4) * (k / GROUP);
    let (words, scales) = (arena.zeros(tiles * 1024)?, arena.zeros(tiles * 32)?);
    Ok(Digits { words, scales, groups: (k / GROUP) as i32, beside: 1 })
}

/// Working memory of the layers, around the residual stream `x`.
fn buffers(arena: &mut Arena<'_>, config: &ModelConfig, x: Address) -> Result<Buffers> {
    Ok(Buffers {
        x,
        q: arena.zeros(MAX_COLUMNS * config.query_size() * 4)?,
        mlp: arena.zeros(MAX_COLUMNS * config.intermediate_size * 4)?,
        hidden: digits(arena, config.hidden_size)?,
        attention: digits(arena, config.query_size())?,
        inner: digits(arena, config.intermediate_size)?,
        partial: arena.zeros(MAX_COLUMNS * config.query_size() * MAX_CHUNKS * 4)?,
        partial_ml: arena.zeros(MAX_COLUMNS * config.num_attention_heads * MAX_CHUNKS * 8)?,
        out_partial: arena.zeros(MAX_COLUMNS * 2 * warpgroups::OUT_SPLITS * config.hidden_size * 4)?,
        exchange: arena.zeros(warpgroups::FEW_COLUMNS * config.intermediate_size * 8)?,
        // Two counters, a line of memory apart (`UNITS_READY`).
        inner_ready: arena.zeros(2 * 32 * 4)?,
        mlp_arrivals: arena.zeros(config.intermediate_size / GROUP * 4)?,
        attention_arrivals: arena.zeros(MAX_COLUMNS * config.query_size() / GROUP * 4)?,
        columns: arena.zeros(MAX_COLUMNS * size_of::<Column>())?,
    })
}

/// The kernels for a model.
fn functions(device: &Device, config: &ModelConfig, tuning: Tuning) -> Result<Functions> {
    let attend = if config.head_dim == 128 { "attend_128" } else { "attend_64" };
    let narrow = match tuning.deep_rings {
        true => ["project_in_4_deep", "project_in_8_deep", "project_out_4_deep", "project_out_8_deep"],
        false => ["project_in_4", "project_in_8", "project_out_4", "project_out_8"],
    };
    let wide = ["project_in_wide", "round_columns", "project_out_wide"];
    let [in_4, in_8, out_4, out_8] = device.kernels(narrow)?;
    let [project_in_wide, round_columns, project_out_wide] = device.kernels(wide)?;
    let norm = device.kernels(["norm_few", "norm_columns"])?;
    let [attend, add_partial_sums, scores, choose] =
        device.kernels([attend, "add_partial_sums", "scores", "choose_token"])?;
    let frame = if tuning.persistent { frame::kernel(device, config)? } else { None };
    let warpgroups = if tuning.warpgroups { warpgroups::kernels(device, config)? } else { None };
    Ok(Functions {
        project_in: [in_4, in_8],
        project_out: [out_4, out_8],
        norm,
        project_in_wide,
        round_columns,
        project_out_wide,
        attend,
        add_partial_sums,
        scores,
        choose,
        frame,
        warpgroups,
    })
}

impl Decoder {
    /// Replaces the matrices of a layer by others of the same sizes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn replace_layer(&self, on: Queue<'_>, index: usize, layer: &format::Layer) -> Result<()> {
        write_layer(on, &self.layers[index], layer)
    }

    /// Replaces the rows of the head by others of the same kind and sizes.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn replace_head(&self, on: Queue<'_>, head: &format::Head) -> Result<()> {
        match head {
            format::Head::Bf16(tensor) => on.device.write::<u8>(on.stream, self.head.rows, &tensor.data),
            format::Head::Int8(matrix) => {
                let scales: Vec<f32> = matrix.scale.iter().map(|scale| scale.to_f32()).collect();
                on.device.write(on.stream, self.head.rows, &pack::int8(matrix, &pack::in_order(matrix.n)))?;
                on.device.write(on.stream, self.head.row_scale, &scales)
            }
        }
    }
}

fn write_layer(on: Queue<'_>, to: &kernels::Layer, layer: &format::Layer) -> Result<()> {
    on.device.write(on.stream, to.input, &input_tiles(layer))?;
    on.device.write(on.stream, to.output, &pack::int4_beside(&layer.down, &layer.o))
}

fn load_layers(arena: &mut Arena<'_>, export: &Export, kv: KvShape) -> Result<(Vec<kernels::Layer>, Frame)> {
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
            number: index as i32 + 1,
        };
        write_layer(arena.on, &this, layer)?;
        layers.push(this);
    }
    let frame = Frame {
        input,
        output,
        input_stride: input_bytes as u64,
        output_stride: output_bytes as u64,
        layers: arena.upload(&layers)?,
        counters: arena.zeros(9 * 32 * 4)?,
        maxima: arena.zeros(NARROW_COLUMNS * config.audio_rows().div_ceil(pack::ROWS) * 4)?,
        count: kv.layers as i32,
        tiles: (input_rows(config) / pack::ROWS) as i32,
        ..Frame::default()
    };
    Ok((layers, frame))
}

/// Rows of `project_in`: keys, values, queries, gate and up.
fn input_rows(config: &ModelConfig) -> usize {
    config.query_size() + 2 * config.key_value_size() + 2 * config.intermediate_size
}

/// Bytes of a layer's tiles for `project_in` and `project_out`.
fn layer_bytes(config: &ModelConfig) -> (usize, usize) {
    let columns = config.query_size() + config.intermediate_size;
    let tile = |rows: usize, columns: usize| rows / pack::ROWS * (columns / GROUP) * pack::INT4_TILE;
    (tile(input_rows(config), config.hidden_size), tile(config.hidden_size, columns))
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

/// The order of the head's rows in its tiles, and tiles a codebook: as they come, or a codebook after the other and `</audio>`
/// in a tile of its own.
fn head_rows(export: &Export, end_row: usize, phase_head: bool) -> (Vec<i32>, usize) {
    if !phase_head {
        return (pack::in_order(export.audio_ids.len()), 0);
    }
    let padded = |rows: &[u32]| -> Vec<i32> {
        let padding = rows.len().next_multiple_of(pack::ROWS) - rows.len();
        rows.iter().map(|&row| row as i32).chain(std::iter::repeat_n(-1, padding)).collect()
    };
    let codebooks = phase::rows_by_codebook(&export.config, &export.audio_ids);
    let rows = codebooks.iter().flat_map(|rows| padded(rows)).chain(padded(&[end_row as u32])).collect();
    (rows, export.config.codebook_size.div_ceil(pack::ROWS))
}

fn load_head(arena: &mut Arena<'_>, export: &Export, phase_head: bool) -> Result<Head> {
    let (config, stop) = (&export.config, &export.stop);
    let scales = |scales: &[f16]| scales.iter().map(|scale| scale.to_f32()).collect::<Vec<f32>>();
    let end_row = export.audio_ids.iter().position(|&id| id == config.audio_end_token_id);
    let end_row =
        end_row.ok_or_else(|| Error::invalid(&export.name, "head.audio_ids", "the id of </audio>", "none"))?;
    let (order, phase_tiles) = head_rows(export, end_row, phase_head);
    let (rows, row_scale, bf16) = match &export.head {
        format::Head::Bf16(tensor) => (arena.upload::<u8>(&tensor.data)?, 0, 1),
        format::Head::Int8(matrix) => {
            (arena.upload(&pack::int8(matrix, &order))?, arena.upload(&scales(&matrix.scale))?, 0)
        }
    };
    let embedding = &export.embedding;
    let gathered = export.audio_ids.iter().flat_map(|&id| embedding.row(id as usize)).collect::<Vec<i8>>();
    let gathered_scale: Vec<f32> = export.audio_ids.iter().map(|&id| embedding.scale[id as usize].to_f32()).collect();
    Ok(Head {
        rows,
        row_of: if phase_head { arena.upload(&order)? } else { 0 },
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
        phase_tiles: phase_tiles as i32,
        pad: 0,
    })
}
