//! The configurations of the presets.

use serde_json::{Value, json};

use super::weights::LOGIT_SCALE;

/// Sizes of a synthetic checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// A few MB, for tests.
    Tiny,
    /// The real model's sizes: 6.8 GB and a codec of 385 MB.
    Full,
}

impl Preset {
    /// Bytes of weights, about; for a progress bar.
    pub fn bytes(self) -> u64 {
        match self {
            Preset::Tiny => 7_000_000,
            Preset::Full => 7_145_000_000,
        }
    }

    /// Width inside the stop head.
    pub(super) fn stop_inner(self) -> usize {
        match self {
            Preset::Tiny => 64,
            Preset::Full => 512,
        }
    }
}

/// `config.json`.
pub(super) fn model(preset: Preset) -> Value {
    let (sizes, layers) = match preset {
        Preset::Tiny => (
            json!({
                "vocab_size": 1122, "hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 16, "max_position_embeddings": 1024,
                "codebook_size": 64, "first_unit_id": 600, "last_unit_id": 1111, "text_start_token_id": 1112,
                "audio_start_token_id": 1113, "audio_end_token_id": 1114,
            }),
            4,
        ),
        Preset::Full => (
            json!({
                "vocab_size": 277_404, "hidden_size": 2048, "intermediate_size": 11_008, "num_attention_heads": 16,
                "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 4096, "max_position_embeddings": 8192,
                "codebook_size": 2048, "first_unit_id": 261_008, "last_unit_id": 277_391, "text_start_token_id": 277_392,
                "audio_start_token_id": 277_393, "audio_end_token_id": 277_394,
            }),
            36,
        ),
    };
    let kinds: Vec<_> = (1..=layers).map(|n| if n % 4 == 0 { "full_attention" } else { "sliding_attention" }).collect();
    let common = json!({
        "architectures": ["RumikOSSForCausalLM"], "model_type": "rumik_oss", "dtype": "bfloat16", "hidden_act": "silu",
        "attention_bias": false, "num_hidden_layers": layers, "layer_types": kinds, "rope_theta": 10000.0,
        "rope_scaling": null, "logit_scale": LOGIT_SCALE, "layer_norm_eps": 1e-5, "num_quantizers": 8, "frame_rate_hz": 12.5,
        "bos_token_id": 2, "eos_token_id": 8, "pad_token_id": 0, "speakers": ["Ira", "Aisha", "Siya", "Zoya"],
    });
    merged(common, sizes)
}

/// `codec/config.json`.
pub(super) fn codec(preset: Preset) -> Value {
    let sizes = match preset {
        Preset::Tiny => json!({
            "hidden_size": 64, "num_filters": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128, "num_quantizers": 8, "codebook_size": 64,
            "codebook_dim": 16, "vector_quantization_hidden_dimension": 16, "upsample_groups": 64,
        }),
        Preset::Full => json!({
            "hidden_size": 512, "num_filters": 64, "num_hidden_layers": 8, "num_attention_heads": 8,
            "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2048, "num_quantizers": 32,
            "codebook_size": 2048, "codebook_dim": 256, "vector_quantization_hidden_dimension": 256, "upsample_groups": 512,
        }),
    };
    let common = json!({
        "architectures": ["MimiModel"], "model_type": "mimi", "sampling_rate": 24000, "frame_rate": 12.5,
        "audio_channels": 1, "upsampling_ratios": [8, 6, 5, 4], "kernel_size": 7, "last_kernel_size": 3,
        "residual_kernel_size": 3, "num_residual_layers": 1, "dilation_growth_rate": 2, "compress": 2,
        "num_semantic_quantizers": 1, "sliding_window": 250, "rope_theta": 10000.0, "norm_eps": 1e-5, "hidden_act": "gelu",
        "pad_mode": "constant", "trim_right_ratio": 1.0, "use_causal_conv": true, "use_conv_shortcut": false,
        "attention_bias": false, "layer_scale_initial_scale": 0.01, "max_position_embeddings": 8000,
    });
    merged(common, sizes)
}

/// `codec/preprocessor_config.json`.
pub(super) fn preprocessor() -> Value {
    json!({
        "feature_extractor_type": "EncodecFeatureExtractor", "feature_size": 1, "padding_side": "right",
        "padding_value": 0.0, "return_attention_mask": true, "sampling_rate": 24000,
    })
}

fn merged(mut into: Value, from: Value) -> Value {
    if let (Value::Object(into), Value::Object(from)) = (&mut into, from) {
        into.extend(from);
    }
    into
}
