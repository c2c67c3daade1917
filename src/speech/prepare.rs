//! The whole way from a written text to chunks to be spoken.

use std::fmt;

use compact_str::CompactString;
use serde::Serialize;

use super::clean::{self, CONTROL_RULE};
use super::lang::Lang;
use super::lexicon::Lexicon;
use super::read::{self, Manner};
use super::style::Pace;
use super::trace::Edit;
use super::{chunk, is_speakable};
use crate::error::{Error, Result};

/// Seconds a chunk lasts at most by default; the model was trained on utterances of up to 30 s.
pub const DEFAULT_CHUNK_SECONDS: f64 = 25.0;
/// Largest cap accepted.
pub const LONGEST_CHUNK_SECONDS: f64 = 30.0;

/// Smallest cap accepted.
pub const SHORTEST_CHUNK_SECONDS: f64 = 1.0;

/// Checks a cap that a user asks for.
///
/// # Errors
/// [`Error::Input`] for `parameter` if it is out of range.
pub fn check_chunk_seconds(parameter: &'static str, seconds: f64) -> Result<f64> {
    if (SHORTEST_CHUNK_SECONDS..=LONGEST_CHUNK_SECONDS).contains(&seconds) {
        return Ok(seconds);
    }
    let message = format!("{seconds}: expected {SHORTEST_CHUNK_SECONDS} to {LONGEST_CHUNK_SECONDS} seconds");
    Err(Error::input(parameter, message))
}

/// How a text is prepared.
#[derive(Clone, Debug)]
pub struct Options {
    /// Read numbers, dates, money, signs and abbreviations as words. The lexicon and cleaning apply in any case.
    pub normalize: bool,
    /// Strip Markdown and HTML.
    pub markup: bool,
    /// Language to read in; found out sentence by sentence if absent.
    pub language: Option<Lang>,
    /// Language of a text without a single word, `₹500`.
    pub fallback: Lang,
    /// Hindi short forms of halves and quarters: डेढ़ करोड़, साढ़े नौ बजे.
    pub short_forms: bool,
    /// The user's own words, applied first.
    pub lexicon: Lexicon,
    /// Longest chunk in seconds, above 0 and at most [`LONGEST_CHUNK_SECONDS`]; other values are taken for the default.
    pub chunk_seconds: f64,
    /// Pace the text will be spoken at, which the estimate of seconds depends on; steady if absent.
    pub pace: Option<Pace>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            normalize: true,
            markup: true,
            language: None,
            fallback: Lang::Hindi,
            short_forms: false,
            lexicon: Lexicon::default(),
            chunk_seconds: DEFAULT_CHUNK_SECONDS,
            pace: None,
        }
    }
}

/// A text ready to be spoken. Its `Display` is the report of `rumik-run text`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Prepared {
    /// The pieces, in order; none if there is nothing to say.
    pub chunks: Vec<Chunk>,
}

/// One piece of text, one request to the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chunk {
    /// What is spoken.
    pub text: String,
    /// How long it will take, estimated.
    pub seconds: f64,
    /// What was changed on the way from the written text, in order.
    pub rewrites: Vec<Rewrite>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rewrite {
    /// Name of the rule: `cardinal`, `date`, `emoji`, …
    pub rule: &'static str,
    /// As written.
    pub from: CompactString,
    /// As spoken; empty if dropped.
    pub to: CompactString,
}

/// Prepares a text: cleans it, reads what is not written as words, and cuts it into chunks.
///
/// Never fails and never panics; time is linear in the length of the text.
pub fn prepare(text: &str, options: &Options) -> Prepared {
    let cleaned = clean::clean(text, options.markup);
    let manner = Manner {
        language: options.language,
        fallback: options.fallback,
        normalize: options.normalize,
        short_forms: options.short_forms,
        lexicon: &options.lexicon,
    };
    let spoken = read::read(cleaned, manner);
    if !is_speakable(&spoken.text) {
        return Prepared::default();
    }
    let valid = options.chunk_seconds > 0.0 && options.chunk_seconds <= LONGEST_CHUNK_SECONDS;
    let cap = if valid { options.chunk_seconds } else { DEFAULT_CHUNK_SECONDS };
    let stretch = stretch(options.pace);
    let ranges = chunk::ranges(&spoken, cap / stretch);
    let mut edits = spoken.edits.into_iter();
    let mut chunks = Vec::with_capacity(ranges.len());
    for (i, (start, end)) in ranges.iter().enumerate() {
        // Edits between two chunks go with the earlier, those after the last with the last.
        let limit = ranges.get(i + 1).map_or(usize::MAX, |(next, _)| *next);
        let left = edits.as_slice();
        let count = left.iter().position(|edit| edit.at.start >= limit).unwrap_or(left.len());
        let rewrite = |edit: Edit| Rewrite { rule: edit.rule, from: edit.from, to: edit.to };
        let rewrites = edits.by_ref().take(count).map(rewrite).collect();
        let text = single_spaced(&spoken.text[*start..*end]);
        let seconds = (chunk::seconds(&text) * stretch * 100.0).round() / 100.0;
        chunks.push(Chunk { text, seconds, rewrites });
    }
    Prepared { chunks }
}

