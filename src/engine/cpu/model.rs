//! The forward pass: any positions of any sequences in one pass over the weights.
//!
//! ```text
//! h = LayerNorm(x)                                     x += attention(h) + mlp(h), in every layer
//! attention(h) = o( attend( rope(q h), cache ∪ rope(k h), cache ∪ v h ) )
//! mlp(h)       = down( silu(gate h) * up h )
//! hidden = LayerNorm(x);  logits = head(hidden) * logit_scale;  P(stop) = sigmoid(stop head(hidden))
//! ```
//!
//! Each column's arithmetic is the same whichever columns run beside it, so a prompt in one pass, a token at a time, or
//! among other sequences gives the same bits. Vectors of columns are `[columns, width]`; products come out as
//! `[rows, columns]`, so that a tile of rows is one piece of memory for one thread.

use rayon::prelude::*;

use super::kernels::Kernels;
use super::plain::{self, Order, Rope, Rounded};
use crate::config::LayerType;
use crate::engine::kv::KvCache;
use crate::error::{Error, Result};
use crate::format::{Export, Head, Int4Matrix, Layer};

/// Rows a thread takes at a time: 35 KB of codes at 2048 columns, so that tasks are many and stay in the cache for
/// further columns.
const TILE_ROWS: usize = 32;

/// Bytes of weights times columns below which a pass runs on the calling thread: waking another costs some 20 µs, in
/// which one core reads about this much.
const PARALLEL_BYTES: usize = 1 << 20;

/// Epsilon of the stop head's LayerNorm, which is not in `config.json`.
const STOP_EPS: f32 = 1e-5;

/// A position to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub slot: usize,
    pub position: usize,
    pub token: u32,
}

/// The weights and what runs them.
pub(super) struct Model {
    pub export: Export,
    kernels: &'static Kernels,
    rope: Rope,
    pool: rayon::ThreadPool,
    layer_bytes: usize,
}

impl Model {
    pub fn new(export: Export, kernels: &'static Kernels, positions: usize, threads: usize) -> Result<Model> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("engine-{i}"))
            .build()
            .map_err(|e| Error::input("threads", format!("cannot start {threads} threads: {e}")))?;
        let config = &export.config;
        let rope = Rope::new(config.rope_theta, config.head_dim, positions);
        let layer_bytes = export.layers.first().map(layer_bytes).unwrap_or(0);
        Ok(Model { kernels, rope, pool, layer_bytes, export })
    }

