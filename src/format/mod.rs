//! The export folder: one int4 safetensors file, `export.json`, and the source's config, tokenizer, licence and codec.

pub mod layout;
mod read;

pub use read::{Codec, Export, Files, Head, Int4Matrix, Int8Matrix, Layer, StopHead};
