//! Chunks: pieces of text short enough to be spoken well, cut where a reader would breathe.

use std::ops::Range;
use std::sync::LazyLock;

use unicode_segmentation::UnicodeSegmentation;

use super::clean::is_word_char;
use super::lang::{Script, digit_value, is_mark};
use super::read::abbreviation_before;
use super::trace::Traced;
use super::{TAGS, is_speakable};

/// Fewest words of a chunk, unless they are all there is: shorter ones tend to come out garbled
/// (kyutai-labs/pocket-tts#313).
const FEWEST_WORDS: usize = 3;

/// How good a place is for a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cut {
    /// Inside a number, or behind an abbreviation.
    Never,
    Word,
    Clause,
    Sentence,
}

/// A piece that is never cut: a word, or a part of one that is too long.
#[derive(Debug)]
struct Atom {
    start: usize,
    end: usize,
    seconds: f64,
    /// 1 for a word with something to say. A byte, since a text may have a million of these.
    words: u8,
    after: Cut,
}

/// Byte ranges of the chunks of a text, each at most `cap` seconds by [`seconds`], in order and without gaps but white space.
///
/// Cuts go to the last sentence end that fits, else to a clause end, else between words; inside a word only when the word
/// alone is too long. Linear in the length of the text.
pub fn ranges(traced: &Traced, cap: f64) -> Vec<(usize, usize)> {
    let atoms = atoms(traced, cap);
    let mut ranges = Vec::new();
    let mut left: usize = atoms.iter().map(|atom| usize::from(atom.words)).sum();
    let mut first = 0;
    while first < atoms.len() {
        let count = next_chunk(&atoms[first..], left, cap);
        let chunk = &atoms[first..first + count];
        left -= chunk.iter().map(|atom| usize::from(atom.words)).sum::<usize>();
        ranges.push((chunk[0].start, chunk[count - 1].end));
        first += count;
    }
    ranges
}

/// Number of atoms of the next chunk; `left` words are in all of `atoms`.
fn next_chunk(atoms: &[Atom], left: usize, cap: f64) -> usize {
    let mut best: [Option<usize>; 3] = [None; 3];
    let (mut seconds, mut words, mut fits) = (0.0, 0, 0);
    for (i, atom) in atoms.iter().enumerate() {
        seconds += atom.seconds + character_seconds(' ');
        words += usize::from(atom.words);
        if i > 0 && seconds > cap {
            break;
        }
        fits = i + 1;
        let rest = left - words;
        if words >= FEWEST_WORDS && (rest == 0 || rest >= FEWEST_WORDS) {
            let level = match atom.after {
                Cut::Never => continue,
                Cut::Word => 0,
                Cut::Clause => 1,
                Cut::Sentence => 2,
            };
            // An early clause end makes a chunk too short to be worth the cut.
            if level != 1 || seconds >= cap / 4.0 {
                best[level] = Some(fits);
            }
        }
    }
    if fits == atoms.len() { fits } else { best[2].or(best[1]).or(best[0]).unwrap_or(fits) }
}

fn atoms(traced: &Traced, cap: f64) -> Vec<Atom> {
    let text = &traced.text;
    let mut atoms: Vec<Atom> = Vec::new();
    // Rewrites short enough are kept whole. Those that a later one swallowed share its place, which may be the whole text and
    // is measured once; those inside one word need not be measured.
    let mut measured = (0..0, false);
    let mut is_whole = |at: &Range<usize>| {
        if measured.0 != *at {
            measured = (at.clone(), at.len() > 1 && seconds(&text[at.clone()]) < cap / 2.0);
        }
        measured.1
    };
    let mut edits = traced.edits.iter().peekable();
    let mut at = 0;
    for word in text.split(char::is_whitespace) {
        let (start, end) = (at, at + word.len());
        at = end + text[end..].chars().next().map_or(0, char::len_utf8);
        if word.is_empty() {
            if let Some(last) = atoms.last_mut().filter(|_| text[..end].ends_with('\n')) {
                last.after = Cut::Sentence;
                last.seconds += character_seconds('\n');
            }
            continue;
        }
        while edits.next_if(|edit| edit.at.end <= end || edit.at.start < end && !is_whole(&edit.at)).is_some() {}
        let in_edit = edits.peek().is_some_and(|edit| edit.at.start < end);
        let next = text[end..].trim_start().chars().next();
        let newline = text[end..].starts_with('\n');
        let after = if newline {
            Cut::Sentence
        } else if in_edit {
            Cut::Never
        } else {
            cut_after(text, start, end, next)
        };
        push_word(&mut atoms, text, (start, end), after, cap);
        if let Some(last) = atoms.last_mut().filter(|_| newline) {
            last.seconds += character_seconds('\n');
        }
    }
    atoms
}

