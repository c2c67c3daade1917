//! What the gate makes both models say: bundled sets of prompts, each with a fixed seed.
//!
//! `fixtures/verify/prompts.json` holds two sets: `model` for any model of the rumik-oss-1 kind and `demo` in the small
//! vocabulary of the demonstration model. Texts are written in words as the model reads them, so that nothing depends on
//! how numbers are read; a test holds them to that.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::speech::{Speech, Style, is_speakable};

const FILE: &str = "fixtures/verify/prompts.json";
const BUNDLED: &[u8] = include_bytes!("../../fixtures/verify/prompts.json");

/// Which of the bundled sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bundled {
    /// Eleven groups of languages, for any model of the rumik-oss-1 kind.
    Model,
    /// English and Hindi in the words that the demonstration model knows.
    Demo,
}

impl fmt::Display for Bundled {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Bundled::Model => "model",
            Bundled::Demo => "demo",
        })
    }
}

impl FromStr for Bundled {
    type Err = Error;

    fn from_str(name: &str) -> Result<Bundled> {
        let known = [Bundled::Model, Bundled::Demo].into_iter().find(|set| set.to_string() == name);
        known.ok_or_else(|| Error::input("prompts", format!("unknown set {name:?}; accepted: model, demo")))
    }
}

/// What is spoken, for figures by language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant is the language it names")]
pub enum Group {
    English,
    Hindi,
    /// Hindi in Devanagari with English words.
    Mixed,
    /// An Indic language in Latin letters.
    Romanised,
    Bengali,
    Gujarati,
    Kannada,
    Malayalam,
    Punjabi,
    Tamil,
    Telugu,
}

impl fmt::Display for Group {
    /// The name in small letters, as in the file.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_lowercase())
    }
}

/// The shape of a text, for figures by shape: short and long ones fail in ways of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One sentence or two short ones.
    Sentence,
    /// One or two words.
    Reply,
    /// As long as a model of its kind is asked to speak at once.
    Long,
    /// A sentence with an inline sound, `<laugh>`.
    Sound,
}

/// One thing to say, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Its name, unique in its set.
    pub id: String,
    /// The language.
    pub group: Group,
    /// The shape.
    pub kind: Kind,
    /// A voice of the model.
    pub voice: String,
    /// A word of [`Tone`](crate::speech::Tone).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tone: Option<String>,
    /// A word of [`Accent`](crate::speech::Accent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accent: Option<String>,
    /// A word of [`Pace`](crate::speech::Pace).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<String>,
    /// Seed of the noise when the prompt is sampled.
    pub seed: u64,
    /// Whether it is among the few of a quick run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// The text, in words.
    pub text: String,
}

impl Prompt {
    /// Voice and manner as a request has them.
    ///
    /// # Errors
    /// [`Error::Input`] for a tone, accent or pace that is not one of the model card's words.
    pub fn style(&self) -> Result<Style> {
        fn word<T: FromStr<Err = Error>>(word: &Option<String>) -> Result<Option<T>> {
            word.as_deref().map(str::parse).transpose()
        }
        Ok(Style {
            voice: Some(self.voice.clone()),
            tone: word(&self.tone)?,
            accent: word(&self.accent)?,
            pace: word(&self.pace)?,
            description: None,
        })
    }

    /// The ids that both models are given.
    ///
    /// # Errors
    /// As [`Speech::prompt`], the voice included; [`Error::Input`] for a text with control strings other than sounds.
    pub fn ids(&self, speech: &Speech) -> Result<Vec<u32>> {
        let prompt = speech.prompt(&self.style()?, &self.text)?;
        match prompt.dropped.is_empty() {
            true => Ok(prompt.ids),
            false => Err(Error::input("text", format!("control strings: {}", prompt.dropped.join(" ")))),
        }
    }
}

/// Prompts that belong together, each of them sound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptSet {
    /// `model`, `demo`.
    pub name: String,
    /// What it is for, in a sentence.
    pub about: String,
    /// The prompts, at least one.
    pub prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    sets: Vec<PromptSet>,
}

impl PromptSet {
    /// A set that is compiled in.
    ///
    /// # Errors
    /// None in a sound build; the file is checked like any other.
    pub fn bundled(which: Bundled) -> Result<PromptSet> {
        PromptSet::parse(FILE, BUNDLED, &which.to_string())
    }

    /// The set `name` of a file of sets, checked as by [`PromptSet::check`].
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `place` and what is wrong.
    pub fn parse(place: &str, json: &[u8], name: &str) -> Result<PromptSet> {
        let file: File =
            serde_json::from_slice(json).map_err(|e| Error::invalid(place, "content", "prompt sets", e))?;
        let mut named = file.sets.into_iter().filter(|set| set.name == name);
        let found = (named.next(), named.count());
        let (Some(set), 0) = found else {
            let sets = if found.0.is_none() { "none" } else { "several" };
            return Err(Error::invalid(place, format!("set {name:?}"), "one set of that name", sets));
        };
        set.check(place)?;
        Ok(set)
    }

    /// Holds a set to what the gate relies on: there are prompts, ids and seeds are unique, no two ask for the same, and
    /// each has something to say in words of the style vocabulary.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming `place`, the prompt and what is wrong.
    pub fn check(&self, place: &str) -> Result<()> {
        let place = format!("{place}, set {}", self.name);
        if self.prompts.is_empty() {
            return Err(Error::invalid(place, "prompts", "at least one", "none"));
        }
        let (mut ids, mut seeds, mut requests) = (HashSet::new(), HashSet::new(), HashSet::new());
        for prompt in &self.prompts {
            let fault = |item: &str, expected: &str, found: &dyn fmt::Display| {
                Err(Error::invalid(&place, format!("prompt {:?}, {item}", prompt.id), expected, found))
            };
            if prompt.id.is_empty() || !prompt.id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return fault("id", "ASCII letters, digits and hyphens", &prompt.id);
            }
            if !is_speakable(&prompt.text) {
                return fault("text", "a letter or digit to speak", &format!("{:?}", prompt.text));
            }
            if let Err(error) = prompt.style() {
                return fault("style", "words of the style vocabulary", &error);
            }
            if !ids.insert(&prompt.id) {
                return fault("id", "a name of its own", &"the name of an earlier prompt");
            }
            if !seeds.insert(prompt.seed) {
                return fault("seed", "a seed of its own", &prompt.seed);
            }
            if !requests.insert((&prompt.voice, &prompt.tone, &prompt.accent, &prompt.pace, &prompt.text)) {
                return fault("text", "a text of its own, or another style", &"the request of an earlier prompt");
            }
        }
        Ok(())
    }

    /// The prompts of a quick run.
    pub fn quick(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().filter(|prompt| prompt.quick)
    }

    /// The ids of every prompt, in order, for the model that `speech` was loaded for.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the prompt and what is wrong with it for this model: an unknown voice, a text too long.
    pub fn ids(&self, speech: &Speech) -> Result<Vec<Vec<u32>>> {
        let ids = |prompt: &Prompt| {
            prompt.ids(speech).map_err(|error| {
                let item = format!("prompt {:?}", prompt.id);
                Error::invalid(format!("prompt set {}", self.name), item, "a request this model can speak", error)
            })
        };
        self.prompts.iter().map(ids).collect()
    }
}

#[cfg(test)]
#[path = "prompts_tests.rs"]
mod tests;
