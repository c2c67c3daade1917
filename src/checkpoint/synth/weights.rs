//! The language model's random weights.
//!
//! Every value is a function of (seed, tensor name, index), so threads do not matter. Standard deviations give attention scores
//! a spread of about 1.7, and a residual stream that grows to about 1 over all layers, a few dozen times the embedding, so that
//! a token does not simply predict itself.
//!
//! Columns 0..8 of the residual stream are reserved: no layer writes them, a unit token's embedding marks its quantizer
//! there, and the first eight neurons of the last MLP turn the mark of quantizer q into a strong one of q + 1. So units come
//! out round robin, as frames need them; which code of the quantizer is up to the random rest.

use half::bf16;
use rayon::prelude::*;

use crate::config::ModelConfig;
use crate::tensors::Dtype;

/// Norm of an embedding row outside the reserved columns.
const EMBEDDING_NORM: f32 = 0.9;
/// Standard deviation of the logits of codes.
const LOGIT_DEVIATION: f32 = 2.5;
/// What makes it so: `config.json` gets it.
pub(super) const LOGIT_SCALE: f32 = 2.78; // LOGIT_DEVIATION / EMBEDDING_NORM
const _: () =
    assert!(LOGIT_SCALE * EMBEDDING_NORM > LOGIT_DEVIATION && LOGIT_SCALE * EMBEDDING_NORM < 1.01 * LOGIT_DEVIATION);
/// Spread of attention scores before the softmax.
const SCORE_DEVIATION: f32 = 1.7;
/// A unit token's mark in its quantizer's column.
const MARK: f32 = 0.2;
/// The neurons that move the mark: the normed mark is about 0.2, so the gate is well open and the product about 8.
const MARK_GATE: f32 = 40.0;
const MARK_UP: f32 = 5.0;
const MARK_DOWN: f32 = 3.75;

/// Values of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    mean: f32,
    deviation: f32,
    marks: Marks,
}

/// What is different about the reserved columns.
#[derive(Clone, Debug)]
enum Marks {
    None,
    /// Writes the residual stream: the reserved rows are 0.
    Writer,
    /// The embedding: marks of unit tokens, from the first unit id, and of `<audio>`.
    Embedding {
        units: std::ops::Range<usize>,
        audio_start: usize,
        quantizers: usize,
    },
    /// A row of the last MLP that reads the mark, with its weight.
    Reader {
        weight: f32,
        quantizers: usize,
    },
    /// The last MLP's output: what writes the next quantizer's mark.
    LastDown {
        quantizers: usize,
    },
}

impl Fill {
    pub(super) fn normal(mean: f32, deviation: f32) -> Fill {
        Fill { mean, deviation, marks: Marks::None }
    }

    /// Changes what is different about row `row`.
    fn mark(&self, row: usize, values: &mut [f32]) {
        match self.marks {
            Marks::Writer if row < 8 => values.fill(0.0),
            Marks::Embedding { ref units, audio_start, quantizers } => {
                values[..quantizers].fill(0.0);
                if units.contains(&row) {
                    values[(row - units.start) % quantizers] = MARK;
                } else if row == audio_start {
                    values[quantizers - 1] = MARK; // so that quantizer 0 comes next
                }
            }
            Marks::Reader { weight, quantizers } if row < quantizers => {
                values.fill(0.0);
                values[row] = weight;
            }
            Marks::LastDown { quantizers } if row < quantizers => {
                values.fill(0.0);
                values[(row + quantizers - 1) % quantizers] = MARK_DOWN;
            }
            _ => {}
        }
    }
}

/// One tensor to be filled.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub name: String,
    pub shape: Vec<usize>,
    pub fill: Fill,
}

impl Weight {
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn rows(&self) -> usize {
        if self.shape.len() == 1 { 1 } else { self.shape[0] }
    }

    pub(super) fn columns(&self) -> usize {
        self.len() / self.rows()
    }

