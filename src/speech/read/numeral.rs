//! Bare numbers and what follows them: ordinals, fractions, units, scale letters, letters.

use super::super::lang::{Lang, Say, Script};
use super::super::number;
use super::amount::{Amount, quarters_in_hindi};
use super::{Kind, Reading, Text, tables};

/// Tokens on either side of a score in which a word of cricket is looked for, doubled for the spaces.
const NEAR: usize = 12;

/// The first Hindi ordinals with the endings of gender and case: masculine, feminine, oblique.
const HINDI_ORDINALS: [(u64, [&str; 3]); 5] = [
    (1, ["पहला", "पहली", "पहले"]),
    (2, ["दूसरा", "दूसरी", "दूसरे"]),
    (3, ["तीसरा", "तीसरी", "तीसरे"]),
    (4, ["चौथा", "चौथी", "चौथे"]),
    (6, ["छठा", "छठी", "छठे"]),
];

/// Written endings of Hindi ordinals: masculine, feminine, oblique.
const HINDI_ENDINGS: [&[&str]; 3] = [
    &["वाँ", "वां", "वा", "ला", "रा", "था", "ठा", "ठवाँ", "ठवां"],
    &["वीं", "वी", "ली", "री", "थी", "ठी", "ठवीं"],
    &["वें", "वे", "ले", "रे", "थे", "ठे", "ठवें"],
];

/// English ordinals in Devanagari, as they are said next to Hindi words.
const ENGLISH_IN_DEVANAGARI: [&str; 20] = [
    "फ़र्स्ट",
    "सेकंड",
    "थर्ड",
    "फ़ोर्थ",
    "फ़िफ़्थ",
    "सिक्स्थ",
    "सेवंथ",
    "एट्थ",
    "नाइंथ",
    "टेंथ",
    "इलेवंथ",
    "ट्वेल्फ़्थ",
    "थर्टींथ",
    "फ़ोर्टींथ",
    "फ़िफ़्टींथ",
    "सिक्स्टींथ",
    "सेवंटींथ",
    "एटींथ",
    "नाइंटींथ",
    "ट्वेंटिएथ",
];

