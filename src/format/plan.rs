//! The tensors of an export, in the order of the file (`docs/SPEC.md`, section 2).

use std::fmt;

use super::layout::{FORMAT, GROUP, PROJECTIONS, projection_name};
use crate::config::ModelConfig;
use crate::tensors::Dtype;
use crate::tensors::write::TensorSpec;

/// How the output head is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeadKind {
    /// As published: the rows of the embedding in bf16.
    #[default]
    Bf16,
    /// Half the size, one scale a row.
    Int8,
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            HeadKind::Bf16 => "bf16",
            HeadKind::Int8 => "int8",
        })
    }
}

/// The `__metadata__` of the weights file.
pub fn metadata(head: HeadKind) -> [(&'static str, &'static str); 2] {
    let head = match head {
        HeadKind::Bf16 => "bf16",
        HeadKind::Int8 => "int8",
    };
    [("format", FORMAT), ("head", head)]
}

/// Tensors of the stop head, without their prefix, in the order of the file.
pub const STOP_TENSORS: [&str; 6] = ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"];

/// Every tensor of an export.
///
/// `unchanged` gives dtype and shape of a source tensor that is copied as it is; `shape` the `[n, k]` of a projection.
pub fn export_tensors(
    config: &ModelConfig,
    head: HeadKind,
    unchanged: impl Fn(&str) -> (Dtype, Vec<usize>),
    shape: impl Fn(&str) -> [usize; 2],
) -> Vec<TensorSpec> {
    let (vocab, hidden, rows) = (config.vocab_size, config.hidden_size, config.audio_rows());
    let copy = |name: String| {
        let (dtype, shape) = unchanged(&name);
        TensorSpec { name, dtype, shape }
    };
    let mut tensors = vec![TensorSpec::new("model.embed_tokens.qweight", Dtype::I8, &[vocab, hidden])];
    for layer in 0..config.num_layers() {
        tensors.push(copy(projection_name(layer, "input_layernorm.weight")));
        for projection in PROJECTIONS {
            let (name, [n, k]) = (projection_name(layer, projection), shape(projection));
            tensors.push(TensorSpec::new(format!("{name}.qweight"), Dtype::U8, &[n, k / 2]));
            tensors.push(TensorSpec::new(format!("{name}.scale"), Dtype::F16, &[n, k / GROUP]));
            tensors.push(TensorSpec::new(format!("{name}.min"), Dtype::F16, &[n, k / GROUP]));
        }
    }
    tensors.push(copy("model.norm.weight".to_owned()));
    tensors.push(match head {
        HeadKind::Bf16 => TensorSpec::new("head.audio_weight", Dtype::BF16, &[rows, hidden]),
        HeadKind::Int8 => TensorSpec::new("head.audio_qweight", Dtype::I8, &[rows, hidden]),
    });
    tensors.push(TensorSpec::new("head.audio_ids", Dtype::I32, &[rows]));
    tensors.extend(STOP_TENSORS.map(|name| copy(format!("stop_predictor.{name}"))));
    tensors.push(TensorSpec::new("model.embed_tokens.scale", Dtype::F16, &[vocab]));
    if head == HeadKind::Int8 {
        tensors.push(TensorSpec::new("head.audio_scale", Dtype::F16, &[rows]));
    }
    tensors
}
