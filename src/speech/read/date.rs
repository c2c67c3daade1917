//! Dates and years. Where day and month could be either, India writes the day first.

use super::super::lang::{Lang, Say};
use super::super::number;
use super::numeral::english_ordinal;
use super::{Kind, Reading, Text, tables};

/// What counts as a year in a sentence that says so.
const YEARS: std::ops::RangeInclusive<u64> = 1100..=2199;

/// Words that make a bare four-digit number a year: before it, and after it.
const BEFORE_YEAR: &[&str] = &[
    "सन्",
    "सन",
    "साल",
    "वर्ष",
    "ई",
    "संवत",
    "san",
    "saal",
    "year",
    "Year",
    "since",
    "Since",
    "by",
    "until",
    "till",
    "circa",
    "early",
    "late",
    "mid",
    "FY",
    "during",
    "batch",
    "Batch",
];
const AFTER_YEAR: &[&str] = &["में", "ई", "ईस्वी", "ईसवी", "mein", "AD", "CE", "BC", "BCE", "मध्ये", "साली", "में।"];

/// A year as it is said: hundreds where they are in use.
pub fn year_words(lang: Lang, year: u64) -> String {
    let (century, rest) = (year / 100, year % 100);
    let say = |n: u64| number::cardinal(lang, n.into());
    let in_hundreds = (11..=19).contains(&century) || (21..100).contains(&century);
    match lang {
        Lang::Hindi | Lang::RomanHindi if in_hundreds => {
            let hundreds = format!("{} {}", say(century), lang.say(Say::Hundred));
            if rest == 0 { hundreds } else { format!("{hundreds} {}", say(rest)) }
        }
        Lang::Marathi if in_hundreds => {
            let hundreds = format!("{}{}", say(century), lang.say(Say::Hundred));
            if rest == 0 { hundreds } else { format!("{hundreds} {}", say(rest)) }
        }
        Lang::English if in_hundreds || century == 20 && rest >= 10 => match rest {
            0 => format!("{} hundred", say(century)),
            1..=9 => format!("{} oh {}", say(century), say(rest)),
            _ => format!("{} {}", say(century), say(rest)),
        },
        _ => say(year),
    }
}

/// The year that two digits mean: those up to 39 of this century, the others of the last.
fn full_year(short: u64) -> u64 {
    const LAST_OF_THIS_CENTURY: u64 = 39;
    if short <= LAST_OF_THIS_CENTURY { 2000 + short } else { 1900 + short }
}

