//! Units, abbreviations, acronyms and month names, from the files under `data`.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use super::super::clean::is_word_char;
use super::super::lang::Lang;

/// A mark and its words: Hindi, English one, English many, romanised Hindi.
pub struct Unit {
    mark: String,
    words: [&'static str; 4],
}

impl Unit {
    /// The words in a language; `None` where only the mark is known.
    pub fn say(&self, lang: Lang, one: bool) -> Option<&'static str> {
        match lang {
            // The one unit of the table that Hindi inflects.
            Lang::Hindi if one && self.words[0] == "घंटे" => Some("घंटा"),
            Lang::RomanHindi if one && self.words[3] == "ghante" => Some("ghanta"),
            Lang::Hindi => Some(self.words[0]),
            Lang::English => Some(self.words[if one { 1 } else { 2 }]),
            Lang::RomanHindi => Some(self.words[3]),
            // Marathi writes the measures of science as Hindi does; percent and degrees have words of their own.
            Lang::Marathi if self.mark != "%" => Some(self.words[0]),
            _ => None,
        }
    }

    /// Whether it is the percent sign, which every language has a word for.
    pub fn is_percent(&self) -> bool {
        self.mark == "%"
    }
}

/// An abbreviation and its words: Hindi, English.
pub struct Abbreviation {
    mark: String,
    hindi: &'static str,
    english: &'static str,
    /// Whether it means this only before a number: `No. 5`.
    before_number: bool,
}

impl Abbreviation {
    /// The words in a language.
    pub fn say(&self, lang: Lang) -> &'static str {
        if matches!(lang, Lang::Hindi | Lang::Marathi) { self.hindi } else { self.english }
    }

    /// Whether it means this only before a number.
    pub fn needs_number(&self) -> bool {
        self.before_number
    }
}

/// Entries by first character, longest mark first.
struct Table<T> {
    entries: HashMap<char, Vec<T>>,
    /// First bytes of all marks: most texts are told from them without a look into the map.
    starts: [bool; 256],
}

fn table<T>(entries: impl Iterator<Item = T>, mark: impl Fn(&T) -> &str) -> Table<T> {
    let mut table = Table { entries: HashMap::<char, Vec<T>>::new(), starts: [false; 256] };
    for entry in entries {
        if let Some(first) = mark(&entry).chars().next() {
            table.starts[usize::from(mark(&entry).as_bytes()[0])] = true;
            table.entries.entry(first).or_default().push(entry);
        }
    }
    table.entries.values_mut().for_each(|list| list.sort_by_key(|entry| std::cmp::Reverse(mark(entry).len())));
    table
}

fn rows(source: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    source.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// Finds the longest mark the text begins with that ends at the end of a word.
fn find<'t, T>(table: &'t Table<T>, text: &str, mark: impl Fn(&T) -> &str) -> Option<(usize, &'t T)> {
    let first = text.bytes().next().filter(|byte| table.starts[usize::from(*byte)]);
    let entries = table.entries.get(&first.and(text.chars().next())?)?;
    entries.iter().find_map(|entry| {
        let rest = text.strip_prefix(mark(entry))?;
        let inside =
            mark(entry).ends_with(is_word_char) && rest.starts_with(|c: char| is_word_char(c) || c.is_numeric());
        (!inside).then_some((mark(entry).len(), entry))
    })
}

/// The unit a text begins with, and the length of its mark.
pub fn unit(text: &str) -> Option<(usize, &'static Unit)> {
    static UNITS: OnceLock<Table<Unit>> = OnceLock::new();
    let units = UNITS.get_or_init(|| {
        let rows = rows(include_str!("../data/units.tsv")).filter(|row| row.len() == 5);
        let marks = rows.flat_map(|row| {
            let words = [row[1], row[2], row[3], row[4]];
            row[0].split(' ').map(move |mark| Unit { mark: mark.replace('_', " "), words })
        });
        table(marks, |unit| &unit.mark)
    });
    find(units, text, |unit| &unit.mark)
}

fn abbreviations() -> &'static Table<Abbreviation> {
    static ABBREVIATIONS: OnceLock<Table<Abbreviation>> = OnceLock::new();
    ABBREVIATIONS.get_or_init(|| {
        let rows = rows(include_str!("../data/abbreviations.tsv")).filter(|row| row.len() >= 3);
        let entries = rows.map(|row| Abbreviation {
            mark: row[0].to_owned(),
            hindi: row[1],
            english: row[2],
            before_number: row.get(3) == Some(&"n"),
        });
        table(entries, |entry| &entry.mark)
    })
}

/// The abbreviation a text begins with, and its length.
pub fn abbreviation(text: &str) -> Option<(usize, &'static Abbreviation)> {
    find(abbreviations(), text, |entry| &entry.mark)
}