impl Text<'_> {
    /// `21वीं`, `६ठी`, `5 वें`, `1st`, `10va`; at the digits.
    pub(super) fn ordinal(&self, i: usize) -> Option<Reading> {
        let n = self.value(i)?;
        let lang = self.lang(i);
        let hyphen = usize::from(self.is_hyphen(i + 1));
        let mut at = i + 1 + hyphen;
        let ending = |at: usize| HINDI_ENDINGS.iter().position(|list| list.contains(&self.word(at)));
        // Across a space only the endings that are no words of their own.
        if self.is_space(at) && matches!(self.word(at + 1), "वाँ" | "वां" | "वीं" | "वें") {
            at += 1;
        }
        if let Some(gender) = ending(at) {
            let lang = if lang == Lang::Marathi { Lang::Hindi } else { lang };
            return Reading::new(at + 1, hindi_ordinal(lang, n, gender), "ordinal");
        }
        match self.word(at).to_ascii_lowercase().as_str() {
            "st" | "nd" | "rd" | "th" if hyphen == 0 => Reading::new(at + 1, english_ordinal(lang, n), "ordinal"),
            // Across a space only the ending that fits: `10 th`, `21 st`, but `5 st` is something else.
            "" if hyphen == 0 && self.is_space(at) && self.word(at + 1) == ordinal_ending(n) => {
                Reading::new(at + 2, english_ordinal(lang, n), "ordinal")
            }
            "va" | "vaan" | "wa" | "wan" if lang == Lang::RomanHindi => {
                Reading::new(at + 1, hindi_ordinal(lang, n, 0), "ordinal")
            }
            "vi" | "vin" | "wi" | "win" if lang == Lang::RomanHindi => {
                Reading::new(at + 1, hindi_ordinal(lang, n, 1), "ordinal")
            }
            _ => None,
        }
    }

    /// `1/2`, `3 1/2`, `2½`, `45/50`; at the digits.
    pub(super) fn fraction(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        let whole = self.value(i)?;
        let sign = self.past_space(i + 1);
        if let Some(Kind::Sign(c)) = self.kind(sign)
            && let Some(words) = vulgar(lang, Some(whole), c)
        {
            return self.fraction_of_unit(sign + 1, words);
        }
        if self.is_space(i + 1)
            && let Some((top, bottom, end)) = self.slashed(i + 2)
            && let Some(c) = vulgar_sign(top, bottom)
        {
            return vulgar(lang, Some(whole), c).and_then(|words| self.fraction_of_unit(end, words));
        }
        let (top, bottom, end) = self.slashed(i)?;
        if let Some(words) = vulgar_sign(top, bottom).and_then(|c| vulgar(lang, None, c)) {
            return self.fraction_of_unit(end, words);
        }
        let say = |n: u64| number::cardinal(lang, n.into());
        let (top_words, bottom_words) = (say(top), say(bottom));
        if self.is_innings(i, top, bottom) {
            let for_wickets = match lang {
                Lang::English => "for",
                Lang::RomanHindi => "par",
                _ => "पर",
            };
            return Reading::new(end, format!("{top_words} {for_wickets} {bottom_words}"), "score");
        }
        let over = if self.is_known_day(top, bottom, end) { "" } else { over(lang) };
        Reading::new(end, [top_words.as_str(), over, &bottom_words].join(" ").replace("  ", " "), "fraction")
    }

    /// `356/7` near words of cricket: runs for wickets.
    fn is_innings(&self, i: usize, runs: u64, wickets: u64) -> bool {
        const CRICKET: &[&str] = &[
            "रन",
            "रनों",
            "विकेट",
            "ओवर",
            "ओवरों",
            "पारी",
            "run",
            "runs",
            "wickets",
            "wicket",
            "overs",
            "over",
            "innings",
            "scored",
            "scoring",
            "ov",
            "batting",
            "Wickets",
            "Overs",
        ];
        let lang = self.lang(i);
        let near = i.saturating_sub(2 * NEAR)..(i + 2 * NEAR).min(self.tokens.len());
        (lang == Lang::English || lang.is_hindi())
            && runs > wickets
            && wickets <= 10
            && near.into_iter().any(|at| CRICKET.contains(&self.word(at)))
    }

    /// A fraction with the unit behind it, if there is one: `1/2 kg`.
    fn fraction_of_unit(&self, end: usize, words: String) -> Option<Reading> {
        let lang = self.lang(end - 1);
        let unit = self.unit_at(self.past_space(end)).filter(|(_, unit)| !unit.is_percent());
        match unit.and_then(|(after, unit)| Some((after, unit.say(lang, words == "half" || !lang.is_latin())?))) {
            Some((after, unit)) => Reading::new(after, format!("{words} {unit}"), "fraction"),
            None => Reading::new(end, words, "fraction"),
        }
    }

    /// Two short numbers with a slash between, and the token after them.
    fn slashed(&self, i: usize) -> Option<(u64, u64, usize)> {
        let alone = self.is_sign(i + 1, '/') && !self.is_sign(i + 3, '/') && !(i > 0 && self.is_sign(i - 1, '/'));
        let short = self.digit_count(i) <= 4 && self.digit_count(i + 2) <= 4;
        (alone && short).then(|| Some((self.value(i)?, self.value(i + 2)?, i + 3))).flatten()
    }

    /// A number with a unit: `5 kg`, `37.5°C`, `12 %`, `5'10"`.
    pub(super) fn measure(&self, i: usize, amount: &Amount) -> Option<Reading> {
        let lang = self.lang(i);
        if let Some(reading) = self.feet_and_inches(i) {
            return Some(reading);
        }
        let at = self.past_space(amount.end);
        let (end, unit) = self.unit_at(at).or_else(|| self.joined_unit(amount.end))?;
        // `5 L` across a space and `5 m` are measures; a capital word's first letter is not (`find` checks the word's end).
        let end = if self.is_sign(end - 1, '.') && self.sentence_ends(end - 1) { end - 1 } else { end };
        let name = if unit.is_percent() { lang.say(Say::Percent) } else { unit.say(lang, amount.is_one())? };
        let number = if self.manner.short_forms { amount.say_short(lang) } else { amount.say(lang) };
        let rule = if unit.is_percent() { "percent" } else { "unit" };
        let (words, end) = self.per(lang, format!("{number} {name}"), end);
        Reading::new(end, words, rule)
    }

    /// The unit of `2-min`, `5-km`: two letters at least behind a hyphen.
    fn joined_unit(&self, end: usize) -> Option<(usize, &'static tables::Unit)> {
        let joined = self.is_hyphen(end) && self.is_latin(end + 1) && self.str(end + 1).len() > 1;
        joined.then(|| self.unit_at(end + 1))?
    }

    /// `3.10.2` and longer: a version or an address, read part by part.
    pub(super) fn version(&self, i: usize) -> Option<Reading> {
        const MOST_PARTS: usize = 8;
        let mut parts = 1;
        while parts < MOST_PARTS && self.is_sign(i + 2 * parts - 1, '.') && self.is_digits(i + 2 * parts) {
            parts += 1;
        }
        let lang = self.lang(i);
        let point = match (parts, lang) {
            (0..=2, _) => return None,
            (4.., _) => lang.say(Say::Dot),
            (_, Lang::Hindi | Lang::Marathi) => "पॉइंट",
            (_, Lang::RomanHindi) => "point",
            _ => lang.say(Say::Point),
        };
        let words: Vec<String> = (0..parts).map(|k| number::integer(lang, &self.digits(i + 2 * k))).collect();
        Reading::new(i + 2 * parts - 1, words.join(&format!(" {point} ")), "version")
    }

    /// Everything else: a cardinal or a decimal.
    pub(super) fn plain_number(&self, i: usize, amount: &Amount) -> Option<Reading> {
        let lang = self.lang(i);
        let number = if self.manner.short_forms { amount.say_short(lang) } else { amount.say(lang) };
        Reading::new(amount.end, number, if amount.fraction.is_empty() { "cardinal" } else { "decimal" })
    }
}

