//! Money: amount first, unit last, nothing lost of the fraction.

use compact_str::CompactString;

use super::super::lang::{Lang, Say};
use super::super::number;
use super::amount::Amount;
use super::{Kind, Reading, Text, tables};

/// A currency: its names, its hundredth, and how it is marked in lower case.
struct Currency {
    one: Say,
    many: Say,
    /// The hundredth, one and many; `None` where it is not used.
    part: Option<(Say, Say)>,
    /// Signs, codes and abbreviations that stand before or after an amount.
    marks: &'static [&'static str],
    /// Full words that stand after an amount.
    words: &'static [&'static str],
}

const CURRENCIES: [Currency; 6] = [
    Currency {
        one: Say::Rupee,
        many: Say::Rupees,
        part: Some((Say::Paisa, Say::Paise)),
        marks: &["₹", "₨", "rs", "inr", "रु", "रू", "৳", "টা", "ரூ", "రూ", "ರೂ", "રૂ", "ਰੁ"],
        words: &[
            "रुपये",
            "रुपए",
            "रुपया",
            "रूपये",
            "रुपयों",
            "rupees",
            "rupee",
            "rupaye",
            "rupay",
            "rupaya",
            "rupiye",
            "টাকা",
            "ரூபாய்",
            "రూపాయలు",
            "ರೂಪಾಯಿ",
            "રૂપિયા",
            "രൂപ",
            "ਰੁਪਏ",
        ],
    },
    Currency {
        one: Say::Dollar,
        many: Say::Dollars,
        part: Some((Say::Cent, Say::Cents)),
        marks: &["$", "usd", "us$"],
        words: &["डॉलर", "dollars", "dollar"],
    },
    Currency {
        one: Say::Pound,
        many: Say::Pounds,
        part: Some((Say::Penny, Say::Pence)),
        marks: &["£", "gbp"],
        words: &["पाउंड", "pounds", "pound"],
    },
    Currency {
        one: Say::Euro,
        many: Say::Euros,
        part: Some((Say::Cent, Say::Cents)),
        marks: &["€", "eur"],
        words: &["यूरो", "euros", "euro"],
    },
    Currency { one: Say::Yen, many: Say::Yen, part: None, marks: &["¥", "jpy"], words: &["येन", "yen"] },
    Currency {
        one: Say::Dirham,
        many: Say::Dirhams,
        part: Some((Say::Fils, Say::Fils)),
        marks: &["aed", "dhs"],
        words: &["दिरहम", "dirhams", "dirham"],
    },
];

/// Scale words as written after an amount, in lower case.
const SCALES: [(Say, &[&str]); 10] = [
    (Say::Hundred, &["सौ", "sau", "hundred"]),
    (Say::Thousand, &["हज़ार", "हजार", "thousand", "hazaar", "hazar", "k"]),
    (Say::Lakh, &["लाख", "lakh", "lakhs", "lac", "lacs", "l", "লাখ", "லட்சம்", "లక్షల", "ಲಕ್ಷ", "લાખ", "ലക്ഷം", "ਲੱਖ"]),
    (
        Say::Crore,
        &["करोड़", "crore", "crores", "cr", "करोड", "কোটি", "கோடி", "కోట్ల", "ಕೋಟಿ", "કરોડ", "കോടി", "ਕਰੋੜ", "कोटी"],
    ),
    (Say::Arab, &["अरब", "arab"]),
    (Say::Million, &["मिलियन", "million", "millions", "mn", "m"]),
    (Say::Billion, &["बिलियन", "billion", "billions", "bn", "b"]),
    (Say::Trillion, &["ट्रिलियन", "trillion", "tn", "t"]),
    (Say::Arab, &["अब्ज"]),
    (Say::Thousand, &["হাজার", "ஆயிரம்", "వేల", "ಸಾವಿರ", "હજાર", "ആയിരം", "ਹਜ਼ਾਰ"]),
];

/// Dollars of other countries: the letters before the sign, the code, and how Hindi and English name them.
const DOLLARS: [(&str, &str, [&str; 2]); 5] = [
    ("A", "AUD", ["ऑस्ट्रेलियाई", "Australian"]),
    ("C", "CAD", ["कनाडाई", "Canadian"]),
    ("S", "SGD", ["सिंगापुर", "Singapore"]),
    ("HK", "HKD", ["हांगकांग", "Hong Kong"]),
    ("NZ", "NZD", ["न्यूज़ीलैंड", "New Zealand"]),
];

impl Currency {
    fn find(list: impl Fn(&Currency) -> &'static [&'static str], text: &str) -> Option<&'static Currency> {
        const LONGEST: usize = 40;
        if text.is_empty() || text.len() > LONGEST {
            return None;
        }
        let lower = text.to_lowercase();
        CURRENCIES.iter().find(|currency| list(currency).contains(&lower.as_str()))
    }
}

