//! A number as it is written: digits, their grouping, and the fraction.

use compact_str::CompactString;

use super::super::lang::{Lang, Say};
use super::super::number;
use super::{Kind, Text};

/// Most groups of digits between commas that count as one number: more than 10^19 needs.
const MOST_GROUPS: usize = 9;

/// A written number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// ASCII digits of the whole part, commas removed.
    pub whole: CompactString,
    /// ASCII digits after the point; empty if there is none.
    pub fraction: CompactString,
    /// Whether commas grouped it.
    pub grouped: bool,
    /// Token after it.
    pub end: usize,
}

impl Amount {
    /// Reads it: whole part, point, digits.
    pub fn say(&self, lang: Lang) -> String {
        let whole = number::integer(lang, &self.whole);
        if self.fraction.is_empty() {
            return whole;
        }
        format!("{whole} {} {}", lang.say(Say::Point), number::digits(lang, &self.fraction))
    }

    /// Reads it before a noun it counts: Telugu then has the oblique of its scale words, వేల for వేలు.
    pub fn say_counting(&self, lang: Lang) -> String {
        let mut words = self.say(lang);
        if lang == Lang::Telugu && ["వందలు", "వేలు", "లక్షలు", "కోట్లు"].iter().any(|scale| words.ends_with(scale))
        {
            words.truncate(words.len() - "ు".len());
        }
        words
    }

    /// As [`Amount::say`], or the Hindi short form of halves and quarters: डेढ़, ढाई, सवा दो, साढ़े तीन, पौने दो.
    pub fn say_short(&self, lang: Lang) -> String {
        let quarters = match self.fraction.trim_end_matches('0') {
            "25" => 1,
            "5" => 2,
            "75" => 3,
            _ => return self.say(lang),
        };
        match self.whole.parse() {
            Ok(whole) if lang.is_hindi() => quarters_in_hindi(lang, whole, quarters),
            _ => self.say(lang),
        }
    }

    /// Whether it is exactly one.
    pub fn is_one(&self) -> bool {
        self.whole == "1" && self.fraction.is_empty()
    }
}

/// A whole number and quarters, as Hindi counts them.
pub fn quarters_in_hindi(lang: Lang, whole: u128, quarters: usize) -> String {
    let latin = usize::from(lang.is_latin());
    let word = |words: [&str; 2]| words[latin].to_owned();
    let before = |words: [&str; 2], n| format!("{} {}", words[latin], number::cardinal(lang, n));
    match (whole, quarters) {
        (0, 1) => word(["चौथाई", "chauthaai"]),
        (0, 2) => word(["आधा", "aadha"]),
        (0, 3) => word(["पौन", "paun"]),
        (1, 1) => word(["सवा", "sava"]),
        (1, 2) => word(["डेढ़", "dedh"]),
        (2, 2) => word(["ढाई", "dhaai"]),
        (n, 1) => before(["सवा", "sava"], n),
        (n, 2) => before(["साढ़े", "saadhe"], n),
        (n, _) => before(["पौने", "paune"], n + 1),
    }
}

impl Text<'_> {
    /// The number that begins at a token of digits.
    pub(super) fn amount(&self, i: usize) -> Option<Amount> {
        if !self.is_digits(i) {
            return None;
        }
        let mut end = i + 1;
        let groups = self.comma_groups(i);
        let grouped = groups > 1;
        let mut whole = CompactString::from(self.digits(i));
        if grouped {
            end = i + 2 * groups - 1;
            (1..groups).for_each(|k| whole.push_str(&self.digits(i + 2 * k)));
        }
        let mut fraction = CompactString::default();
        // Two points are a version or a date, not a fraction.
        if self.is_sign(end, '.') && self.is_digits(end + 1) && !(self.is_sign(end + 2, '.') && self.is_digits(end + 3))
        {
            fraction = self.digits(end + 1).into();
            end += 2;
        }
        Some(Amount { whole, fraction, grouped, end })
    }

    /// Number of groups in a regular Indian (3-2-2) or western (3-3-3) grouping; 1 if the commas are those of a list.
    fn comma_groups(&self, i: usize) -> usize {
        let in_list = i >= 2 && self.is_sign(i - 1, ',') && self.is_digits(i - 2);
        let mut groups = 1;
        while !in_list
            && groups <= MOST_GROUPS
            && self.is_sign(i + 2 * groups - 1, ',')
            && self.is_digits(i + 2 * groups)
        {
            groups += 1;
        }
        if groups == 1 {
            return 1;
        }
        let size = |k: usize| self.digit_count(i + 2 * k);
        let all = |n: usize| (1..groups - 1).all(|k| size(k) == n);
        let regular =
            size(groups - 1) == 3 && (all(2) && (1..=2).contains(&size(0)) || all(3) && (1..=3).contains(&size(0)));
        if regular && groups <= MOST_GROUPS { groups } else { 1 }
    }

    /// The nearest token before a number that is not a space.
    pub(super) fn before(&self, i: usize) -> Option<usize> {
        let at = i.checked_sub(1)?;
        if self.is_space(at) { at.checked_sub(1) } else { Some(at) }
    }

    /// Whether a minus sign at a place belongs to the number after it: nothing it could join stands before.
    pub(super) fn is_negative_sign(&self, i: usize) -> bool {
        let free = i == 0
            || matches!(self.kind(i - 1), Some(Kind::Space | Kind::Break | Kind::Sign('(' | '[' | '=' | ':' | ',')));
        matches!(self.kind(i), Some(Kind::Sign('-' | '−'))) && free
    }
}
