//! Letters joined to digits: `T20`, `5G`, `2BHK`, `NH44`, `₹5k`.

use super::super::lang::{Lang, Say};
use super::super::number;
use super::amount::Amount;
use super::{Reading, Text, tables};

/// English numbers up to twenty as Hindi writes them.
const ENGLISH_NUMBERS: [&str; 21] = [
    "ज़ीरो",
    "वन",
    "टू",
    "थ्री",
    "फ़ोर",
    "फ़ाइव",
    "सिक्स",
    "सेवन",
    "एट",
    "नाइन",
    "टेन",
    "इलेवन",
    "ट्वेल्व",
    "थर्टीन",
    "फ़ोर्टीन",
    "फ़िफ़्टीन",
    "सिक्स्टीन",
    "सेवंटीन",
    "एटीन",
    "नाइंटीन",
    "ट्वेंटी",
];

/// A number beside Latin letters, from ASCII digits. Up to twenty it is said in English even in Hindi, as the letters are:
/// टी ट्वेंटी, सी ओ टू, फ़ाइव जी.
fn label_number(lang: Lang, digits: &str) -> String {
    let small =
        digits.parse::<usize>().ok().filter(|_| digits.len() <= 2 && (digits.len() == 1 || !digits.starts_with('0')));
    match (lang, small) {
        (Lang::Hindi | Lang::Marathi, Some(n)) if n < ENGLISH_NUMBERS.len() => ENGLISH_NUMBERS[n].to_owned(),
        (Lang::RomanHindi, Some(n)) if n < ENGLISH_NUMBERS.len() => number::integer(Lang::English, digits),
        _ => number::integer(lang, digits),
    }
}

