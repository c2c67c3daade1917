//! The source model in candle, in f32 or bf16, written to be read and never optimised.
//!
//! ```text
//! ids ──embed──▶ x ──▶ x + attention(LN x) + mlp(LN x) ──×layers──▶ LN ──▶ hidden ──▶ logits, P(stop)
//! ```
//!
//! `model` is Cohere2 with a stop head as transformers computes it, including where bf16 rounds; `generate` is the
//! model card's generation rule. Neither knows of the export or the engine that it judges. Weights come from a function
//! of the tensor's name, so that a caller can put dequantized matrices in the place of the checkpoint's.

mod device;
mod generate;
mod model;
mod ops;

pub use candle_core::{Device, Tensor};
pub use device::device;
pub use generate::{End, Generated, Outlook, Rule, argmax, sample, top_k_distribution};
pub use model::{Cache, Precision, Reference, States, to_host};

/// Gives a failure inside candle its place in the error vocabulary.
fn device_error(error: candle_core::Error) -> crate::Error {
    crate::Error::Device { device: "candle".into(), action: "run the reference model", reason: error.to_string() }
}
