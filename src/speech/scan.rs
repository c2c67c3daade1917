//! A text as tokens.

use super::TAGS;
use super::clean::is_word_char;
use super::lang::{Script, digit_value};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Letters of one script, with their marks.
    Word(Script),
    /// Decimal digits of any script.
    Digits,
    /// One space.
    Space,
    /// One or more line ends.
    Break,
    /// One of the allowed tags.
    Tag,
    /// Any other character.
    Sign(char),
}

/// A piece of the text, by bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

/// Splits a cleaned text into tokens, without loss.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut skip_to = 0;
    for (start, c) in text.char_indices() {
        if start < skip_to {
            continue;
        }
        if c == '<'
            && let Some(tag) = TAGS.iter().find(|tag| text[start..].starts_with(**tag))
        {
            skip_to = start + tag.len();
            tokens.push(Token { kind: Kind::Tag, start, end: skip_to });
            continue;
        }
        let end = start + c.len_utf8();
        let last = tokens.last_mut();
        let kind = kind_of(c, last.as_ref().map(|token| token.kind));
        match last {
            Some(last) if last.kind == kind && !matches!(kind, Kind::Sign(_) | Kind::Space | Kind::Tag) => {
                last.end = end
            }
            _ => tokens.push(Token { kind, start, end }),
        }
    }
    tokens
}

fn kind_of(c: char, last: Option<Kind>) -> Kind {
    if digit_value(c).is_some() {
        return Kind::Digits;
    }
    match c {
        '\n' => Kind::Break,
        c if c.is_whitespace() => Kind::Space,
        c if is_word_char(c) => match (Script::of(c), last) {
            (Some(script), _) => Kind::Word(script),
            // A mark that every script shares stays with its letter.
            (None, Some(Kind::Word(script))) => Kind::Word(script),
            (None, _) => Kind::Word(Script::Other),
        },
        c => Kind::Sign(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_cover_the_text() {
        let text = "Aapka bill ₹1,250.50 hai<laugh> १२-बजे\nok";
        let tokens = tokens(text);
        let joined: String = tokens.iter().map(|token| &text[token.start..token.end]).collect();
        assert_eq!(joined, text);
        assert!(tokens.iter().any(|token| token.kind == Kind::Tag));
        assert!(tokens.windows(2).any(|pair| pair[0].kind == Kind::Digits && pair[1].kind == Kind::Sign('-')));
    }
}
