//! The tensors of the source model: every name with its shape.

use crate::config::ModelConfig;
use crate::format::layout::{PROJECTIONS, projection_name};

/// Tensors that a source may hold and nobody reads: the tied output head and rotary tables.
pub fn is_ignored(name: &str) -> bool {
    name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq")
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

/// Every tensor of the language model and its stop head, with its shape. `stop_inner` is the width inside the stop head,
/// which no configuration field gives.
pub fn model_tensors(config: &ModelConfig, stop_inner: usize) -> Vec<(String, Vec<usize>)> {
    let hidden = config.hidden_size;
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![config.vocab_size, hidden])];
    for layer in 0..config.num_layers() {
        tensors.push((projection_name(layer, "input_layernorm.weight"), vec![hidden]));
        for projection in PROJECTIONS {
            let name = projection_name(layer, projection) + ".weight";
            tensors.push((name, projection_shape(config, projection).to_vec()));
        }
    }
    tensors.push(("model.norm.weight".to_owned(), vec![hidden]));
    let stop = [
        ("0.weight", vec![hidden]),
        ("0.bias", vec![hidden]),
        ("1.weight", vec![stop_inner, hidden]),
        ("1.bias", vec![stop_inner]),
        ("3.weight", vec![1, stop_inner]),
        ("3.bias", vec![1]),
    ];
    tensors.extend(stop.map(|(name, shape)| (format!("stop_predictor.{name}"), shape)));
    tensors
}