/// The words of a text with one space between.
fn single_spaced(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

/// How much longer than at a steady pace a text lasts; measured with the demonstration voices.
fn stretch(pace: Option<Pace>) -> f64 {
    match pace {
        Some(Pace::Slow) => 1.3,
        Some(Pace::Steady) | None => 1.0,
        Some(Pace::Fast) => 0.8,
    }
}

impl Prepared {
    /// The chunks, or the error a request without anything to say deserves.
    ///
    /// # Errors
    /// [`Error::Input`] for `input` when there is no chunk.
    pub fn speakable(self) -> Result<Vec<Chunk>> {
        match self.chunks.is_empty() {
            true => Err(Error::input("input", "nothing to say: no letter or digit in the text")),
            false => Ok(self.chunks),
        }
    }

    /// The control strings that were dropped, each once; for a warning.
    pub fn dropped(&self) -> Vec<&str> {
        let mut dropped: Vec<&str> = Vec::new();
        for rewrite in
            self.chunks.iter().flat_map(|chunk| &chunk.rewrites).filter(|rewrite| rewrite.rule == CONTROL_RULE)
        {
            if !dropped.contains(&rewrite.from.as_str()) {
                dropped.push(&rewrite.from);
            }
        }
        dropped
    }
}

impl fmt::Display for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if self.chunks.is_empty() {
            return writeln!(f, "nothing to say");
        }
        // One column for the rules, as wide as the longest that occurs.
        let rules = self.chunks.iter().flat_map(|chunk| &chunk.rewrites).map(|rewrite| rewrite.rule.len());
        let width = rules.max().unwrap_or(0);
        for (i, chunk) in self.chunks.iter().enumerate() {
            let words = chunk.text.split(' ').count();
            let s = if words == 1 { "" } else { "s" };
            writeln!(f, "chunk {} of {}, about {:.1} s, {words} word{s}", i + 1, self.chunks.len(), chunk.seconds)?;
            writeln!(f, "  {}", chunk.text)?;
            for rewrite in &chunk.rewrites {
                let to = if rewrite.to.trim().is_empty() { "(nothing)".to_owned() } else { visible(&rewrite.to) };
                writeln!(f, "  {:<width$}  {}  →  {to}", rewrite.rule, visible(&rewrite.from))?;
            }
            if i + 1 < self.chunks.len() {
                writeln!(f)?;
            }
        }
        if self.chunks.len() > 1 {
            let seconds: f64 = self.chunks.iter().map(|chunk| chunk.seconds).sum();
            writeln!(f, "\n{} chunks, about {seconds:.1} s", self.chunks.len())?;
        }
        Ok(())
    }
}

/// A piece of text in one line, its invisible characters written as escapes.
fn visible(text: &str) -> String {
    const LONGEST: usize = 200;
    let shown: String = text
        .chars()
        .take(LONGEST)
        .map(|c| match c {
            // A lone space would not be seen.
            ' ' if text.trim().is_empty() => "␣".to_owned(),
            ' ' => " ".to_owned(),
            c if c.is_control()
                || c.is_whitespace()
                || clean::is_invisible(c)
                || ('\u{200b}'..='\u{200f}').contains(&c) =>
            {
                c.escape_unicode().to_string()
            }
            c => c.to_string(),
        })
        .collect();
    if text.chars().nth(LONGEST).is_some() { format!("{shown}…") } else { shown }
}
