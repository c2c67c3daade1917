//! Cleaning: one Unicode form, no invisible characters, no markup, one space between words.

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::TAGS;
use super::control::{Piece, Scanner};
use super::lang::{Script, is_mark};
use super::markup;
use super::trace::{Traced, Writer};

/// Cleans a text. `markup` strips Markdown and HTML too.
///
/// Line breaks survive as single `\n`; blank lines as `\n\n`. Tags of [`TAGS`] survive, other control strings do not.
pub fn clean(text: &str, markup: bool) -> Traced {
    let mut traced = compose(text);
    traced = characters(traced);
    traced = controls(traced);
    if markup {
        traced = markup::strip(traced);
    }
    space(traced)
}

/// NFC, word by word so that the trace names the words that changed.
fn compose(text: &str) -> Traced {
    let mut writer = Writer::new(text, Vec::new());
    for word in text.split_inclusive(char::is_whitespace) {
        let end = writer_end(&writer, word);
        if is_nfc_quick(word.chars()) == IsNormalized::Yes {
            writer.keep_to(end);
            continue;
        }
        let composed: String = word.nfc().collect();
        if composed == word {
            writer.keep_to(end);
        } else {
            writer.replace_to(end, &composed, "nfc", false);
        }
    }
    writer.finish()
}

fn writer_end(writer: &Writer, piece: &str) -> usize {
    writer.pos() + piece.len()
}

/// What becomes of one character.
enum Fate {
    Keep,
    Become(&'static str, &'static str),
}

/// Control and invisible characters, odd spaces and line ends, emoji, dandas.
fn characters(input: Traced) -> Traced {
    let Traced { text, edits } = input;
    let mut writer = Writer::new(&text, edits);
    let mut around = Around::default();
    for (at, c) in text.char_indices() {
        let end = at + c.len_utf8();
        let next = text[end..].chars().next();
        match fate(c, &around, next) {
            Fate::Keep => {}
            Fate::Become(to, rule) => {
                writer.keep_to(at);
                writer.replace_to(end, to, rule, true);
                if to.is_empty() {
                    continue;
                }
            }
        }
        around.push(c);
    }
    writer.finish()
}

/// The last characters kept.
#[derive(Default)]
struct Around {
    last: Option<char>,
    before: Option<char>,
}

impl Around {
    fn push(&mut self, c: char) {
        self.before = self.last.replace(c);
    }
}

fn fate(c: char, around: &Around, next: Option<char>) -> Fate {
    use Fate::{Become, Keep};
    match c {
        '\n' | ' '..='{' | '}' | '~' => Keep,
        '|' if around.is_danda(next) => Become("।", "danda"),
        '|' => Keep,
        '\r' if next == Some('\n') => Become("", "line end"),
        '\r' | '\u{85}' | '\u{b}' | '\u{c}' | '\u{2028}' => Become("\n", "line end"),
        '\u{2029}' => Become("\n\n", "line end"),
        '\t' => Become(" ", "space"),
        c if c.is_control() => Become("", "control character"),
        c if c.is_whitespace() => Become(" ", "space"),
        '\u{200c}' | '\u{200d}' if around.needs_joiner(next) => Keep,
        '॥' => Become("।", "danda"),
        '₀'..='₉' => Become(lowered_digit(c), "lowered digit"),
        c if is_invisible(c) => Become("", "invisible character"),
        c if is_pictograph(c) => Become(" ", "emoji"),
        _ => Keep,
    }
}

/// The digit of a formula, `₂` of `H₂O`.
fn lowered_digit(c: char) -> &'static str {
    const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    DIGITS[(c as usize - '₀' as usize) % DIGITS.len()]
}

impl Around {
    /// A bar written for a danda: after Devanagari, and at the end of a word.
    fn is_danda(&self, next: Option<char>) -> bool {
        let last = if self.last == Some(' ') { self.before } else { self.last };
        let devanagari = last.is_some_and(|c| c != '|' && (Script::of(c) == Some(Script::Devanagari)));
        devanagari && next.is_none_or(char::is_whitespace)
    }

    /// Joiners mean something after र् or ऱ् in Devanagari, and inside words of the other scripts that shape with them.
    fn needs_joiner(&self, next: Option<char>) -> bool {
        let script = |c: Option<char>| c.and_then(Script::of);
        match self.last.map(|c| c as u32) {
            Some(0x94D) => matches!(self.before, Some('र' | 'ऱ')) && script(next) == Some(Script::Devanagari),
            Some(0x980..=0xDFF) => matches!(script(next), Some(Script::Of(_) | Script::Other)),
            Some(0x600..=0x6FF) => script(next) == Some(Script::Other),
            _ => false,
        }
    }
}

/// Characters that show nothing and say nothing.
pub fn is_invisible(c: char) -> bool {
    matches!(c as u32,
        0xAD | 0x34F | 0x61C | 0x180B..=0x180E | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F
        | 0xFE00..=0xFE0F | 0xFEFF | 0xFFF9..=0xFFFD | 0xE0000..=0xE0FFF | 0xE000..=0xF8FF)
}

/// Emoji, dingbats, arrows, box drawing and the like: signs that have no reading.
fn is_pictograph(c: char) -> bool {
    matches!(c as u32,
        0xA9 | 0xAE | 0x203C | 0x2049 | 0x20E3 | 0x2122 | 0x2190..=0x21FF | 0x2300..=0x23FF | 0x2460..=0x27BF
        | 0x2900..=0x297F | 0x2B00..=0x2BFF | 0x3030 | 0x303D | 0x3297 | 0x3299 | 0x1F000..=0x1FAFF | 0x2022)
}

