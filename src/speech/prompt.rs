//! The prompt, built from ids.

use std::fmt;

use super::TAGS;
use super::style::Style;
use super::tokenizer::{self, TextTokenizer};
use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// What the self-check speaks: both scripts, a conjunct, digits, punctuation and a tag.
const SELF_CHECK_TEXT: &str = "Hello, नमस्ते! <laugh> क्या 25 ठीक है?";

/// Tokens a prompt must leave for speech: the shortest utterance the generation rule allows, and its end.
const LEAST_ROOM: usize = crate::config::MIN_NEW_TOKENS + 1;

/// Ids of one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// `[BOS] <text>{Speaker}: <description="…"> {text}<audio>`.
    pub ids: Vec<u32>,
    /// Control strings found in the text and left out, each once; for a warning to the caller.
    pub dropped: Vec<String>,
}

/// Everything needed to make prompts for one model.
pub struct Speech {
    tokenizer: TextTokenizer,
    config: ModelConfig,
}

impl fmt::Debug for Speech {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Speech").field("voices", &self.config.speakers).finish_non_exhaustive()
    }
}

impl Speech {
    /// Loads a `tokenizer.json` exactly as saved and checks it against the model's configuration.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the file does not parse, when a prompt does not begin with BOS and `<text>` and end with
    /// `<audio>` as the ids `config.json` declares, or when prompts made here differ from what the file encodes.
    pub fn load(config: &ModelConfig, tokenizer_json: &[u8]) -> Result<Speech> {
        let full = tokenizer::parse(tokenizer_json)?;
        let speech = Speech { tokenizer: TextTokenizer::new(&full, config), config: config.clone() };
        let speaker = speech.config.speakers.first().map(String::as_str).unwrap_or_default();
        let head = head(speaker, Some("happy, Indian English accent, steady pace"));
        let absent = TAGS.iter().filter(|tag| full.token_to_id(tag).is_none());
        let text = absent.fold(SELF_CHECK_TEXT.to_owned(), |text, tag| text.replace(tag, ""));
        let saved = tokenizer::check_frame(&full, config, &format!("{head}{text}"))?;
        let made = speech.frame(&head, &text)?;
        if made.ids != saved {
            let differs = made.ids.iter().zip(&saved).take_while(|(a, b)| a == b).count();
            let show = |ids: &[u32]| ids.get(differs).map_or("the end".to_owned(), u32::to_string);
            let item = format!("token {differs} of the self-check prompt");
            return Err(Error::invalid("tokenizer.json", item, show(&saved), show(&made.ids)));
        }
        Ok(speech)
    }

    /// Names of the voices, the default one first.
    pub fn voices(&self) -> &[String] {
        &self.config.speakers
    }

    /// Makes the prompt for one chunk of text. Only the tags of [`TAGS`] become control ids.
    ///
    /// # Errors
    /// [`Error::Input`] naming the field: an unknown `voice`, a `description` that cannot be used, or an `input` with
    /// nothing to say or too long for the model's positions. [`Error::Invalid`] when the tokenizer fails.
    pub fn prompt(&self, style: &Style, text: &str) -> Result<Prompt> {
        let speaker = style.speaker(&self.config.speakers)?;
        let description = style.description()?;
        let prompt = self.frame(&head(speaker, description.as_deref()), text.trim())?;
        let positions = self.config.max_position_embeddings;
        if prompt.ids.len() + LEAST_ROOM > positions {
            let message = format!("{} tokens leave no room for speech in {positions} positions", prompt.ids.len());
            return Err(Error::input("input", format!("{message}; split the text")));
        }
        Ok(prompt)
    }

    fn frame(&self, head: &str, text: &str) -> Result<Prompt> {
        let encoded = self.tokenizer.encode(head, text)?;
        if !encoded.speakable {
            return Err(Error::input("input", "nothing to say: no letter or digit in the text"));
        }
        let mut ids = vec![self.config.bos_token_id, self.config.text_start_token_id];
        ids.extend(encoded.ids);
        ids.push(self.config.audio_start_token_id);
        Ok(Prompt { ids, dropped: encoded.dropped })
    }
}

/// What stands between `<text>` and the user's text.
fn head(speaker: &str, description: Option<&str>) -> String {
    match description {
        Some(description) => format!("{speaker}: <description=\"{description}\"> "),
        None => format!("{speaker}: "),
    }
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
