//! Two numbers, or a number and a word, joined by a sign or a letter: `24x7`, `10x12 feet`, `26/11`, `/month`.

use super::super::lang::{Lang, Say};
use super::super::number;
use super::amount::Amount;
use super::{Kind, Reading, Text};

/// Tokens behind a sign in which an equals sign is looked for.
const SUM: usize = 8;

/// Days known by their numbers, which are no fractions.
const KNOWN_DAYS: [(u64, u64); 3] = [(24, 7), (26, 11), (9, 11)];
/// Words behind such days.
const ATTACKS: &[&str] =
    &["हमला", "हमले", "हमलों", "धमाका", "धमाके", "attack", "attacks", "blast", "blasts", "hamla", "hamle"];

/// What a rate counts by: as written, then in Hindi, English and romanised Hindi.
const RATES: [(&[&str], [&str; 3]); 13] = [
    (&["लीटर", "litre", "liter"], ["लीटर", "litre", "liter"]),
    (&["किलो", "kilo"], ["किलो", "kilo", "kilo"]),
    (&["रात", "night"], ["रात", "night", "raat"]),
    (&["पीस", "piece", "pc", "pcs"], ["पीस", "piece", "piece"]),
    (&["प्लेट", "plate"], ["प्लेट", "plate", "plate"]),
    (&["मिनट", "minute"], ["मिनट", "minute", "minute"]),
    (&["माह", "महीना", "महीने", "month", "mo", "mahina", "maah"], ["माह", "month", "maah"]),
    (&["दिन", "day", "din"], ["दिन", "day", "din"]),
    (&["वर्ष", "साल", "year", "annum", "saal"], ["वर्ष", "year", "saal"]),
    (&["सप्ताह", "हफ़्ता", "हफ्ता", "week", "hafta"], ["सप्ताह", "week", "hafta"]),
    (&["घंटा", "घंटे", "hour", "ghanta"], ["घंटा", "hour", "ghanta"]),
    (&["यूनिट", "unit"], ["यूनिट", "unit", "unit"]),
    (&["व्यक्ति", "person", "head"], ["व्यक्ति", "person", "vyakti"]),
];

