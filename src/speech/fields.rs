//! The fields of a request that say how its text is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::lexicon::Lexicon;
use super::prepare::{Options, check_chunk_seconds};
use super::style::Pace;
use crate::error::{Error, Result};

/// Most entries of a lexicon that comes with a request.
pub const MOST_REQUEST_ENTRIES: usize = 1000;

/// What a request may say about the reading of its text: every option of [`Options`] under the name that JSON has for it, each
/// one optional. To be flattened into a request; the pace comes with the style.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Fields {
    /// `false` leaves numbers, dates, money and abbreviations as they are written.
    pub normalize: Option<bool>,
    /// `true` keeps Markdown and HTML marks.
    pub keep_markup: Option<bool>,
    /// Language to read everything in: `hi`, `en`, `hi-Latn`, `bn`, …
    pub language: Option<String>,
    /// Language of a text without a single word.
    pub fallback_language: Option<String>,
    /// `true` for डेढ़ करोड़, साढ़े नौ बजे.
    pub short_forms: Option<bool>,
    /// Longest chunk in seconds, 1 to 30.
    pub chunk_seconds: Option<f64>,
    /// Words and the way they are to be said.
    pub lexicon: Option<BTreeMap<String, String>>,
}

impl Fields {
    /// The options these fields ask for; what they leave open is as in `defaults`. Entries of `defaults.lexicon` stay, those of
    /// the request win.
    ///
    /// # Errors
    /// [`Error::Input`] naming the field: an unknown language, a chunk length out of range, a lexicon with too many or too long
    /// entries.
    pub fn options(&self, defaults: &Options, pace: Option<Pace>) -> Result<Options> {
        let mut options = Options { pace, ..defaults.clone() };
        options.normalize = self.normalize.unwrap_or(options.normalize);
        options.markup = self.keep_markup.map_or(options.markup, |keep| !keep);
        options.short_forms = self.short_forms.unwrap_or(options.short_forms);
        if let Some(code) = &self.language {
            options.language = Some(code.parse()?);
        }
        if let Some(code) = &self.fallback_language {
            options.fallback = code.parse()?;
        }
        if let Some(seconds) = self.chunk_seconds {
            options.chunk_seconds = check_chunk_seconds("chunk_seconds", seconds)?;
        }
        if let Some(entries) = &self.lexicon {
            options.lexicon = with_entries(options.lexicon, entries)?;
        }
        Ok(options)
    }
}

fn with_entries(mut lexicon: Lexicon, entries: &BTreeMap<String, String>) -> Result<Lexicon> {
    if entries.len() > MOST_REQUEST_ENTRIES {
        let message = format!("{} entries: at most {MOST_REQUEST_ENTRIES} are accepted", entries.len());
        return Err(Error::input("lexicon", message));
    }
    for (word, spoken) in entries {
        lexicon.insert(word, spoken).map_err(|found| Error::input("lexicon", found))?;
    }
    Ok(lexicon)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::prepare;

    fn fields(json: &str) -> Fields {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn every_option_can_be_asked_for() {
        let json = r#"{"normalize": true, "keep_markup": true, "language": "hi", "fallback_language": "ta", "short_forms": true,
            "chunk_seconds": 12.5, "lexicon": {"UPI": "यू पी आई"}, "voice": "not ours"}"#;
        let options = fields(json).options(&Options::default(), Some(Pace::Fast)).unwrap();
        assert!(!options.markup && options.short_forms && options.normalize);
        assert_eq!((options.chunk_seconds, options.pace, options.fallback.code()), (12.5, Some(Pace::Fast), "ta"));
        assert_eq!(prepare("UPI ₹1.5 करोड़ **है**", &options).chunks[0].text, "यू पी आई डेढ़ करोड़ रुपये **है**");
        let silent = Fields::default().options(&options, None).unwrap();
        assert_eq!((silent.short_forms, silent.chunk_seconds, silent.pace), (true, 12.5, None));
    }

    #[test]
    fn errors_name_the_field() {
        let entries: Vec<String> = (0..=MOST_REQUEST_ENTRIES).map(|i| format!("\"w{i}\": \"\"")).collect();
        let crowd = format!("{{\"lexicon\": {{{}}}}}", entries.join(","));
        let long = format!("{{\"lexicon\": {{\"a\": \"{}\"}}}}", "b".repeat(1000));
        for (json, start) in [
            (r#"{"language": "fr"}"#, "language: unknown"),
            (r#"{"fallback_language": "x"}"#, "language: unknown"),
            (r#"{"chunk_seconds": 31}"#, "chunk_seconds: 31: expected 1 to 30 seconds"),
            (r#"{"lexicon": {"": "x"}}"#, "lexicon: a word of 0 characters"),
            (&long, "lexicon: a spoken form of 1000 characters"),
            (&crowd, "lexicon: 1001 entries"),
        ] {
            let error = fields(json).options(&Options::default(), None).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
    }
}