/// Control strings of the model's family, which must neither be read aloud nor reach the reader of numbers.
fn controls(input: Traced) -> Traced {
    let Traced { text, edits } = input;
    const NAMES: [&str; 4] = ["<audio>", "</audio>", "<text>", "</text>"];
    let scanner = Scanner::new(TAGS.map(str::to_owned), NAMES.map(str::to_owned));
    let mut writer = Writer::new(&text, edits);
    for piece in scanner.split(&text) {
        match piece {
            Piece::Text(s) | Piece::Tag(s) => writer.keep_to(writer.pos() + s.len()),
            Piece::Control(s) => writer.replace_to(writer.pos() + s.len(), " ", CONTROL_RULE, false),
        }
    }
    writer.finish()
}

/// Rule under which control strings are dropped.
pub const CONTROL_RULE: &str = "control string";

/// One space between words, none at line ends, none before a sentence's stop; repeated stops become one.
fn space(input: Traced) -> Traced {
    let Traced { text, edits } = input;
    let mut writer = Writer::new(&text, edits);
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let run = run_length(&text[at..], c);
        if c.is_whitespace() {
            let lines = text[at..at + run].matches('\n').count();
            let edge = at == 0 || at + run == text.len();
            let stop = text[at + run..].starts_with(['।', '?', '!', ',', ';']) && lines == 0;
            let to = match lines {
                _ if edge || stop => "",
                0 => " ",
                1 => "\n",
                _ => "\n\n",
            };
            replace_if_changed(&mut writer, at, at + run, &text[at..at + run], to, "space");
        } else if matches!(c, '।' | '?' | '!' | ',' | ';') && run > c.len_utf8() {
            writer.keep_to(at);
            writer.replace_to(at + run, &*c.encode_utf8(&mut [0; 4]), "repeated stop", false);
        }
        at += run;
    }
    writer.finish()
}

fn replace_if_changed(writer: &mut Writer, start: usize, end: usize, from: &str, to: &str, rule: &'static str) {
    if from != to {
        writer.keep_to(start);
        writer.replace_to(end, to, rule, false);
    }
}

/// Bytes of the run that begins here: all white space, or repetitions of the same character.
fn run_length(text: &str, c: char) -> usize {
    if c.is_whitespace() {
        text.find(|c: char| !c.is_whitespace()).unwrap_or(text.len())
    } else if matches!(c, '।' | '?' | '!' | ',' | ';') {
        text.find(|other| other != c).unwrap_or(text.len())
    } else {
        text.find(|c: char| c.is_whitespace() || matches!(c, '।' | '?' | '!' | ',' | ';')).unwrap_or(text.len())
    }
}

/// Whether the character may stand inside a word: a letter, a mark, a joiner.
pub fn is_word_char(c: char) -> bool {
    Script::of(c).is_some() || is_mark(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> String {
        clean(text, true).text
    }

    /// D8 of the cases.
    #[test]
    fn invisible_characters_leave_no_trace_in_the_text() {
        let clean_text = "नमस्ते\nदुनिया";
        assert_eq!(cleaned("नमस्ते\r\nदुनिया"), clean_text);
        for dirt in ["\u{0}", "\u{feff}", "\u{200b}"] {
            for text in [format!("नम{dirt}स्ते\r\nदुनिया{dirt}"), format!("{dirt}नमस्ते\n{dirt}दुनिया")]
            {
                assert_eq!(cleaned(&text), clean_text);
            }
        }
        assert_eq!(cleaned("स्\u{200d}थान"), "स्थान");
        assert_eq!(cleaned("क्\u{200c}ष"), "क्ष");
    }

    #[test]
    fn joiners_stay_where_they_shape_letters() {
        for text in ["दर्\u{200d}या", "র\u{200d}্যাব", "ന\u{d4d}\u{200d}മ", "می\u{200c}خواهم"]
        {
            assert_eq!(cleaned(text), text);
        }
        assert_eq!(cleaned("a\u{200d}b"), "ab");
    }

    #[test]
    fn text_is_composed_and_the_trace_names_the_word() {
        let traced = clean("cafe\u{301} ok", true);
        assert_eq!(traced.text, "café ok");
        assert_eq!((traced.edits[0].rule, traced.edits[0].from.as_str()), ("nfc", "cafe\u{301} "));
        assert_eq!(cleaned("\u{958}लम"), "क\u{93c}लम");
    }

    #[test]
    fn emoji_bars_and_repeated_stops() {
        assert_eq!(cleaned("नमस्ते 😀"), "नमस्ते");
        assert_eq!(cleaned("वाह😀😀बहुत 👍🏽 अच्छा!!!"), "वाह बहुत अच्छा!");
        assert_eq!(cleaned("वह गया | फिर आया|"), "वह गया। फिर आया।");
        assert_eq!(cleaned("राम ॥"), "राम।");
        assert_eq!(cleaned("a | b"), "a | b");
        assert_eq!(cleaned("  a \t b  \n\n\n c  "), "a b\n\nc");
    }

    #[test]
    fn control_strings_go_and_tags_stay() {
        assert_eq!(cleaned("x<audio>y <12_3> <|im_end|>z<laugh>"), "x y z<laugh>");
        assert_eq!(cleaned("<description=\"loud\">hi"), "hi");
        assert!(clean("a </s> b", false).edits.iter().any(|e| e.rule == CONTROL_RULE && e.from == "</s>"));
    }
}
