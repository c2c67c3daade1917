//! Fast, small and provably right text to speech with rumik-oss-1.
//!
//! ```text
//! source checkpoint ──quant──▶ export folder                          (rumik-export)
//! text ──speech──▶ tokens ──engine──▶ codes ──mimi──▶ PCM ──audio──▶ bytes   (rumik-run)
//! source ──reference──▶ logits ◀──verify──▶ engine ◀── export folder  (rumik-verify)
//! ```
//!
//! `docs/architecture.md` walks the same way in words.

pub mod audio;
pub mod bench;
pub mod checkpoint;
pub mod cli;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
pub mod engine;
pub mod error;
pub mod format;
pub mod hub;
pub mod inspect;
pub mod pass;
pub mod pipeline;
pub mod playback;
pub mod quant;
pub mod reference;
pub mod speech;
pub mod staging;
pub mod tensors;
pub mod verify;

pub use error::{Error, Result};