    /// The bytes of some rows.
    pub(super) fn bytes(&self, dtype: Dtype, seed: u64, rows: std::ops::Range<usize>) -> Vec<u8> {
        let (columns, width) = (self.columns(), dtype.bitsize() / 8);
        let key = self.name.bytes().fold(mix(seed), |key, byte| mix(key ^ u64::from(byte)));
        let mut bytes = vec![0; rows.len() * columns * width];
        bytes.par_chunks_mut(columns * width).enumerate().for_each_init(
            || vec![0f32; columns],
            |values, (i, out)| {
                let row = rows.start + i;
                normal(key, (row * columns) as u64, values);
                values.iter_mut().for_each(|v| *v = self.fill.mean + self.fill.deviation * *v);
                self.fill.mark(row, values);
                match dtype {
                    Dtype::BF16 => values.iter().zip(out.as_chunks_mut().0).for_each(|(v, o)| *o = round(*v)),
                    _ => values.iter().zip(out.as_chunks_mut().0).for_each(|(v, o)| *o = v.to_le_bytes()),
                }
            },
        );
        bytes
    }
}

fn round(value: f32) -> [u8; 2] {
    bf16::from_f32(value).to_le_bytes()
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit changes every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// About normal numbers of deviation 1 for the indices from `first`: sums of four uniform bytes, within ±3.5.
fn normal(key: u64, first: u64, out: &mut [f32]) {
    /// Deviation of the sum of four uniform bytes: sqrt(4 * (256² - 1) / 12).
    const DEVIATION: f32 = 147.8;
    let sum = |half: u32| half.to_le_bytes().into_iter().map(u32::from).sum::<u32>() as f32;
    for (value, index) in out.iter_mut().zip(first..) {
        let bits = mix(key ^ mix(index >> 1));
        let half = if index & 1 == 0 { bits as u32 } else { (bits >> 32) as u32 };
        *value = (sum(half) - 510.0) / DEVIATION;
    }
}

/// How a tensor of the language model is filled.
pub(super) fn model(config: &ModelConfig, name: String, shape: Vec<usize>) -> Weight {
    let root = |n: usize| 1.0 / (n as f32).sqrt();
    let (hidden, layers, quantizers) = (config.hidden_size, config.num_layers(), config.num_quantizers);
    let last = name.starts_with(&format!("model.layers.{}.", layers - 1));
    let branch = root(2 * layers); // two branches a layer add up to 1
    let (mean, deviation) = match name.as_str() {
        "model.embed_tokens.weight" => (0.0, EMBEDDING_NORM * root(hidden)),
        "stop_predictor.3.bias" => (-6.0, 0.0), // P(stop) stays near 0.0025
        _ if name.ends_with("norm.weight") || name == "stop_predictor.0.weight" => (1.0, 0.05),
        _ if name.ends_with(".bias") => (0.0, 0.02),
        _ if name.ends_with("q_proj.weight") || name.ends_with("k_proj.weight") => {
            (0.0, SCORE_DEVIATION.sqrt() * root(hidden))
        }
        _ if name.ends_with("o_proj.weight") => (0.0, 2.0 * branch * root(shape[1])), // averaging values halves them
        _ if name.ends_with("gate_proj.weight") => (0.0, 1.5 * root(hidden)),
        _ if name.ends_with("down_proj.weight") => (0.0, 1.3 * branch * root(shape[1])), // silu(gate) * up is about 0.8
        _ => (0.0, root(*shape.last().unwrap_or(&1))),
    };
    let marks = match name.as_str() {
        "model.embed_tokens.weight" => Marks::Embedding {
            units: config.first_unit_id as usize..config.last_unit_id as usize + 1,
            audio_start: config.audio_start_token_id as usize,
            quantizers,
        },
        _ if last && name.ends_with("gate_proj.weight") => Marks::Reader { weight: MARK_GATE, quantizers },
        _ if last && name.ends_with("up_proj.weight") => Marks::Reader { weight: MARK_UP, quantizers },
        _ if last && name.ends_with("down_proj.weight") => Marks::LastDown { quantizers },
        _ if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") => Marks::Writer,
        _ => Marks::None,
    };
    Weight { name, shape, fill: Fill { mean, deviation, marks } }
}
