//! Reading: written signs become spoken words.
//!
//! The text is a row of tokens. At each token the readers are asked in turn; the first that knows what begins there says
//! how many tokens it takes and what they sound like. Each looks at a bounded number of tokens, so the whole is linear.

mod account;
mod amount;
mod compound;
mod date;
mod height;
mod initials;
mod label;
mod money;
mod numeral;
mod power;
mod signs;
mod strings;
mod tables;
mod time;
mod web;
mod words;

pub use tables::abbreviation_before;

use std::borrow::Cow;
use std::cell::Cell;

use compact_str::CompactString;

use super::detect;
use super::lang::{Lang, Script, digit_value};
use super::lexicon::Lexicon;
use super::scan::{self, Kind, Token};
use super::trace::{Traced, Writer};

/// Most tokens of one entry of the lexicon: as many as it may have characters.
const MOST_ENTRY_TOKENS: usize = 100;

/// What begins at a token.
struct Reading {
    /// Token after the last one taken.
    end: usize,
    /// How it is said.
    words: CompactString,
    /// Name of the rule.
    rule: &'static str,
}

impl Reading {
    fn new(end: usize, words: impl Into<CompactString>, rule: &'static str) -> Option<Reading> {
        Some(Reading { end, words: words.into(), rule })
    }
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// Language of everything; found out sentence by sentence if absent.
    pub language: Option<Lang>,
    /// Language of a text without words.
    pub fallback: Lang,
    /// Whether numbers, signs and abbreviations are read at all; the lexicon always is.
    pub normalize: bool,
    /// Hindi short forms: डेढ़, ढाई, सवा, साढ़े, पौने.
    pub short_forms: bool,
    /// The user's own words.
    pub lexicon: &'a Lexicon,
}

/// Reads a cleaned text.
pub fn read(input: Traced, manner: Manner) -> Traced {
    let Traced { text: written, edits } = input;
    let tokens = scan::tokens(&written);
    let langs = match manner.language {
        Some(lang) => vec![lang; tokens.len()],
        None => detect::languages(&written, &tokens, manner.fallback),
    };
    let text = Text { text: &written, tokens, langs, manner, address_run: Cell::default() };
    let mut writer = Writer::new(&written, edits);
    let mut i = 0;
    while i < text.tokens.len() {
        match text.read(i) {
            Some(reading) => {
                writer.keep_to(text.tokens[i].start);
                writer.speak_to(text.tokens[reading.end - 1].end, reading.words, reading.rule);
                i = reading.end;
            }
            None => i += 1,
        }
    }
    writer.finish()
}

/// A text ready to be read, with the questions readers ask of it. Places out of range answer like empty ones.
struct Text<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    langs: Vec<Lang>,
    manner: Manner<'a>,
    /// The row of tokens that could be an address, asked for last.
    address_run: Cell<web::AddressRun>,
}

