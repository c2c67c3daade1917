//! What `config.json` and `codec/config.json` say, read once and checked once.
//!
//! Both the source checkpoint and the export carry the same files, so their meaning lives here, below both. Every number
//! the program needs is read from the file; none is assumed from the published model.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Steps before the end of speech may be chosen (model card, "Generation").
pub const MIN_NEW_TOKENS: usize = 8;
/// Default cap on new tokens: 20.5 s of speech.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 2048;
/// Largest cap accepted: 30.7 s, the length of the longest training utterances.
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
    /// [`Error::Invalid`] naming the field: JSON that is not an object, a field that is missing or of the wrong type,
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
            rope_theta: rope_theta(&fields)?,
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

/// transformers 4.57 keeps `rope_theta` at the top level, 5.x under `rope_parameters`.
fn rope_theta(fields: &Fields) -> Result<f64> {
    for key in ["rope_scaling", "rope_parameters"] {
        let kind = fields.get(key).and_then(|v| v.get("rope_type").or_else(|| v.get("type")));
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return Err(fields.invalid(key, "unscaled RoPE (rope_type default)", kind));
        }
    }
    let nested = fields.get("rope_parameters").and_then(|v| v.get("rope_theta"));
    match nested.or_else(|| fields.get("rope_theta")) {
        Some(value) => fields.positive_value("rope_theta", value),
        None => Err(fields.missing("rope_theta")),
    }
}

/// The codec: Mimi, decoder half. Field names are those of `codec/config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecConfig {
    /// Samples a second of the waveform.
    pub sampling_rate: usize,
    /// Width of the latent between quantizer and SEANet.
    pub hidden_size: usize,
    /// Channels of the narrowest SEANet stage.
    pub num_filters: usize,
    /// Layers of the decoder transformer.
    pub num_hidden_layers: usize,
    /// Heads of the decoder transformer.
    pub num_attention_heads: usize,
    /// Columns per head.
    pub head_dim: usize,
    /// Width of the transformer's MLP.
    pub intermediate_size: usize,
    /// Positions the transformer sees, the newest included.
    pub sliding_window: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Epsilon of the transformer's LayerNorms.
    pub norm_eps: f32,
    /// Codebooks in the file; the language model uses the first few.
    pub num_quantizers: usize,
    /// Codebooks of the semantic part.
    pub num_semantic_quantizers: usize,
    /// Codes a codebook.
    pub codebook_size: usize,
    /// Width of a codebook vector.
    pub codebook_dim: usize,
    /// Upsampling factors of the SEANet stages, in decoding order.
    pub upsampling_ratios: Vec<usize>,
    /// Kernel of the first SEANet convolution.
    pub kernel_size: usize,
    /// Kernel of the last SEANet convolution.
    pub last_kernel_size: usize,
    /// Kernel of the first convolution of a residual unit.
    pub residual_kernel_size: usize,
    /// Residual units a stage.
    pub num_residual_layers: usize,
    /// Growth of the dilation from one residual unit to the next.
    pub dilation_growth_rate: usize,
    /// Divisor of the channels inside a residual unit.
    pub compress: usize,
}

impl CodecConfig {
    /// Reads and checks a `codec/config.json`.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the field: a field missing or of the wrong type, or a Mimi variant that the decoder does
    /// not implement (non-causal, other activations, grouped-query attention, convolutional shortcuts).
    pub fn parse(place: &str, json: &[u8]) -> Result<CodecConfig> {
        let fields = Fields::parse(place, json)?;
        fields.one_of("model_type", &["mimi"])?;
        fields.one_of_or("hidden_act", &["gelu"], "gelu")?;
        fields.one_of_or("pad_mode", &["constant"], "constant")?;
        fields.false_or_absent("use_conv_shortcut")?;
        fields.false_or_absent("attention_bias")?;
        for (key, only) in
            [("use_causal_conv", Value::from(true)), ("audio_channels", 1.into()), ("trim_right_ratio", 1.0.into())]
        {
            if let Some(value) = fields.get(key).filter(|value| **value != only) {
                return Err(fields.invalid(key, only, value));
            }
        }
        let config = CodecConfig {
            sampling_rate: fields.size("sampling_rate")?,
            hidden_size: fields.size("hidden_size")?,
            num_filters: fields.size("num_filters")?,
            num_hidden_layers: fields.size("num_hidden_layers")?,
            num_attention_heads: fields.size("num_attention_heads")?,
            head_dim: fields.size("head_dim")?,
            intermediate_size: fields.size("intermediate_size")?,
            sliding_window: fields.size("sliding_window")?,
            rope_theta: rope_theta(&fields)?,
            norm_eps: fields.positive("norm_eps")? as f32,
            num_quantizers: fields.size("num_quantizers")?,
            num_semantic_quantizers: fields.size("num_semantic_quantizers")?,
            codebook_size: fields.size("codebook_size")?,
            codebook_dim: fields.size("codebook_dim")?,
            upsampling_ratios: fields.sizes("upsampling_ratios")?,
            kernel_size: fields.size("kernel_size")?,
            last_kernel_size: fields.size("last_kernel_size")?,
            residual_kernel_size: fields.size("residual_kernel_size")?,
            num_residual_layers: fields.size("num_residual_layers")?,
            dilation_growth_rate: fields.size("dilation_growth_rate")?,
            compress: fields.size("compress")?,
        };
        if fields.size("num_key_value_heads")? != config.num_attention_heads {
            let expected = format!("{} (num_attention_heads)", config.num_attention_heads);
            return Err(fields.invalid("num_key_value_heads", expected, fields.size("num_key_value_heads")?));
        }
        if let Some(rate) = fields.get("frame_rate").or_else(|| fields.get("_frame_rate")) {
            let implied = config.frame_rate_hz();
            if fields.positive_value("frame_rate", rate)? != implied {
                let expected = format!("{implied} (sampling_rate / {} samples a frame)", config.samples_per_frame());
                return Err(fields.invalid("frame_rate", expected, rate));
            }
        }
        Ok(config)
    }

