//! The tokenizer of the model, split in two: what plain text becomes, and what only the program may place.
//!
//! `tokenizers` matches every added token in any text it is given, and its switch for that covers only those flagged
//! special (huggingface/tokenizers#1347). So the text encoder here is the saved model, normalizer and pre-tokenizer
//! without the added tokens, and the added tokens are kept as a table of ids.

use std::collections::{HashMap, HashSet};

use tokenizers::{AddedToken, Tokenizer};

use super::control::{Piece, Scanner};
use super::{TAGS, is_speakable};
use crate::config::ModelConfig;
use crate::error::{Error, Result};

const PLACE: &str = "tokenizer.json";

/// Encodes text so that none of it becomes a control token.
pub struct TextTokenizer {
    plain: Tokenizer,
    scanner: Scanner,
    tags: HashMap<String, Tag>,
    control_ids: HashSet<u32>,
}

/// An allowed tag, and whether the saved tokenizer lets it swallow the white space around it.
struct Tag {
    id: u32,
    lstrip: bool,
    rstrip: bool,
}

/// What text became.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids; never a control id, except those of [`TAGS`].
    pub ids: Vec<u32>,
    /// The control strings left out, each once, in order.
    pub dropped: Vec<String>,
    /// Whether a letter, a digit or a tag is left of the user's text.
    pub speakable: bool,
}

impl TextTokenizer {
    /// Takes a parsed `tokenizer.json` apart.
    pub fn new(full: &Tokenizer, config: &ModelConfig) -> TextTokenizer {
        let added: Vec<(u32, AddedToken)> = full.get_added_tokens_decoder().into_iter().collect();
        let tags = added.iter().filter(|(_, token)| TAGS.contains(&token.content.as_str()));
        let tags: HashMap<String, Tag> = tags
            .map(|(id, token)| (token.content.clone(), Tag { id: *id, lstrip: token.lstrip, rstrip: token.rstrip }))
            .collect();
        // An added token without brackets may be an ordinary word; it stays in the text, encoded like any other word.
        let controls =
            added.iter().map(|(_, token)| token).filter(|token| token.special || token.content.starts_with('<'));
        let scanner = Scanner::new(tags.keys().cloned(), controls.map(|token| token.content.clone()));
        let mut control_ids: HashSet<u32> = added.iter().map(|(id, _)| *id).collect();
        control_ids.extend(config.first_unit_id..=config.last_unit_id);
        control_ids.extend([
            config.bos_token_id,
            config.text_start_token_id,
            config.audio_start_token_id,
            config.audio_end_token_id,
        ]);
        TextTokenizer { plain: without_added_tokens(full), scanner, tags, control_ids }
    }

    /// Encodes the program's own `head` and a user's `text` after it. In the text, tags become their ids, control strings
    /// become a space and are named in `dropped`; the head is plain throughout.
    ///
    /// For text without control strings the ids are those of the saved tokenizer, which cuts text at added tokens in the
    /// same way before it normalizes and encodes the pieces.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the tokenizer's model fails on the text.
    pub fn encode(&self, head: &str, text: &str) -> Result<Encoded> {
        let mut encoded = Encoded::default();
        let mut plain = head.to_owned();
        let mut strip_next = false;
        for piece in self.scanner.split(text) {
            match piece {
                Piece::Text(s) => {
                    plain.push_str(if strip_next { s.trim_start() } else { s });
                    encoded.speakable |= is_speakable(s);
                }
                Piece::Control(s) => {
                    encoded.drop(s);
                    let open = plain.is_empty() || plain.ends_with(char::is_whitespace);
                    plain.push_str(if open { "" } else { " " });
                }
                Piece::Tag(s) => {
                    let tag = &self.tags[s];
                    self.encode_plain(if tag.lstrip { plain.trim_end() } else { &plain }, &mut encoded)?;
                    plain.clear();
                    encoded.ids.push(tag.id);
                    encoded.speakable = true;
                    strip_next = tag.rstrip;
                    continue;
                }
            }
            strip_next = false;
        }
        self.encode_plain(&plain, &mut encoded)?;
        Ok(encoded)
    }

    fn encode_plain(&self, text: &str, encoded: &mut Encoded) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding =
            self.plain.encode(text, false).map_err(|e| Error::invalid(PLACE, "encoding of text", "token ids", e))?;
        for (id, token) in encoding.get_ids().iter().zip(encoding.get_tokens()) {
            // The model's own vocabulary may list control tokens too; merges that spell one would slip through.
            if self.control_ids.contains(id) {
                encoded.drop(token);
            } else {
                encoded.ids.push(*id);
            }
        }
        Ok(())
    }
}

impl Encoded {
    fn drop(&mut self, control: &str) {
        if !self.dropped.iter().any(|known| known == control) {
            self.dropped.push(control.to_owned());
        }
    }
}

/// The saved model, normalizer and pre-tokenizer. Truncation, padding and the post-processor have no place in a prompt.
fn without_added_tokens(full: &Tokenizer) -> Tokenizer {
    let mut plain = Tokenizer::new(full.get_model().clone());
    plain.with_pre_tokenizer(full.get_pre_tokenizer().cloned());
    // With no added tokens there is nothing that a new normalizer could invalidate.
    let _ = plain.with_normalizer(full.get_normalizer().cloned());
    plain
}

/// Parses `tokenizer.json`.
///
/// # Errors
/// [`Error::Invalid`] with the parser's message.
pub fn parse(json: &[u8]) -> Result<Tokenizer> {
    Tokenizer::from_bytes(json).map_err(|e| Error::invalid(PLACE, "content", "a saved tokenizer", e))
}

/// Encodes a whole prompt with the saved tokenizer and compares its frame with `config.json`.
///
/// Every failure found here would otherwise be silent bad speech.
///
/// # Errors
/// [`Error::Invalid`] naming the token that is not the single id that `config.json` declares.
pub fn check_frame(full: &Tokenizer, config: &ModelConfig, body: &str) -> Result<Vec<u32>> {
    let prompt = format!("<text>{body}<audio>");
    let encoding = full.encode(prompt, true).map_err(|e| Error::invalid(PLACE, "self-check prompt", "token ids", e))?;
    let ids = encoding.get_ids();
    let hint = "use tokenizer.json and config.json of one checkpoint, as saved";
    let expected = [
        ("first token of a prompt (BOS)", config.bos_token_id, ids.first()),
        ("second token of a prompt (<text>)", config.text_start_token_id, ids.get(1)),
        ("last token of a prompt (<audio>)", config.audio_start_token_id, ids.last()),
    ];
    for (item, id, found) in expected {
        if found != Some(&id) {
            let found = found.map_or("nothing".to_owned(), u32::to_string);
            return Err(Error::invalid(PLACE, item, format!("{id} as in config.json"), found).with_hint(hint));
        }
    }
    Ok(ids.to_vec())
}
