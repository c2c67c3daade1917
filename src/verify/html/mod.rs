//! The report as one page: for people who would rather look than read.
//!
//! Everything is in the file: styles, a small script for the players, drawings in SVG, sound as WAV. Nothing is fetched.
//! Colours follow the reader's light or dark setting; the page fits a telephone.

mod charts;
mod heat;
mod parts;
mod sound;

use super::record::{Outcome, Record};

pub use sound::LARGEST_SOUND_BYTES;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// Prompts that are shown with their sound.
pub const SHOWN_PROMPTS: usize = 4;

/// What the page shows.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// The record of the run, as in `verify.json`.
    pub record: &'a Record,
    /// Both models' speech, any number of prompts; the page takes the worst of them.
    pub takes: &'a [Heard<'a>],
    /// How fast things went.
    pub speeds: &'a [Speed],
}

/// A prompt, spoken by both models.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// Id of the prompt.
    pub id: &'a str,
    /// The reference's samples, full scale ±1.
    pub reference: &'a [f32],
    /// The engine's samples.
    pub engine: &'a [f32],
    /// Samples a second.
    pub sample_rate_hz: usize,
}

/// Time that something took, beside the length of the speech it made.
#[derive(Clone, Debug)]
pub struct Speed {
    /// What was done: `engine, speaking`.
    pub what: String,
    /// Seconds of speech made; 0 for work that makes none.
    pub speech_s: f64,
    /// Seconds it took.
    pub wall_s: f64,
}

/// The page, a complete HTML document.
pub fn page(report: &Report) -> String {
    let record = report.record;
    let mut sections = vec![
        parts::distributions(&record.quality),
        parts::prompts(&record.quality, report.takes),
        parts::layers(&record.parity),
        heat::matrices(&record.export.matrices),
        parts::speech(record.speech.as_ref()),
    ];
    // What failed is what a reader came for; what holds can wait.
    let place = if record.verdict == Outcome::Pass { sections.len() } else { 0 };
    sections.insert(place, parts::comparisons(record));
    sections.insert(0, parts::figures(record));
    sections.push(parts::speeds(report.speeds));
    sections.push(parts::facts(record));
    let title = format!("rumik-verify: {}", parts::verdict_word(record));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; media-src data:; img-src data:\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{header}\n<main>\n{body}\n</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        header = parts::header(record),
        body = sections.join("\n"),
    )
}

/// Text that cannot leave its place in the page.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
