//! The codec's configuration.

use serde_json::Value;

use super::fields::Fields;
use crate::error::Result;

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
    /// [`crate::Error::Invalid`] naming the field: a field missing or of the wrong type, or a Mimi variant that the decoder does
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
            rope_theta: fields.rope_theta()?,
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
