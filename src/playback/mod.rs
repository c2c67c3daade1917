//! Playing while speech is still being made: when it is safe to start, and (feature `speaker`) the sound card.

mod start;

#[cfg(feature = "speaker")]
mod speaker;

#[cfg(feature = "speaker")]
pub use speaker::Speaker;
pub use start::StartRule;
