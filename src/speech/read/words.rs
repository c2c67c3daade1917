//! Words that are not said as they are written: abbreviations, acronyms, roman numerals.

use super::super::lang::{Lang, Script};
use super::super::number;
use super::numeral::english_ordinal;
use super::{Kind, Reading, Text, tables};

/// Words after which a roman numeral counts.
const NUMBERED: &[&str] = &[
    "Chapter",
    "chapter",
    "Part",
    "part",
    "Class",
    "class",
    "Phase",
    "phase",
    "War",
    "Section",
    "section",
    "Article",
    "Volume",
    "Vol",
    "Unit",
    "Type",
    "type",
    "Grade",
    "Schedule",
    "Book",
    "Act",
    "Stage",
    "Level",
    "Table",
    "Figure",
    "कक्षा",
    "अध्याय",
    "खंड",
    "भाग",
    "युद्ध",
    "चरण",
    "धारा",
    "अनुच्छेद",
    "अनुसूची",
    "प्रकार",
    "पाठ",
];

impl Text<'_> {
    /// `डॉ.`, `Dr.`, `No. 5`; at the word.
    pub(super) fn abbreviation(&self, i: usize) -> Option<Reading> {
        let start = self.tokens[i].start;
        let touches = self.is_attached(i) && matches!(self.kind(i - 1), Some(Kind::Digits | Kind::Word(_)));
        let (length, found) = tables::abbreviation(&self.text[start..]).filter(|_| !touches)?;
        let mut end = (i..self.tokens.len().min(i + 8)).find(|at| self.tokens[*at].end == start + length)? + 1;
        let number = self.past_space(if self.is_sign(end, ':') { end + 1 } else { end });
        if found.needs_number() && !self.is_digits(number) && self.masked_end(number).is_none() {
            return None;
        }
        // `St.` of a street is not told from a saint; a stop at the end of the line ends the sentence as well.
        if self.is_sign(end - 1, '.') && self.sentence_ends(end - 1) {
            end -= 1;
        }
        let lang = match (self.lang(i), self.kind(i)) {
            (Lang::English | Lang::RomanHindi, Some(Kind::Word(Script::Devanagari))) => Lang::Hindi,
            (lang, _) => lang,
        };
        Reading::new(end, found.say(lang), "abbreviation")
    }

    /// `St. Xavier` is a saint, `MG St.` a street; at the `St`.
    pub(super) fn saint_or_street(&self, i: usize) -> Option<Reading> {
        let capital = |word: &str| word.starts_with(char::is_uppercase);
        if self.str(i) != "St" || self.is_attached(i) {
            return None;
        }
        let stop = self.is_sign(i + 1, '.');
        let end = i + 1 + usize::from(stop);
        let devanagari = !self.reads_latin(i);
        let next = self.next_word(end).1;
        let saint = (capital(next) || devanagari && !next.is_empty()) && self.is_space(end);
        if saint && !(capital(self.previous_word(i).1) && self.is_sign(end, ',')) {
            return Reading::new(end, if devanagari { "सेंट" } else { "Saint" }, "abbreviation");
        }
        let street = stop && capital(self.previous_word(i).1);
        let end = if stop && self.sentence_ends(i + 1) { i + 1 } else { end };
        street.then(|| Reading::new(end, if devanagari { "स्ट्रीट" } else { "Street" }, "abbreviation"))?
    }

    /// `π`, alone among Greek letters since it is a number.
    pub(super) fn pi(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        let word = match lang {
            Lang::Hindi | Lang::Marathi => "पाई",
            lang if lang.is_latin() => "pi",
            _ => return None,
        };
        (self.str(i) == "π").then(|| Reading::new(i + 1, word, "sign"))?
    }

    /// `OTP` → `ओ टी पी` or `O T P`; at the word.
    pub(super) fn acronym(&self, i: usize) -> Option<Reading> {
        if !self.is_latin(i) {
            return None;
        }
        let word = self.str(i);
        let (singular, plural) = match word.strip_suffix('s') {
            Some(stem) if stem.len() >= 2 => (stem, true),
            _ => (word, false),
        };
        if !tables::is_spelled(singular) || self.is_shouted(i) {
            return None;
        }
        let spelled = tables::spell(self.lang(i), singular);
        let ending = match (plural, self.reads_latin(i)) {
            (true, true) => "s",
            _ => "",
        };
        Reading::new(i + 1, format!("{spelled}{ending}"), "acronym")
    }

    /// Whether the words around are in capitals as well, so that capitals mean nothing.
    fn is_shouted(&self, i: usize) -> bool {
        let loud =
            |word: &str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase()) && !tables::is_spelled(word);
        loud(self.previous_word(i).1) || loud(self.next_word(i + 1).1)
    }

    /// `Chapter IV`, `World War II`, `Elizabeth II`, `कक्षा X`; at the numeral.
    pub(super) fn roman(&self, i: usize) -> Option<Reading> {
        let value = roman_value(self.str(i)).filter(|_| self.is_latin(i) && !self.is_hyphen(i + 1))?;
        let lang = self.lang(i);
        let before = self.previous_word(i).1;
        if NUMBERED.contains(&before) {
            return Reading::new(i + 1, number::cardinal(lang, value.into()), "roman numeral");
        }
        let named = before.len() > 3
            && before.starts_with(|c: char| c.is_uppercase())
            && before.chars().skip(1).all(char::is_lowercase);
        let adjacent = i >= 2 && self.is_space(i - 1) && self.word(i - 2) == before;
        if !named || !adjacent || self.str(i).len() < 2 {
            return None;
        }
        let words = if lang == Lang::English {
            format!("the {}", english_ordinal(lang, value))
        } else {
            number::cardinal(lang, value.into())
        };
        Reading::new(i + 1, words, "roman numeral")
    }
}

/// Value of a roman numeral up to 39, written in the canonical way.
fn roman_value(word: &str) -> Option<u64> {
    const ONES: [&str; 10] = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    let tens = word.bytes().take_while(|b| *b == b'X').count();
    let ones = ONES.iter().position(|ones| *ones == &word[tens..])?;
    let value = 10 * tens + ones;
    (1..=39).contains(&value).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::roman_value;

    #[test]
    fn roman_numerals_are_canonical_ones() {
        let values: Vec<_> = ["I", "IV", "IX", "XIV", "XXXIX", "IIII", "VX", "XL", "", "ABC"].map(roman_value).to_vec();
        assert_eq!(values, [Some(1), Some(4), Some(9), Some(14), Some(39), None, None, None, None, None]);
    }
}
