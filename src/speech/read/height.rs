//! Feet and inches: `5'7"`, `5' 7"`, `5 ft 7 in`, `6' tall`.

use super::super::lang::Lang;
use super::super::number;
use super::{Kind, Reading, Text};

/// Words behind a lone foot or inch mark that make it one, not the end of a quotation.
const EXTENTS: &[&str] = &[
    "tall",
    "long",
    "wide",
    "high",
    "deep",
    "लंबा",
    "लंबी",
    "लंबे",
    "लम्बा",
    "लम्बी",
    "लम्बे",
    "ऊँचा",
    "ऊँची",
    "ऊँचे",
    "ऊंचा",
    "ऊंची",
    "ऊंचे",
    "चौड़ा",
    "चौड़ी",
    "चौड़े",
    "गहरा",
    "गहरी",
    "गहरे",
    "lamba",
    "lambi",
    "lambe",
    "ooncha",
    "chauda",
    "gehra",
];

impl Text<'_> {
    /// A length in feet and inches; at the digits.
    pub(super) fn feet_and_inches(&self, i: usize) -> Option<Reading> {
        let feet = self.value(i).filter(|_| i == 0 || !self.is_sign(i - 1, '.'))?;
        let marked = self.foot_mark(i + 1);
        let foot = marked.or_else(|| self.foot_word(i + 1))?;
        let lang = self.lang(i);
        let at = self.past_space(foot);
        let inches = self.value(at).filter(|inches| *inches < 12 && self.digit_count(at) <= 2);
        let end = match inches {
            Some(_) => match self.inch_mark(at + 1).or_else(|| self.inch_word(at + 1)) {
                Some(end) => Some(end),
                // `5'7` without a mark behind it.
                None if marked.is_some() && at == foot => Some(at + 1),
                None => None,
            },
            None => None,
        };
        let say =
            |n: u64, names: [&str; 2]| format!("{} {}", number::cardinal(lang, n.into()), names[usize::from(n != 1)]);
        let (foot_names, inch_names) = match lang {
            Lang::English => (["foot", "feet"], ["inch", "inches"]),
            Lang::RomanHindi => (["foot", "foot"], ["inch", "inch"]),
            Lang::Hindi | Lang::Marathi => (["फ़ुट", "फ़ुट"], ["इंच", "इंच"]),
            _ => return None,
        };
        match (inches, end) {
            (Some(inches), Some(end)) => {
                Reading::new(end, format!("{} {}", say(feet, foot_names), say(inches, inch_names)), "unit")
            }
            _ if marked.is_some() && EXTENTS.contains(&self.next_word(foot).1) => {
                Reading::new(foot, say(feet, foot_names), "unit")
            }
            _ => None,
        }
    }

    /// The token after a foot mark at a place.
    fn foot_mark(&self, i: usize) -> Option<usize> {
        let single = |at: usize| matches!(self.kind(at), Some(Kind::Sign('\'' | '′' | '’')));
        (single(i) && !single(i + 1)).then_some(i + 1)
    }

    /// The token after an inch mark at a place: a double one, or two single ones.
    fn inch_mark(&self, i: usize) -> Option<usize> {
        let single = |at: usize| matches!(self.kind(at), Some(Kind::Sign('\'' | '′' | '’')));
        match self.kind(i) {
            Some(Kind::Sign('"' | '″' | '”')) => Some(i + 1),
            _ if single(i) && single(i + 1) => Some(i + 2),
            _ => None,
        }
    }

    fn foot_word(&self, i: usize) -> Option<usize> {
        let (at, word) = self.next_word(i);
        matches!(word, "ft" | "feet" | "foot" | "फ़ुट" | "फुट" | "फ़ीट" | "फीट")
            .then(|| at + 1 + usize::from(self.is_sign(at + 1, '.')))
    }

    fn inch_word(&self, i: usize) -> Option<usize> {
        let (at, word) = self.next_word(i);
        matches!(word, "in" | "inch" | "inches" | "इंच").then_some(at + 1)
    }
}
