//! What is written becomes what is asked of the model: pure functions from `&str` to prompt ids.
//!
//! ```text
//! text ──clean──▶ one Unicode form ──read──▶ words ──chunk──▶ speakable pieces           (prepare)
//! piece ──tokenizer──▶ [BOS] <text>{Speaker}: <description="…"> {text}<audio>             (Speech::prompt)
//! ```
//!
//! Every stage before the tokenizer keeps a trace of what it changed, by rule. `docs/speech.md` has the rules and figures.
//!
//! Nothing a user writes can become a control token: the template's tokens are placed by id and everything else is
//! encoded by a tokenizer that knows no added tokens (`tokenizer`).

mod chunk;
mod clean;
mod control;
mod detect;
mod fields;
mod lang;
mod lexicon;
mod markup;
mod number;
mod prepare;
mod prompt;
mod read;
mod scan;
mod style;
mod tokenizer;
mod trace;

pub use fields::{Fields, MOST_REQUEST_ENTRIES};
pub use lang::Lang;
pub use lexicon::Lexicon;
pub use number::cardinal;
pub use prepare::{
    Chunk, DEFAULT_CHUNK_SECONDS, LONGEST_CHUNK_SECONDS, Options, Prepared, Rewrite, SHORTEST_CHUNK_SECONDS,
    check_chunk_seconds, prepare,
};
pub use prompt::{Prompt, Speech};
pub use style::{Accent, Pace, Style, Tone};

/// Sounds that may be written inside the text; every other control string of a user's text is dropped.
pub const TAGS: [&str; 3] = ["<laugh>", "<chuckle>", "<sigh>"];

/// Whether there is anything to say: a letter or digit of any script. Punctuation, white space and emoji alone are not.
pub fn is_speakable(text: &str) -> bool {
    text.chars().any(lang::is_spoken)
}
