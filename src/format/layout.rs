//! Constants of the export format `rumik-int4-g128-minmax-v1`; `docs/SPEC.md` describes every byte.

use crate::config::ModelConfig;

/// Name of the format, as `export.json` and the file's metadata write it.
pub const FORMAT: &str = "rumik-int4-g128-minmax-v1";
/// Columns that share a scale and a minimum.
pub const GROUP: usize = 128;
/// Largest int4 code.
pub const MAX_CODE: u8 = 15;
/// File name of the weights.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// File name of the report.
pub const REPORT_FILE: &str = "export.json";
/// File name of the gate's record.
pub const RECORD_FILE: &str = "verify.json";
/// File name of a reference that an export carries.
pub const REFERENCE_FILE: &str = "reference.safetensors";

/// The seven int4 matrices of a layer, in the order they are written.
pub const PROJECTIONS: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// `model.layers.{layer}.{projection}`, to which `.qweight`, `.scale`, `.min` (export) or `.weight` (source) is added.
pub fn projection_name(layer: usize, projection: &str) -> String {
    format!("model.layers.{layer}.{projection}")
}

/// Shape `[n, k]` of a projection of [`PROJECTIONS`].
pub fn projection_shape(config: &ModelConfig, projection: &str) -> [usize; 2] {
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    match projection {
        "self_attn.q_proj" => [config.query_size(), hidden],
        "self_attn.k_proj" | "self_attn.v_proj" => [config.key_value_size(), hidden],
        "self_attn.o_proj" => [hidden, config.query_size()],
        "mlp.down_proj" => [hidden, wide],
        _ => [wide, hidden],
    }
}