impl Text<'_> {
    fn read(&self, i: usize) -> Option<Reading> {
        let kind = self.tokens[i].kind;
        if matches!(kind, Kind::Space | Kind::Break | Kind::Tag) {
            return None;
        }
        let listed = self.manner.lexicon.find(self.text, self.tokens[i].start).and_then(|(end, spoken)| {
            let end = self.tokens[i..].iter().take(MOST_ENTRY_TOKENS).position(|token| token.end == end)? + i + 1;
            Reading::new(end, spoken, "lexicon")
        });
        if listed.is_some() || !self.manner.normalize {
            return listed;
        }
        self.web(i).or_else(|| match kind {
            Kind::Digits => self.digits_reading(i),
            Kind::Word(_) => self.word_reading(i),
            Kind::Sign(sign) => self.sign_reading(i, sign),
            _ => None,
        })
    }

    /// The number is parsed once and shared by all rules that read it whole.
    fn digits_reading(&self, i: usize) -> Option<Reading> {
        let amount = self.amount(i)?;
        self.date(i)
            .or_else(|| self.crossed(i, &amount))
            .or_else(|| self.power_of_number(i, &amount))
            .or_else(|| self.hours_and_minutes(i))
            .or_else(|| self.time(i))
            .or_else(|| self.clock_hours(i))
            .or_else(|| self.digit_string(i))
            .or_else(|| self.year_range(i))
            .or_else(|| self.money_after(i, &amount))
            .or_else(|| self.decade(i))
            .or_else(|| self.ordinal(i))
            .or_else(|| self.fraction(i))
            .or_else(|| self.year(i))
            .or_else(|| self.version(i))
            .or_else(|| self.duration(i))
            .or_else(|| self.measure(i, &amount))
            .or_else(|| self.letters_after(i, &amount))
            .or_else(|| self.plain_number(i, &amount))
    }

    fn word_reading(&self, i: usize) -> Option<Reading> {
        self.money_before(i)
            .or_else(|| self.month_first(i))
            .or_else(|| self.plate(i))
            .or_else(|| self.power_of_letter(i))
            .or_else(|| self.account_or_cooler(i))
            .or_else(|| self.masked(i))
            .or_else(|| self.calendar_range(i))
            .or_else(|| self.saint_or_street(i))
            .or_else(|| self.abbreviation(i))
            .or_else(|| self.initials(i))
            .or_else(|| self.roman(i))
            .or_else(|| self.financial_year(i))
            .or_else(|| self.digits_after(i))
            .or_else(|| self.acronym(i))
            .or_else(|| self.pi(i))
    }

    fn kind(&self, i: usize) -> Option<Kind> {
        self.tokens.get(i).map(|token| token.kind)
    }

    fn str(&self, i: usize) -> &str {
        self.tokens.get(i).map_or("", |token| &self.text[token.start..token.end])
    }

    /// The word at a place; empty if there is none.
    fn word(&self, i: usize) -> &str {
        if matches!(self.kind(i), Some(Kind::Word(_))) { self.str(i) } else { "" }
    }

    fn lang(&self, i: usize) -> Lang {
        self.langs.get(i).copied().unwrap_or(self.manner.fallback)
    }

    fn is_sign(&self, i: usize, sign: char) -> bool {
        self.kind(i) == Some(Kind::Sign(sign))
    }

    fn is_hyphen(&self, i: usize) -> bool {
        matches!(self.kind(i), Some(Kind::Sign('-' | '–' | '‐' | '‑' | '−')))
    }

    fn is_space(&self, i: usize) -> bool {
        self.kind(i) == Some(Kind::Space)
    }

    fn is_digits(&self, i: usize) -> bool {
        self.kind(i) == Some(Kind::Digits)
    }

    fn is_latin(&self, i: usize) -> bool {
        self.kind(i) == Some(Kind::Word(Script::Latin))
    }

    /// The place after a space, if there is one.
    fn past_space(&self, i: usize) -> usize {
        if self.is_space(i) { i + 1 } else { i }
    }

    /// The word that follows, across at most one space, with its place.
    fn next_word(&self, i: usize) -> (usize, &str) {
        let at = self.past_space(i);
        (at, self.word(at))
    }

    /// The word before a place, across at most one space and one of `:`, `.`, `-`, `#`.
    fn previous_word(&self, i: usize) -> (usize, &str) {
        let mut at = i;
        for _ in 0..4 {
            let Some(before) = at.checked_sub(1) else { return (0, "") };
            at = before;
            match self.kind(at) {
                Some(Kind::Space | Kind::Sign(':' | '.' | '-' | '#')) => {}
                _ => break,
            }
        }
        (at, self.word(at))
    }

    /// ASCII digits of a token; empty if it has none.
    fn digits(&self, i: usize) -> Cow<'_, str> {
        let digits = if self.is_digits(i) { self.str(i) } else { "" };
        match digits.is_ascii() {
            true => Cow::Borrowed(digits),
            false => digits.chars().filter_map(digit_value).map(|value| char::from(b'0' + value)).collect(),
        }
    }

    /// Number of digits of a token.
    fn digit_count(&self, i: usize) -> usize {
        if !self.is_digits(i) {
            return 0;
        }
        let digits = self.str(i);
        if digits.is_ascii() { digits.len() } else { digits.chars().count() }
    }

    /// Value of a short run of digits.
    fn value(&self, i: usize) -> Option<u64> {
        let short = (1..=18).contains(&self.digit_count(i));
        short.then(|| self.digits(i).bytes().fold(0, |n, digit| 10 * n + u64::from(digit - b'0')))
    }

    /// Whether a token touches the one before it, with neither space nor line end between.
    fn is_attached(&self, i: usize) -> bool {
        i > 0 && !matches!(self.kind(i - 1), Some(Kind::Space | Kind::Break))
    }
}
