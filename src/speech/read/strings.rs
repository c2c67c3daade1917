//! Digits that are names, not numbers: phones, codes, cards, accounts, plates.

use compact_str::CompactString;

use super::super::lang::{Say, Script};
use super::super::number;
use super::{Kind, Reading, Text, tables};

/// Words beside which digits are read one by one.
const CODE_WORDS: &[&str] = &[
    "otp",
    "pin",
    "pincode",
    "cvv",
    "code",
    "number",
    "no",
    "mobile",
    "phone",
    "fone",
    "helpline",
    "account",
    "acct",
    "card",
    "aadhaar",
    "aadhar",
    "pnr",
    "id",
    "ifsc",
    "whatsapp",
    "contact",
    "call",
    "dial",
    "ending",
    "password",
    "passcode",
    "mpin",
    "upi",
    "train",
    "ticket",
    "order",
    "ref",
    "reference",
    "token",
    "tel",
    "mob",
    "ph",
    "khata",
    "zip",
    "serial",
    "imei",
    "extension",
    "ext",
    "ओटीपी",
    "पिन",
    "पिनकोड",
    "कोड",
    "नंबर",
    "नम्बर",
    "क्रमांक",
    "संख्या",
    "मोबाइल",
    "फ़ोन",
    "फोन",
    "खाता",
    "खाते",
    "कार्ड",
    "आधार",
    "पासवर्ड",
    "आईडी",
    "डायल",
    "हेल्पलाइन",
    "ट्रेन",
    "गाड़ी",
    "टिकट",
    "ऑर्डर",
    "कॉल",
    "सीवीवी",
    "पीएनआर",
    "व्हाट्सएप",
    "संपर्क",
    "टोकन",
    "কোড",
    "নম্বর",
    "எண்",
    "குறியீடு",
    "కోడ్",
    "నంబర్",
    "ಸಂಖ್ಯೆ",
    "ಕೋಡ್",
    "કોડ",
    "નંબર",
    "കോഡ്",
    "നമ്പർ",
    "ਕੋਡ",
    "ਨੰਬਰ",
];

/// Words that may stand between such a word and the digits.
const LINKS: &[&str] = &[
    "है",
    "हैं",
    "था",
    "is",
    "hai",
    "the",
    "your",
    "in",
    "was",
    "no",
    "number",
    "नंबर",
    "on",
    "पर",
    "code",
    "कोड",
    "यह",
    "ye",
    "तो",
];

/// Words before an amount, behind which six digits are no postal code.
const BEFORE_AMOUNTS: &str = "कुल लगभग करीब क़रीब केवल सिर्फ़ सिर्फ और से में को का के की पर है हैं था थे तक या जनसंख्या आबादी राशि रक़म रकम \
    वेतन कीमत क़ीमत मूल्य दाम बिल बैलेंस शेष वोट मत मिले हुए बराबर रुपये रुपए रु आय लाभ घाटा बजट खर्च ख़र्च सालाना ने \
    भी ही तो एक दो पास गिनती total about around nearly only and or to the was is are population amount salary price \
    cost bill balance votes rs inr usd rupees income profit loss budget sum value fee fees rent over under sold paid \
    pay score revenue sales followers views count equals";

/// Most groups of digits looked at as one string.
const MOST_GROUPS: usize = 8;

/// Codes of the states and territories on number plates.
const STATES: &str = "AN AP AR AS BH BR CG CH DD DL DN GA GJ HP HR JH JK KA KL LA LD MH ML MN MP MZ NL OD OR PB PY RJ SK TN TR \
    TS UK UP WB TG";

