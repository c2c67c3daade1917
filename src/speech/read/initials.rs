//! Letters with stops, `U.S.A.`, `ए.पी.जे.`, and ranges of days and months, `Mon-Fri`.

use super::super::lang::{Lang, Say};
use super::{Reading, Text, tables};

/// Most letters of one row of initials.
const MOST_LETTERS: usize = 6;

/// Days of the week: short, Hindi, English.
const DAYS: [(&str, &str, &str); 7] = [
    ("Mon", "सोमवार", "Monday"),
    ("Tue", "मंगलवार", "Tuesday"),
    ("Wed", "बुधवार", "Wednesday"),
    ("Thu", "गुरुवार", "Thursday"),
    ("Fri", "शुक्रवार", "Friday"),
    ("Sat", "शनिवार", "Saturday"),
    ("Sun", "रविवार", "Sunday"),
];

impl Text<'_> {
    /// Two letters or more, each with its stop; at the first.
    pub(super) fn initials(&self, i: usize) -> Option<Reading> {
        if i > 0 && self.is_attached(i) && !self.is_sign(i - 1, '(') {
            return None;
        }
        let letter =
            |at: usize| self.is_capital_word(at) && self.str(at).len() == 1 || tables::is_letter_name(self.word(at));
        let (mut at, mut names) = (i, Vec::new());
        while names.len() < MOST_LETTERS && letter(at) && self.is_sign(at + 1, '.') {
            names.push(self.initial(at));
            at += 2;
        }
        // The last may go without a stop, `B.A`.
        if !names.is_empty() && names.len() < MOST_LETTERS && letter(at) {
            names.push(self.initial(at));
            at += 1;
        } else if at > i && self.sentence_ends(at - 1) {
            at -= 1;
        }
        (names.len() >= 2).then(|| Reading::new(at, names.join(" "), "initials")).flatten()
    }

    fn initial(&self, at: usize) -> String {
        if self.is_latin(at) { tables::spell(self.lang(at), self.str(at)) } else { self.str(at).to_owned() }
    }

    /// `Mon-Fri`, `Jan-Mar`; at the first name.
    pub(super) fn calendar_range(&self, i: usize) -> Option<Reading> {
        let lang = self.lang(i);
        if !self.is_hyphen(i + 1) || self.is_attached(i) || !(lang.is_hindi() || lang == Lang::English) {
            return None;
        }
        let day = |at: usize| {
            let (_, hindi, english) = DAYS.iter().find(|(short, _, _)| *short == self.word(at))?;
            Some(if lang.is_latin() { *english } else { *hindi })
        };
        let month = |at: usize| Some(lang.month(tables::month(self.word(at))?));
        let pair = |name: &dyn Fn(usize) -> Option<&'static str>| Some((name(i)?, name(i + 2)?));
        let (from, to) = pair(&day).or_else(|| pair(&month))?;
        Reading::new(i + 3, format!("{from} {} {to}", lang.say(Say::To)), "range")
    }
}
