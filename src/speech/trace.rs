//! Text that remembers how it came to be: every stage writes its output through a [`Writer`], which keeps a list of
//! rewrites and moves the earlier ones along.

use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use compact_str::CompactString;

use super::clean::is_word_char;
use super::lang::is_spoken;

/// One change: what stood there, what stands there now, and by which rule.
///
/// A text of signs has one for every byte or two, so short strings are kept in place, and edits are moved from stage to
/// stage, never cloned.
#[derive(Debug, PartialEq, Eq)]
pub struct Edit {
    /// Where the result lies in the text; empty if the original was dropped.
    pub at: Range<usize>,
    /// The original.
    pub from: CompactString,
    /// What the rule put there; a later rule may have read it as part of something longer.
    pub to: CompactString,
    /// Name of the rule.
    pub rule: &'static str,
}

/// A text and the edits that made it, in the order of their places.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// The text as it stands.
    pub text: String,
    /// What was changed so far.
    pub edits: Vec<Edit>,
}

/// Writes one stage's output while reading its input from front to back. Everything is linear.
pub struct Writer<'a> {
    input: &'a str,
    /// Edits of the input not yet carried over.
    earlier: Peekable<IntoIter<Edit>>,
    /// Bytes of the input dealt with.
    pos: usize,
    out: Traced,
}

impl<'a> Writer<'a> {
    /// Starts at the front of the input, which `edits` made.
    pub fn new(input: &'a str, edits: Vec<Edit>) -> Writer<'a> {
        let out = Traced { text: String::with_capacity(input.len()), edits: Vec::new() };
        Writer { input, earlier: edits.into_iter().peekable(), pos: 0, out }
    }

    /// Bytes of the input dealt with so far.
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// Copies the input up to `end`.
    pub fn keep_to(&mut self, end: usize) {
        let shift = self.out.text.len();
        self.out.text.push_str(&self.input[self.pos..end]);
        let start = self.pos;
        self.carry(end, |at| at.start - start + shift..at.end.min(end) - start + shift);
        self.pos = end;
    }

    /// Puts `to` in the place of the input up to `end`. Neighbouring edits of one rule become one when `merge` is set.
    pub fn replace_to(&mut self, end: usize, to: impl Into<CompactString>, rule: &'static str, merge: bool) {
        let (start, to) = (self.out.text.len(), to.into());
        self.out.text.push_str(&to);
        let at = start..self.out.text.len();
        let from = &self.input[self.pos..end];
        // What earlier rules did in here comes first.
        self.carry(end, |_| at.clone());
        match self.out.edits.last_mut() {
            Some(last) if merge && last.rule == rule && last.at.end == start => {
                last.from.push_str(from);
                last.to.push_str(&to);
                last.at.end = at.end;
            }
            _ => self.out.edits.push(Edit { at, from: from.into(), to, rule }),
        }
        self.pos = end;
    }

    /// Puts a word in the place of the input up to `end`, with a space where it would touch a letter or digit.
    pub fn speak_to(&mut self, end: usize, words: impl Into<CompactString>, rule: &'static str) {
        let words = words.into();
        let touches = |c: Option<char>| c.is_some_and(|c| is_word_char(c) || is_spoken(c));
        let before = touches(self.out.text.chars().next_back()) && touches(words.chars().next());
        let after = touches(words.chars().next_back()) && touches(self.input[end..].chars().next());
        if before {
            self.out.text.push(' ');
        }
        self.replace_to(end, words, rule, false);
        if after {
            self.out.text.push(' ');
        }
    }

    /// Copies the rest and hands out the result.
    pub fn finish(mut self) -> Traced {
        let end = self.input.len();
        self.keep_to(end);
        // Edits that left nothing at the very end.
        let at = self.out.text.len()..self.out.text.len();
        self.carry(usize::MAX, |_| at.clone());
        self.out
    }

    fn carry(&mut self, end: usize, place: impl Fn(&Range<usize>) -> Range<usize>) {
        while let Some(edit) = self.earlier.next_if(|edit| edit.at.start < end) {
            self.out.edits.push(Edit { at: place(&edit.at), ..edit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_of_earlier_stages_move_with_the_text() {
        let mut writer = Writer::new("a  12 kg\u{200b} x", Vec::new());
        writer.keep_to(1);
        writer.replace_to(3, " ", "space", true);
        writer.keep_to(8);
        writer.replace_to(11, "", "invisible", true);
        let second = writer.finish();
        assert_eq!(second.text, "a 12 kg x");
        let mut writer = Writer::new(&second.text, second.edits);
        writer.keep_to(2);
        writer.speak_to(4, "twelve", "cardinal");
        writer.keep_to(5);
        writer.speak_to(7, "kilograms", "unit");
        let third = writer.finish();
        assert_eq!(third.text, "a twelve kilograms x");
        let seen: Vec<_> = third.edits.iter().map(|e| (e.rule, e.from.as_str(), e.to.as_str())).collect();
        let expected = [
            ("space", "  ", " "),
            ("cardinal", "12", "twelve"),
            ("unit", "kg", "kilograms"),
            ("invisible", "\u{200b}", ""),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn spoken_words_do_not_stick_to_their_neighbours() {
        let mut writer = Writer::new("x5y", Vec::new());
        writer.keep_to(1);
        writer.speak_to(2, "five", "cardinal");
        assert_eq!(writer.finish().text, "x five y");
    }
}
