//! What `golden.json` says. Every field may be absent; fields that only describe are not read.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::engine::Sampling;
use crate::error::{Error, Result};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Facts {
    pub rule: RuleFacts,
    pub sampling: SamplingFacts,
    pub prompts: Vec<PromptFacts>,
    pub tokenizer_cases: Vec<TokenizerCase>,
    pub frame_cases: Vec<FrameCase>,
    pub int4: Int4Facts,
}

/// The generation rule, as far as the file states it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RuleFacts {
    pub min_new_tokens: Option<usize>,
    pub max_new_tokens: Option<usize>,
    pub stop_threshold: Option<f32>,
}

/// How the first step's distribution was made; the model's own values if the file does not say.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(default)]
pub(super) struct SamplingFacts {
    pub temperature: f32,
    pub top_k: usize,
}

impl Default for SamplingFacts {
    fn default() -> SamplingFacts {
        let Sampling { temperature, top_k } = Sampling::default();
        SamplingFacts { temperature, top_k }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PromptFacts {
    pub prompt: Option<String>,
    pub prompt_ids: Option<Vec<u32>>,
    pub generated_ids: Option<Vec<u32>>,
    pub end: Option<String>,
    pub int4_end: Option<String>,
    pub int4_bf16head_end: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TokenizerCase {
    pub text: String,
    pub ids: Option<Vec<u32>>,
    pub ids_without_bos: Option<Vec<u32>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct FrameCase {
    pub name: String,
    pub ids: Vec<u32>,
    pub frames: Vec<Vec<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Int4Facts {
    /// The matrix that `int4.*` hold.
    pub matrix: Option<String>,
    /// `|W - W'| / |W|` of each quantized matrix, rounded to six decimals.
    pub relative_error: BTreeMap<String, f64>,
}

impl Facts {
    /// Reads the file. One that states nothing to compare is refused: it would make everything else look verified.
    pub fn parse(place: &str, json: &[u8]) -> Result<Facts> {
        let bad = |e| Error::invalid(place, "content", "the documented JSON", e);
        let value: serde_json::Value = serde_json::from_slice(json).map_err(bad)?;
        if !value.is_object() {
            return Err(Error::invalid(place, "content", "the documented JSON", "no object"));
        }
        let facts: Facts = serde_json::from_value(value).map_err(bad)?;
        let count = facts.prompts.len() + facts.tokenizer_cases.len() + facts.frame_cases.len();
        match count {
            0 => Err(Error::invalid(place, "content", "prompts, tokenizer_cases or frame_cases", "none of them")),
            _ => Ok(facts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_states_nothing_is_refused() {
        for empty in ["{}", "[]", "null", "\"\"", "{\"prompts\": []}", "{\"rule\": {\"min_new_tokens\": 8}}"] {
            let error = Facts::parse("golden.json", empty.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("golden.json: content: expected "), "{empty}: {error}");
        }
        assert!(Facts::parse("golden.json", br#"{"prompts": [{"prompt_ids": [2]}]}"#).is_ok());
    }
}
