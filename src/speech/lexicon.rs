//! The user's own pronunciations: a file of `word → spoken`, applied before everything else.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization;

use super::clean::is_word_char;
use crate::error::{Error, Result};

/// Longest entry accepted, in characters: bounds what is compared at each word.
const LONGEST_ENTRY: usize = 100;

/// Words and phrases with the way they are to be said.
#[derive(Clone, Debug, Default)]
pub struct Lexicon {
    /// By first character; longest first.
    entries: HashMap<char, Vec<(String, String)>>,
}

impl Lexicon {
    /// Parses a lexicon: one entry a line, `word → spoken`, with `→`, `->`, `=` or a tab between. Lines that begin with `#` and
    /// empty lines are skipped. Case matters; an entry matches whole words only; an empty spoken form drops the word.
    ///
    /// `place` names the file in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the line that has no separator, no word, or too long a word.
    pub fn parse(place: &str, source: &str) -> Result<Lexicon> {
        let mut lexicon = Lexicon::default();
        let source: String = source.nfc().collect();
        for (number, line) in source.lines().enumerate().map(|(i, line)| (i + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let parts = ["→", "->", "\t", "="].iter().find_map(|separator| line.split_once(separator));
            let invalid = |found: &str| Error::invalid(place, format!("line {number}"), "`word → spoken`", found);
            let (word, spoken) =
                parts.map(|(word, spoken)| (word.trim(), spoken.trim())).ok_or_else(|| invalid(line))?;
            let length = word.chars().count();
            let Some(first) = word.chars().next().filter(|_| length <= LONGEST_ENTRY) else {
                return Err(invalid(&format!("a word of {length} characters (1 to {LONGEST_ENTRY} are accepted)")));
            };
            lexicon.entries.entry(first).or_default().push((word.to_owned(), spoken.to_owned()));
        }
        // Later lines win over earlier ones of the same word, longer words over shorter ones.
        for entries in lexicon.entries.values_mut() {
            entries.reverse();
            entries.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        }
        Ok(lexicon)
    }

    /// The entry that matches whole words at a byte of the text: the byte after it, and its spoken form.
    pub(super) fn find(&self, text: &str, at: usize) -> Option<(usize, &str)> {
        if self.entries.is_empty() {
            return None;
        }
        let rest = &text[at..];
        let entries = self.entries.get(&rest.chars().next()?)?;
        let inside = |c: Option<char>| c.is_some_and(|c| is_word_char(c) || c.is_numeric());
        entries.iter().find_map(|(word, spoken)| {
            let after = rest.strip_prefix(word.as_str())?;
            let cuts_left = inside(word.chars().next()) && inside(text[..at].chars().next_back());
            let cuts_right = inside(word.chars().next_back()) && inside(after.chars().next());
            (!cuts_left && !cuts_right).then_some((at + word.len(), spoken.as_str()))
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
    fn a_line_without_separator_is_named() {
        let error = Lexicon::parse("lexicon.txt", "a → b\nnonsense\n").unwrap_err().to_string();
        assert!(error.starts_with("lexicon.txt: line 2: expected `word → spoken`"), "{error}");
        assert!(Lexicon::parse("x", "→ b").is_err());
    }
}