/// The ending English writes behind the digits of an ordinal.
fn ordinal_ending(n: u64) -> &'static str {
    match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    }
}

/// What stands between the parts of a fraction.
pub fn over(lang: Lang) -> &'static str {
    match lang {
        Lang::Hindi | Lang::Marathi => "बटा",
        Lang::RomanHindi => "bata",
        Lang::English => "by",
        other => other.say(Say::DividedBy),
    }
}

fn hindi_ordinal(lang: Lang, n: u64, gender: usize) -> String {
    if lang.is_latin() {
        let word = |words: [&str; 3]| words[gender].to_owned();
        return match n {
            1 => word(["pehla", "pehli", "pehle"]),
            2 => word(["doosra", "doosri", "doosre"]),
            3 => word(["teesra", "teesri", "teesre"]),
            4 => word(["chautha", "chauthi", "chauthe"]),
            6 => word(["chhatha", "chhathi", "chhathe"]),
            n => format!("{}{}", number::cardinal(lang, n.into()), ["vaan", "vin", "ven"][gender]),
        };
    }
    if let Some((_, forms)) = HINDI_ORDINALS.iter().find(|(known, _)| *known == n) {
        return forms[gender].to_owned();
    }
    let cardinal = number::cardinal(Lang::Hindi, n.into());
    // Round hundreds and thousands go without एक: सौवाँ, हज़ारवाँ.
    let cardinal = if matches!(n, 100 | 1000) { cardinal.trim_start_matches("एक ").to_owned() } else { cardinal };
    format!("{cardinal}{}", ["वाँ", "वीं", "वें"][gender])
}

/// `twenty-first`; next to Devanagari the English word in its letters, as far as it is in use.
pub fn english_ordinal(lang: Lang, n: u64) -> String {
    if matches!(lang, Lang::Hindi | Lang::Marathi) {
        return match n {
            1..=20 => ENGLISH_IN_DEVANAGARI[n as usize - 1].to_owned(),
            21..=29 => format!("ट्वेंटी {}", ENGLISH_IN_DEVANAGARI[n as usize - 21]),
            n => hindi_ordinal(Lang::Hindi, n, 0),
        };
    }
    let words = number::cardinal(Lang::English, n.into());
    let split = words.rfind([' ', '-']).map_or(0, |at| at + 1);
    let last = match &words[split..] {
        "one" => "first".to_owned(),
        "two" => "second".to_owned(),
        "three" => "third".to_owned(),
        "five" => "fifth".to_owned(),
        "eight" => "eighth".to_owned(),
        "nine" => "ninth".to_owned(),
        "twelve" => "twelfth".to_owned(),
        tens if tens.ends_with('y') => format!("{}ieth", tens.trim_end_matches('y')),
        other => format!("{other}th"),
    };
    format!("{}{last}", &words[..split])
}

fn vulgar_sign(top: u64, bottom: u64) -> Option<char> {
    Some(match (top, bottom) {
        (1, 2) => '½',
        (1, 4) => '¼',
        (3, 4) => '¾',
        (1, 3) => '⅓',
        (2, 3) => '⅔',
        _ => return None,
    })
}

/// A fraction sign, after a whole number or alone.
pub fn vulgar(lang: Lang, whole: Option<u64>, sign: char) -> Option<String> {
    let quarters = match sign {
        '¼' => 1,
        '½' => 2,
        '¾' => 3,
        '⅓' | '⅔' => 0,
        _ => return None,
    };
    let third = if sign == '⅔' { 1 } else { 0 };
    if lang.is_hindi() || lang == Lang::Marathi {
        let latin = usize::from(lang.is_latin());
        let words = match (whole, quarters) {
            (None | Some(0), 0) => [["एक तिहाई", "ek tihaai"], ["दो तिहाई", "do tihaai"]][third][latin].to_owned(),
            (Some(n), 0) => {
                let part = [["एक तिहाई", "ek tihaai"], ["दो तिहाई", "do tihaai"]][third][latin];
                format!("{} {} {part}", number::cardinal(lang, n.into()), lang.say(Say::And))
            }
            (None | Some(0), 1) => ["एक चौथाई", "ek chauthaai"][latin].to_owned(),
            (None | Some(0), 3) => ["तीन चौथाई", "teen chauthaai"][latin].to_owned(),
            (whole, quarters) => quarters_in_hindi(lang, whole.unwrap_or(0).into(), quarters),
        };
        return Some(words);
    }
    if lang != Lang::English {
        return None;
    }
    let part = match (sign, whole) {
        ('½', None) => "half",
        ('½', _) => "a half",
        ('¼', None) => "one quarter",
        ('¼', _) => "a quarter",
        ('¾', _) => "three quarters",
        ('⅓', _) => "one third",
        _ => "two thirds",
    };
    Some(whole.map_or(part.to_owned(), |n| format!("{} and {part}", number::cardinal(lang, n.into()))))
}

impl Text<'_> {
    /// Whether a token is a word in Latin capitals.
    pub(super) fn is_capital_word(&self, i: usize) -> bool {
        self.kind(i) == Some(Kind::Word(Script::Latin)) && self.str(i).bytes().all(|b| b.is_ascii_uppercase())
    }
}
