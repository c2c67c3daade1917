//! The export folder: one int4 safetensors file, `export.json`, and the source's config, tokenizer, licence and codec.

mod card;
pub mod layout;
mod plan;
mod read;
mod report;
pub mod write;

pub use plan::{HeadKind, STOP_TENSORS, export_tensors, metadata};
pub use read::{Codec, Export, Files, Head, Int4Matrix, Int8Matrix, Layer, Paths, StopHead};
pub use report::{
    Encoding, FileDigest, MatrixError, MatrixReport, Method, Report, ReportOptions, SourceReport, VERSION, WorstGroup,
};
