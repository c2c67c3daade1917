//! The user's own pronunciations: a file of `word → spoken`, applied before everything else.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::clean::{self, is_word_char};
use crate::error::{Error, Result};

/// Longest word or phrase accepted, in characters: bounds what is compared at each word.
const LONGEST_ENTRY: usize = 100;
/// Longest spoken form accepted, in characters: bounds how much a text can grow.
const LONGEST_SPOKEN: usize = 300;

/// Words and phrases with the way they are to be said.
#[derive(Clone, Debug, Default)]
pub struct Lexicon {
    entries: HashMap<String, String>,
    /// Lengths in bytes of the entries that begin with a character, longest first.
    lengths: HashMap<char, Vec<usize>>,
}

impl Lexicon {
    /// Parses a lexicon: one entry a line, `word → spoken`, with `→`, `->`, `=` or a tab between. Lines that begin with `#` and
    /// empty lines are skipped. Case matters; an entry matches whole words only; an empty spoken form drops the word; of two
    /// lines with one word the later wins.
    ///
    /// `place` names the file in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the line that has no separator, no word, or too long a word or spoken form.
    pub fn parse(place: &str, source: &str) -> Result<Lexicon> {
        let mut lexicon = Lexicon::default();
        for (number, line) in source.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parts = ["→", "->", "\t", "="].iter().find_map(|separator| line.split_once(separator));
            let invalid = |found: &str| Error::invalid(place, format!("line {number}"), "`word → spoken`", found);
            let (word, spoken) = parts.ok_or_else(|| invalid(line))?;
            lexicon.insert(word, spoken).map_err(|found| invalid(&found))?;
        }
        Ok(lexicon)
    }

    /// Adds an entry; an earlier one of the same word goes. The error says what is wrong with it.
    pub(super) fn insert(&mut self, word: &str, spoken: &str) -> std::result::Result<(), String> {
        let (word, spoken) = (word.trim().nfc().collect::<String>(), spoken.trim());
        let too_long = |name: &str, text: &str, most: usize| {
            let length = text.chars().count();
            (length > most).then(|| format!("a {name} of {length} characters (at most {most} are accepted)"))
        };
        if let Some(found) =
            too_long("word", &word, LONGEST_ENTRY).or_else(|| too_long("spoken form", spoken, LONGEST_SPOKEN))
        {
            return Err(found);
        }
        // What is spoken goes into a text that is cleaned already: control characters and control strings end here.
        let spoken = clean::clean(spoken, false).text.trim().to_owned();
        let first = word.chars().next().ok_or("a word of 0 characters")?;
        let lengths = self.lengths.entry(first).or_default();
        if !lengths.contains(&word.len()) {
            lengths.push(word.len());
            lengths.sort_unstable_by(|a, b| b.cmp(a));
        }
        self.entries.insert(word, spoken);
        Ok(())
    }

    /// The longest entry that matches whole words at a byte of the text: the byte after it, and its spoken form.
    pub(super) fn find(&self, text: &str, at: usize) -> Option<(usize, &str)> {
        if self.entries.is_empty() {
            return None;
        }
        let inside = |c: Option<char>| c.is_some_and(|c| is_word_char(c) || c.is_numeric());
        let lengths = self.lengths.get(&text[at..].chars().next()?)?;
        lengths.iter().find_map(|length| {
            let end = at + length;
            let (word, spoken) = self.entries.get_key_value(text.get(at..end)?)?;
            let cuts_left = inside(word.chars().next()) && inside(text[..at].chars().next_back());
            let cuts_right = inside(word.chars().next_back()) && inside(text[end..].chars().next());
            (!cuts_left && !cuts_right).then_some((end, spoken.as_str()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_match_whole_words_longest_first_and_the_last_line_wins() {
        let source = "# mine\nIIT → आई आई टी\nIIT Delhi -> आई आई टी दिल्ली\nUPI\tयू पी आई\nUPI = U P I\n";
        let lexicon = Lexicon::parse("lexicon.txt", source).unwrap();
        let text = "IIT Delhi, IITs, UPI";
        assert_eq!(lexicon.find(text, 0), Some((9, "आई आई टी दिल्ली")));
        assert_eq!(lexicon.find(text, 11), None);
        assert_eq!(lexicon.find(text, 17), Some((20, "U P I")));
    }

    #[test]
    fn spoken_forms_are_cleaned_as_texts_are() {
        let lexicon = Lexicon::parse("lexicon.txt", "x → <audio>o\u{0} k</audio> <laugh>\ny → <|end|>").unwrap();
        assert_eq!(lexicon.find("x y", 0), Some((1, "o k <laugh>")));
        assert_eq!(lexicon.find("x y", 2), Some((3, "")));
    }

    #[test]
    fn a_line_without_separator_is_named() {
        let error = Lexicon::parse("lexicon.txt", "a → b\nnonsense\n").unwrap_err().to_string();
        assert!(error.starts_with("lexicon.txt: line 2: expected `word → spoken`"), "{error}");
        assert!(Lexicon::parse("x", "→ b").is_err());
        let long = Lexicon::parse("x", &format!("a → {}", "b".repeat(301))).unwrap_err().to_string();
        assert!(long.contains("a spoken form of 301 characters"), "{long}");
    }
}