/// Whether the stop at byte `stop` of the text belongs to an abbreviation or an initial, so that no sentence ends there.
pub fn abbreviation_before(text: &str, stop: usize) -> bool {
    const LONGEST: usize = 24;
    let head = &text[..stop];
    let start = head.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    if stop - start > LONGEST {
        return false;
    }
    let word = head[start..].trim_start_matches(|c: char| !c.is_alphanumeric());
    let initial =
        word.chars().filter(|c| !super::super::lang::is_mark(*c)).count() == 1 && word.chars().all(is_word_char);
    let known = abbreviations().entries.values().flatten().any(|entry| entry.mark.strip_suffix('.') == Some(word));
    initial || known || ["रु", "रू", "Rs", "p.m", "a.m", "P.M", "A.M", "कि.मी", "कि.ग्रा", "से.मी"].contains(&word)
}

/// The month a word names, 1 to 12. Latin names must be capitalised, since `may` and `march` are words.
pub fn month(word: &str) -> Option<usize> {
    const LONGEST: usize = 40;
    if word.is_empty() || word.len() > LONGEST {
        return None;
    }
    const SHORT: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const VARIANTS: [(&str, usize); 9] = [
        ("Sept", 9),
        ("फरवरी", 2),
        ("जुलाइ", 7),
        ("सितम्बर", 9),
        ("अक्तूबर", 10),
        ("नवम्बर", 11),
        ("दिसम्बर", 12),
        ("अप्रेल", 4),
        ("SEPT", 9),
    ];
    let capital = |name: &str| name == word || word.len() == 3 && name.to_ascii_uppercase() == word;
    let short = || SHORT.iter().position(|name| capital(name)).map(|at| at + 1);
    let named = (1..=12).find(|month| Lang::ALL.iter().any(|lang| lang.month(*month) == word));
    named.or_else(short).or_else(|| VARIANTS.iter().find(|(name, _)| *name == word).map(|(_, month)| *month))
}

/// Acronyms with vowels that are spelled out. Those without a vowel need no list, those said as words (NASA) are absent.
const SPELLED: &str = "OTP UPI ATM SMS PDF AI IT UK USA US UN EU UAE IIT IIM CEO CFO COO CTO MLA MP IAS IPS IFS \
    UPSC JEE CBSE ICSE ISC SSC EMI GDP IPO KYC RBI SBI ICICI HDFC IDBI BSE NSE LIC EPFO ESI GST TDS ITR FIR CBI \
    ED NIA ISI FBI CIA DNA RNA MRI ECG ICU OPD HIV URL API HTML CSS USB CPU GPU LED LCD AC DC TV DVD CD FM PM IPL ICC BCCI \
    ODI NGO NRI OBC SC ST EVM EC PIL HR PR QR ID IP ISP DM BJP CPI CPM UP MP AP JNU DU BHU AMU IMF WHO WTO ILO \
    UNO IOC EPF PPF FD RD NEFT RTGS IMPS MRP EV SUV BMW IBM HP LG UI UX IOS OS AQI LPG CNG PNG MBA MCA BA MA BBA BCA LLB PHD \
    DA HRA PF NPS ETA FAQ DIY RIP BTW FYI IST GMT UTC LPA EOD ASAP CA UAN IVR UID UG OTT ETF SIP MICR ECS APMC MSME IRCTC AICTE UGC ICMR DRDO";

/// Whether a word in capitals is spelled letter by letter.
pub fn is_spelled(word: &str) -> bool {
    static LISTED: OnceLock<HashSet<&'static str>> = OnceLock::new();
    let spelled = LISTED.get_or_init(|| SPELLED.split_whitespace().collect());
    let capital = (2..=6).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_uppercase());
    capital && (!word.bytes().any(|b| b"AEIOUY".contains(&b)) || spelled.contains(word))
}

/// Names of the letters A to Z in Devanagari.
const LETTERS: [&str; 26] = [
    "ए",
    "बी",
    "सी",
    "डी",
    "ई",
    "एफ़",
    "जी",
    "एच",
    "आई",
    "जे",
    "के",
    "एल",
    "एम",
    "एन",
    "ओ",
    "पी",
    "क्यू",
    "आर",
    "एस",
    "टी",
    "यू",
    "वी",
    "डब्ल्यू",
    "एक्स",
    "वाई",
    "ज़ेड",
];

/// Whether a Devanagari word is the name of a Latin letter, as initials are written: ए, पी, जे.
pub fn is_letter_name(word: &str) -> bool {
    LETTERS.contains(&word) || ["एफ", "जेड", "डब्लू", "ज़ेड"].contains(&word)
}

/// Spells Latin letters one by one, in the script of the language where it has names for them.
pub fn spell(lang: Lang, word: &str) -> String {
    let devanagari = matches!(lang, Lang::Hindi | Lang::Marathi);
    let names = word.chars().map(|c| match (c.to_ascii_uppercase() as usize).checked_sub('A' as usize) {
        Some(index) if devanagari && index < LETTERS.len() => LETTERS[index].to_owned(),
        _ => c.to_ascii_uppercase().to_string(),
    });
    names.collect::<Vec<_>>().join(" ")
}
