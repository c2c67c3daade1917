//! The CPU backend.

pub mod kernels;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use kernels::Kernels;
