//! Times of day and durations.

use super::super::lang::Lang;
use super::super::number;
use super::amount::quarters_in_hindi;
use super::{Kind, Reading, Text};

/// Half of the day, when it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Am,
    Pm,
}

/// Tokens on either side of a score in which a word of sport is looked for.
const NEAR: usize = 16;
/// Words of sport.
const SPORTS: &[&str] = &[
    "स्कोर",
    "गोल",
    "मैच",
    "जीता",
    "जीती",
    "जीते",
    "जीत",
    "हराया",
    "हारा",
    "हार",
    "सेट",
    "फ़ाइनल",
    "score",
    "Score",
    "goal",
    "goals",
    "match",
    "Match",
    "won",
    "lost",
    "beat",
    "win",
    "defeated",
    "set",
    "final",
    "jeeta",
    "jeete",
    "haraya",
    "hara",
    "drew",
    "draw",
];

/// Words that name the part of the day already, so that `PM` adds nothing.
const DAY_PARTS: &[&str] = &["सुबह", "दोपहर", "शाम", "रात", "सवेरे", "subah", "dopahar", "shaam", "raat", "savere"];

/// Words that say already how a time stands to its sentence.
const POSTPOSITIONS: &[&str] =
    &["पर", "पे", "से", "तक", "का", "की", "के", "को", "वाली", "वाला", "par", "pe", "se", "tak", "ka", "ki", "ke", "ko"];

/// A time of day.
struct Clock {
    hour: u64,
    minute: u64,
    second: Option<u64>,
    half: Option<Half>,
}

