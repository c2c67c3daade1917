//! Powers and bounds: `10³`, `10^-6`, `x²`, `≥18`, `>5 kg`.

use super::super::lang::{Lang, Say};
use super::super::number;
use super::amount::Amount;
use super::{Kind, Reading, Text};

/// Most signs of a written exponent.
const LONGEST_EXPONENT: usize = 8;

impl Text<'_> {
    /// A number with its exponent; at the digits.
    pub(super) fn power_of_number(&self, i: usize, base: &Amount) -> Option<Reading> {
        let lang = self.lang(i);
        self.power(lang, base.end, || base.say(lang))
    }

    /// A single letter with its exponent; at the letter.
    pub(super) fn power_of_letter(&self, i: usize) -> Option<Reading> {
        let letter = self.is_latin(i) && self.str(i).len() == 1 && !self.is_attached(i);
        letter.then(|| self.power(self.lang(i), i + 1, || self.str(i).to_owned()))?
    }

    /// A base with the exponent that begins at a place.
    fn power(&self, lang: Lang, exponent: usize, base: impl FnOnce() -> String) -> Option<Reading> {
        let (negative, exponent, end) = self.exponent(exponent)?;
        let base = base();
        let minus = if negative { format!("{} ", lang.say(Say::Minus)) } else { String::new() };
        let named = match (negative, exponent.as_str()) {
            (false, "2") => Some(["का वर्ग", "squared", "ka varg"]),
            (false, "3") => Some(["का घन", "cubed", "ka ghan"]),
            _ => None,
        };
        let (column, to) = match lang {
            Lang::Hindi => (0, "की घात"),
            Lang::English => (1, "to the power"),
            Lang::RomanHindi => (2, "ki ghaat"),
            _ => return None,
        };
        let words = match named {
            Some(names) => format!("{base} {}", names[column]),
            None => format!("{base} {to} {minus}{}", number::integer(lang, &exponent)),
        };
        Reading::new(end, words, "power")
    }

    /// An exponent in raised digits or behind a caret: whether it is negative, its digits, the token after it.
    pub(super) fn exponent(&self, i: usize) -> Option<(bool, String, usize)> {
        if self.is_sign(i, '^') {
            let negative = matches!(self.kind(i + 1), Some(Kind::Sign('-' | '−')));
            let at = i + 1 + usize::from(negative);
            return (1..=LONGEST_EXPONENT)
                .contains(&self.digit_count(at))
                .then(|| (negative, self.digits(at).into_owned(), at + 1));
        }
        let negative = self.is_sign(i, '⁻');
        let start = i + usize::from(negative);
        let raised = |at: usize| match self.kind(at) {
            Some(Kind::Sign(sign)) => raised_digit(sign),
            _ => None,
        };
        let digits: String = (start..start + LONGEST_EXPONENT).map_while(raised).collect();
        (!digits.is_empty()).then(|| (negative, digits.clone(), start + digits.len()))
    }

    /// Whether an exponent in raised digits ends before a place, across at most one space.
    pub(super) fn follows_power(&self, i: usize) -> bool {
        self.before(i).is_some_and(|at| matches!(self.kind(at), Some(Kind::Sign(sign)) if raised_digit(sign).is_some()))
    }

    /// `≥18`, `<= 5`: at least, at most; `>18`, `<5 kg`: more, less than what follows; at the sign.
    pub(super) fn bound(&self, i: usize, sign: char) -> Option<Reading> {
        let lang = self.lang(i);
        let column = match lang {
            Lang::Hindi => 0,
            Lang::English => 1,
            Lang::RomanHindi => 2,
            _ => return None,
        };
        let equal = matches!(sign, '≥' | '≤' | '⩾' | '⩽') || self.is_sign(i + 1, '=');
        let more = matches!(sign, '≥' | '⩾' | '>');
        if equal {
            let end = i + 1 + usize::from(self.is_sign(i + 1, '='));
            let words = if more {
                ["कम से कम", "at least", "kam se kam"]
            } else {
                ["ज़्यादा से ज़्यादा", "at most", "zyada se zyada"]
            };
            return self.is_digits(self.past_space(end)).then(|| Reading::new(end, words[column], "bound"))?;
        }
        let what = match self.kind(i + 1)? {
            Kind::Digits => {
                let amount = self.amount(i + 1)?;
                self.measure(i + 1, &amount)
                    .or_else(|| self.money_after(i + 1, &amount))
                    .or_else(|| self.plain_number(i + 1, &amount))?
            }
            Kind::Sign('₹' | '$' | '£' | '€' | '¥') => self.money_before(i + 1)?,
            _ => return None,
        };
        let words = match (lang, more) {
            (Lang::English, true) => format!("more than {}", what.words),
            (Lang::English, false) => format!("less than {}", what.words),
            (_, true) => format!("{} {}", what.words, ["से ज़्यादा", "", "se zyada"][column]),
            (_, false) => format!("{} {}", what.words, ["से कम", "", "se kam"][column]),
        };
        Reading::new(what.end, words, "bound")
    }
}

fn raised_digit(sign: char) -> Option<char> {
    const DIGITS: &str = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    DIGITS.chars().position(|raised| raised == sign).and_then(|value| char::from_digit(value as u32, 10))
}