impl Text<'_> {
    /// `24x7` whole, of `10x12` and `2x3x4` a number with the `by` behind it; at the digits.
    pub(super) fn crossed(&self, i: usize, first: &Amount) -> Option<Reading> {
        if first.whole == "0" {
            return None;
        }
        let spaced = self.is_space(first.end);
        let cross = self.past_space(first.end);
        let sign = self.is_sign(cross, '×');
        if !sign && !matches!(self.word(cross), "x" | "X") || self.is_space(cross + 1) != spaced {
            return None;
        }
        let second = self.amount(self.past_space(cross + 1))?;
        // `6×10²³` is a product.
        if self.exponent(second.end).is_some() {
            return None;
        }
        let lang = self.lang(i);
        if !spaced && (first.whole.as_str(), second.whole.as_str()) == ("24", "7") {
            return Reading::new(second.end, format!("{} {}", first.say(lang), second.say(lang)), "round the clock");
        }
        // A cross with spaces or with an equals sign near is that of a product.
        if sign && (spaced || self.has_equals(cross)) {
            return None;
        }
        let by = match lang {
            Lang::Hindi | Lang::Marathi => "बाय",
            Lang::English | Lang::RomanHindi => "by",
            _ => return None,
        };
        Reading::new(cross + 1, format!("{} {by}", first.say(lang)), "dimensions")
    }

    /// Whether an equals sign stands shortly behind a place.
    pub(super) fn has_equals(&self, i: usize) -> bool {
        (i..(i + SUM).min(self.tokens.len())).any(|at| self.is_sign(at, '='))
    }

    /// Whether two numbers with a slash between name a day or its event: `26/11`, `9/11`, `7/7 attacks`.
    pub(super) fn is_known_day(&self, top: u64, bottom: u64, end: usize) -> bool {
        let (_, word) = self.next_word(end);
        KNOWN_DAYS.contains(&(top, bottom)) || ATTACKS.contains(&word)
    }

    /// What a rate counts by, at a word, with `per` before it.
    pub(super) fn rate(&self, lang: Lang, i: usize) -> Option<String> {
        let (_, words) = RATES.iter().find(|(written, _)| written.contains(&self.word(i)))?;
        match lang {
            Lang::Hindi => Some(format!("प्रति {}", words[0])),
            Lang::English => Some(format!("per {}", words[1])),
            Lang::RomanHindi => Some(format!("prati {}", words[2])),
            _ => None,
        }
    }

    /// The slash of `500 रुपये/माह`: a number and at most one word stand before it.
    pub(super) fn rate_after(&self, i: usize) -> Option<Reading> {
        let word = i.checked_sub(1).filter(|at| !self.word(*at).is_empty());
        let counted =
            word.and_then(|at| self.before(at)).is_some_and(|at| self.is_digits(at)) || i > 0 && self.is_digits(i - 1);
        counted.then(|| Reading::new(i + 2, self.rate(self.lang(i), i + 1)?, "rate")).flatten()
    }

    /// `1:30 घंटे`: hours and minutes that are no time of day; at the digits.
    pub(super) fn hours_and_minutes(&self, i: usize) -> Option<Reading> {
        const TIMES: &[&str] = &["at", "At", "by", "from", "till", "until", "before", "after", "past"];
        let two = self.is_sign(i + 1, ':') && self.digit_count(i + 2) == 2;
        let (hours, minutes) = (self.value(i)?, self.value(i + 2).filter(|minutes| two && *minutes < 60)?);
        let (at, word) = self.next_word(i + 3);
        let named = matches!(word, "घंटे" | "घंटा" | "घण्टे" | "घंटों" | "ghante" | "ghanta" | "hours" | "hour");
        if !named || TIMES.contains(&self.previous_word(i).1) || i > 0 && self.is_sign(i - 1, ':') {
            return None;
        }
        let lang = self.lang(i);
        let (hour, minute) = match lang {
            Lang::Hindi => (["घंटा", "घंटे"], ["मिनट", "मिनट"]),
            Lang::RomanHindi => (["ghanta", "ghante"], ["minute", "minute"]),
            Lang::English => (["hour", "hours"], ["minute", "minutes"]),
            _ => return None,
        };
        let say =
            |n: u64, names: [&str; 2]| format!("{} {}", number::cardinal(lang, n.into()), names[usize::from(n != 1)]);
        let words =
            [(hours, hour), (minutes, minute)].into_iter().filter(|(n, _)| *n > 0).map(|(n, names)| say(n, names));
        let words = words.collect::<Vec<_>>().join(" ");
        (!words.is_empty()).then(|| Reading::new(at + 1, words, "duration")).flatten()
    }

    /// Whether a token ends a number with its unit or its AM or PM.
    pub(super) fn ends_value(&self, at: usize) -> bool {
        const LONGEST: usize = 6;
        (at.saturating_sub(LONGEST)..at).any(|digits| {
            let unit = || self.unit_at(self.past_space(digits + 1)).is_some_and(|(end, _)| end == at + 1);
            self.is_digits(digits) && (self.half_end(digits + 1) == Some(at + 1) || unit())
        })
    }

    /// `FY2024-25`, `FY2025`; at the letters.
    pub(super) fn financial_year(&self, i: usize) -> Option<Reading> {
        if self.word(i) != "FY" || self.digit_count(i + 1) != 4 {
            return None;
        }
        let lang = self.lang(i);
        let letters = super::tables::spell(lang, "FY");
        if let Some(years) = self.year_range(i + 1) {
            return Reading::new(years.end, format!("{letters} {}", years.words), "years");
        }
        let year = self.value(i + 1).filter(|year| (1900..=2199).contains(year))?;
        Reading::new(i + 2, format!("{letters} {}", super::date::year_words(lang, year)), "year")
    }

    /// `90s`, `1990s`, `1990's`; at the digits.
    pub(super) fn decade(&self, i: usize) -> Option<Reading> {
        let n =
            self.value(i).filter(|n| n.is_multiple_of(10) && ((20..100).contains(n) || (1100..=2099).contains(n)))?;
        let quote = usize::from(matches!(self.kind(i + 1), Some(Kind::Sign('\'' | '’'))));
        if self.word(i + 1 + quote) != "s" {
            return None;
        }
        let lang = self.lang(i);
        let words = if n < 100 { number::cardinal(lang, n.into()) } else { super::date::year_words(lang, n) };
        let words = match lang {
            Lang::English => match words.strip_suffix('y') {
                Some(stem) => format!("{stem}ies"),
                None => format!("{words}s"),
            },
            Lang::Hindi => {
                let oblique = matches!(self.next_word(i + 2 + quote).1, "का" | "की" | "के" | "में" | "से" | "तक" | "को");
                format!("{words} {} दशक", if oblique { "के" } else { "का" })
            }
            Lang::RomanHindi => {
                let oblique =
                    matches!(self.next_word(i + 2 + quote).1, "ka" | "ki" | "ke" | "mein" | "me" | "se" | "tak" | "ko");
                format!("{words} {} dashak", if oblique { "ke" } else { "ka" })
            }
            _ => return None,
        };
        Reading::new(i + 2 + quote, words, "decade")
    }

    /// The joint of a range whose lower end has a unit, AM or PM: `9am-5pm`, `25°C-30°C`; at the hyphen.
    pub(super) fn value_range(&self, i: usize) -> Option<Reading> {
        let number = self.is_digits(self.past_space(i + 1));
        let evenly = self.is_space(i + 1) == (i > 0 && self.is_space(i - 1));
        let ends = evenly && number && self.before(i).is_some_and(|at| self.ends_value(at));
        ends.then(|| Reading::new(i + 1, self.lang(i).say(Say::To), "range")).flatten()
    }
}