impl Text<'_> {
    /// A phone, card, account, code or the like; at the digits.
    pub(super) fn digit_string(&self, i: usize) -> Option<Reading> {
        let attached = i > 0
            && matches!(self.kind(i - 1), Some(Kind::Sign('.' | '/' | '₹' | '$' | ',') | Kind::Word(Script::Latin)));
        if attached {
            // A reference between slashes: `UPI/P2A/406512345678`.
            let reference = self.is_sign(i - 1, '/') && self.digit_count(i) >= 6 && !self.comma_or_point(i + 1);
            return reference.then(|| self.spell_groups(i, 1, "code"))?;
        }
        let groups = self.digit_groups(i);
        let end = i + 2 * groups - 1;
        if let Some(count) = self.phone_or_card(i, groups) {
            return self.spell_groups(i, count, "phone or card");
        }
        let coded = self.is_coded(i, end) && !self.counts_something(end);
        coded.then(|| self.spell_groups(i, groups, "code"))?
    }

    /// `+91 98765 43210`; at the plus sign.
    pub(super) fn international(&self, i: usize) -> Option<Reading> {
        let groups = self.digit_groups(i + 1);
        let total: usize = (0..groups).map(|k| self.digit_count(i + 1 + 2 * k)).sum();
        let reading =
            (groups > 0 && (10..=15).contains(&total)).then(|| self.spell_groups(i + 1, groups, "phone or card"))??;
        let plus = self.lang(i).say(Say::Plus);
        Reading::new(reading.end, format!("{plus} {}", reading.words), reading.rule)
    }

    /// `(011) 2345 6789`; at the bracket.
    pub(super) fn area_code(&self, i: usize) -> Option<Reading> {
        let bracketed = self.is_digits(i + 1) && self.is_sign(i + 2, ')') && self.str(i + 1).starts_with('0');
        let next = self.past_space(i + 3);
        let groups = self.digit_groups(next);
        let total: usize = self.digit_count(i + 1) + (0..groups).map(|k| self.digit_count(next + 2 * k)).sum::<usize>();
        if !bracketed || groups == 0 || !(10..=12).contains(&total) {
            return None;
        }
        let rest = self.spell_groups(next, groups, "phone or card")?;
        let area = number::digits(self.lang(i), &self.digits(i + 1));
        Reading::new(rest.end, format!("{area} {}", rest.words), rest.rule)
    }

    /// Number of groups of digits with one and the same separator, a space or a hyphen, between.
    fn digit_groups(&self, i: usize) -> usize {
        let mut groups = usize::from(self.is_digits(i));
        while groups > 0 && groups < MOST_GROUPS && self.is_digits(i + 2 * groups) {
            let separator = i + 2 * groups - 1;
            if !self.is_space(separator) && !self.is_hyphen(separator) {
                break;
            }
            groups += 1;
        }
        groups
    }

    /// How many groups are a phone or a card: the most that can be.
    fn phone_or_card(&self, i: usize, groups: usize) -> Option<usize> {
        let mut sizes = [0; MOST_GROUPS];
        (0..groups).for_each(|k| sizes[k] = self.digit_count(i + 2 * k));
        let mut total: usize = sizes[..groups].iter().sum();
        (1..=groups).rev().find(|count| {
            let found = (10..=19).contains(&total) && self.is_phone_or_card(i, &sizes[..*count], total);
            total -= sizes[*count - 1];
            found
        })
    }

    /// Whether groups of these sizes, ten to nineteen digits in all, are a phone or a card. The sizes decide first, since they
    /// rule out most texts.
    fn is_phone_or_card(&self, i: usize, sizes: &[usize], total: usize) -> bool {
        let (count, first) = (sizes.len(), self.digits(i));
        let mobile = || first.starts_with(['6', '7', '8', '9']);
        let trunk = || first.starts_with('0') && (10..=12).contains(&total);
        let years = || (0..count).all(|k| self.value(i + 2 * k).is_some_and(|n| (1800..=2099).contains(&n)));
        let fits = match sizes {
            [10] | [5, 5] | [4, 6] | [3, 3, 4] | [4, 3, 3] | [2, 4, 4] => mobile(),
            [4, 4, 4] | [4, 4, 4, 4] => !years(),
            [4, ..] if first == "1800" || first == "1860" => (10..=11).contains(&total) && count > 1,
            [11] | [3..=5, 6..=8] | [3..=4, 3..=4, 4] => trunk(),
            [1, ..] if count > 1 => trunk(),
            _ => false,
        };
        let end = i + 2 * count - 1;
        fits && !self.comma_or_point(end) && !self.is_sign(end, '/') && !self.counts_something(end)
    }

    /// Whether what follows a number makes it an amount: a currency, a unit, a scale word, a percent sign.
    fn counts_something(&self, end: usize) -> bool {
        const COUNTED: &[&str] = &[
            "रुपये",
            "रुपए",
            "रुपया",
            "रु",
            "रूपये",
            "rs",
            "rupees",
            "rupaye",
            "लाख",
            "करोड़",
            "हज़ार",
            "हजार",
            "lakh",
            "crore",
            "thousand",
            "million",
            "डॉलर",
            "dollars",
            "percent",
            "प्रतिशत",
            "लोग",
            "people",
            "बार",
            "times",
            "साल",
            "years",
            "दिन",
            "days",
            "बजे",
            "baje",
        ];
        let (at, word) = self.next_word(end);
        let short = word.len() <= 40;
        short && !word.is_empty() && COUNTED.contains(&word.to_lowercase().as_str())
            || matches!(self.kind(at), Some(Kind::Sign('₹' | '%' | '/')))
            || self.unit_at(at).is_some()
    }

    /// Whether a word beside the digits says that they are a code.
    fn is_coded(&self, start: usize, end: usize) -> bool {
        if self.comma_or_point(end) || self.digit_count(start) < 2 {
            return false;
        }
        let is_code =
            |word: &str| !word.is_empty() && word.len() <= 60 && CODE_WORDS.contains(&word.to_lowercase().as_str());
        let mut at = start;
        for _ in 0..3 {
            let (before, word) = self.previous_word(at);
            // `order 50 pizzas`, `call 20 people`: verbs and plurals count only before longer strings.
            if word.is_empty() {
                break;
            }
            // `Flat 302`, but `flat 500 off`.
            if matches!(
                word.to_lowercase().as_str(),
                "flat" | "room" | "apartment" | "suite" | "फ़्लैट" | "फ्लैट" | "कमरा" | "रूम"
            ) {
                return self.digit_count(start) >= 3 && end == start + 1 && !self.str(start).ends_with("00");
            }
            let weak = matches!(
                word.to_lowercase().as_str(),
                "call" | "order" | "ticket" | "train" | "टिकट" | "कॉल" | "ऑर्डर" | "no"
            );
            if is_code(word) && (!weak || self.digit_count(start) >= 3) {
                return true;
            }
            if !LINKS.contains(&word) {
                break;
            }
            at = before;
        }
        let (_, after) = self.next_word(end);
        self.digit_count(start) >= 3
            && is_code(after)
            && !matches!(after, "no" | "No" | "id" | "call" | "in" | "गाड़ी" | "टिकट" | "order" | "संख्या")
            || self.is_called(start, end)
            || self.is_code_by_sentence(start, end)
            || self.is_postal_code(start, end)
            || self.is_postal_code_behind_place(start, end)
    }

    /// Whether a number to call stands before `पर कॉल करें`: short ones too are read digit by digit.
    fn is_called(&self, start: usize, end: usize) -> bool {
        const CALLS: &[&str] = &["कॉल", "काॅल", "फ़ोन", "फोन", "डायल", "संपर्क", "call", "phone", "dial", "contact"];
        let (at, word) = self.next_word(end);
        self.digit_count(start) >= 3 && matches!(word, "पर" | "par" | "pe") && CALLS.contains(&self.next_word(at + 1).1)
    }

    /// `482910 is your OTP`, `Use 1234 as the login code`, `482910 आपका OTP है`: the word for it a few words on.
    fn is_code_by_sentence(&self, start: usize, end: usize) -> bool {
        const OPENS: &[&str] = &["is", "as", "your", "आपका", "मेरा", "aapka", "mera"];
        const CODES: &[&str] = &["otp", "code", "pin", "password", "passcode", "ओटीपी", "कोड", "पिन"];
        const WORDS: usize = 6;
        let (at, opens) = self.next_word(end);
        let mut later =
            (at..).step_by(2).take(WORDS).map_while(|at| Some(self.word(at)).filter(|word| !word.is_empty()));
        end == start + 1
            && (4..=8).contains(&self.digit_count(start))
            && OPENS.contains(&opens)
            && later.any(|word| word.len() <= 24 && CODES.contains(&word.to_lowercase().as_str()))
    }

    pub(super) fn comma_or_point(&self, end: usize) -> bool {
        matches!(self.kind(end), Some(Kind::Sign(',' | '.' | ':'))) && self.is_digits(end + 1)
    }

    /// `Delhi - 110001`: six digits behind a place and a hyphen.
    fn is_postal_code(&self, start: usize, end: usize) -> bool {
        let hyphen = self.before(start).filter(|at| self.is_hyphen(*at));
        let place =
            hyphen.and_then(|at| self.before(at)).is_some_and(|at| matches!(self.kind(at), Some(Kind::Word(_))));
        place && end == start + 1 && self.digit_count(start) == 6
    }

    /// `Jaipur 302001`: six ungrouped digits, none of a round number, right behind a name and at the end of what is said.
    fn is_postal_code_behind_place(&self, start: usize, end: usize) -> bool {
        if self.digit_count(start) != 6 {
            return false;
        }
        let digits = self.digits(start);
        let postal = matches!(digits.as_bytes()[0], b'1'..=b'8') && !digits.ends_with("000");
        let Some(place) = start.checked_sub(2).filter(|_| postal && end == start + 1 && self.is_space(start - 1))
        else {
            return false;
        };
        let word = self.word(place);
        let name = match self.kind(place) {
            Some(Kind::Word(Script::Devanagari)) => true,
            Some(Kind::Word(Script::Latin)) => word.starts_with(char::is_uppercase) && word.len() > 2,
            _ => false,
        };
        let ends =
            matches!(self.kind(end), None | Some(Kind::Break | Kind::Sign('.' | ',' | '।' | ')' | ';' | '?' | '!')));
        name && (ends || matches!(self.next_word(end).1, "भारत" | "India")) && !counts_amounts(word)
    }

    fn joined_digits(&self, i: usize, count: usize) -> CompactString {
        let mut digits = CompactString::default();
        (0..count).for_each(|k| digits.push_str(&self.digits(i + 2 * k)));
        digits
    }

    fn spell_groups(&self, i: usize, count: usize, rule: &'static str) -> Option<Reading> {
        let digits = self.joined_digits(i, count);
        Reading::new(i + 2 * count - 1, number::digits(self.lang(i), &digits), rule)
    }

    /// `DL 3C AB 1234`, `MH12AB1234`, `KA-05-MN-7788`; at the state.
    pub(super) fn plate(&self, i: usize) -> Option<Reading> {
        if !self.is_capital_word(i) || !STATES.split(' ').any(|state| state == self.str(i)) {
            return None;
        }
        let lang = self.lang(i);
        let skip = |at: usize| if self.is_space(at) || self.is_hyphen(at) { at + 1 } else { at };
        let district = skip(i + 1);
        let mut words = vec![tables::spell(lang, self.str(i)), number::digits(lang, &self.digits(district))];
        let mut at = skip(district + 1);
        let mut letters = 0;
        while letters < 2 && self.is_capital_word(at) && self.str(at).len() <= 3 {
            words.push(tables::spell(lang, self.str(at)));
            letters += 1;
            at = skip(at + 1);
        }
        let fits =
            (1..=2).contains(&self.digit_count(district)) && letters > 0 && (3..=4).contains(&self.digit_count(at));
        words.push(number::digits(lang, &self.digits(at)));
        fits.then(|| Reading::new(at + 1, words.join(" "), "number plate")).flatten()
    }
}

/// Whether a word stands before amounts: `कुल`, `total`, `Rs`. Words too long to be one count as if they were.
pub fn counts_amounts(word: &str) -> bool {
    word.len() > 60 || BEFORE_AMOUNTS.split_whitespace().any(|known| known == word.to_lowercase())
}