    /// Frames a second.
    pub fn frame_rate_hz(&self) -> f64 {
        self.sampling_rate as f64 / self.samples_per_frame() as f64
    }

    /// Samples a frame: the SEANet ratios times the factor 2 of the upsampling before the transformer.
    pub fn samples_per_frame(&self) -> usize {
        2 * self.upsampling_ratios.iter().product::<usize>()
    }
}

/// A JSON object with the name of its file, so that every complaint says where.
struct Fields<'a> {
    place: &'a str,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn parse(place: &'a str, json: &[u8]) -> Result<Fields<'a>> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => Ok(Fields { place, map }),
            Ok(_) => Err(Error::invalid(place, "top level", "a JSON object", "another JSON value")),
            Err(e) => Err(Error::invalid(place, "content", "JSON", e)),
        }
    }

    /// `null` counts as absent, as transformers writes it for unset fields.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn invalid(&self, key: &str, expected: impl ToString, found: impl ToString) -> Error {
        Error::invalid(self.place, key, expected, found)
    }

    fn missing(&self, key: &str) -> Error {
        self.invalid(key, "a value", "nothing")
    }

    fn required(&self, key: &str) -> Result<&Value> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// A positive integer small enough that products of a few of them cannot overflow.
    fn size(&self, key: &str) -> Result<usize> {
        self.size_value(key, self.required(key)?)
    }

    fn size_value(&self, key: &str, value: &Value) -> Result<usize> {
        match value.as_u64() {
            Some(n) if (1..=1 << 24).contains(&n) => Ok(n as usize),
            _ => Err(self.invalid(key, "a whole number from 1 to 16777216", value)),
        }
    }

    fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        match self.required(key)? {
            Value::Array(items) if !items.is_empty() && items.len() <= 16 => {
                items.iter().map(|item| self.size_value(key, item)).collect()
            }
            other => Err(self.invalid(key, "a list of 1 to 16 sizes", other)),
        }
    }

    fn token(&self, key: &str) -> Result<u32> {
        let value = self.required(key)?;
        match value.as_u64() {
            Some(n) if n < 1 << 24 => Ok(n as u32),
            _ => Err(self.invalid(key, "a token id", value)),
        }
    }

    fn positive(&self, key: &str) -> Result<f64> {
        self.positive_value(key, self.required(key)?)
    }

    fn positive_value(&self, key: &str, value: &Value) -> Result<f64> {
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(x),
            _ => Err(self.invalid(key, "a positive number", value)),
        }
    }

    fn strings(&self, key: &str) -> Result<Vec<String>> {
        self.string_list(key, self.required(key)?)
    }

    fn string_list(&self, key: &str, value: &Value) -> Result<Vec<String>> {
        let strings = value
            .as_array()
            .and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
        strings.filter(|s| !s.is_empty()).ok_or_else(|| self.invalid(key, "a list of strings", value))
    }

    fn one_of(&self, key: &str, accepted: &[&str]) -> Result<()> {
        self.check_word(key, self.required(key)?, accepted)
    }

    fn one_of_or(&self, key: &str, accepted: &[&str], default: &str) -> Result<()> {
        self.check_word(key, self.get(key).unwrap_or(&Value::from(default)), accepted)
    }

    fn check_word(&self, key: &str, value: &Value, accepted: &[&str]) -> Result<()> {
        match value.as_str() {
            Some(word) if accepted.contains(&word) => Ok(()),
            _ => Err(self.invalid(key, accepted.join(" or "), value)),
        }
    }

    fn false_or_absent(&self, key: &str) -> Result<()> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(other) => Err(self.invalid(key, "false", other)),
        }
    }
}
