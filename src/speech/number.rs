//! Numbers as words: one interpreter, one rule file a language (`data/*.rules`).
//!
//! The files follow CLDR's rule-based number format (UTS #35, "Rule-Based Number Formatting") in a reduced notation:
//!
//! ```text
//! 10: ten eleven …      words for 10, 11, …
//! 200: {<} hundred[ {>}]   from 200 on: quotient by 100, the word, and the remainder unless it is 0
//! 100: [एकशे {>}|शंभर]      either the left part, with a remainder, or the right part, without
//! unit:                 a named set; `{>unit}` reads the remainder by it
//! ```

use std::sync::OnceLock;

use unicode_normalization::UnicodeNormalization;

use super::lang::Lang;

/// The largest number read as a cardinal, exclusive: 10^19, above it digits are read one by one.
pub const CARDINAL_LIMIT: u128 = 10_000_000_000_000_000_000;

/// Reads a cardinal. Numbers from 10^19 on are read digit by digit.
pub fn cardinal(lang: Lang, n: u128) -> String {
    let mut words = String::new();
    if n >= CARDINAL_LIMIT {
        return digits(lang, &n.to_string());
    }
    rules(lang).read(0, n as u64, &mut words);
    words
}

/// Reads ASCII digits one by one, with a space between.
pub fn digits(lang: Lang, text: &str) -> String {
    let mut words = String::new();
    for digit in text.bytes().filter(u8::is_ascii_digit) {
        if !words.is_empty() {
            words.push(' ');
        }
        rules(lang).read(0, u64::from(digit - b'0'), &mut words);
    }
    words
}

/// Reads a run of ASCII digits: as a cardinal below 10^19 without a leading zero, digit by digit otherwise.
///
/// Time is linear in the length of the text.
pub fn integer(lang: Lang, text: &str) -> String {
    const LONGEST: usize = 19;
    let leading_zero = text.len() > 1 && text.starts_with('0');
    match text.parse::<u128>() {
        Ok(n) if text.len() <= LONGEST && !leading_zero => cardinal(lang, n),
        _ => digits(lang, text),
    }
}

/// The rules of one language: sets of rules, the first of them for whole numbers.
struct Rules {
    sets: Vec<Vec<Rule>>,
}

struct Rule {
    base: u64,
    /// Largest power of ten not above `base`: what the number is divided by.
    divisor: u64,
    /// Parts for numbers that leave a remainder, and for those that do not.
    with_rest: Vec<Part>,
    without_rest: Vec<Part>,
}

enum Part {
    Text(String),
    /// The quotient, read by the set of that index.
    Quotient(usize),
    /// The remainder, read by the set of that index.
    Rest(usize),
}

impl Rules {
    fn read(&self, set: usize, n: u64, out: &mut String) {
        let rules = &self.sets[set];
        let Some(rule) = rules[..rules.partition_point(|rule| rule.base <= n)].last() else { return };
        let (quotient, rest) = (n / rule.divisor, n % rule.divisor);
        for part in if rest == 0 { &rule.without_rest } else { &rule.with_rest } {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Quotient(set) => self.read(*set, quotient, out),
                Part::Rest(set) => self.read(*set, rest, out),
            }
        }
    }

    /// Parses a rule file. The files are part of the program and covered by a test, so nothing is reported.
    fn parse(source: &str) -> Rules {
        let lines = || source.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut names = vec![""];
        names.extend(lines().filter_map(|line| line.strip_suffix(':')));
        let mut sets = vec![Vec::new()];
        for line in lines() {
            let Some((base, body)) = line.split_once(": ") else {
                sets.push(Vec::new());
                continue;
            };
            let Ok(base) = base.replace('_', "").parse::<u64>() else { continue };
            let Some(set) = sets.last_mut() else { continue };
            if body.contains(['{', '[']) || base >= 100 {
                set.push(Rule::parse(base, body, &names));
            } else {
                set.extend(body.split(' ').zip(base..).map(|(word, base)| Rule::parse(base, word, &names)));
            }
        }
        Rules { sets }
    }
}

impl Rule {
    fn parse(base: u64, body: &str, names: &[&str]) -> Rule {
        let body: String = body.nfc().collect();
        let (before, bracketed, after) = match (body.find('['), body.find(']')) {
            (Some(open), Some(close)) if open < close => (&body[..open], &body[open + 1..close], &body[close + 1..]),
            _ => (&body[..], "", ""),
        };
        let (left, right) = bracketed.split_once('|').unwrap_or((bracketed, ""));
        let parts = |middle: &str| parts(&format!("{before}{middle}{after}"), names);
        Rule {
            base,
            divisor: 10u64.pow(base.checked_ilog10().unwrap_or(0)),
            with_rest: parts(left),
            without_rest: parts(right),
        }
    }
}

fn parts(text: &str, names: &[&str]) -> Vec<Part> {
    let mut parts = Vec::new();
    for (i, piece) in text.split(['{', '}']).enumerate() {
        let set = |name: &str| names.iter().position(|known| *known == name).unwrap_or(0);
        match piece.split_at_checked(1) {
            Some(("<", name)) if i % 2 == 1 => parts.push(Part::Quotient(set(name))),
            Some((">", name)) if i % 2 == 1 => parts.push(Part::Rest(set(name))),
            Some(_) | None if !piece.is_empty() => parts.push(Part::Text(piece.to_owned())),
            _ => {}
        }
    }
    parts
}

fn rules(lang: Lang) -> &'static Rules {
    static RULES: [OnceLock<Rules>; Lang::ALL.len()] = [const { OnceLock::new() }; Lang::ALL.len()];
    RULES[lang as usize].get_or_init(|| {
        Rules::parse(match lang {
            Lang::Hindi => include_str!("data/hi.rules"),
            Lang::English => include_str!("data/en.rules"),
            Lang::RomanHindi => include_str!("data/hi-latn.rules"),
            Lang::Bengali => include_str!("data/bn.rules"),
            Lang::Tamil => include_str!("data/ta.rules"),
            Lang::Telugu => include_str!("data/te.rules"),
            Lang::Kannada => include_str!("data/kn.rules"),
            Lang::Marathi => include_str!("data/mr.rules"),
            Lang::Gujarati => include_str!("data/gu.rules"),
            Lang::Malayalam => include_str!("data/ml.rules"),
            Lang::Punjabi => include_str!("data/pa.rules"),
        })
    })
}

#[cfg(test)]
#[path = "number_tests.rs"]
mod tests;
