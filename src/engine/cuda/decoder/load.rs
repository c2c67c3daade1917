//! Copying a model to the device: weights in the kernels' order, cache and working memory reserved.

use half::f16;

use super::super::arena::Arena;
use super::super::device::{Device, Queue};
use super::super::kernels::{
    self, Address, Buffers, Column, Digits, FrameOut, Head, HeadBuffers, Pass, Sequence, Shape,
};
use super::{
    DEEP, DEEP_SHARED_BYTES, Decoder, Functions, MAX_CHUNKS, MAX_COLUMNS, NARROW_COLUMNS, SHALLOW, STATIC_BYTES,
    limits, pack,
};
use crate::config::{LayerType, MIN_NEW_TOKENS, ModelConfig, STOP_THRESHOLD};
use crate::engine::cpu::plain;
use crate::engine::kv::KvShape;
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::format::{self, Export};

impl Decoder {
    /// Copies a model to the device and reserves everything for `slots` sequences of `positions`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model the kernels do not cover or a card too small; [`Error::Input`] for slots or
    /// positions out of range; [`Error::Device`].
    pub fn load(on: Queue<'_>, export: &Export, slots: usize, positions: usize) -> Result<Decoder> {
        limits::check(export, slots, positions)?;
        let (device, config) = (on.device, &export.config);
        let kv = KvShape::new(config, slots, positions);
        limits::check_memory(device, export, kv)?;
        let mut arena = Arena::new(on);
        let (layers, pass) = load_layers(&mut arena, export, kv)?;
        let head = load_head(&mut arena, export)?;
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
        let deep = device.shared_bytes >= DEEP_SHARED_BYTES;
        let mut decoder = Decoder {
            functions: functions(device, config, deep)?,
            depth: if deep { DEEP } else { SHALLOW },
            shared_bytes: device.shared_bytes,
            shape: shape(config, positions),
            layers,
            buffers,
            head,
            head_buffers,
            tiles: pass.tiles as usize,
            pass,
            blocks: device.multiprocessors,
            head_columns: NARROW_COLUMNS,
            memory: arena.into_memory(),
        };
        if decoder.scores_bytes(NARROW_COLUMNS) + STATIC_BYTES > device.shared_bytes {
            decoder.head_columns = NARROW_COLUMNS / 2;
        }
        Ok(decoder)
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
    let tiles = MAX_COLUMNS / 4 * (k / GROUP);
    Ok(Digits { words: arena.zeros(tiles * 1024)?, scales: arena.zeros(tiles * 32)?, groups: (k / GROUP) as i32 })
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
        mlp_arrivals: arena.zeros(config.intermediate_size / GROUP * 4)?,
        attention_arrivals: arena.zeros(MAX_COLUMNS * config.query_size() / GROUP * 4)?,
        columns: arena.zeros(MAX_COLUMNS * size_of::<Column>())?,
    })
}

/// The kernels for a model; `deep` ones have more tiles in flight.
fn functions(device: &Device, config: &ModelConfig, deep: bool) -> Result<Functions> {
    let attend = if config.head_dim == 128 { "attend_128" } else { "attend_64" };
    let narrow = match deep {
        true => ["project_in_4_deep", "project_in_8_deep", "project_out_4_deep", "project_out_8_deep"],
        false => ["project_in_4", "project_in_8", "project_out_4", "project_out_8"],
    };
    let wide = ["norm_columns", "project_in_wide", "round_columns", "project_out_wide"];
    let [in_4, in_8, out_4, out_8] = device.kernels(narrow)?;
    let [norm_columns, project_in_wide, round_columns, project_out_wide] = device.kernels(wide)?;
    let [attend, scores, choose] = device.kernels([attend, "scores", "choose_token"])?;
    let passes = match config.head_dim {
        _ if config.hidden_size / pack::ROWS > device.multiprocessors => None,
        128 => Some(device.kernels(["layers_1_128", "layers_2_128"])?),
        _ => Some(device.kernels(["layers_1_64", "layers_2_64"])?),
    };
    Ok(Functions {
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
                on.device.write(on.stream, self.head.rows, &pack::int8(matrix))?;
                on.device.write(on.stream, self.head.row_scale, &scales)
            }
        }
    }
}

fn write_layer(on: Queue<'_>, to: &kernels::Layer, layer: &format::Layer) -> Result<()> {
    on.device.write(on.stream, to.input, &input_tiles(layer))?;
    on.device.write(on.stream, to.output, &pack::int4_beside(&layer.down, &layer.o))
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
        write_layer(arena.on, &this, layer)?;
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
        tiles: (input_rows(config) / pack::ROWS) as i32,
        ..Pass::default()
    };
    Ok((layers, pass))
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
