//! Control strings in a user's text: where they are, and what may stay.
//!
//! The encoder cannot turn text into a control token whatever it contains (see [`super::tokenizer`]); this scan is there
//! so that nobody hears `audio` or `im end` read aloud, and so that the caller can be told.

use std::collections::HashSet;

/// Longest `<|name|>` and `<description=…>` recognised, in bytes: keeps the scan linear.
const LONGEST_SHAPE: usize = 400;

/// A piece of a user's text.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Plain text, to be encoded without added tokens.
    Text(&'a str),
    /// One of the allowed tags, exactly as the tokenizer spells it.
    Tag(&'a str),
    /// A control string, to be dropped.
    Control(&'a str),
}

/// Finds tags and control strings.
#[derive(Debug)]
pub struct Scanner {
    tags: HashSet<String>,
    controls: HashSet<String>,
    /// Lengths of all strings above, longest first.
    lengths: Vec<usize>,
    /// First and second bytes of all strings above; a shape begins with `<`.
    starts: [bool; 256],
    seconds: [bool; 256],
}

impl Scanner {
    /// A scanner for the tokenizer's strings; `tags` wins over `controls`.
    pub fn new(tags: impl IntoIterator<Item = String>, controls: impl IntoIterator<Item = String>) -> Scanner {
        let tags: HashSet<String> = tags.into_iter().collect();
        let controls: HashSet<String> = controls.into_iter().filter(|s| !s.is_empty()).collect();
        let all = || tags.iter().chain(&controls);
        let mut lengths: Vec<usize> = all().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        let nth = |n: usize| all().filter_map(move |s| s.as_bytes().get(n).copied());
        let seconds = if lengths.last() == Some(&1) { [true; 256] } else { byte_set(nth(1)) };
        let starts = byte_set(nth(0).chain([b'<']));
        Scanner { tags, controls, lengths, starts, seconds }
    }

    /// Splits the text, in order and without loss. Linear: at each position a bounded number of bytes is looked at.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let (mut plain, mut at) = (0, 0);
        while at < text.len() {
            let Some(piece) = self.at(text, at) else {
                at += 1;
                continue;
            };
            if plain < at {
                pieces.push(Piece::Text(&text[plain..at]));
            }
            at += match piece {
                Piece::Text(s) | Piece::Tag(s) | Piece::Control(s) => s.len(),
            };
            plain = at;
            pieces.push(piece);
        }
        if plain < text.len() {
            pieces.push(Piece::Text(&text[plain..]));
        }
        pieces
    }

    fn at<'a>(&self, text: &'a str, at: usize) -> Option<Piece<'a>> {
        if !self.starts[usize::from(text.as_bytes()[at])] {
            return None;
        }
        let listed = text.as_bytes().get(at + 1).is_none_or(|second| self.seconds[usize::from(*second)]);
        for length in self.lengths.iter().filter(|_| listed) {
            let Some(candidate) = text.get(at..at + length) else { continue };
            if self.tags.contains(candidate) {
                return Some(Piece::Tag(candidate));
            }
            if self.controls.contains(candidate) {
                return Some(Piece::Control(candidate));
            }
        }
        control_shape(&text[at..]).map(|length| Piece::Control(&text[at..at + length]))
    }
}

fn byte_set(bytes: impl Iterator<Item = u8>) -> [bool; 256] {
    let mut set = [false; 256];
    bytes.for_each(|byte| set[usize::from(byte)] = true);
    set
}

/// Length of a control string of a well-known shape at the start of the text, whether the tokenizer has it or not:
/// `<|name|>`, `<s>`, `</s>`, a unit `<12_3>`, or the `<description=…>` of the prompt template.
fn control_shape(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('<')?;
    for literal in ["s>", "/s>"] {
        if inside.starts_with(literal) {
            return Some(1 + literal.len());
        }
    }
    // Every other shape is told from its first character, before its end is looked for.
    if !inside.starts_with(|c: char| matches!(c, '|' | 'd' | 'D') || c.is_ascii_digit()) {
        return None;
    }
    if inside.starts_with(|c: char| c.is_ascii_digit()) {
        return unit_length(inside).map(|length| 1 + length);
    }
    let window = &inside.as_bytes()[..inside.len().min(LONGEST_SHAPE)];
    let close = window.iter().position(|&b| b == b'>');
    const DESCRIPTION: &str = "description=";
    if window.len() >= DESCRIPTION.len() && window[..DESCRIPTION.len()].eq_ignore_ascii_case(DESCRIPTION.as_bytes()) {
        return Some(1 + close.map_or(DESCRIPTION.len(), |close| close + 1));
    }
    let name = &inside[..close?];
    let piped = name.len() > 2 && name.starts_with('|') && name.ends_with('|');
    piped.then_some(name.len() + 2)
}

/// Length of `12_3>` at the start of a text.
fn unit_length(text: &str) -> Option<usize> {
    let window = &text.as_bytes()[..text.len().min(LONGEST_SHAPE)];
    let number = |from: usize| window[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let code = number(0);
    let q = window.get(code).filter(|b| **b == b'_').map(|_| number(code + 1))?;
    let end = code + 1 + q;
    (code > 0 && q > 0 && window.get(end) == Some(&b'>')).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanner() -> Scanner {
        let owned = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        Scanner::new(owned(&["<laugh>"]), owned(&["<laugh>", "<audio>", "<audio>x", "[INST]"]))
    }

    #[test]
    fn pieces_are_found_longest_first_and_nothing_is_lost() {
        use Piece::*;
        let text = "a<laugh>b<audio>xc[INST] <foo> < b > <|im_end|><12_3><1_x>";
        let pieces = scanner().split(text);
        let expected = [
            Text("a"),
            Tag("<laugh>"),
            Text("b"),
            Control("<audio>x"),
            Text("c"),
            Control("[INST]"),
            Text(" <foo> < b > "),
            Control("<|im_end|>"),
            Control("<12_3>"),
            Text("<1_x>"),
        ];
        assert_eq!(pieces, expected);
    }

    #[test]
    fn a_description_goes_with_its_value_or_alone_when_it_never_closes() {
        assert_eq!(scanner().split("<description=\"loud\">hi")[0], Piece::Control("<description=\"loud\">"));
        assert_eq!(scanner().split("<Description=\"loud hi")[0], Piece::Control("<Description="));
    }

    #[test]
    fn floods_of_brackets_and_letters_of_any_width_are_scanned() {
        for flood in ["<".repeat(100_000), "<é".repeat(50_000), "<|".repeat(50_000)] {
            let total: usize = scanner()
                .split(&flood)
                .iter()
                .map(|piece| match piece {
                    Piece::Text(s) | Piece::Tag(s) | Piece::Control(s) => s.len(),
                })
                .sum();
            assert_eq!(total, flood.len());
        }
    }
}
