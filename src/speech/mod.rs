//! What is written becomes what is asked of the model: pure functions from `&str` to prompt ids.
//!
//! ```text
//! text ──prompt──▶ [BOS] <text>{Speaker}: <description="…"> {text}<audio>
//! ```
//!
//! Nothing a user writes can become a control token: the template's tokens are placed by id and everything else is
//! encoded by a tokenizer that knows no added tokens ([`tokenizer`]).

mod clean;
mod control;
mod lang;
mod markup;
mod number;
mod prompt;
mod style;
mod tokenizer;
mod trace;

pub use lang::Lang;
pub use prompt::{Prompt, Speech};
pub use style::{Accent, Pace, Style, Tone};

/// Sounds that may be written inside the text; every other control string of a user's text is dropped.
pub const TAGS: [&str; 3] = ["<laugh>", "<chuckle>", "<sigh>"];

/// Whether there is anything to say: a letter or digit of any script, or one of [`TAGS`].
///
/// Punctuation, white space and emoji alone are not.
pub fn is_speakable(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric)
}
