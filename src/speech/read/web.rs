//! Addresses of the net: URLs, e-mail, file names, handles.

use super::super::lang::{Lang, Say, Script};
use super::super::number;
use super::{Kind, Reading, Text, tables};

/// Most tokens of one address.
const MOST_TOKENS: usize = 96;

/// Endings that make dotted words an address or a file.
const DOMAINS: &str =
    "com in org net gov edu co io ai dev app info biz me tv us uk eu nic ac xyz online site shop store tech bharat";
const FILES: &str = "pdf doc docx xls xlsx csv txt jpg jpeg png gif mp3 mp4 wav zip py rs js html htm json xml apk exe ppt pptx md avi \
    mkv svg log toml yaml yml sh c cpp java kt go sql tar gz";

/// What is known of the tokens that an address could have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressRun {
    start: usize,
    /// Token after the last of them.
    end: usize,
    /// The first `@` at or behind `start`.
    at: Option<usize>,
}

impl Text<'_> {
    /// An address that begins at a token: nothing but a space, a bracket or a quote stands before it.
    pub(super) fn web(&self, i: usize) -> Option<Reading> {
        let opens = i == 0
            || matches!(
                self.kind(i - 1),
                Some(
                    Kind::Space
                        | Kind::Break
                        | Kind::Tag
                        | Kind::Sign('(' | '[' | '"' | '“' | '\'' | ',' | ':' | '<' | '।')
                )
            );
        let starts = matches!(self.kind(i), Some(Kind::Word(Script::Latin) | Kind::Digits) | Some(Kind::Sign('@')));
        if !opens || !starts {
            return None;
        }
        let end = self.address_end(i);
        if self.is_sign(i, '@') {
            return (end > i + 1 && self.is_latin(i + 1)).then(|| self.spoken_address(i, i, end, "handle"));
        }
        let next = |sign: char, from: usize| (from..end).find(|at| self.is_sign(*at, sign));
        if self.only_at(i, end).is_some_and(|at| at > i && at + 1 < end) && next('.', i).is_some() {
            return Some(self.spoken_address(i, i, end, "e-mail"));
        }
        // A payment handle: two plain words and nothing else.
        if end == i + 3 && self.is_sign(i + 1, '@') && self.is_latin(i + 2) {
            return Some(self.spoken_address(i, i, end, "payment handle"));
        }
        let scheme = self.scheme_end(i, end);
        if scheme > i {
            return Some(self.spoken_address(i, scheme, end, "url"));
        }
        let host_end = if self.is_latin(i) { next('/', i).unwrap_or(end) } else { i };
        let top = host_end.checked_sub(1).map_or("", |at| self.word(at));
        let dotted = host_end >= i + 3 && self.is_sign(host_end - 2, '.');
        let listed = |list: &str| !top.is_empty() && list.split_whitespace().any(|known| known == top);
        if dotted && (self.word(i) == "www" || listed(DOMAINS)) {
            return Some(self.spoken_address(i, i, end, "url"));
        }
        let file = end >= i + 3
            && self.is_sign(end - 2, '.')
            && FILES.split_whitespace().any(|known| known.eq_ignore_ascii_case(self.word(end - 1)));
        file.then(|| self.spoken_address(i, i, end, "file name"))
    }

    /// Token after the last one of an address; a stop or comma at its end belongs to the sentence.
    fn address_end(&self, i: usize) -> usize {
        let mut end = self.address_run(i).end.min(i + MOST_TOKENS);
        while end > i + 1 && matches!(self.kind(end - 1), Some(Kind::Sign(c)) if ".:?-/&#=+".contains(c)) {
            end -= 1;
        }
        end
    }

    /// The tokens from a place on that an address may have, however many, and where the first `@` among them is.
    ///
    /// Readers ask from left to right, and what was found for one token holds for the next ones up to there, so a text is walked
    /// through once however many of its tokens could begin an address.
    fn address_run(&self, i: usize) -> AddressRun {
        let known = self.address_run.get();
        let start = if (known.start..known.end).contains(&i) { known.end } else { i };
        let end = (start..self.tokens.len()).find(|at| !self.may_be_in_address(*at)).unwrap_or(self.tokens.len());
        let at = match known.at {
            Some(at) if start > i && at >= i => Some(at),
            None if start > i => None,
            _ => (i..end).find(|at| self.is_sign(*at, '@')),
        };
        let run = AddressRun { start: i, end, at };
        self.address_run.set(run);
        run
    }

    fn may_be_in_address(&self, i: usize) -> bool {
        match self.kind(i) {
            Some(Kind::Word(Script::Latin) | Kind::Digits) => true,
            Some(Kind::Sign(c)) => {
                matches!(c, '@' | '.' | ':' | '/' | '-' | '_' | '~' | '?' | '=' | '&' | '%' | '#' | '+')
            }
            _ => false,
        }
    }

    /// Where the `@` of an address is, if it has exactly one.
    fn only_at(&self, i: usize, end: usize) -> Option<usize> {
        let at = self.address_run(i).at.filter(|at| *at < end)?;
        (at + 1..end).all(|other| !self.is_sign(other, '@')).then_some(at)
    }

    /// Token after `https://`; `i` if there is none.
    fn scheme_end(&self, i: usize, end: usize) -> usize {
        let scheme = matches!(self.word(i).to_ascii_lowercase().as_str(), "http" | "https" | "ftp");
        let slashes = self.is_sign(i + 1, ':') && self.is_sign(i + 2, '/') && self.is_sign(i + 3, '/');
        if scheme && slashes && i + 4 < end { i + 4 } else { i }
    }

    /// Reads an address: words as they are, signs by name, digits one by one; without scheme, `www.` and query.
    fn spoken_address(&self, i: usize, from: usize, end: usize, rule: &'static str) -> Reading {
        let lang = self.lang(i);
        let mut words: Vec<String> = Vec::new();
        let mut at = from;
        if rule == "url" && self.word(at) == "www" && self.is_sign(at + 1, '.') {
            at += 2;
        }
        let mut last = end;
        if rule == "url" {
            last = (at..end).find(|at| self.is_sign(*at, '?') || self.is_sign(*at, '#')).unwrap_or(end);
            while last > at + 1 && self.is_sign(last - 1, '/') {
                last -= 1;
            }
        }
        // The slash that ends a path was left to the sentence; it is part of the address all the same.
        let end = if rule == "url" && self.is_sign(end, '/') { end + 1 } else { end };
        while at < last {
            let name = match self.kind(at) {
                Some(Kind::Sign(sign)) => self.address_sign(lang, sign).to_owned(),
                Some(Kind::Digits)
                    if self.digit_count(at) > 2 || self.str(at).starts_with('0') || rule != "file name" =>
                {
                    number::digits(lang, &self.digits(at))
                }
                Some(Kind::Digits) => number::integer(lang, &self.digits(at)),
                _ => self.address_word(lang, at, at + 1 == last && rule == "file name"),
            };
            words.push(name);
            at += 1;
        }
        Reading { end, words: words.join(" ").into(), rule }
    }

    /// Extensions are spelled, and so are letters that no one says as a word.
    fn address_word(&self, lang: Lang, at: usize, extension: bool) -> String {
        let word = self.str(at);
        let consonants = word.len() <= 4
            && word.bytes().enumerate().all(|(at, b)| {
                let b = b.to_ascii_lowercase();
                // The y that begins a word is a consonant.
                !b"aeiou".contains(&b) && (b != b'y' || at == 0)
            });
        if word.len() <= 4 && (extension || consonants) {
            tables::spell(lang, word)
        } else {
            super::signs::camel_case(word)
        }
    }

    fn address_sign(&self, lang: Lang, sign: char) -> &'static str {
        match sign {
            '.' => lang.say(Say::Dot),
            '/' => lang.say(Say::Slash),
            '-' => lang.say(Say::Dash),
            '_' => lang.say(Say::Underscore),
            '@' => lang.say(Say::AtTheRate),
            ':' => lang.say(Say::Colon),
            '+' => lang.say(Say::Plus),
            '=' => lang.say(Say::Equals),
            '%' => lang.say(Say::Percent),
            '&' => lang.say(Say::And),
            _ => "",
        }
    }
}
