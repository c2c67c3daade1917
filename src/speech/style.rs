//! Who speaks and how: the part of the prompt before the text.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Longest free description, in characters; the model was trained on a dozen words.
const LONGEST_DESCRIPTION: usize = 300;

/// Defines an enum of words with its parser, its printer and the list of what is accepted.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $parameter:literal, $($variant:ident => $word:literal),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is the word it stands for")]
        pub enum $name { $($variant),+ }

        impl $name {
            /// Every value, in the order of the model card.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The word as users write it, in lower case.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            /// Accepts the word in any ASCII case, with `-` or `_` for a space.
            fn from_str(text: &str) -> Result<$name> {
                let wanted = text.trim().replace(['-', '_'], " ").to_ascii_lowercase();
                Self::ALL.iter().copied().find(|value| value.word() == wanted).ok_or_else(|| {
                    let accepted = Self::ALL.iter().map(|value| value.word()).collect::<Vec<_>>().join(", ");
                    Error::input($parameter, format!("unknown {}; accepted: {accepted}", quoted(text)))
                })
            }
        }
    };
}

words! {
    /// The mood of the voice.
    Tone, "tone",
    Happy => "happy", Sad => "sad", Angry => "angry", Excited => "excited", Professional => "professional"
}

words! {
    /// The language whose accent colours the speech.
    Accent, "accent",
    Hindi => "hindi", Telugu => "telugu", Tamil => "tamil", Kannada => "kannada", Bengali => "bengali",
    Punjabi => "punjabi", IndianEnglish => "indian english"
}

words! {
    /// How fast the speech goes.
    Pace, "pace", Slow => "slow", Steady => "steady", Fast => "fast"
}

impl fmt::Display for Tone {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Accent {
    /// As the prompt has it: `Indian English accent`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (i, word) in self.word().split(' ').enumerate() {
            let (initial, rest) = word.split_at(1);
            write!(f, "{}{}{rest}", if i > 0 { " " } else { "" }, initial.to_ascii_uppercase())?;
        }
        f.write_str(" accent")
    }
}

impl fmt::Display for Pace {
    /// As the prompt has it: `steady pace`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} pace", self.word())
    }
}

/// Voice and manner of a request. The default is the first voice of the model, without a description.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// A name out of `speakers` of the model's configuration, in any ASCII case; the first of them if absent.
    pub voice: Option<String>,
    /// Mood.
    pub tone: Option<Tone>,
    /// Accent.
    pub accent: Option<Accent>,
    /// Speed.
    pub pace: Option<Pace>,
    /// A free description instead of tone, accent and pace, at most 300 characters.
    pub description: Option<String>,
}

impl Style {
    /// The voice as the model knows it.
    ///
    /// # Errors
    /// [`Error::Input`] for `voice`, listing the valid names.
    pub fn speaker<'a>(&self, speakers: &'a [String]) -> Result<&'a str> {
        let found = match &self.voice {
            None => speakers.first(),
            Some(voice) => speakers.iter().find(|name| name.eq_ignore_ascii_case(voice.trim())),
        };
        found.map(String::as_str).ok_or_else(|| {
            let wanted = self.voice.as_deref().unwrap_or_default();
            Error::input("voice", format!("unknown {}; voices: {}", quoted(wanted), speakers.join(", ")))
        })
    }

    /// What goes between the quotes of `<description="…">`; `None` leaves that part of the prompt out.
    ///
    /// # Errors
    /// [`Error::Input`] when a free description is combined with tone, accent or pace, or is too long.
    pub fn description(&self) -> Result<Option<String>> {
        let parts = [
            self.tone.map(|tone| tone.to_string()),
            self.accent.map(|accent| accent.to_string()),
            self.pace.map(|pace| pace.to_string()),
        ];
        let chosen = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let text = match &self.description {
            Some(_) if !chosen.is_empty() => {
                return Err(Error::input("description", "replaces tone, accent and pace; give one or the other"));
            }
            Some(free) => free_description(free)?,
            None => chosen,
        };
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

/// A free description that cannot leave its place: one line, no double quote, no angle bracket, no control character.
fn free_description(text: &str) -> Result<String> {
    let length = text.chars().count();
    if length > LONGEST_DESCRIPTION {
        let message = format!("{length} characters; at most {LONGEST_DESCRIPTION} are accepted");
        return Err(Error::input("description", message));
    }
    let inert: String = text
        .chars()
        .filter(|c| !matches!(c, '<' | '>'))
        .map(|c| if c == '"' { '\'' } else { c })
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    Ok(inert.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A user's word in a message: quoted, escaped and cut.
fn quoted(text: &str) -> String {
    const LONGEST: usize = 40;
    let cut: String = text.chars().take(LONGEST).collect();
    format!("{cut:?}{}", if cut.len() < text.len() { "…" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speakers() -> Vec<String> {
        ["Ira", "Aisha"].map(str::to_owned).to_vec()
    }

    #[test]
    fn tone_accent_and_pace_make_the_description_of_the_model_card() {
        let style = Style {
            tone: Some("Happy".parse().unwrap()),
            accent: Some("indian-english".parse().unwrap()),
            pace: Some("steady".parse().unwrap()),
            ..Style::default()
        };
        assert_eq!(style.description().unwrap().unwrap(), "happy, Indian English accent, steady pace");
        assert_eq!(Style::default().description().unwrap(), None);
        let pace = Style { pace: Some(Pace::Slow), ..Style::default() };
        assert_eq!(pace.description().unwrap().unwrap(), "slow pace");
    }

    #[test]
    fn errors_name_what_is_accepted() {
        let error = "cheerful".parse::<Tone>().unwrap_err().to_string();
        assert_eq!(error, "tone: unknown \"cheerful\"; accepted: happy, sad, angry, excited, professional");
        for voice in ["", "../x", "Nobody"] {
            let style = Style { voice: Some(voice.into()), ..Style::default() };
            let error = style.speaker(&speakers()).unwrap_err().to_string();
            assert!(error.starts_with("voice: unknown") && error.ends_with("voices: Ira, Aisha"), "{error}");
        }
    }

    #[test]
    fn the_voice_is_found_in_any_case_and_defaults_to_the_first() {
        let style = Style { voice: Some(" aisha".into()), ..Style::default() };
        assert_eq!(style.speaker(&speakers()).unwrap(), "Aisha");
        assert_eq!(Style::default().speaker(&speakers()).unwrap(), "Ira");
    }

    #[test]
    fn a_free_description_stays_inside_its_quotes() {
        let style = Style { description: Some("calm\",\n x\"> hi<audio>\u{0}".into()), ..Style::default() };
        assert_eq!(style.description().unwrap().unwrap(), "calm', x' hiaudio");
        let both = Style { tone: Some(Tone::Sad), ..style };
        assert!(both.description().is_err());
        let long = Style { description: Some("x".repeat(301)), ..Style::default() };
        assert!(long.description().is_err());
    }
}
