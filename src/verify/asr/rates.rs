//! Error rates, the interval of their difference, and the gate.

use serde::{Deserialize, Serialize};

use super::{Language, words};
use crate::engine::sampler::Noise;
use crate::verify::Limit::{self, AtLeast, AtMost};
use crate::verify::limits::Limits;
use crate::verify::{Verdict, edit_distance, number};

/// Draws of the bootstrap.
const DRAWS: usize = 2000;
/// Error rate of the reference's speech from which the recogniser does not follow the language: what it writes down is
/// its own invention, whoever speaks. The demonstration model's Hindi lies above 0.9 even in the original recordings.
const DEAF: f64 = 0.6;

/// What the engine's speech must hold to, by name of the comparison. `docs/verification.md`, "Error rates", has the
/// measured figures.
pub const LIMITS: &[(&str, Limit)] = &[
    // Prompts of a language that the recogniser follows.
    ("asr.prompts", AtLeast(1.0)),
    ("asr.prompts_missing", AtMost(0.0)),
    // Error rate of the engine's speech less that of the reference's, over the same prompts.
    ("asr.character_rise", AtMost(0.05)),
    ("asr.word_rise", AtMost(0.1)),
    // Lower end of the 95 % interval of the rise in characters: a small rise that is certain.
    ("asr.certain_character_rise", AtMost(0.02)),
];

/// What was heard of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// Id of the prompt.
    pub id: String,
    /// Its language.
    pub language: Language,
    /// Its text.
    pub text: String,
    /// What the recogniser wrote down of the reference's speech.
    pub reference: String,
    /// What it wrote down of the engine's speech.
    pub engine: String,
}

/// Errors of one utterance against its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errors {
    /// Characters of the text in normalised form, spaces between words included.
    pub characters: usize,
    /// Characters to change, at most all of them.
    pub character_errors: usize,
    /// Words of the text.
    pub words: usize,
    /// Words to change, at most all of them.
    pub word_errors: usize,
}

impl Errors {
    /// Compares what was heard with the text. More errors than the text has characters count as all of them, so that
    /// one invented paragraph does not outweigh every other prompt.
    pub fn between(text: &str, heard: &str, language: Language) -> Errors {
        let (expected, found) = (words(text, language), words(heard, language));
        let characters = |words: &[String]| words.join(" ").chars().collect::<Vec<char>>();
        let (a, b) = (characters(&expected), characters(&found));
        Errors {
            characters: a.len(),
            character_errors: edit_distance(&a, &b).min(a.len()),
            words: expected.len(),
            word_errors: edit_distance(&expected, &found).min(expected.len()),
        }
    }
}

/// Error rates of both models over the prompts of a language. Of no prompts, every rate is NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorRates {
    /// `english`, `hindi`.
    pub language: String,
    /// Prompts heard.
    pub prompts: usize,
    /// Whether the recogniser follows the reference's speech, so that the rates are held to limits.
    pub judged: bool,
    /// Character error rate of the reference's speech.
    #[serde(with = "number")]
    pub reference_characters: f64,
    /// Character error rate of the engine's speech.
    #[serde(with = "number")]
    pub engine_characters: f64,
    /// Word error rate of the reference's speech.
    #[serde(with = "number")]
    pub reference_words: f64,
    /// Word error rate of the engine's speech.
    #[serde(with = "number")]
    pub engine_words: f64,
    /// Lower end of the 95 % interval (bootstrap over prompts) of the difference in characters.
    #[serde(with = "number")]
    pub rise_low: f64,
    /// Upper end of it.
    #[serde(with = "number")]
    pub rise_high: f64,
}

impl ErrorRates {
    /// The rates over the prompts of a language.
    pub fn of(language: Language, heard: &[Heard]) -> ErrorRates {
        let own = heard.iter().filter(|heard| heard.language == language);
        let errors: Vec<[Errors; 2]> =
            own.map(|h| [&h.reference, &h.engine].map(|said| Errors::between(&h.text, said, language))).collect();
        let rate = |model: usize, wrong: fn(&Errors) -> usize, all: fn(&Errors) -> usize| {
            let sum = |count: fn(&Errors) -> usize| errors.iter().map(|pair| count(&pair[model])).sum::<usize>();
            sum(wrong) as f64 / sum(all) as f64
        };
        let characters = |model| rate(model, |e| e.character_errors, |e| e.characters);
        let words = |model| rate(model, |e| e.word_errors, |e| e.words);
        let (rise_low, rise_high) = interval(&errors);
        ErrorRates {
            language: language.name().to_owned(),
            prompts: errors.len(),
            judged: characters(0) < DEAF,
            reference_characters: characters(0),
            engine_characters: characters(1),
            reference_words: words(0),
            engine_words: words(1),
            rise_low,
            rise_high,
        }
    }
}

/// 95 % interval of the rise in characters, by drawing prompts with replacement. The draws are always the same.
fn interval(errors: &[[Errors; 2]]) -> (f64, f64) {
    let draw = |draw: usize| {
        let noise = Noise { seed: 0, sequence: 0, step: draw as u32 };
        let (mut rise, mut all) = (0.0, 0.0);
        for place in 0..errors.len() {
            let pick = (noise.uniform(place as u32) * errors.len() as f64) as usize;
            let [reference, engine] = errors[pick.min(errors.len() - 1)];
            rise += engine.character_errors as f64 - reference.character_errors as f64;
            all += reference.characters as f64;
        }
        rise / all
    };
    let mut rises: Vec<f64> = (0..DRAWS).map(draw).collect();
    if rises.iter().any(|rise| rise.is_nan()) {
        return (f64::NAN, f64::NAN);
    }
    rises.sort_by(f64::total_cmp);
    (rises[DRAWS * 25 / 1000], rises[DRAWS * 975 / 1000 - 1])
}

