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
#[derive(Debug, Default)]
pub struct Scanner {
    tags: HashSet<String>,
    controls: HashSet<String>,
    /// Lengths of all strings above, longest first.
    lengths: Vec<usize>,
    starts: HashSet<u8>,
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
        let starts = all().filter_map(|s| s.bytes().next()).chain([b'<']).collect();
        Scanner { tags, controls, lengths, starts }
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
        if !self.starts.contains(&text.as_bytes()[at]) {
            return None;
        }
        for length in &self.lengths {
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

/// Length of a control string of a well-known shape at the start of the text, whether the tokenizer has it or not:
/// `<|name|>`, `<s>`, `</s>`, a unit `<12_3>`, or the `<description=…>` of the prompt template.
fn control_shape(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('<')?;
    for literal in ["s>", "/s>"] {
        if inside.starts_with(literal) {
            return Some(1 + literal.len());
        }
    }
    let window = &inside.as_bytes()[..inside.len().min(LONGEST_SHAPE)];
    let close = window.iter().position(|&b| b == b'>');
    const DESCRIPTION: &str = "description=";
    if window.len() >= DESCRIPTION.len() && window[..DESCRIPTION.len()].eq_ignore_ascii_case(DESCRIPTION.as_bytes()) {
        return Some(1 + close.map_or(DESCRIPTION.len(), |close| close + 1));
    }
    let name = &inside[..close?];
    let piped = name.len() > 2 && name.starts_with('|') && name.ends_with('|');
    let unit = name.split_once('_').is_some_and(|(code, q)| is_number(code) && is_number(q));
    (piped || unit).then_some(name.len() + 2)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
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
