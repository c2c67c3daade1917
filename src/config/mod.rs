//! What `config.json` and `codec/config.json` say, read once and checked once.
//!
//! Both the source checkpoint and the export carry the same files, so their meaning lives here, below both. Every number
//! the program needs is read from the file; none is assumed from the published model.

mod codec;
mod fields;

use serde_json::Value;

pub use codec::CodecConfig;
use fields::Fields;

use crate::error::Result;

/// Steps before the end of speech may be chosen (model card, "Generation").
pub const MIN_NEW_TOKENS: usize = 8;
/// Cap on new tokens of the model's own defaults, which the release gate keeps to: 20.5 s of speech.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 2048;
/// Cap on new tokens of any chunk: 30.7 s, the length of the longest training utterances.
pub const LARGEST_MAX_NEW_TOKENS: usize = 3072;
/// P(stop) above which the end of speech is forced.
pub const STOP_THRESHOLD: f32 = 0.5;

/// How a layer's attention sees the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerType {
    /// RoPE, and the last `sliding_window` positions, the position itself included.
    Sliding,
    /// No position encoding, all positions.
    Full,
}

/// The language model: Cohere2 with a stop head. Field names are those of `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Rows of the embedding, text and audio together.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads; each serves `num_attention_heads / num_key_value_heads` query heads.
    pub num_key_value_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Positions a sliding layer sees, the newest included.
    pub sliding_window: usize,
    /// One entry a layer.
    pub layer_types: Vec<LayerType>,
    /// Positions the model was trained for, prompt and audio together.
    pub max_position_embeddings: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Epsilon of every LayerNorm of the backbone.
    pub layer_norm_eps: f32,
    /// Codebooks a frame, which is also tokens a frame.
    pub num_quantizers: usize,
    /// Codes a codebook.
    pub codebook_size: usize,
    /// Token id of code 0 of codebook 0.
    pub first_unit_id: u32,
    /// Token id of the last code of the last codebook.
    pub last_unit_id: u32,
    /// `<text>`.
    pub text_start_token_id: u32,
    /// `<audio>`.
    pub audio_start_token_id: u32,
    /// `</audio>`.
    pub audio_end_token_id: u32,
    /// Beginning of sequence.
    pub bos_token_id: u32,
    /// Frames a second.
    pub frame_rate_hz: f64,
    /// Voices, as they are written in the prompt.
    pub speakers: Vec<String>,
}

impl ModelConfig {
    /// Reads and checks a `config.json` in the style of transformers 4.57 or 5.x.
    ///
    /// `place` names the file in messages.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] naming the field: JSON that is not an object, a field that is missing or of the wrong type,
    /// another architecture, biases, scaled RoPE, an untied head, or numbers that contradict each other.
    pub fn parse(place: &str, json: &[u8]) -> Result<ModelConfig> {
        let fields = Fields::parse(place, json)?;
        fields.one_of("model_type", &["rumik_oss"])?;
        fields.one_of_or("hidden_act", &["silu"], "silu")?;
        fields.false_or_absent("attention_bias")?;
        if fields.get("tie_word_embeddings") == Some(&Value::Bool(false)) {
            return Err(fields.invalid("tie_word_embeddings", "true (the head is the embedding)", "false"));
        }
        let config = ModelConfig {
            vocab_size: fields.size("vocab_size")?,
            hidden_size: fields.size("hidden_size")?,
            intermediate_size: fields.size("intermediate_size")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            num_key_value_heads: fields.size("num_key_value_heads")?,
            head_dim: fields.size("head_dim")?,
            sliding_window: fields.size("sliding_window")?,
            layer_types: layer_types(&fields)?,
            max_position_embeddings: fields.size("max_position_embeddings")?,
            rope_theta: fields.rope_theta()?,
            logit_scale: fields.positive("logit_scale")? as f32,
            layer_norm_eps: fields.positive("layer_norm_eps")? as f32,
            num_quantizers: fields.size("num_quantizers")?,
            codebook_size: fields.size("codebook_size")?,
            first_unit_id: fields.token("first_unit_id")?,
            last_unit_id: fields.token("last_unit_id")?,
            text_start_token_id: fields.token("text_start_token_id")?,
            audio_start_token_id: fields.token("audio_start_token_id")?,
            audio_end_token_id: fields.token("audio_end_token_id")?,
            bos_token_id: fields.token("bos_token_id")?,
            frame_rate_hz: fields.positive("frame_rate_hz")?,
            speakers: fields.strings("speakers")?,
        };
        config.check(&fields)?;
        Ok(config)
    }

    /// Number of decoder layers.
    pub fn num_layers(&self) -> usize {
        self.layer_types.len()
    }

    /// Number of unit ids: `codebook_size * num_quantizers`.
    pub fn unit_count(&self) -> usize {
        self.codebook_size * self.num_quantizers
    }

    /// Rows of the audio head: every unit id in order, then `</audio>`.
    pub fn audio_rows(&self) -> usize {
        self.unit_count() + 1
    }

    /// The token id of each row of the audio head, in the order this program writes.
    pub fn audio_ids(&self) -> Vec<u32> {
        (self.first_unit_id..=self.last_unit_id).chain([self.audio_end_token_id]).collect()
    }

    /// Width of all query heads together.
    pub fn query_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn key_value_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Tokens a second of speech.
    pub fn tokens_per_second(&self) -> f64 {
        self.frame_rate_hz * self.num_quantizers as f64
    }