impl Text<'_> {
    /// A currency mark at a place, and the token after it with its stop.
    fn currency_mark(&self, i: usize) -> Option<(&'static Currency, usize)> {
        if !matches!(self.kind(i), Some(Kind::Word(_) | Kind::Sign('₹' | '₨' | '৳' | '$' | '£' | '€' | '¥')))
        {
            return None;
        }
        let dollar = |end| Currency::find(|c| c.marks, "$").map(|currency| (currency, end));
        if self.is_latin(i) && self.is_sign(i + 1, '$') && (self.str(i) == "US" || self.dollar_of(i).is_some()) {
            return dollar(i + 2);
        }
        if self.dollar_of(i).is_some_and(|(_, code, _)| *code == self.str(i)) {
            return dollar(i + 1);
        }
        let currency = Currency::find(|c| c.marks, self.str(i))?;
        let stop = matches!(self.kind(i), Some(Kind::Word(_))) && self.is_sign(i + 1, '.');
        Some((currency, i + 1 + usize::from(stop)))
    }

    /// The dollar of another country whose letters or code stand at a place.
    fn dollar_of(&self, i: usize) -> Option<&'static (&'static str, &'static str, [&'static str; 2])> {
        let word = self.word(i);
        DOLLARS.iter().find(|(letters, code, _)| *code == word || *letters == word && self.is_sign(i + 1, '$'))
    }

    /// Says whose dollars they are, if the mark at a place tells.
    fn with_country(&self, lang: Lang, words: String, mark: usize) -> String {
        let Some((_, _, names)) = self.dollar_of(mark) else { return words };
        let name = match lang {
            Lang::Hindi => names[0],
            Lang::English | Lang::RomanHindi => names[1],
            _ => return words,
        };
        let dollar = lang.say(Say::Dollar);
        words.replacen(dollar, &format!("{name} {dollar}"), 1)
    }

    /// `₹500`, `Rs. 1.5 crore`, `$3.12`; at the mark.
    pub(super) fn money_before(&self, i: usize) -> Option<Reading> {
        let (currency, after) = self.currency_mark(i)?;
        if matches!(self.kind(i), Some(Kind::Word(_))) && i > 0 && self.is_digits(i - 1) {
            return None;
        }
        let mut at = self.past_space(after);
        let minus = matches!(self.kind(at), Some(Kind::Sign('-' | '−'))) && self.is_digits(at + 1);
        at += usize::from(minus);
        let amount = self.amount(at)?;
        let lang = self.lang(i);
        let (words, end) = self.money(lang, currency, &amount);
        let mut words = self.with_country(lang, words, i);
        if minus {
            words = format!("{} {words}", lang.say(Say::Minus));
        }
        Reading::new(end, words, "money")
    }

    /// `500 रु.`, `123.57 रुपये`, `500/-`, `5 करोड़ डॉलर`; at the digits.
    pub(super) fn money_after(&self, i: usize, amount: &Amount) -> Option<Reading> {
        let lang = self.lang(i);
        if self.is_sign(amount.end, '/') && self.is_hyphen(amount.end + 1) && !self.is_digits(amount.end + 2) {
            let (words, end) = self.money(lang, &CURRENCIES[0], amount);
            return Reading::new(end, words, "money");
        }
        let (_, mark) = self.scales(amount.end, false);
        let at = self.past_space(mark);
        // A capital word such as `RE` or `EUR` is a mark only right behind an amount.
        let marked = self.currency_mark(at).filter(|(_, end)| !self.marks_next(*end));
        let worded = Currency::find(|c| c.words, self.word(at)).map(|currency| (currency, at + 1));
        let (currency, _) = match (marked, worded) {
            (Some(found), _) => found,
            (None, Some(found)) if amount.fraction.len() == 2 && mark == amount.end => found,
            _ => return None,
        };
        let (words, end) = self.money(lang, currency, amount);
        Reading::new(end, self.with_country(lang, words, at), "money")
    }

    /// The words of an amount of money, and the token after everything that belongs to it.
    fn money(&self, lang: Lang, currency: &'static Currency, amount: &Amount) -> (String, usize) {
        if let Some((upper, end)) = self.upper_end(amount.end) {
            let (words, end) = self.money(lang, currency, &Amount { end, ..upper });
            return (format!("{} {} {words}", amount.say(lang), lang.say(Say::To)), end);
        }
        let (scales, mut end) = self.scales(amount.end, true);
        let words = match (&currency.part, scales.is_empty(), amount.fraction.len()) {
            (Some(part), true, 1 | 2) => with_parts(lang, currency, *part, amount),
            _ => {
                let name = lang.say(if amount.is_one() && scales.is_empty() { currency.one } else { currency.many });
                let number = if self.manner.short_forms { amount.say_short(lang) } else { amount.say_counting(lang) };
                let scales: String = scales.iter().map(|scale| format!(" {}", lang.say(*scale))).collect();
                format!("{number}{scales} {name}")
            }
        };
        end = self.currency_end(end);
        self.per(lang, words, end)
    }

    /// The upper end of a range of money, `₹500-1,000` or `₹500–₹600`, when no more than one hyphen is in sight.
    fn upper_end(&self, end: usize) -> Option<(Amount, usize)> {
        let spaced = usize::from(self.is_space(end));
        let hyphen = end + spaced;
        if !self.is_hyphen(hyphen) || self.is_space(hyphen + 1) != (spaced == 1) {
            return None;
        }
        let start = self.past_space(hyphen + 1);
        let at = self.currency_mark(start).map_or(start, |(_, after)| self.past_space(after));
        let upper = self.amount(at).filter(|upper| !self.is_hyphen(upper.end))?;
        let end = upper.end;
        Some((upper, end))
    }

    /// Up to two scale words after an amount, with the token after them. Single letters count only when `letters` is set
    /// and they touch the amount or the word before.
    fn scales(&self, mut end: usize, letters: bool) -> (Vec<Say>, usize) {
        let mut scales = Vec::new();
        for _ in 0..2 {
            let (at, word) = self.next_word(end);
            if word.is_empty() {
                break;
            }
            let lower = if word.len() <= 40 { word.to_lowercase() } else { String::new() };
            let letter = lower.chars().count() == 1 && lower.is_ascii();
            let allowed = !lower.is_empty() && (!letter || letters && at == end && scales.is_empty());
            let found = SCALES.iter().find(|(_, words)| allowed && words.contains(&lower.as_str()));
            let Some((scale, _)) = found else { break };
            scales.push(*scale);
            end = at + 1;
            if matches!(lower.as_str(), "cr" | "mn" | "bn" | "lac")
                && self.is_sign(end, '.')
                && !self.sentence_ends(end)
            {
                end += 1;
            }
        }
        (scales, end)
    }

    /// Whether a mark that ends here belongs to the amount behind it; in `10 रु. 50 पैसे` it does not.
    fn marks_next(&self, end: usize) -> bool {
        let next = self.past_space(end);
        self.is_digits(next) && !matches!(self.next_word(next + 1).1, "पैसे" | "पैसा" | "paise" | "paisa")
    }

    /// The token after what repeats the currency: `रुपये`, `/-`, `रु.`, `only` is left.
    fn currency_end(&self, mut end: usize) -> usize {
        if self.is_sign(end, '/') && self.is_hyphen(end + 1) && !self.is_digits(end + 2) {
            end += 2;
        }
        let at = self.past_space(end);
        if Currency::find(|c| c.words, self.word(at)).is_some() {
            return at + 1;
        }
        match self.currency_mark(at) {
            Some((_, after)) if !self.marks_next(after) => {
                // A stop before the end of the text or a capital letter ends the sentence.
                if self.is_sign(after - 1, '.') && self.sentence_ends(after - 1) { after - 1 } else { after }
            }
            _ => end,
        }
    }

    /// `₹50/kg` → `… प्रति किलोग्राम`, `180 mg/dL`.
    pub(super) fn per(&self, lang: Lang, words: String, end: usize) -> (String, usize) {
        if let Some(rate) = self.is_sign(end, '/').then(|| self.rate(lang, end + 1)).flatten() {
            return (format!("{words} {rate}"), end + 2);
        }
        let found = self.is_sign(end, '/').then(|| self.unit_at(end + 1)).flatten();
        match found.and_then(|(after, unit)| Some((after, unit.say(lang, true)?))) {
            Some((after, unit)) => {
                let per = match lang {
                    Lang::English => "per",
                    Lang::RomanHindi => "prati",
                    _ => "प्रति",
                };
                (format!("{words} {per} {unit}"), after)
            }
            None => (words, end),
        }
    }

    /// Whether a stop at a place ends a sentence: nothing follows it in the line.
    pub(super) fn sentence_ends(&self, stop: usize) -> bool {
        matches!(self.kind(stop + 1), None | Some(Kind::Break))
    }

    /// The unit whose mark begins at a token, and the token after it.
    pub(super) fn unit_at(&self, i: usize) -> Option<(usize, &'static tables::Unit)> {
        let start = self.tokens.get(i)?.start;
        let (length, unit) = tables::unit(&self.text[start..])?;
        let end = (i..self.tokens.len().min(i + 8)).find(|at| self.tokens[*at].end == start + length)? + 1;
        Some((end, unit))
    }
}

/// Amount with hundredths: `… रुपये … पैसे`.
fn with_parts(lang: Lang, currency: &Currency, part: (Say, Say), amount: &Amount) -> String {
    let hundredths = match amount.fraction.as_str() {
        tenths if tenths.len() == 1 => 10 * tenths.parse::<u128>().unwrap_or(0),
        hundredths => hundredths.parse::<u128>().unwrap_or(0),
    };
    let whole = Amount { fraction: CompactString::default(), ..amount.clone() };
    let major =
        format!("{} {}", whole.say_counting(lang), lang.say(if whole.is_one() { currency.one } else { currency.many }));
    let minor =
        format!("{} {}", number::cardinal(lang, hundredths), lang.say(if hundredths == 1 { part.0 } else { part.1 }));
    match (whole.whole.trim_start_matches('0').is_empty(), hundredths) {
        (_, 0) => major,
        (true, _) => minor,
        _ => format!("{major} {minor}"),
    }
}
