//! Signs: plus and minus, ranges, equals, fractions, `#`, `&`.

use super::super::lang::{Lang, Say};
use super::super::number;
use super::numeral::{over, vulgar};
use super::{Kind, Reading, Text};

impl Text<'_> {
    /// What a sign means where it stands; most mean nothing and stay.
    pub(super) fn sign_reading(&self, i: usize, sign: char) -> Option<Reading> {
        let lang = self.lang(i);
        let number_follows = self.is_digits(self.past_space(i + 1));
        let number_precedes = self.before(i).is_some_and(|at| self.is_digits(at) || self.is_closed_value(at));
        let between = number_follows && number_precedes;
        match sign {
            '₹' | '$' | '£' | '€' | '¥' | '₨' | '৳' => self.money_before(i).or_else(|| self.signed_money(i)),
            '+' | '-' | '−' if self.is_space(i + 1) && self.follows_power(i) => {
                let word = if sign == '+' { Say::Plus } else { Say::Minus };
                Reading::new(i + 1, lang.say(word), "sign")
            }
            '-' | '−' if self.is_grade(i) => Reading::new(i + 1, lang.say(Say::Minus), "sign"),
            '-' | '−' | '–' | '‐' | '‑' => self.hyphen(i, between),
            '+' if i > 0 && !number_follows && (self.is_digits(i - 1) || self.is_scaled(i - 1)) => {
                Reading::new(i + 1, lang.say(Say::Plus), "sign")
            }
            '+' if self.is_grade(i) => Reading::new(i + 1, lang.say(Say::Plus), "sign"),
            '@' if self.is_space(i + 1) && number_follows || self.is_money(self.past_space(i + 1)) => {
                Reading::new(i + 1, if lang.is_latin() { "at" } else { "ऐट" }, "sign")
                    .filter(|_| lang.is_latin() || matches!(lang, Lang::Hindi | Lang::Marathi))
            }
            '+' if self.is_doubled_plus(i) => {
                let plus = lang.say(Say::Plus);
                Reading::new(i + 2, format!("{plus} {plus}"), "sign")
            }
            '+' => self
                .international(i)
                .or_else(|| (number_follows).then(|| Reading::new(i + 1, lang.say(Say::Plus), "sign"))?),
            '(' => self.area_code(i),
            '±' if number_follows => {
                Reading::new(i + 1, format!("{} {}", lang.say(Say::Plus), lang.say(Say::Minus)), "sign")
            }
            '=' if number_precedes || number_follows => Reading::new(i + 1, lang.say(Say::Equals), "sign"),
            '×' if self.is_space(i + 1) && self.is_money(i + 2) => Reading::new(i + 1, lang.say(Say::Times), "sign"),
            '×' | '*' if between => Reading::new(i + 1, lang.say(Say::Times), "sign"),
            '÷' if between => Reading::new(i + 1, lang.say(Say::DividedBy), "sign"),
            '/' if self.rate_after(i).is_some() => self.rate_after(i),
            '/' if between && !self.is_space(i + 1) && self.is_single_slash(i) => {
                Reading::new(i + 1, over(lang), "fraction")
            }
            '/' if self.is_lettered(i) => Reading::new(i + 1, over(lang), "fraction"),
            '/' if between && self.is_space(i + 1) => Reading::new(i + 1, lang.say(Say::DividedBy), "sign"),
            ',' if between && !self.is_space(i + 1) => Reading::new(i + 1, ", ", "list"),
            ':' if between && !self.is_space(i + 1) && self.is_score(i) => Reading::new(i + 1, " ", "score"),
            ':' if between && !self.is_space(i + 1) && self.is_pair(i) => Reading::new(i + 1, " ", "pair"),
            ':' if between && !self.is_space(i + 1) => Reading::new(i + 1, lang.say(Say::To), "ratio"),
            '%' if self.stands_alone(i) && !number_precedes => Reading::new(i + 1, lang.say(Say::Percent), "percent"),
            '\'' | '’' | '‘' => self.short_year(i),
            '#' if i > 0 && self.is_capital_word(i - 1) && self.str(i - 1).len() == 1 => {
                Reading::new(i + 1, if lang.is_latin() { "sharp" } else { "शार्प" }, "sign")
                    .filter(|_| lang.is_latin() || lang.is_hindi() || lang == Lang::Marathi)
            }
            '#' => self.hash(i),
            '√' if self.is_digits(i + 1) => self.root(i),
            '∞' if lang.is_latin() => Reading::new(i + 1, "infinity", "sign"),
            '∞' if matches!(lang, Lang::Hindi | Lang::Marathi) => Reading::new(i + 1, "अनंत", "sign"),
            '№' if number_follows => Reading::new(i + 1, lang.say(Say::Number), "sign"),
            '&' if self.stands_alone(i) => Reading::new(i + 1, lang.say(Say::And), "sign"),
            '.' if self.is_digits(i + 1) && !self.is_attached(i) => {
                let words = format!("{} {}", lang.say(Say::Point), number::digits(lang, &self.digits(i + 1)));
                Reading::new(i + 2, words, "decimal")
            }
            '≥' | '≤' | '⩾' | '⩽' => self.bound(i, sign),
            '<' | '>' if self.is_sign(i + 1, '=') => self.bound(i, sign),
            '<' | '>' if between => self.comparison(i, sign),
            '<' | '>' => self.bound(i, sign),
            '≠' if number_precedes || number_follows => self.unequal(i),
            '~' | '≈' if number_follows => {
                Reading::new(i + 1, if lang.is_latin() { "about" } else { "लगभग" }, "sign")
                    .filter(|_| lang.is_latin() || lang.code() == "hi")
            }
            sign => vulgar(lang, None, sign).and_then(|words| Reading::new(i + 1, words, "fraction")),
        }
    }

    /// Whether a sign is not one of a row of signs.
    fn stands_alone(&self, i: usize) -> bool {
        let sign = |at: Option<Kind>| matches!(at, Some(Kind::Sign(_)));
        let before = i.checked_sub(1).and_then(|at| self.kind(at));
        !sign(self.kind(i + 1)) && !sign(before)
    }

    /// A percent sign or a bracket that closes a number.
    fn is_closed_value(&self, i: usize) -> bool {
        matches!(self.kind(i), Some(Kind::Sign('%' | '°' | ')'))) && i > 0 && self.is_digits(i - 1)
    }

    /// A minus sign, the `to` of a range, or the joint of a score or a compound.
    fn hyphen(&self, i: usize, between: bool) -> Option<Reading> {
        let lang = self.lang(i);
        let currency_follows = matches!(self.kind(i + 1), Some(Kind::Sign('₹' | '$' | '£' | '€' | '¥')));
        if self.is_negative_sign(i) && (self.is_digits(i + 1) || currency_follows && self.is_digits(i + 2)) {
            return Reading::new(i + 1, lang.say(Say::Minus), "minus");
        }
        if between {
            let spaced = self.is_space(i + 1);
            if !spaced && i > 0 && self.is_digits(i - 1) && self.is_score(i) {
                return Reading::new(i + 1, " ", "score");
            }
            // `2-2 रोटी` is two each; from a number to itself there is no range.
            if !spaced && self.is_pair(i) {
                return Reading::new(i + 1, " ", "pair");
            }
            if !spaced && (self.is_in_row(i) && !self.has_equals(i) || self.is_part_number(i)) {
                return Reading::new(i + 1, " ", "row");
            }
            // A spaced hyphen is a minus in a sum: an equals sign stands near.
            // One without is a minus only right before the equals sign.
            let equals = || self.amount(i + 1).is_some_and(|right| self.is_sign(right.end, '='));
            let sum = if spaced { self.has_equals(i) } else { equals() };
            let word = if sum { Say::Minus } else { Say::To };
            return Reading::new(i + 1, lang.say(word), if sum { "minus" } else { "range" });
        }
        if let Some(range) = self.value_range(i) {
            return Some(range);
        }
        let range = currency_follows && self.before(i).is_some_and(|at| self.is_digits(at));
        let compound = i > 0 && matches!(self.kind(i - 1), Some(Kind::Word(_))) && self.is_digits(i + 1);
        match (range, compound) {
            (true, _) => Reading::new(i + 1, lang.say(Say::To), "range"),
            (_, true) => Reading::new(i + 1, " ", "hyphen"),
            _ => None,
        }
    }

    /// Whether a hyphen is one of several in a row of numbers, `1-0-1`, `4-5-678`, which is no range.
    fn is_in_row(&self, i: usize) -> bool {
        let before = i >= 3 && self.is_hyphen(i - 2) && self.is_digits(i - 3);
        before || self.is_hyphen(i + 2) && self.is_digits(i + 3)
    }

    /// Whether the numbers on both sides of a slash have no other slash, as those of a date have.
    fn is_single_slash(&self, i: usize) -> bool {
        !(self.is_sign(i + 2, '/') || i >= 2 && self.is_sign(i - 2, '/'))
    }

    /// Whether a number with a leading zero, `2024-001`, stands behind a hyphen and one without before it: no range goes there.
    fn is_part_number(&self, i: usize) -> bool {
        let zero = |at: usize| self.digit_count(at) > 1 && self.digits(at).starts_with('0');
        i > 0 && zero(i + 1) && !zero(i - 1)
    }

    /// Whether a sign ends a grade or a blood group, `A+`, `AB-`.
    fn is_grade(&self, i: usize) -> bool {
        let ends = matches!(
            self.kind(i + 1),
            None | Some(Kind::Space | Kind::Break | Kind::Sign('.' | ',' | ')' | '।' | '?' | '!'))
        );
        let alone =
            i == 1 || i > 1 && matches!(self.kind(i - 2), Some(Kind::Space | Kind::Break | Kind::Sign('(' | '"')));
        i > 0 && ends && alone && matches!(self.word(i - 1), "A" | "B" | "AB" | "O" | "C" | "D" | "E")
    }

    /// Whether an amount of money begins at a place.
    fn is_money(&self, i: usize) -> bool {
        matches!(self.kind(i), Some(Kind::Sign('₹' | '$' | '£' | '€' | '¥'))) && self.is_digits(self.past_space(i + 1))
    }

    /// Whether a slash parts a number from one letter, `12/A`.
    fn is_lettered(&self, i: usize) -> bool {
        i > 0
            && self.is_digits(i - 1)
            && self.is_capital_word(i + 1)
            && self.str(i + 1).len() == 1
            && !self.is_sign(i + 2, '/')
    }

    /// Whether a word is a scale letter that touches its number, `10k`.
    fn is_scaled(&self, word: usize) -> bool {
        word > 0
            && self.is_digits(word - 1)
            && matches!(self.word(word), "k" | "K" | "L" | "M" | "B" | "cr" | "Cr" | "mn" | "bn")
    }

    /// Whether the plus of `C++` or `Notepad++` stands at a place.
    fn is_doubled_plus(&self, i: usize) -> bool {
        i > 0 && self.is_latin(i - 1) && self.is_sign(i + 1, '+') && !self.is_sign(i + 2, '+')
    }

    /// `√16`: in Hindi the word comes last.
    fn root(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        let amount = self.amount(i + 1)?;
        let number = amount.say(lang);
        let words = match lang {
            Lang::English => format!("square root of {number}"),
            Lang::RomanHindi => format!("{number} ka vargmool"),
            Lang::Hindi => format!("{number} का वर्गमूल"),
            _ => return None,
        };
        Reading::new(amount.end, words, "sign")
    }

    /// Whether a hyphen stands between two equal numbers of one or two digits.
    fn is_pair(&self, i: usize) -> bool {
        let alone = i >= 1 && !self.is_sign(i + 2, '.') && !self.is_hyphen(i + 2) && (i == 1 || !self.is_hyphen(i - 2));
        alone && self.digit_count(i - 1) <= 2 && self.value(i - 1).is_some() && self.value(i - 1) == self.value(i + 1)
    }

    fn unequal(&self, i: usize) -> Option<Reading> {
        let words = match self.lang(i).code() {
            "en" => "is not equal to",
            "hi-Latn" => "barabar nahin",
            "hi" => "बराबर नहीं",
            _ => return None,
        };
        Reading::new(i + 1, words, "sign")
    }

    /// `-₹500` was read by the hyphen; here `₹-500`.
    fn signed_money(&self, i: usize) -> Option<Reading> {
        let (at, word) = (self.past_space(i + 1), self.lang(i).say(Say::Rupees));
        // A lone sign beside words is the name of the currency: `₹ में`.
        (self.is_sign(i, '₹') && !self.is_digits(at)).then(|| Reading::new(i + 1, word, "money")).flatten()
    }

    /// `#1` is a number, `#tag` a hashtag.
    fn hash(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        match self.kind(i + 1) {
            Some(Kind::Digits) => Reading::new(i + 1, lang.say(Say::Number), "sign"),
            Some(Kind::Word(_)) => {
                let words = format!("{} {}", lang.say(Say::Hashtag), camel_case(self.str(i + 1)));
                Reading::new(i + 2, words, "hashtag")
            }
            _ => None,
        }
    }

    fn comparison(&self, i: usize, sign: char) -> Option<Reading> {
        let words = match (self.lang(i).code(), sign) {
            ("en", '<') => "is less than",
            ("en", _) => "is greater than",
            ("hi-Latn", '<') => "less than",
            ("hi-Latn", _) => "greater than",
            ("hi", '<') => "लेस दैन",
            ("hi", _) => "ग्रेटर दैन",
            _ => return None,
        };
        Reading::new(i + 1, words, "sign")
    }
}

/// Parts the words of `MakeInIndia`.
pub fn camel_case(word: &str) -> String {
    let mut out = String::with_capacity(word.len() + 8);
    let mut last_lower = false;
    for c in word.chars() {
        if c.is_uppercase() && last_lower {
            out.push(' ');
        }
        last_lower = c.is_lowercase();
        out.push(c);
    }
    out
}