    fn check(&self, fields: &Fields) -> Result<()> {
        let unit_end = self.first_unit_id as u64 + self.unit_count() as u64;
        if u64::from(self.last_unit_id) + 1 != unit_end {
            let expected = format!(
                "{} (first_unit_id {} + codebook_size {} * num_quantizers {} - 1)",
                unit_end - 1,
                self.first_unit_id,
                self.codebook_size,
                self.num_quantizers
            );
            return Err(fields.invalid("last_unit_id", expected, self.last_unit_id));
        }
        let named = [
            ("last_unit_id", self.last_unit_id),
            ("text_start_token_id", self.text_start_token_id),
            ("audio_start_token_id", self.audio_start_token_id),
            ("audio_end_token_id", self.audio_end_token_id),
            ("bos_token_id", self.bos_token_id),
        ];
        for (name, id) in named {
            if id as usize >= self.vocab_size {
                return Err(fields.invalid(name, format!("an id below vocab_size {}", self.vocab_size), id));
            }
        }
        for (name, id) in &named[1..] {
            if (self.first_unit_id..=self.last_unit_id).contains(id) {
                return Err(fields.invalid(name, "an id outside the unit ids", id));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a multiple of num_key_value_heads {}", self.num_key_value_heads);
            return Err(fields.invalid("num_attention_heads", expected, self.num_attention_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(fields.invalid("head_dim", "an even number (RoPE rotates pairs)", self.head_dim));
        }
        Ok(())
    }
}

fn layer_types(fields: &Fields) -> Result<Vec<LayerType>> {
    let layers = fields.size("num_hidden_layers")?;
    let Some(value) = fields.get("layer_types") else {
        // Configurations older than `layer_types` give the period instead: every n-th layer is a full one.
        let period = fields.size("sliding_window_pattern").or_else(|_| fields.size("_sliding_window_pattern"))?;
        let full = |layer: usize| (layer + 1).is_multiple_of(period);
        return Ok((0..layers).map(|l| if full(l) { LayerType::Full } else { LayerType::Sliding }).collect());
    };
    let names = fields.string_list("layer_types", value)?;
    if names.len() != layers {
        let expected = format!("{layers} entries (num_hidden_layers)");
        return Err(fields.invalid("layer_types", expected, format!("{} entries", names.len())));
    }
    names
        .iter()
        .map(|name| match name.as_str() {
            "sliding_attention" => Ok(LayerType::Sliding),
            "full_attention" => Ok(LayerType::Full),
            other => Err(fields.invalid("layer_types", "sliding_attention or full_attention", other)),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = include_str!("../../fixtures/golden/tiny/config.json");
    const TINY_V5: &str = include_str!("../../fixtures/golden/tiny/config.v5.json");

    /// The message for the tiny configuration with one field replaced; `null` removes it.
    fn refusal(field: &str, value: Value) -> String {
        let mut json: Value = serde_json::from_str(TINY).unwrap();
        json[field] = value;
        ModelConfig::parse("config.json", json.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn both_styles_of_transformers_mean_the_same() {
        let old = ModelConfig::parse("config.json", TINY.as_bytes()).unwrap();
        assert_eq!(old, ModelConfig::parse("config.v5.json", TINY_V5.as_bytes()).unwrap());
        assert_eq!((old.num_layers(), old.audio_rows(), old.rope_theta), (4, 513, 10_000.0));
        assert_eq!(old.audio_ids()[511..], [1111, 1114]);
        assert_eq!(old.tokens_per_second(), 100.0);
    }

    #[test]
    fn a_pattern_stands_in_for_missing_layer_types() {
        let mut json: Value = serde_json::from_str(TINY).unwrap();
        json.as_object_mut().unwrap().remove("layer_types");
        let config = ModelConfig::parse("config.json", json.to_string().as_bytes()).unwrap();
        assert_eq!(config, ModelConfig::parse("config.json", TINY.as_bytes()).unwrap());
    }

    #[test]
    fn refuses_unit_ids_that_do_not_add_up() {
        let message = refusal("last_unit_id", 1110.into());
        assert!(message.starts_with("config.json: last_unit_id: expected 1111 (first_unit_id 600 +"), "{message}");
    }

    #[test]
    fn names_the_field_at_fault() {
        let refused = [
            ("hidden_size", Value::Null),
            ("hidden_size", 0.into()),
            ("hidden_size", u64::MAX.into()),
            ("rope_theta", "10000".into()),
            ("rope_scaling", serde_json::json!({"rope_type": "yarn"})),
            ("layer_types", serde_json::json!(["full_attention"])),
            ("model_type", "llama".into()),
            ("tie_word_embeddings", false.into()),
            ("attention_bias", true.into()),
            ("num_key_value_heads", 3.into()),
            ("audio_end_token_id", 700.into()),
            ("bos_token_id", 5000.into()),
            ("speakers", serde_json::json!([])),
        ];
        for (field, value) in refused {
            let message = refusal(field, value.clone());
            let named = ["num_attention_heads", field];
            assert!(named.iter().any(|name| message.contains(name)), "{field} = {value}: {message}");
        }
    }

    #[test]
    fn reads_the_codec_and_refuses_variants_it_does_not_implement() {
        let json = include_str!("../../fixtures/golden/tiny/codec/config.json");
        let config = CodecConfig::parse("codec/config.json", json.as_bytes()).unwrap();
        assert_eq!((config.samples_per_frame(), config.frame_rate_hz()), (1920, 12.5));
        for (field, value) in
            [("pad_mode", "reflect".into()), ("frame_rate", 25.0.into()), ("audio_channels", 2.into())]
        {
            let mut json: Value = serde_json::from_str(json).unwrap();
            json[field] = value;
            let error = CodecConfig::parse("codec/config.json", json.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("codec/config.json: {field}: expected")), "{error}");
        }
    }
}