    /// Runs `work` inside the thread pool.
    pub fn in_pool<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.pool.install(work)
    }

    /// Runs columns through all layers and returns the residual streams, `[columns, hidden]`.
    ///
    /// Columns of one sequence come in order of position, and all positions before the first are in the cache.
    /// `observe` is called after each layer with its number and the residual streams.
    pub fn forward(&self, columns: &[Column], cache: &mut KvCache, observe: &mut dyn FnMut(usize, &[f32])) -> Vec<f32> {
        let hidden = self.export.config.hidden_size;
        let mut x = vec![0.0; columns.len() * hidden];
        for (x, column) in x.chunks_exact_mut(hidden).zip(columns) {
            plain::embedding_row(&self.export.embedding, column.token as usize, x);
        }
        let parallel = self.worth_waking(self.layer_bytes * columns.len());
        for layer in 0..self.export.layers.len() {
            match parallel {
                true => self.pool.install(|| self.layer(layer, columns, cache, &mut x, parallel)),
                false => self.layer(layer, columns, cache, &mut x, parallel),
            }
            observe(layer, &x);
        }
        x
    }

    fn worth_waking(&self, bytes: usize) -> bool {
        bytes >= PARALLEL_BYTES && self.pool.current_num_threads() > 1
    }

    fn layer(&self, index: usize, columns: &[Column], cache: &mut KvCache, x: &mut [f32], parallel: bool) {
        let config = &self.export.config;
        let layer = &self.export.layers[index];
        let b = columns.len();

        let normed = self.normed(x, &layer.norm);
        let parts = [&layer.q, &layer.k, &layer.v, &layer.gate, &layer.up];
        let fused = self.product(&parts, &self.rounded(&normed, layer.q.k, Order::Nibbles), parallel);
        let (qkv, gate_up) = fused.split_at((config.query_size() + 2 * config.key_value_size()) * b);

        let attended = self.attention(index, columns, cache, qkv, parallel);
        let attended = self.rounded(&attended, layer.o.k, Order::Nibbles);
        let attended = self.product(&[&layer.o], &attended, parallel);
        let activated = self.rounded(&self.gated(gate_up, b), layer.down.k, Order::Nibbles);
        let mlp = self.product(&[&layer.down], &activated, parallel);

        for (c, x) in x.chunks_exact_mut(config.hidden_size).enumerate() {
            for (i, x) in x.iter_mut().enumerate() {
                *x = (*x + attended[i * b + c]) + mlp[i * b + c];
            }
        }
    }

    /// LayerNorm of every column.
    fn normed(&self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
            self.kernels.layer_norm(x, weight, self.export.config.layer_norm_eps, out);
        }
        out
    }

    fn rounded(&self, x: &[f32], k: usize, order: Order) -> Rounded {
        let mut out = Rounded::zeros(k, x.len() / k, order);
        self.kernels.round(x, &mut out);
        out
    }

    fn product(&self, parts: &[&Int4Matrix], x: &Rounded, parallel: bool) -> Vec<f32> {
        let mut y = vec![0.0; parts.iter().map(|w| w.n).sum::<usize>() * x.columns];
        tiles(parallel, &mut y, TILE_ROWS * x.columns, |tile, y| {
            stacked_rows(self.kernels, parts, tile * TILE_ROWS, x, y);
        });
        y
    }

    /// Stores the keys and values of all columns, then attends. `qkv: [rows, columns]`; returns `[columns, query]`.
    fn attention(
        &self,
        layer: usize,
        columns: &[Column],
        cache: &mut KvCache,
        qkv: &[f32],
        parallel: bool,
    ) -> Vec<f32> {
        let config = &self.export.config;
        let sliding = config.layer_types[layer] == LayerType::Sliding;
        let (query, key, dim) = (config.query_size(), config.key_value_size(), config.head_dim);
        let b = columns.len();
        let mut queries = vec![0.0; b * query];
        for (c, column) in columns.iter().enumerate() {
            let gather = |first: usize, out: &mut [f32]| {
                out.iter_mut().enumerate().for_each(|(i, out)| *out = qkv[(first + i) * b + c]);
            };
            let (q, mut kv) = (&mut queries[c * query..(c + 1) * query], vec![0.0; 2 * key]);
            gather(0, q);
            gather(query, &mut kv);
            let (k, v) = kv.split_at_mut(key);
            if sliding {
                self.rope.rotate(q, column.position);
                self.rope.rotate(k, column.position);
            }
            cache.store(layer, column.slot, column.position, k, v);
        }

        let cache = &*cache;
        let mut out = vec![0.0; b * query];
        let group = query / config.num_key_value_heads;
        tiles(parallel, &mut out, group, |tile, out| {
            let (c, head) = (tile / config.num_key_value_heads, tile % config.num_key_value_heads);
            let Column { slot, position, .. } = columns[c];
            let oldest = if sliding { (position + 1).saturating_sub(config.sliding_window) } else { 0 };
            let run = cache.run(layer, slot, head, oldest..position + 1);
            self.kernels.attend(&queries[tile * group..][..group], run, dim, &mut Vec::new(), out);
        });
        out
    }

    /// `silu(gate) * up` of every column. `gate_up: [2 * width, columns]`; returns `[columns, width]`.
    fn gated(&self, gate_up: &[f32], b: usize) -> Vec<f32> {
        let (gate, up) = gate_up.split_at(gate_up.len() / 2);
        let width = gate.len() / b;
        let mut out = vec![0.0; gate.len()];
        for (c, out) in out.chunks_exact_mut(width).enumerate() {
            if b == 1 {
                self.kernels.silu_up(gate, up, out);
                continue;
            }
            let column = |of: &[f32]| of[c..].iter().step_by(b).copied().collect::<Vec<f32>>();
            self.kernels.silu_up(&column(gate), &column(up), out);
        }
        out
    }

    /// The last LayerNorm. `x`, result: `[columns, hidden]`.
    pub fn hidden(&self, x: &[f32]) -> Vec<f32> {
        self.normed(x, &self.export.norm)
    }

    /// Scaled logits of the audio rows. `hidden: [columns, hidden]`; returns `[columns, rows]`.
    pub fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        self.logits_of(&self.export.head, hidden)
    }

    /// The same of a head that holds some of the rows.
    pub fn logits_of(&self, head: &Head, hidden: &[f32]) -> Vec<f32> {
        let config = &self.export.config;
        let k = config.hidden_size;
        let b = hidden.len() / k;
        let rows = match head {
            Head::Int8(w) => w.n,
            Head::Bf16(w) => w.data.len() / (2 * k),
        };
        let mut y = vec![0.0; rows * b];
        match head {
            Head::Int8(w) => {
                let x = self.rounded(hidden, k, Order::Bytes);
                self.rows(w.codes.len() * b, &mut y, b, |first, y| self.kernels.int8_rows(w, first, &x, y));
            }
            Head::Bf16(w) => self.rows(w.data.len() * b, &mut y, b, |first, y| {
                let last = first + y.len() / b;
                self.kernels.bf16_rows(&w.data[first * 2 * k..last * 2 * k], hidden, k, y);
            }),
        }
        (0..b).flat_map(|c| y[c..].iter().step_by(b).map(|logit| logit * config.logit_scale)).collect()
    }

    /// P(stop) from one final hidden state, `[hidden]`.
    pub fn stop_probability(&self, hidden: &[f32]) -> f32 {
        let (stop, k) = (&self.export.stop, hidden.len());
        let mut x = vec![0.0; k];
        self.kernels.layer_norm(hidden, &stop.norm_weight, STOP_EPS, &mut x);
        x.iter_mut().zip(&stop.norm_bias).for_each(|(x, bias)| *x += bias);
        let mut inner = vec![0.0; stop.inner];
        self.rows(size_of_val(&*stop.up_weight), &mut inner, 1, |first, y| {
            self.kernels.f32_rows(&stop.up_weight[first * k..(first + y.len()) * k], &x, k, y);
        });
        for (value, bias) in inner.iter_mut().zip(&stop.up_bias) {
            *value = plain::gelu(*value + bias);
        }
        let logit = f64::from(plain::dot(&inner, &stop.down_weight)) + f64::from(stop.down_bias);
        (1.0 / (1.0 + (-logit).exp())) as f32
    }

    /// Calls `work(first row, rows of y)` for tiles of `y: [rows, columns]`, by several threads if `bytes` is worth it.
    fn rows(&self, bytes: usize, y: &mut [f32], columns: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
        let parallel = self.worth_waking(bytes);
        let work = |tile: usize, y: &mut [f32]| work(tile * TILE_ROWS, y);
        match parallel {
            true => self.pool.install(|| tiles(true, y, TILE_ROWS * columns, work)),
            false => tiles(false, y, TILE_ROWS * columns, work),
        }
    }
}

fn layer_bytes(layer: &Layer) -> usize {
    let matrices = [&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down];
    matrices.map(|w| w.codes.len()).iter().sum()
}

/// Calls `work(index, chunk)` for every chunk of `size` elements, by the threads of the current pool if `parallel`.
fn tiles(parallel: bool, y: &mut [f32], size: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    match parallel {
        true => y.par_chunks_mut(size).enumerate().for_each(|(i, chunk)| work(i, chunk)),
        false => y.chunks_mut(size).enumerate().for_each(|(i, chunk)| work(i, chunk)),
    }
}

/// Multiplies rows `first..` of matrices stacked on top of each other. `y: [rows, columns]`, within the stack.
pub fn stacked_rows(kernels: &Kernels, parts: &[&Int4Matrix], mut first: usize, x: &Rounded, mut y: &mut [f32]) {
    for w in parts {
        if first >= w.n {
            first -= w.n;
            continue;
        }
        let rows = (w.n - first).min(y.len() / x.columns);
        let (here, rest) = y.split_at_mut(rows * x.columns);
        kernels.int4_rows(w, first, x, here);
        (first, y) = (0, rest);
        if y.is_empty() {
            return;
        }
    }
}
