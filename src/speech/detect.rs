//! The language each token is read in: that of its sentence, or of the run of words of one script that it stands in.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::OnceLock;

use super::lang::{Lang, Script};
use super::scan::{Kind, Token};

/// The language of every token: decided a sentence at a time, from its words.
///
/// A sentence without words takes the language of the one before it, the first such sentences that of the first with
/// words, and a text without any words `fallback`. In a sentence of two scripts a run of words of one script that is a phrase
/// of its own keeps its language: `I have 25 books, और कुछ नहीं`.
pub fn languages(text: &str, tokens: &[Token], fallback: Lang) -> Vec<Lang> {
    let mut langs = Vec::with_capacity(tokens.len());
    let mut last: Option<Lang> = None;
    let mut start = 0;
    while start < tokens.len() {
        let end = sentence_end(tokens, start);
        let found = Votes::of(text, &tokens[start..end]).winner();
        if let (Some(lang), None) = (found, last) {
            langs.iter_mut().for_each(|earlier| *earlier = lang);
        }
        last = found.or(last);
        langs.resize(end, last.unwrap_or(fallback));
        if let Some(lang) = found {
            phrases(text, tokens, start..end, lang, &mut langs);
        }
        start = end;
    }
    langs
}

/// Token after the stop of the sentence that begins at `start`.
fn sentence_end(tokens: &[Token], start: usize) -> usize {
    for i in start..tokens.len() {
        let spaced = tokens.get(i + 1).is_none_or(|next| matches!(next.kind, Kind::Space | Kind::Break));
        match tokens[i].kind {
            Kind::Sign('।' | '?' | '!' | '…') | Kind::Break => return i + 1,
            Kind::Sign('.') if spaced && i > start && tokens[i - 1].kind == Kind::Sign('.') => return i + 1,
            // A stop after a long word; after a short one it may be an abbreviation, and the sentence goes on.
            Kind::Sign('.') if spaced && i > start && tokens[i - 1].end - tokens[i - 1].start > 4 => return i + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// Gives the phrases of a sentence that is written in two scripts their own languages.
fn phrases(text: &str, tokens: &[Token], sentence: Range<usize>, lang: Lang, langs: &mut [Lang]) {
    let mut words = sentence.filter_map(|i| match tokens[i].kind {
        Kind::Word(script) => Some((i, script)),
        _ => None,
    });
    let Some((first, mut script)) = words.next() else { return };
    let (mut run, mut count) = (first..first + 1, 1);
    loop {
        let next = words.next();
        match next {
            Some((i, same)) if same == script => {
                run.end = i + 1;
                count += 1;
                continue;
            }
            _ => {}
        }
        if let Some(own) = phrase_language(text, &tokens[run.clone()], script, count, lang) {
            langs[run].fill(own);
        }
        let Some((i, other)) = next else { return };
        (run, script, count) = (i..i + 1, other, 1);
    }
}

/// The language of a run of words of one script, if it is a phrase: English needs three words, one of them a word that only
/// English has, since loans come in twos; a script of India needs two.
fn phrase_language(text: &str, run: &[Token], script: Script, count: usize, sentence: Lang) -> Option<Lang> {
    let latin = script == Script::Latin;
    if latin == sentence.is_latin() || script == Script::Other || count < if latin { 3 } else { 2 } {
        return None;
    }
    let votes = Votes::of(text, run);
    if latin && votes.english + votes.roman_hindi == 0 {
        return None;
    }
    votes.winner()
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

/// Whether a Latin word says nothing about its sentence: a unit that touches its number, a part of an address.
fn is_part_of_a_name(tokens: &[Token], i: usize) -> bool {
    let kind = |at: Option<usize>| at.and_then(|at| tokens.get(at)).map(|token| token.kind);
    let joint = |kind: Option<Kind>| matches!(kind, Some(Kind::Sign('.' | '@' | '/' | '_' | '#')));
    let solid = |kind: Option<Kind>| matches!(kind, Some(Kind::Word(_) | Kind::Digits | Kind::Sign('/')));
    let before = kind(i.checked_sub(1));
    before == Some(Kind::Digits) || joint(before) || joint(kind(Some(i + 1))) && solid(kind(Some(i + 2)))
}

impl Votes {
    /// Counts the words of a row of tokens.
    fn of(text: &str, tokens: &[Token]) -> Votes {
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
                    votes.english += usize::from(is_listed(List::English, word));
                    votes.roman_hindi += usize::from(is_listed(List::RomanHindi, word) || ends_as_roman_hindi(word));
                }
                Kind::Word(Script::Devanagari) => {
                    votes.devanagari += 1;
                    votes.marathi += usize::from(is_marathi(text, tokens, i));
                    votes.hindi += usize::from(is_listed(List::Hindi, word));
                }
                Kind::Word(Script::Of(lang)) => votes.of[lang as usize] += 1,
                _ => {}
            }
        }
        votes
    }

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
#[derive(Clone, Copy)]
enum List {
    English,
    RomanHindi,
    Marathi,
    Hindi,
}

const ENGLISH: &str = "a an and of in on at for from with by was were has have had will would can could should this that \
    these those there it its i you your he she we they them our his her my not no yes please be been being as or but if when \
    which what who how about into over under after before between per each all any only than then your total paid meeting \
    number call dear costs cost price";
const ROMAN_HINDI: &str = "hai hain ho hoon hun tha thi ka ki ke ko se mein mai aap aapka aapki aapke aapko mera meri mere mujhe tum \
    tumhara tumhari tera teri hum humara hamara hamari unka unki uska uski iska iski yeh ye woh wo kya kyun kyon kab \
    kahan kaise kitna kitne kitni nahi nahin nahi mat bhi aur ya lekin magar toh phir abhi aaj kal parso raha rahi \
    rahe gaya gayi gaye kar karo karna karke kiya karein kijiye diya dena lena liya milega milegi hoga hogi honge \
    baje rupaye rupay paise bhai yaar ji namaste shukriya dhanyavaad sirf bas tak saal din ghar paas wala wali wale \
    chahiye jaldi subah shaam raat bahut thoda accha acha theek sab kuch koi apna apni apne liye aaya aayi aaye jao \
    aao bolo batao suno dekho tu tujhe tumne maine humne usne unhone isne inka inki iske uske unke unko usko isko \
    kisko kisne kaun kaunsa kisi kuchh bahot bohot zyada jyada thodi thode hua hui huye jaana aana karte karta karti \
    karenge karunga karungi dega degi denge dunga lenge lega lagta lagti lagega lagenge milta milte milti mila mili \
    milenge chahta chahte chal chalo chali chalega pe hu hota hoti hote hone hokar bola boli kaha kehte pata samajh \
    sakta sakte sakti wahan yahan vahan kahin kidhar idhar udhar upar neeche andar bahar pehle pahle fir dobara aise \
    waise jaise kaisa kaisi jab tab jabki kyunki kyonki isliye agar warna varna balki saath samay mahina mahine \
    hafta hafte tareekh tarikh baar ek teen paanch chhah hazaar hazar sau bhaiya didi dost doston beta beti gaon \
    shahar sadak gaadi gadi khana khaya paani chai kitab kitaben dukaan dukan desh duniya aadmi aurat ladka ladki \
    ladke bachche bacche naya nayi purana bada badi bade chhota chhoti chhote achha achhe achhi galat sahi khush \
    pyaar zindagi umar umr naam kaam baat bilkul zaroor shayad kabhi hamesha sabko sabse sabhi unhe inhe jisme isme \
    usme bhej bhejo bhejna bata batana dekha suna likha likho padho khareeda kharida becha ank girkar badhkar jeeta \
    haara chhutti shaadi janmdin mubarak dopahar savere kariye dijiye lijiye aaiye jaiye rakho rakhna rakha nikla \
    nikal nikalna pahuncha pahunchi pahunche milna milo bje hamein unhein mujhse tumse aapse chawal pyaz aloo doodh \
    cheeni namak atta daal sabzi";
const MARATHI: &str = "आहे आहेत आणि नाही नाहीत माझा माझी माझे तुमचा तुमची तुमचे आम्ही तुम्ही काय कसे कुठे मध्ये साठी पासून पर्यंत झाला \
    झाली झाले मला तुला त्याला होतं किंवा म्हणजे रोजी मी होईल येईल येईन जाईल करा उद्या पण किती कधी वाजता वाजले \
    वाजेपर्यंत मिळेल असेल त्या त्यांनी आपला आपली आपले घ्या द्या सांगा येथे तिथे हवे नको रुपयांचे रुपयांना लोकांनी \
    च्या";
const HINDI: &str = "है हैं का की के को में से ने और था थे थी हो नहीं मैं यह वह पर तक लिए क्या भी एक";

/// Whether a Latin word has the ending of a Hindi future, `chhootegi`, `aaunga`.
fn ends_as_roman_hindi(word: &str) -> bool {
    const ENDINGS: [&str; 6] = ["egi", "enge", "unga", "ungi", "oonga", "iyega"];
    let english = word.ends_with("venge") || word.ends_with("llenge");
    (6..=24).contains(&word.len())
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && !english
        && ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// Whether the Devanagari word at a place is one that Hindi does not have.
fn is_marathi(text: &str, tokens: &[Token], i: usize) -> bool {
    let word = &text[tokens[i].start..tokens[i].end];
    // The मी of `कि.मी.` and of `5 मी` is a metre.
    let before = |back: usize| i.checked_sub(back).map(|at| tokens[at].kind);
    let metre = before(1) == Some(Kind::Sign('.')) || before(2) == Some(Kind::Digits);
    is_listed(List::Marathi, word) && !(word == "मी" && metre)
        || is_marathi_form(word)
        || is_marathi_to(text, tokens, i)
}

/// Whether a Devanagari word is formed as only Marathi forms words: a postposition joined to it, or the letter ळ.
fn is_marathi_form(word: &str) -> bool {
    const ENDINGS: [&str; 8] = ["च्या", "मध्ये", "साठी", "ांनी", "ांना", "पासून", "पर्यंत", "मधील"];
    word.len() <= 90
        && (word.contains('ळ') || ENDINGS.iter().any(|ending| word.len() > ending.len() && word.ends_with(ending)))
}

/// Whether the word at a place is the Marathi `ला` of a time, `5 PM ला`; elsewhere it is Hindi for `bring`.
fn is_marathi_to(text: &str, tokens: &[Token], i: usize) -> bool {
    let kind = |back: usize| i.checked_sub(back).and_then(|at| tokens.get(at));
    let (Some(space), Some(before)) = (kind(1), kind(2)) else { return false };
    let half = || matches!(&text[before.start..before.end], "AM" | "PM" | "am" | "pm" | "बजे" | "तारखे" | "तारखेला");
    &text[tokens[i].start..tokens[i].end] == "ला"
        && space.kind == Kind::Space
        && (before.kind == Kind::Digits || half())
}

fn is_listed(list: List, word: &str) -> bool {
    static LISTS: [OnceLock<HashSet<&'static str>>; 4] = [const { OnceLock::new() }; 4];
    const LONGEST: usize = 24;
    let words = || [ENGLISH, ROMAN_HINDI, MARATHI, HINDI][list as usize].split_whitespace().collect();
    let set = LISTS[list as usize].get_or_init(words);
    let capital = || word.bytes().any(|b| b.is_ascii_uppercase());
    word.len() <= LONGEST && (set.contains(word) || capital() && set.contains(word.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::scan::tokens;
    use super::*;

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
            ("मी 5 PM ला येईन", Lang::Marathi),
            ("12951 Rajdhani 16:35 chhootegi", Lang::RomanHindi),
            ("She will challenge 12 of them", Lang::English),
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

    #[test]
    fn a_phrase_in_another_script_keeps_its_language() {
        let at_digits = |text: &str| {
            let tokens = tokens(text);
            let place = tokens.iter().position(|token| token.kind == Kind::Digits).unwrap();
            languages(text, &tokens, Lang::Hindi)[place]
        };
        assert_eq!(at_digits("Good morning! I have 25 books … नमस्ते दोस्तों, आप सब कैसे हैं"), Lang::English);
        assert_eq!(at_digits("I have 25 books, और मेरे पास कुछ भी नहीं है"), Lang::English);
        assert_eq!(at_digits("mere paas 25 books hain, और मेरे पास कुछ भी नहीं है"), Lang::RomanHindi);
        assert_eq!(at_digits("She told me मेरे पास 25 किताबें हैं and left for home after the party"), Lang::Hindi);
        // Loans are no phrase.
        assert_eq!(at_digits("मुझे 25 books चाहिए"), Lang::Hindi);
        assert_eq!(at_digits("मैंने HDFC Bank 25 loan लिया"), Lang::Hindi);
    }
}