impl Text<'_> {
    /// `15/08/1947`, `2024-03-05`, `15.08.47`, `15 अगस्त 1947`, `15th of Aug`; at the digits.
    pub(super) fn date(&self, i: usize) -> Option<Reading> {
        if i > 0
            && matches!(self.kind(i - 1), Some(Kind::Sign('/' | '.' | '₹' | '$' | '£' | '€')))
            && !self.is_space(i - 1)
        {
            return None;
        }
        self.numeric_date(i).or_else(|| self.day_and_month(i)).or_else(|| self.short_date(i))
    }

    fn numeric_date(&self, i: usize) -> Option<Reading> {
        let separator = self.kind(i + 1)?;
        let same = self.kind(i + 3) == Some(separator) && matches!(separator, Kind::Sign('/' | '-' | '.' | '–'));
        if !same || self.kind(i + 5) == Some(separator) && self.is_digits(i + 6) {
            return None;
        }
        let counts = (self.digit_count(i), self.digit_count(i + 2), self.digit_count(i + 4));
        let values = (self.value(i)?, self.value(i + 2)?, self.value(i + 4)?);
        let (day, month, year) = match counts {
            (1 | 2, 1 | 2, 4) => values,
            // A point between short numbers is a version more often than a date.
            (1 | 2, 2, 2) if separator != Kind::Sign('.') => values,
            // With single digits for the month, hyphens need a word that says it is a date.
            (1 | 2, 1, 2) if separator == Kind::Sign('/') || self.says_date(i, i + 5) => values,
            (4, 1 | 2, 1 | 2) => (values.2, values.1, values.0),
            _ => return None,
        };
        // Month first only where day first is impossible.
        let (day, month) = if month > 12 && day <= 12 { (month, day) } else { (day, month) };
        if !(1..=31).contains(&day) || !(1..=12).contains(&month) || counts.2 == 4 && !(1000..=2999).contains(&year) {
            return None;
        }
        let lang = self.lang(i);
        let year = year_words(lang, if year < 100 { full_year(year) } else { year });
        let words = format!("{} {} {year}", number::cardinal(lang, day.into()), lang.month(month as usize));
        Reading::new(i + 5, words, "date")
    }

    /// A day before the name of a month, with the year if there is one.
    fn day_and_month(&self, i: usize) -> Option<Reading> {
        let day = self.value(i).filter(|day| (1..=31).contains(day) && self.digit_count(i) <= 2)?;
        let lang = self.lang(i);
        let suffix = matches!(self.word(i + 1), "st" | "nd" | "rd" | "th");
        let mut at = i + 1 + usize::from(suffix);
        let hyphen = self.is_hyphen(at);
        at = if hyphen { at + 1 } else { self.past_space(at) };
        let of = self.word(at) == "of";
        if of {
            at = self.past_space(at + 1);
        }
        let month = tables::month(self.word(at))?;
        let day = if suffix { english_ordinal(lang, day) } else { number::cardinal(lang, day.into()) };
        // Bank messages write `05Mar24` and `05MAR2024` in one.
        let solid = at == i + 1 && self.value(at + 1).filter(|_| matches!(self.digit_count(at + 1), 2 | 4)).is_some();
        let (year, end) = match self.value(at + 1).filter(|_| solid) {
            Some(year) if year < 100 => (format!(" {}", year_words(lang, full_year(year))), at + 2),
            Some(year) if YEARS.contains(&year) => (format!(" {}", year_words(lang, year)), at + 2),
            _ => self.year_after_month(at + 1, hyphen, lang),
        };
        let of = if of && lang == Lang::English { "of " } else { "" };
        Reading::new(end, format!("{day} {of}{}{year}", lang.month(month)), "date")
    }

    /// Whether a word before or behind a date says that it is one.
    fn says_date(&self, start: usize, end: usize) -> bool {
        const BEFORE: &[&str] = &["दिनांक", "तारीख", "तारीख़", "date", "Date", "dated", "on", "by", "tareekh"];
        const AFTER: &[&str] = &["को", "तक", "ko", "tak"];
        BEFORE.contains(&self.previous_word(start).1) || AFTER.contains(&self.next_word(end).1)
    }

    /// `15/08 को`, `on 15/08`: a day and a month only where a word says so.
    fn short_date(&self, i: usize) -> Option<Reading> {
        if !self.is_sign(i + 1, '/') || self.is_sign(i + 3, '/') {
            return None;
        }
        let (day, month) = (self.value(i)?, self.value(i + 2)?);
        let valid = (1..=31).contains(&day)
            && (1..=12).contains(&month)
            && self.digit_count(i) <= 2
            && self.digit_count(i + 2) == 2;
        let lang = self.lang(i);
        let words = || format!("{} {}", number::cardinal(lang, day.into()), lang.month(month as usize));
        (valid && self.says_date(i, i + 3)).then(|| Reading::new(i + 3, words(), "date")).flatten()
    }

    /// `August 15, 1947`, `अगस्त 2026`, `Mar 5`; at the month.
    pub(super) fn month_first(&self, i: usize) -> Option<Reading> {
        let month = tables::month(self.word(i))?;
        let lang = self.lang(i);
        let name = lang.month(month);
        // The stop of `Aug. 15` belongs to the month.
        let stop = usize::from(self.is_sign(i + 1, '.') && self.is_space(i + 2));
        let (year, end) = self.year_after_month(i + 1 + stop, false, lang);
        if !year.is_empty() {
            return Reading::new(end, format!("{name}{year}"), "date");
        }
        let at = i + 2 + stop;
        let day = self.value(at).filter(|day| (1..=31).contains(day) && self.digit_count(at) <= 2)?;
        if !self.is_space(at - 1) || self.is_sign(at + 1, ':') || self.is_sign(at + 1, '.') && self.is_digits(at + 2) {
            return None;
        }
        let suffix = matches!(self.word(at + 1), "st" | "nd" | "rd" | "th");
        // A unit or a month behind it takes the number away: `March 5 km`, `May 5 June`.
        let (next, word) = self.next_word(at + 1);
        if !suffix && (self.unit_at(next).is_some() || tables::month(word).is_some()) {
            return None;
        }
        let day = if suffix { english_ordinal(lang, day) } else { number::cardinal(lang, day.into()) };
        let (year, end) = self.year_after_month(at + 1 + usize::from(suffix), false, lang);
        Reading::new(end, format!("{name} {day}{year}"), "date")
    }

    /// A year behind a month or a day, with what separates it; empty if there is none.
    fn year_after_month(&self, i: usize, hyphen: bool, lang: Lang) -> (String, usize) {
        let mut at = i;
        at += usize::from(self.is_sign(at, '.') && self.is_space(at + 1));
        let comma = self.is_sign(at, ',');
        at += usize::from(comma);
        at = if hyphen && self.is_hyphen(at) { at + 1 } else { self.past_space(at) };
        let quote = matches!(self.kind(at), Some(Kind::Sign('\'' | '’'))) && self.digit_count(at + 1) == 2;
        let short = quote || hyphen && self.digit_count(at) == 2;
        at += usize::from(quote);
        let separated = at > i;
        let follows_number = self.is_sign(at + 1, ',') && self.digit_count(at + 2) == 3 || self.is_sign(at + 1, ':');
        let year = match self.value(at) {
            Some(year) if short => year_words(lang, full_year(year)),
            Some(year) if self.digit_count(at) == 4 && YEARS.contains(&year) && separated && !follows_number => {
                year_words(lang, year)
            }
            _ => return (String::new(), i),
        };
        (format!("{} {year}", if comma { "," } else { "" }), at + 1)
    }

    /// A bare four-digit number that its neighbours make a year.
    pub(super) fn year(&self, i: usize) -> Option<Reading> {
        if !self.is_year_number(i) || self.is_attached(i) && !self.is_sign(i - 1, '(') && !self.is_hyphen(i - 1) {
            return None;
        }
        let lang = self.lang(i);
        let year = self.value(i)?;
        let before = self.previous_word(i).1;
        let (after_at, after) = self.next_word(i + 1);
        let modern = (1800..=2099).contains(&year);
        let from_to = matches!(after, "से" | "se" | "to")
            && (self.is_year_number(after_at + 2) && self.is_space(after_at + 1))
            || matches!(before, "से" | "se" | "to") && self.two_before_is_year(i);
        // `1857 की क्रांति`; of a price, hundreds are as good.
        let whose = matches!(after, "का" | "की" | "के" | "ka" | "ki" | "ke") && (1800..=1999).contains(&year);
        let decade = matches!(after, "के" | "ke") && matches!(self.word(after_at + 2), "दशक" | "dashak");
        let english = matches!(before, "in" | "In" | "of" | "from" | "From" | "before" | "after") && modern;
        let says = BEFORE_YEAR.contains(&before) || AFTER_YEAR.contains(&after) || tables::month(before).is_some();
        let event = lang == Lang::English && modern && self.follows_event(i);
        let parenthesis = i > 0 && self.is_sign(i - 1, '(') && self.is_sign(i + 1, ')');
        (says || from_to || decade || whose || english || event || parenthesis)
            .then(|| Reading::new(i + 1, year_words(lang, year), "year"))
            .flatten()
    }

    /// `World Cup 2024`: right behind a capitalised word, at the end of what is said or before a word such as `in`.
    fn follows_event(&self, i: usize) -> bool {
        const GOES_ON: &str = "in at on is was will has had have and to for from";
        let name =
            i >= 2 && self.is_space(i - 1) && self.is_latin(i - 2) && self.word(i - 2).starts_with(char::is_uppercase);
        let ends =
            matches!(self.kind(i + 1), None | Some(Kind::Break | Kind::Sign('.' | ',' | ')' | ';' | '?' | '!' | ':')));
        let goes_on = GOES_ON.split(' ').any(|word| word == self.next_word(i + 1).1);
        let counted = super::strings::counts_amounts(self.word(i.saturating_sub(2)));
        name && !counted && (ends || goes_on) && self.word(i - 2).len() > 1
    }

    /// `'24`, `batch of ’98`: two digits behind an apostrophe that opens nothing; at the apostrophe.
    pub(super) fn short_year(&self, i: usize) -> Option<Reading> {
        let year = self.value(i + 1).filter(|_| self.digit_count(i + 1) == 2 && !self.is_attached(i))?;
        // A quotation that closes, a height, a decade and a longer number are something else.
        let goes_on = matches!(self.kind(i + 2), Some(Kind::Sign('\'' | '’' | '"' | ',' | ':' | '%' | '/')) if !self.is_space(i + 3))
            || matches!(self.kind(i + 2), Some(Kind::Sign('\'' | '’') | Kind::Word(_)))
            || self.is_sign(i + 2, '.') && self.is_digits(i + 3);
        (!goes_on).then(|| Reading::new(i + 1 + 1, year_words(self.lang(i), full_year(year)), "year"))?
    }

    fn two_before_is_year(&self, i: usize) -> bool {
        i >= 4 && self.is_space(i - 1) && self.is_space(i - 3) && self.is_year_number(i - 4)
    }

    fn is_year_number(&self, i: usize) -> bool {
        let attached =
            matches!(self.kind(i + 1), Some(Kind::Sign(',' | '.' | ':' | '%' | '/'))) && self.is_digits(i + 2);
        self.digit_count(i) == 4 && self.value(i).is_some_and(|n| YEARS.contains(&n)) && !attached
    }

    /// `1939-45`, `1947–1950`, `2024-25`: without a word between for a year that spans two.
    pub(super) fn year_range(&self, i: usize) -> Option<Reading> {
        let free = !self.is_attached(i) || i > 0 && (self.is_sign(i - 1, '(') || self.word(i - 1) == "FY");
        if !free || self.digit_count(i) != 4 || !self.is_hyphen(i + 1) || self.is_hyphen(i + 3) && self.is_digits(i + 4)
        {
            return None;
        }
        let (first, second) = (self.value(i)?, self.value(i + 2)?);
        let lang = self.lang(i);
        let year = |n: u64| year_words(lang, n);
        let short = self.digit_count(i + 2) == 2;
        let plausible = if short {
            second > first % 100
        } else {
            self.digit_count(i + 2) == 4 && second > first && second < first + 200
        };
        if !plausible || !(1500..=2099).contains(&first) || self.is_latin(i + 3) {
            return None;
        }
        let last = if short { number::cardinal(lang, second.into()) } else { year(second) };
        let between =
            if short && second == first % 100 + 1 { String::new() } else { format!("{} ", lang.say(Say::To)) };
        Reading::new(i + 3, format!("{} {between}{last}", year(first)), "years")
    }
}