impl Text<'_> {
    /// A number with letters behind it: `5k`, `10Cr`, `5G`, `2BHK`.
    pub(super) fn letters_after(&self, i: usize, amount: &Amount) -> Option<Reading> {
        let lang = self.lang(i);
        if let (at, "cr" | "Cr" | "CR") = self.next_word(amount.end) {
            return Reading::new(at + 1, format!("{} {}", amount.say(lang), lang.say(Say::Crore)), "scale");
        }
        if !self.is_latin(amount.end) {
            return None;
        }
        let letters = self.str(amount.end);
        let scale = match letters {
            "k" | "K" => Some(Say::Thousand),
            "L" | "lakh" | "lac" => Some(Say::Lakh),
            "M" if self.is_count(i, amount) => Some(Say::Million),
            "B" if self.is_count(i, amount) => Some(Say::Billion),
            "mn" | "Mn" => Some(Say::Million),
            "bn" | "Bn" => Some(Say::Billion),
            _ => None,
        };
        let generation = matches!(letters, "G" | "D" | "K") && amount.whole.len() == 1 && amount.fraction.is_empty();
        if generation {
            let words = format!("{} {}", label_number(lang, &amount.whole), tables::spell(lang, letters));
            return Reading::new(amount.end + 1, words, "letters and digits");
        }
        if let Some(scale) = scale {
            return Reading::new(amount.end + 1, format!("{} {}", amount.say(lang), lang.say(scale)), "scale");
        }
        if let Some(flight) = self.flight(i) {
            return Some(flight);
        }
        let short = (letters.len() <= 4 || self.is_digits(amount.end + 1) && letters.len() <= 6)
            && letters.bytes().all(|b| b.is_ascii_uppercase());
        // More digits behind the letters make an identifier: the digits of both sides are read one by one.
        let identifier = self.is_digits(amount.end + 1) || amount.whole.len() > 4;
        let number = match (identifier, short && amount.fraction.is_empty()) {
            (true, _) => number::digits(lang, &amount.whole),
            (false, true) => label_number(lang, &amount.whole),
            (false, false) => amount.say(lang),
        };
        let letters = if short { tables::spell(lang, letters) } else { letters.to_owned() };
        Reading::new(amount.end + 1, format!("{number} {letters}"), "letters and digits")
    }

    /// `6E 2134` beside a word for a flight: the airline and the number, digit by digit.
    fn flight(&self, i: usize) -> Option<Reading> {
        const FLIGHTS: &[&str] = &["flight", "Flight", "फ़्लाइट", "फ्लाइट", "उड़ान"];
        let number = self.past_space(i + 2);
        let airline = self.digit_count(i) == 1 && self.is_capital_word(i + 1) && self.str(i + 1).len() == 1;
        let after = self.next_word(number + 1).1;
        let named = FLIGHTS.contains(&self.previous_word(i).1) || FLIGHTS.contains(&after);
        if !airline || !named || !(3..=4).contains(&self.digit_count(number)) {
            return None;
        }
        let lang = self.lang(i);
        let letters = tables::spell(lang, self.str(i + 1));
        let words =
            format!("{} {letters} {}", label_number(lang, &self.digits(i)), number::digits(lang, &self.digits(number)));
        Reading::new(number + 1, words, "letters and digits")
    }

    /// Whether a letter behind a number scales it, as in `2M views`, and is not that of a name, as in `Flat 5B`.
    fn is_count(&self, i: usize, amount: &Amount) -> bool {
        const NAMED: &[&str] = &[
            "flat",
            "room",
            "class",
            "section",
            "block",
            "gate",
            "plot",
            "house",
            "seat",
            "pencil",
            "फ़्लैट",
            "फ्लैट",
            "कमरा",
            "कक्षा",
            "ब्लॉक",
            "गेट",
            "प्लॉट",
            "मकान",
            "सीट",
        ];
        let before = self.previous_word(i).1;
        let named = before.len() <= 40 && NAMED.contains(&before.to_lowercase().as_str());
        let more = self.is_sign(amount.end + 1, '+');
        !named && (!amount.fraction.is_empty() || more || !self.next_word(amount.end + 1).1.is_empty())
    }

    /// Letters with digits right behind them: `T20`, `NH44`, `SBIN0001234`, `COVID-19`; at the letters.
    pub(super) fn digits_after(&self, i: usize) -> Option<Reading> {
        let hyphen = self.is_hyphen(i + 1) && self.is_digits(i + 2);
        let at = if hyphen { i + 2 } else { i + 1 };
        if !self.is_digits(at) || i > 0 && self.is_digits(i - 1) && !self.is_latin(i) {
            return None;
        }
        let lang = self.lang(i);
        let word = self.str(i);
        if !self.is_latin(i) {
            return None;
        }
        let mixed = self.is_latin(at + 1) || self.comma_or_point(at + 1) && !hyphen;
        if mixed && self.comma_or_point(at + 1) {
            return None;
        }
        let count = self.digit_count(at);
        let digits = self.digits(at);
        let identifier = count > 2 && self.is_capital_word(i) || digits.starts_with('0') || count > 4;
        let number = match (identifier, self.is_capital_word(i)) {
            (true, _) => number::digits(lang, &digits),
            (false, true) => label_number(lang, &digits),
            (false, false) => number::integer(lang, &digits),
        };
        let spelled = self.is_capital_word(i) && (word.len() <= 3 || identifier && word.len() <= 5 && !hyphen);
        let letters = match (word, count) {
            // A team of the young: `U19`, `U-17`.
            ("U", 2) => (if lang.is_latin() { "under" } else { "अंडर" }).to_owned(),
            _ if spelled => tables::spell(lang, word),
            _ => word.to_owned(),
        };
        let mut end = at + 1;
        let mut words = format!("{letters} {number}");
        // One more run of letters: `H1N`, `ABCDE1234F`; the digits behind it are a token of their own.
        if !hyphen && self.is_capital_word(end) && self.str(end).len() <= 3 {
            words = format!("{words} {}", tables::spell(lang, self.str(end)));
            end += 1;
        }
        Reading::new(end, words, "letters and digits")
    }

    /// Whether the language reads numbers in Latin words.
    pub(super) fn reads_latin(&self, i: usize) -> bool {
        matches!(self.lang(i), Lang::English | Lang::RomanHindi)
    }
}
