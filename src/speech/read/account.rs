//! Accounts as banks write them: `A/C no. 1234`, `XX4321`.

use super::super::number;
use super::{Reading, Text, tables};

/// Most groups of a masked number, `XXXX XXXX 1234` and one more.
const MOST_GROUPS: usize = 4;

impl Text<'_> {
    /// `A/C no. 1234` is an account, any other `A/C` cools; at the `A`.
    pub(super) fn account_or_cooler(&self, i: usize) -> Option<Reading> {
        const ACCOUNT: &[&str] =
            &["no", "No", "number", "Number", "num", "holder", "Holder", "नंबर", "नम्बर", "संख्या", "धारक", "payee"];
        let written =
            matches!(self.word(i), "A" | "a") && self.is_sign(i + 1, '/') && matches!(self.word(i + 2), "C" | "c");
        if !written || self.is_attached(i) {
            return None;
        }
        let end = i + 3;
        let lang = self.lang(i);
        let (at, word) = self.next_word(if self.is_sign(end, ':') { end + 1 } else { end });
        if ACCOUNT.contains(&word) || self.is_digits(at) || self.masked_end(at).is_some() {
            return Reading::new(end, if lang.is_latin() { "account" } else { "खाता" }, "abbreviation");
        }
        Reading::new(end, tables::spell(lang, "AC"), "acronym")
    }

    /// `XX4321`, `XXXX XXXX 1234`: of a masked number the digits that are left; at the mask.
    pub(super) fn masked(&self, i: usize) -> Option<Reading> {
        let end = self.masked_end(i).filter(|_| !self.is_attached(i) || !self.is_digits(i - 1))?;
        Reading::new(end, number::digits(self.lang(i), &self.digits(end - 1)), "masked number")
    }

    /// The token after a masked number that begins at a place: groups of `X`, then two to six digits.
    pub(super) fn masked_end(&self, i: usize) -> Option<usize> {
        let is_mask = |word: &str| (2..=16).contains(&word.len()) && word.bytes().all(|b| matches!(b, b'X' | b'x'));
        let mut at = i;
        for _ in 0..MOST_GROUPS {
            if !is_mask(self.word(at)) {
                return None;
            }
            at += 1;
            let next = if self.is_hyphen(at) { at + 1 } else { self.past_space(at) };
            if (2..=6).contains(&self.digit_count(next)) {
                return (!self.is_latin(next + 1)).then_some(next + 1);
            }
            at = next;
        }
        None
    }
}