/// Holds the rise of the error rates to limits, language by language; `expected` are the ids of the English and Hindi
/// prompts that both models were asked to speak.
///
/// Comparisons are named `asr.…`. A prompt that is missing fails; if the recogniser follows the reference in no language,
/// `asr.prompts` fails. Returns the rates.
pub fn judge(verdict: &mut Verdict, expected: &[String], heard: &[Heard], limits: &Limits) -> Vec<ErrorRates> {
    let languages = [Language::English, Language::Hindi];
    let spoken = languages.into_iter().filter(|language| heard.iter().any(|heard| heard.language == *language));
    let rates: Vec<ErrorRates> = spoken.map(|language| ErrorRates::of(language, heard)).collect();
    let missing: Vec<&str> = expected
        .iter()
        .map(String::as_str)
        .filter(|id| heard.iter().filter(|heard| heard.id == *id).count() != 1)
        .collect();
    let mut hold = |name: &str, measured: f64, place: &str| {
        let name = format!("asr.{name}");
        verdict.measure(&name, limits.of(&name), measured, || place.to_owned());
    };
    let judged: Vec<&ErrorRates> = rates.iter().filter(|rates| rates.judged).collect();
    hold("prompts", judged.iter().map(|rates| rates.prompts as f64).sum(), "");
    hold("prompts_missing", missing.len() as f64, &missing.join(" "));
    for rates in judged {
        hold("character_rise", rates.engine_characters - rates.reference_characters, &rates.language);
        hold("word_rise", rates.engine_words - rates.reference_words, &rates.language);
        hold("certain_character_rise", rates.rise_low, &rates.language);
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "The farmer sold rice and honey in the market last week.";

    fn heard(number: usize, reference: &str, engine: &str) -> Heard {
        let (reference, engine) = (reference.to_owned(), engine.to_owned());
        Heard { id: format!("p-{number}"), language: Language::English, text: TEXT.into(), reference, engine }
    }

    fn judged(set: &[Heard]) -> (Verdict, Vec<ErrorRates>) {
        let expected: Vec<String> = (0..10).map(|number| format!("p-{number}")).collect();
        let mut verdict = Verdict::default();
        let rates = judge(&mut verdict, &expected, set, &Limits::default());
        (verdict, rates)
    }

    fn set(engine: impl Fn(usize) -> &'static str) -> Vec<Heard> {
        (0..10).map(|i| heard(i, "the farmer sold rice and honey in the market last week", engine(i))).collect()
    }

    fn failures(verdict: &Verdict) -> Vec<&str> {
        verdict.failures().map(|c| c.name.as_str()).collect()
    }

    #[test]
    fn errors_are_counted_after_normalisation() {
        let errors = Errors::between("I have 24 dogs.", "i have twenty four dog", Language::English);
        assert_eq!(errors, Errors { characters: 23, character_errors: 1, words: 5, word_errors: 1 });
        let nothing = Errors::between("Yes.", "", Language::English);
        assert_eq!((nothing.character_errors, nothing.word_errors), (3, 1));
        let invented = Errors::between("Yes.", "thank you for watching and see you next time", Language::English);
        assert_eq!((invented.character_errors, invented.word_errors), (3, 1));
    }

    #[test]
    fn the_same_speech_passes_and_its_rates_are_those_of_the_text() {
        let (verdict, rates) = judged(&set(|_| "The farmer sold rice and honey in the market last week."));
        assert!(verdict.passed(), "{verdict}");
        assert_eq!((rates.len(), rates[0].prompts, rates[0].engine_characters), (1, 10, 0.0));
        assert_eq!((rates[0].rise_low, rates[0].rise_high), (0.0, 0.0));
    }

    #[test]
    fn rambling_and_mumbling_fail() {
        let (verdict, _) = judged(&set(|_| "the former salt rise and money in the mark at lost weak"));
        assert_eq!(failures(&verdict), ["asr.character_rise", "asr.word_rise", "asr.certain_character_rise"]);
        let (verdict, rates) = judged(&set(|i| if i == 0 { "" } else { TEXT })); // one prompt of ten is lost
        assert_eq!(failures(&verdict), ["asr.character_rise"]);
        assert!(rates[0].rise_low >= 0.0 && rates[0].rise_high > 0.1, "{rates:?}");
        let (verdict, _) =
            judged(&set(|i| if i == 0 { "the farmer sold ice and honey in the market last week" } else { TEXT }));
        assert!(verdict.passed(), "{verdict}");
    }

    #[test]
    fn a_recogniser_that_follows_nothing_judges_nothing_and_that_is_no_pass() {
        let deaf: Vec<Heard> = (0..10).map(|i| heard(i, "zzz qqq", "the farmer")).collect();
        let (verdict, rates) = judged(&deaf);
        assert!(!rates[0].judged);
        assert_eq!(failures(&verdict), ["asr.prompts"]);
    }

    #[test]
    fn missing_prompts_and_an_empty_set_never_pass() {
        let mut missing = set(|_| TEXT);
        missing.remove(3);
        assert_eq!(failures(&judged(&missing).0), ["asr.prompts_missing"]);
        assert_eq!(failures(&judged(&[]).0), ["asr.prompts", "asr.prompts_missing"]);
        assert!(ErrorRates::of(Language::Hindi, &[]).rise_low.is_nan());
    }
}
