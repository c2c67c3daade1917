//! What is refused before anything is copied: sizes the kernels do not cover, and cards too small.

use super::super::device::Device;
use super::super::kernels;
use super::{MAX_CHUNKS, MAX_COLUMNS, MAX_POSITIONS, WARPS};
use crate::engine::kv::KvShape;
use crate::error::{Error, Result};
use crate::format::layout::GROUP;
use crate::format::{self, Export};

/// Checks that the kernels cover a model's sizes.
pub fn check(export: &Export, slots: usize, positions: usize) -> Result<()> {
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
pub fn check_memory(device: &Device, export: &Export, kv: KvShape) -> Result<()> {
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