impl Text<'_> {
    /// `7:21`, `08:00:15`, `9.30 बजे`, `5pm`, `8:00 A.M.`; at the digits.
    pub(super) fn time(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        let hour = self.value(i).filter(|hour| *hour <= 24 && self.digit_count(i) <= 2)?;
        let two = |at: usize| self.value(at).filter(|n| *n < 60 && self.digit_count(at) == 2);
        let joined = i > 0 && matches!(self.kind(i - 1), Some(Kind::Sign(':' | '/' | '.'))) || self.is_sign(i + 1, '/');
        if joined {
            return None;
        }
        let colon = self.is_sign(i + 1, ':').then(|| two(i + 2)).flatten();
        let (minute, mut end) = match colon {
            Some(minute) => (Some(minute), i + 3),
            None => (None, i + 1),
        };
        let second = minute.and(self.is_sign(end, ':').then(|| two(end + 1)).flatten());
        end += if second.is_some() { 2 } else { 0 };
        if self.is_sign(end, ':') && self.is_digits(end + 1) {
            return None;
        }
        // The point of `9.30` parts hours from minutes only when the words say that it is a time.
        let dotted = minute.is_none().then(|| self.is_sign(i + 1, '.').then(|| two(i + 2)).flatten()).flatten();
        let (half, after_half) = self.half(if dotted.is_some() { i + 3 } else { end });
        let (oclock, after) = self.oclock(after_half);
        let (minute, end) = match (minute, dotted) {
            (Some(minute), _) => (minute, after),
            (None, Some(minute)) if half.is_some() || oclock => (minute, after),
            (None, None) if half.is_some() && (1..=12).contains(&hour) => (0, after),
            _ => return None,
        };
        let half = half.filter(|_| !lang.is_hindi() || !DAY_PARTS.contains(&self.previous_word(i).1));
        // `5 PM को`, Marathi `5 PM ला`: the words for the time have that already.
        let (at, to) = self.next_word(end);
        let told = half.is_some() && matches!((lang, to), (Lang::Hindi, "को") | (Lang::RomanHindi, "ko"))
            || lang == Lang::Marathi && to == "ला";
        let end = if told { at + 1 } else { end };
        let mut words = self.clock(lang, &Clock { hour, minute, second, half });
        // `5:30 बजे है` is said `… मिनट पर है`.
        let next = self.next_word(end).1;
        if oclock && minute > 0 && lang.is_hindi() && !next.is_empty() && !POSTPOSITIONS.contains(&next) {
            words.push_str(if lang.is_latin() { " par" } else { " पर" });
        }
        Reading::new(end, words, "time")
    }

    /// `1900 hrs`, `0630 hours`: a time of day on the clock of 24 hours; at the digits.
    pub(super) fn clock_hours(&self, i: usize) -> Option<Reading> {
        let four = self.digit_count(i) == 4 && !self.is_attached(i);
        let clock = self.value(i).filter(|clock| four && *clock < 2400 && clock % 100 < 60)?;
        let (at, word) = self.next_word(i + 1);
        // `1500 hours of practice` are many, and so are hours without a zero or a word of time.
        let leading_zero = self.str(i).starts_with(['0', '०']);
        let named = matches!(word, "hrs" | "Hrs" | "HRS") || leading_zero && matches!(word, "hours" | "Hours");
        if !named || matches!(self.next_word(at + 1).1, "of" | "in" | "per") {
            return None;
        }
        let stop = usize::from(self.is_sign(at + 1, '.') && !self.sentence_ends(at + 1));
        let lang = self.lang(i);
        let (hour, minute) = (clock / 100, clock % 100);
        let words = if lang == Lang::English {
            let zero = if hour < 10 { "zero " } else { "" };
            let minutes = match minute {
                0 => "hundred".to_owned(),
                1..=9 => format!("oh {}", number::cardinal(lang, minute.into())),
                _ => number::cardinal(lang, minute.into()),
            };
            format!("{zero}{} {minutes} hours", number::cardinal(lang, hour.into()))
        } else {
            self.clock(lang, &Clock { hour, minute, second: None, half: None })
        };
        Reading::new(at + 1 + stop, words, "time")
    }

    /// `AM`, `pm`, `a.m.`, with the token after.
    fn half(&self, i: usize) -> (Option<Half>, usize) {
        let at = self.past_space(i);
        match self.word(at) {
            "AM" | "am" | "Am" => (Some(Half::Am), at + 1),
            "PM" | "pm" | "Pm" => (Some(Half::Pm), at + 1),
            letter @ ("a" | "p" | "A" | "P") if self.is_sign(at + 1, '.') && matches!(self.word(at + 2), "m" | "M") => {
                let stop = self.is_sign(at + 3, '.') && !self.sentence_ends(at + 3);
                let half = if letter.eq_ignore_ascii_case("a") { Half::Am } else { Half::Pm };
                (Some(half), at + 3 + usize::from(stop))
            }
            _ => (None, i),
        }
    }

    /// The token after AM or PM, if one stands at a place.
    pub(super) fn half_end(&self, i: usize) -> Option<usize> {
        let (half, end) = self.half(i);
        half.map(|_| end)
    }

    /// Words that say `o'clock` after the digits; the reading has them already.
    fn oclock(&self, i: usize) -> (bool, usize) {
        let (at, word) = self.next_word(i);
        if matches!(word, "बजे" | "baje" | "bje" | "hrs" | "Hrs" | "वाजता" | "वाजले" | "वाजेपर्यंत")
        {
            (true, at + 1)
        } else {
            (false, i)
        }
    }

    fn clock(&self, lang: Lang, clock: &Clock) -> String {
        match lang {
            Lang::Hindi | Lang::RomanHindi => self.hindi_clock(lang, clock),
            Lang::English => english_clock(clock),
            Lang::Marathi => marathi_clock(clock),
            lang => {
                let parts = [Some(clock.hour), Some(clock.minute).filter(|m| *m > 0), clock.second];
                let words = parts.into_iter().flatten().map(|n| number::cardinal(lang, n.into()));
                words.collect::<Vec<_>>().join(" ")
            }
        }
    }

    fn hindi_clock(&self, lang: Lang, clock: &Clock) -> String {
        let latin = usize::from(lang.is_latin());
        let say = |n: u64| number::cardinal(lang, n.into());
        let day = clock.half.map(|half| match (half, clock.hour) {
            (Half::Am, 12) => ["रात", "raat"],
            (Half::Am, 4..=11) => ["सुबह", "subah"],
            (Half::Am, _) => ["रात", "raat"],
            (Half::Pm, 12 | 1..=3) => ["दोपहर", "dopahar"],
            (Half::Pm, 4..=7) => ["शाम", "shaam"],
            (Half::Pm, _) => ["रात", "raat"],
        });
        let day = day.map_or(String::new(), |words| format!("{} ", words[latin]));
        let quarter = matches!(clock.minute, 15 | 30 | 45) && clock.second.is_none() && (1..=12).contains(&clock.hour);
        let time = if quarter && self.manner.short_forms {
            format!(
                "{} {}",
                quarters_in_hindi(lang, clock.hour.into(), clock.minute as usize / 15),
                ["बजे", "baje"][latin]
            )
        } else if clock.minute == 0 && clock.second.unwrap_or(0) == 0 {
            format!("{} {}", say(clock.hour), ["बजे", "baje"][latin])
        } else {
            let minutes = format!(
                "{} {} {} {}",
                say(clock.hour),
                ["बजकर", "bajkar"][latin],
                say(clock.minute),
                ["मिनट", "minute"][latin]
            );
            match clock.second {
                Some(second) => format!("{minutes} {} {}", say(second), ["सेकंड", "second"][latin]),
                None => minutes,
            }
        };
        format!("{day}{time}")
    }

    /// `2h 30m`, `1h30m`, `1h 5m 10s`; at the digits, asked before units.
    pub(super) fn duration(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        let names = |letter: &str, one: bool| -> Option<&'static str> {
            let index = ["h", "m", "s"].iter().position(|known| letter == *known)?;
            Some(match lang {
                Lang::Hindi if one => ["घंटा", "मिनट", "सेकंड"][index],
                Lang::RomanHindi if one => ["ghanta", "minute", "second"][index],
                Lang::Hindi => ["घंटे", "मिनट", "सेकंड"][index],
                Lang::RomanHindi => ["ghante", "minute", "second"][index],
                Lang::English if one => ["hour", "minute", "second"][index],
                Lang::English => ["hours", "minutes", "seconds"][index],
                _ => return None,
            })
        };
        let (mut at, mut words) = (i, Vec::new());
        for _ in 0..3 {
            let Some((n, name)) = self.value(at).and_then(|n| Some((n, names(self.word(at + 1), n == 1)?))) else {
                break;
            };
            words.push(format!("{} {name}", number::cardinal(lang, n.into())));
            let next = self.past_space(at + 2);
            let more = self.is_digits(next) && names(self.word(next + 1), false).is_some();
            at = if more { next } else { at + 2 };
            if !more {
                break;
            }
        }
        (words.len() >= 2).then(|| Reading::new(at, words.join(" "), "duration")).flatten()
    }
}

