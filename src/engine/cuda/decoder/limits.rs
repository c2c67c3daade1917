//! What is refused before anything is copied: sizes the kernels do not cover, and cards too small.

use super::super::device::Device;
use super::super::kernels;
use super::{MAX_CHUNKS, MAX_COLUMNS, MAX_POSITIONS, WARPS};
use crate::engine::footprint::Footprint;
use crate::engine::kv::KvShape;
use crate::error::{Error, Result};
use crate::format::Export;
use crate::format::layout::GROUP;

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
pub fn check_memory(device: &Device, export: &Export, kv: KvShape, codec: bool) -> Result<()> {
    let working = MAX_COLUMNS * export.config.query_size() * MAX_CHUNKS * 4 + (128 << 20);
    let (free, total) = device.memory()?;
    Footprint::of(export, kv, codec, working).check(&device.name, &export.name, [free, total])
}