/// Adds a word, in parts at the boundaries of graphemes and tags if it is too long for a chunk.
fn push_word(atoms: &mut Vec<Atom>, text: &str, (start, end): (usize, usize), after: Cut, cap: f64) {
    let word = &text[start..end];
    let words = u8::from(is_speakable(word));
    let length = seconds(word);
    if length <= cap / 2.0 {
        return atoms.push(Atom { start, end, seconds: length, words, after });
    }
    let (mut from, mut sum) = (start, 0.0);
    let mut rest = word;
    while !rest.is_empty() {
        let tag = TAGS.iter().find(|tag| rest.starts_with(**tag)).copied();
        let piece = tag.or_else(|| rest.graphemes(true).next()).unwrap_or(rest);
        let more = seconds(piece);
        let here = end - rest.len();
        rest = &rest[piece.len()..];
        if sum + more > cap / 2.0 && here > from {
            atoms.push(Atom { start: from, end: here, seconds: sum, words, after: Cut::Word });
            (from, sum) = (here, 0.0);
        }
        sum += more;
    }
    atoms.push(Atom { start: from, end, seconds: sum, words, after });
}

/// How good the place after a word is, from its last characters and the first of the next word.
fn cut_after(text: &str, start: usize, end: usize, next: Option<char>) -> Cut {
    let word = text[start..end].trim_end_matches(['"', '\'', '”', '’', ')', ']', '»']);
    let last = word.chars().next_back();
    match last {
        Some('।' | '?' | '!' | '॥' | '…' | '؟' | '۔') => Cut::Sentence,
        Some('.') => {
            let stop = start + word.len() - 1;
            if abbreviation_before(text, stop) { Cut::Never } else { Cut::Sentence }
        }
        Some(',' | ';' | ':' | '،' | '–' | '—') => Cut::Clause,
        Some(c) if is_value_end(c) && next.is_some_and(is_value_start) => Cut::Never,
        _ => Cut::Word,
    }
}

/// Characters that bind to a number before or after a space.
fn is_value_end(c: char) -> bool {
    digit_value(c).is_some() || matches!(c, '₹' | '$' | '€' | '£' | '+' | '-' | '=' | '×')
}

fn is_value_start(c: char) -> bool {
    digit_value(c).is_some() || matches!(c, '₹' | '$' | '€' | '£' | '%' | '+' | '-' | '=' | '×')
}

/// Estimated seconds of speech at a steady pace.
///
/// A sum over characters: letters of alphabets, letters and vowel signs of Indic scripts, digits read out, pauses at stops, at
/// the rates of the demonstration voices (`docs/speech.md`).
pub fn seconds(text: &str) -> f64 {
    let tags: usize = if text.contains('<') { TAGS.iter().map(|tag| text.matches(tag).count()).sum() } else { 0 };
    text.chars().map(character_seconds).sum::<f64>() + 0.5 * tags as f64
}

/// Seconds of one character. Every character of a text is asked for several times, so those of the alphabets read here are in a
/// table.
fn character_seconds(c: char) -> f64 {
    const ALPHABETS: usize = 0xE00;
    static SECONDS: LazyLock<Vec<f64>> = LazyLock::new(|| {
        (0..ALPHABETS as u32).map(|code| char::from_u32(code).map_or(0.0, seconds_by_class)).collect()
    });
    SECONDS.get(c as usize).copied().unwrap_or_else(|| seconds_by_class(c))
}

fn seconds_by_class(c: char) -> f64 {
    match c {
        ',' | ';' | ':' | '،' => 0.15,
        '.' | '।' | '?' | '!' | '…' | '॥' | '؟' | '۔' | '\n' => 0.3,
        c if digit_value(c).is_some() => 0.35,
        c if is_mark(c) => 0.02,
        c if is_word_char(c) => match Script::of(c) {
            Some(Script::Latin) => 0.075,
            Some(Script::Devanagari | Script::Of(_)) => 0.095,
            // Scripts without a reader may write a syllable or a word a letter.
            _ => 0.15,
        },
        c if c.is_whitespace() => 0.02,
        _ => 0.05,
    }
}

#[cfg(test)]
#[path = "chunk_tests.rs"]
mod tests;
