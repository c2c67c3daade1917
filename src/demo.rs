//! The demonstration model, compiled into the program so that a fresh machine speaks with one command.
//!
//! A checkpoint of 7.9 M parameters in the layout of the real one, trained on a formant synthesizer: four synthetic
//! voices, about 1,700 words of English and Hindi. `fixtures/demo` holds the source, its licence (CC0) and recipe;
//! `fixtures/demo-int4` the export made from it, and a test makes that export again and compares every byte.

use crate::error::Result;
use crate::format::Files;
use crate::tensors::{Bytes, TensorFile};

/// Name of the model in messages.
pub const NAME: &str = "built-in demo";

/// One line for people who hear it: what this voice is and how to get the real one.
pub const NOTICE: &str = "demonstration voice (a tiny model trained on a synthesizer, about 1,700 English and Hindi words); \
     for the real model run `rumik-export --out rumik-int4` once, then add `--model rumik-int4`";

/// Longest utterance it speaks well, in seconds; it was trained on up to 7.
pub const CHUNK_SECONDS: f64 = 6.0;

/// The demonstration export.
///
/// # Errors
/// None in a sound build; the files are checked like any other.
pub fn files() -> Result<Files> {
    let tensors =
        |name: &str, bytes: &'static [u8]| TensorFile::from_bytes(&format!("{NAME}/{name}"), Bytes::embedded(bytes));
    let codec_config = Bytes::embedded(include_bytes!("../fixtures/demo/codec/config.json"));
    let codec = include_bytes!("../fixtures/demo/codec/model.safetensors");
    Ok(Files {
        name: NAME.to_owned(),
        weights: tensors("model.safetensors", include_bytes!("../fixtures/demo-int4/model.safetensors"))?,
        config: Bytes::embedded(include_bytes!("../fixtures/demo/config.json")),
        tokenizer: Bytes::embedded(include_bytes!("../fixtures/demo/tokenizer.json")),
        codec: Some((codec_config, tensors("codec/model.safetensors", codec)?)),
        report: Some(Bytes::embedded(include_bytes!("../fixtures/demo-int4/export.json"))),
    })
}