/// `आठ वाजता`, `सात वाजून एकवीस मिनिटांनी`.
fn marathi_clock(clock: &Clock) -> String {
    let say = |n: u64| number::cardinal(Lang::Marathi, n.into());
    let day = match (clock.half, clock.hour) {
        (None, _) => "",
        (Some(Half::Am), 4..=11) => "सकाळी ",
        (Some(Half::Pm), 12 | 1..=3) => "दुपारी ",
        (Some(Half::Pm), 4..=7) => "संध्याकाळी ",
        (Some(_), _) => "रात्री ",
    };
    let hour = say(clock.hour);
    match (clock.minute, clock.second.unwrap_or(0)) {
        (0, 0) => format!("{day}{hour} वाजता"),
        (minute, 0) => format!("{day}{hour} वाजून {} मिनिटांनी", say(minute)),
        (minute, second) => format!("{day}{hour} वाजून {} मिनिटे {} सेकंदांनी", say(minute), say(second)),
    }
}

fn english_clock(clock: &Clock) -> String {
    let say = |n: u64| number::cardinal(Lang::English, n.into());
    let half = match clock.half {
        Some(Half::Am) => " A M",
        Some(Half::Pm) => " P M",
        None => "",
    };
    let minutes = match clock.minute {
        0 if clock.half.is_some() => String::new(),
        0 if (1..=12).contains(&clock.hour) => " o'clock".to_owned(),
        0 => " hundred hours".to_owned(),
        minute @ 1..=9 => format!(" oh {}", say(minute)),
        minute => format!(" {}", say(minute)),
    };
    match clock.second {
        Some(second) => {
            let minute = say(clock.minute);
            format!("{} hours {minute} minutes {} seconds{half}", say(clock.hour), say(second))
        }
        None => format!("{}{minutes}{half}", say(clock.hour)),
    }
}

impl Text<'_> {
    /// Whether the hyphen at a place parts two halves of a score: sports words stand near.
    pub(super) fn is_score(&self, hyphen: usize) -> bool {
        let small = |at: usize| self.digit_count(at) <= 2 && self.is_digits(at);
        if !small(hyphen - 1) || !small(hyphen + 1) {
            return false;
        }
        let near = hyphen.saturating_sub(NEAR)..(hyphen + NEAR).min(self.tokens.len());
        near.into_iter().any(|at| !self.word(at).is_empty() && SPORTS.contains(&self.word(at)))
    }
}
