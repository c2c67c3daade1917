//! A text as tokens, and the language each token is read in.

use std::collections::HashSet;
use std::sync::OnceLock;

use super::TAGS;
use super::clean::is_word_char;
use super::lang::{Lang, Script, digit_value};

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

/// The language of every token: decided a sentence at a time, from its words.
///
/// A sentence without words takes the language of the one before it, the first such sentences that of the first with
/// words, and a text without any words `fallback`.
pub fn languages(text: &str, tokens: &[Token], fallback: Lang) -> Vec<Lang> {
    let mut langs = Vec::with_capacity(tokens.len());
    let mut last: Option<Lang> = None;
    let mut start = 0;
    while start < tokens.len() {
        let end = sentence_end(tokens, start);
        let found = sentence_language(text, &tokens[start..end]);
        if let (Some(lang), None) = (found, last) {
            langs.iter_mut().for_each(|earlier| *earlier = lang);
        }
        last = found.or(last);
        langs.resize(end, last.unwrap_or(fallback));
        start = end;
    }
    langs
}

/// Token after the stop of the sentence that begins at `start`.
fn sentence_end(tokens: &[Token], start: usize) -> usize {
    for i in start..tokens.len() {
        let spaced = tokens.get(i + 1).is_none_or(|next| matches!(next.kind, Kind::Space | Kind::Break));
        match tokens[i].kind {
            Kind::Sign('।' | '?' | '!') | Kind::Break => return i + 1,
            // A stop after a long word; after a short one it may be an abbreviation, and the sentence goes on.
            Kind::Sign('.') if spaced && i > start && tokens[i - 1].end - tokens[i - 1].start > 4 => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Words of one sentence by language.
#[derive(Default)]
struct Votes {
    latin: usize,
    capitals: usize,
    devanagari: usize,
    of: [usize; Lang::ALL.len()],
    english: usize,
    roman_hindi: usize,
    marathi: usize,
    hindi: usize,
}

fn sentence_language(text: &str, tokens: &[Token]) -> Option<Lang> {
    let mut votes = Votes::default();
    for (i, token) in tokens.iter().enumerate() {
        let word = &text[token.start..token.end];
        if token.kind == Kind::Word(Script::Latin) && is_part_of_a_name(tokens, i) {
            continue;
        }
        match token.kind {
            Kind::Word(Script::Latin) if word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase()) => {
                votes.capitals += 1
            }
            Kind::Word(Script::Latin) => {
                votes.latin += 1;
                votes.english += usize::from(is_listed(ENGLISH, word));
                votes.roman_hindi += usize::from(is_listed(ROMAN_HINDI, word));
            }
            Kind::Word(Script::Devanagari) => {
                votes.devanagari += 1;
                votes.marathi += usize::from(is_listed(MARATHI, word));
                votes.hindi += usize::from(is_listed(HINDI, word));
            }
            Kind::Word(Script::Of(lang)) => votes.of[lang as usize] += 1,
            _ => {}
        }
    }
    votes.winner()
}

/// Whether a Latin word says nothing about its sentence: a unit that touches its number, a part of an address.
fn is_part_of_a_name(tokens: &[Token], i: usize) -> bool {
    let kind = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map(|token| token.kind);
    let joint = |kind: Option<Kind>| matches!(kind, Some(Kind::Sign('.' | '@' | '/' | '_' | '#')));
    let solid = |kind: Option<Kind>| matches!(kind, Some(Kind::Word(_) | Kind::Digits | Kind::Sign('/')));
    let before = kind(i.checked_sub(1));
    before == Some(Kind::Digits) || joint(before) || joint(kind(Some(i + 1))) && solid(kind(Some(i + 2)))
}

impl Votes {
    fn winner(&self) -> Option<Lang> {
        let (of, count) =
            Lang::ALL.iter().map(|lang| (*lang, self.of[*lang as usize])).max_by_key(|(_, count)| *count)?;
        // A script of India in the sentence outweighs twice as many Latin words, which tend to be names and loans.
        if count > 0 && count >= self.devanagari && 2 * count >= self.latin {
            return Some(of);
        }
        if self.devanagari > 0 && 2 * self.devanagari >= self.latin {
            return Some(if self.marathi > self.hindi { Lang::Marathi } else { Lang::Hindi });
        }
        if self.roman_hindi > 0 && self.roman_hindi >= self.english {
            return Some(Lang::RomanHindi);
        }
        (self.latin + self.capitals > 0).then_some(Lang::English)
    }
}

/// Frequent words that settle the language of a Latin sentence, or tell Marathi from Hindi. Words that both languages
/// of a pair spell alike (`to`, `the`, `is`, `me`, `do`, `main`, `par`, `are`, `sun`) are in neither list.
const ENGLISH: &str = "a an and of in on at for from with by was were has have had will would can could should this that \
    these those there it its i you your he she we they them our his her my not no yes please be been being as or but if when \
    which what who how about into over under after before between per each all any only than then your total paid meeting \
    number call dear costs cost price";
const ROMAN_HINDI: &str = "hai hain ho hoon hun tha thi ka ki ke ko se mein mai aap aapka aapki aapke aapko mera meri mere \
    mujhe tum tumhara tumhari tera teri hum humara hamara hamari unka unki uska uski iska iski yeh ye woh wo kya kyun kyon kab \
    kahan kaise kitna kitne kitni nahi nahin nahi mat bhi aur ya lekin magar toh phir abhi aaj kal parso raha rahi rahe gaya gayi \
    gaye kar karo karna karke kiya karein kijiye diya dena lena liya milega milegi hoga hogi honge baje rupaye rupay paise bhai \
    yaar ji namaste shukriya dhanyavaad sirf bas tak saal din ghar paas wala wali wale chahiye jaldi subah shaam raat bahut thoda \
    accha acha theek sab kuch koi apna apni apne liye aaya aayi aaye jao aao bolo batao suno dekho";
const MARATHI: &str = "आहे आहेत आणि नाही नाहीत माझा माझी माझे तुमचा तुमची तुमचे आम्ही तुम्ही काय कसे कुठे मध्ये साठी पासून पर्यंत झाला \
    झाली झाले मला तुला त्याला होतं किंवा म्हणजे रोजी";
const HINDI: &str = "है हैं का की के को में से ने और था थे थी हो नहीं मैं यह वह पर तक लिए क्या भी एक";

fn is_listed(list: &'static str, word: &str) -> bool {
    static LISTS: [OnceLock<HashSet<&'static str>>; 4] = [const { OnceLock::new() }; 4];
    const LONGEST: usize = 24;
    let index = [ENGLISH, ROMAN_HINDI, MARATHI, HINDI].iter().position(|known| *known == list).unwrap_or(0);
    let set = LISTS[index].get_or_init(|| list.split_whitespace().collect());
    word.len() <= LONGEST && (set.contains(word) || set.contains(word.to_ascii_lowercase().as_str()))
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

    #[test]
    fn the_language_follows_the_words_of_the_sentence() {
        let cases = [
            ("कुल 12 इकाई", Lang::Hindi),
            ("आपका OTP 4582 है", Lang::Hindi),
            ("Total 12", Lang::English),
            ("Aapka bill 1,250 hai", Lang::RomanHindi),
            ("माझे बिल 500 आहे", Lang::Marathi),
            ("என்னிடம் 5 உள்ளது", Lang::Tamil),
            ("আমার 5 টাকা", Lang::Bengali),
            ("12", Lang::Telugu),
        ];
        for (text, expected) in cases {
            let tokens = tokens(text);
            assert_eq!(languages(text, &tokens, Lang::Telugu), vec![expected; tokens.len()], "{text}");
        }
        let text = "5. I paid 12 rupees for dinner. कुल 12 हुआ।";
        let tokens = tokens(text);
        let langs = languages(text, &tokens, Lang::Hindi);
        assert_eq!((langs[0], langs[langs.len() - 1]), (Lang::English, Lang::Hindi));
    }
}
