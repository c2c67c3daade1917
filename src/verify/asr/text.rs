//! What counts as the same words: both the text and what was heard are brought to one form before they are compared.
//!
//! 1. Sounds (`<laugh>`) are left out, and so are asides in brackets, which recognisers write for what is no speech.
//! 2. Numbers, times, amounts and signs are read as words by the speech front end, in the language of the prompt.
//! 3. Small letters; apostrophes inside words fall out; all else that is neither letter, mark nor digit parts words.
//! 4. British and American spellings of the words in [`SPELLINGS`] become one; `and` inside a number is left out.

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::Language;
use crate::speech::{Options, TAGS, prepare};

/// Spellings of one word.
const SPELLINGS: [(&str, &str); 8] = [
    ("grey", "gray"),
    ("theatre", "theater"),
    ("colour", "color"),
    ("neighbour", "neighbor"),
    ("favourite", "favorite"),
    ("travelling", "traveling"),
    ("okay", "ok"),
    ("mr", "mister"),
];

/// The words of a text in the form that is compared.
pub fn words(text: &str, language: Language) -> Vec<String> {
    let spoken = TAGS.iter().fold(without_asides(text), |text, tag| text.replace(tag, " "));
    let options = Options { language: Some(language.lang()), ..Options::default() };
    let read: Vec<String> = prepare(&spoken, &options).chunks.into_iter().map(|chunk| chunk.text).collect();
    let small = read.join(" ").to_lowercase().nfc().collect::<String>();
    let whole: String = small.chars().filter(|c| !matches!(c, '\'' | '’' | '\u{200c}' | '\u{200d}')).collect();
    let parts = whole.split(|c: char| !(c.is_alphanumeric() || is_combining_mark(c)));
    let words = parts.filter(|word| !word.is_empty()).map(one_spelling);
    without_number_and(words.collect())
}

fn one_spelling(word: &str) -> String {
    let known = SPELLINGS.iter().find(|(british, _)| *british == word);
    known.map_or(word, |(_, american)| american).to_owned()
}

/// `three hundred and fifty` is `three hundred fifty` to half of all writers.
fn without_number_and(words: Vec<String>) -> Vec<String> {
    let scale = |word: &str| ["hundred", "thousand", "million"].contains(&word);
    let inside = |i: usize| words[i] == "and" && i > 0 && scale(&words[i - 1]);
    let kept: Vec<bool> = (0..words.len()).map(|i| !inside(i)).collect();
    words.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(word, _)| word).collect()
}

/// The text without what stands in round or square brackets; a bracket that stays open ends nothing.
fn without_asides(text: &str) -> String {
    let mut rest = text;
    let mut out = String::new();
    while let Some(open) = rest.find(['(', '[']) {
        let Some(close) = rest[open..].find([')', ']']) else { break };
        out.push_str(&rest[..open]);
        out.push(' ');
        rest = &rest[open + close + 1..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn english(text: &str) -> String {
        words(text, Language::English).join(" ")
    }

    #[test]
    fn writings_of_one_sentence_become_one() {
        let cases = [
            ("The train leaves at seven thirty.", "the train leaves at 7:30"),
            ("It costs three hundred and fifty rupees.", "It costs ₹350!"),
            ("There are twenty four horses.", "There are 24 horses"),
            ("Today is the twelfth of August.", "today is the 12th of august"),
            ("My neighbour, a grey theatre, okay?", "my neighbor a gray theater ok"),
            ("<laugh> I am very happy.", "(laughs) I am very happy [Music]"),
            ("Don’t move.", "Dont move"),
        ];
        for (a, b) in cases {
            assert_eq!(english(a), english(b), "{a}");
        }
    }

    #[test]
    fn other_words_stay_others() {
        assert_ne!(english("The dog sat."), english("The dog sad."));
        assert_eq!(english("salt and pepper"), "salt and pepper");
        assert_eq!(english("a (b"), "a b");
        assert_eq!(english("…"), "");
    }

    #[test]
    fn hindi_keeps_its_marks_and_numbers_are_read_in_hindi() {
        let hindi = |text: &str| words(text, Language::Hindi).join(" ");
        assert_eq!(hindi("गाड़ी नौ बजे आएगी।"), hindi("गाड़ी 9 बजे आएगी"));
        assert_eq!(words("नमस्ते, आप कैसे हैं?", Language::Hindi), ["नमस्ते", "आप", "कैसे", "हैं"]);
    }
}
