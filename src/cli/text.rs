//! Where the text comes from and how it is read, and `rumik-run text`, which shows what would be said.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Outcome, print_json};
use crate::error::{Error, Result};
use crate::speech::{self, Lang, Lexicon, Options, Pace};

/// Longest text read from a file or stdin; hours of speech.
const LONGEST_TEXT_BYTES: u64 = 1 << 20;
/// Longest lexicon accepted.
const LONGEST_LEXICON_BYTES: u64 = 16 << 20;

/// Options of every command that takes a text.
#[derive(Args, Clone, Debug)]
pub struct TextArgs {
    /// The text; `-` reads it from stdin
    #[arg(required_unless_present = "file", allow_hyphen_values = true)]
    text: Option<String>,
    /// Read the text from a file
    #[arg(long, conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Leave numbers, dates, money and abbreviations as they are written
    #[arg(long)]
    no_normalize: bool,
    /// Keep Markdown and HTML marks
    #[arg(long)]
    keep_markup: bool,
    /// File of lines `word → spoken`, applied before everything else
    #[arg(long, value_name = "FILE")]
    lexicon: Option<PathBuf>,
    /// Read numbers in this language (hi, en, bn, …); by default each sentence is read in its own
    #[arg(long)]
    language: Option<Lang>,
    /// Language of a text without a single word, such as `₹500`
    #[arg(long, value_name = "LANGUAGE", default_value_t = Options::default().fallback)]
    fallback_language: Lang,
    /// Hindi short forms of halves and quarters: डेढ़ करोड़, साढ़े नौ बजे
    #[arg(long)]
    short_forms: bool,
    /// Longest piece that is spoken at once, in seconds, 1 to 30; by default 25, or less if the model asks for it
    #[arg(long, value_name = "SECONDS")]
    chunk_seconds: Option<f64>,
    /// slow, steady or fast
    #[arg(long)]
    pub(super) pace: Option<Pace>,
}

impl TextArgs {
    /// The text, wherever it is.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] for more than 1 MiB; [`Error::Invalid`] for bytes that are not UTF-8.
    pub fn read(&self) -> Result<String> {
        let (source, name): (Box<dyn Read>, &Path) = match (&self.file, self.text.as_deref()) {
            (Some(path), _) => (Box::new(std::fs::File::open(path).map_err(Error::io("open", path))?), path),
            (None, Some("-")) => (Box::new(std::io::stdin()), Path::new("stdin")),
            (None, text) => return Ok(text.unwrap_or_default().to_owned()),
        };
        read_utf8(source, name, "text", LONGEST_TEXT_BYTES)
    }

    /// The file the text is read from.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// How the text is prepared; `chunk_seconds` is the model's own limit, for want of one from the user.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] for the lexicon, [`Error::Input`] for a chunk length out of range.
    pub fn options(&self, chunk_seconds: f64) -> Result<Options> {
        Ok(Options {
            normalize: !self.no_normalize,
            markup: !self.keep_markup,
            language: self.language,
            fallback: self.fallback_language,
            short_forms: self.short_forms,
            lexicon: self.lexicon.as_deref().map(read_lexicon).transpose()?.unwrap_or_default(),
            chunk_seconds: speech::check_chunk_seconds("--chunk-seconds", self.chunk_seconds.unwrap_or(chunk_seconds))?,
            pace: self.pace,
        })
    }
}

/// Reads a lexicon file.
///
/// # Errors
/// [`Error::Io`]; [`Error::Input`] for more than 16 MiB; [`Error::Invalid`] naming the line.
pub(super) fn read_lexicon(path: &Path) -> Result<Lexicon> {
    let file = std::fs::File::open(path).map_err(Error::io("open", path))?;
    let text = read_utf8(Box::new(file), path, "lexicon", LONGEST_LEXICON_BYTES)?;
    Lexicon::parse(&path.display().to_string(), &text)
}

/// Reads a text of so many bytes at most, whatever the source would give: a device never ends.
fn read_utf8(source: Box<dyn Read>, name: &Path, parameter: &'static str, most: u64) -> Result<String> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(Error::io("read", name))?;
    if bytes.len() as u64 > most {
        return Err(Error::input(parameter, format!("{} is longer than {most} bytes; split it", name.display())));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Error::invalid(name.display(), format!("byte {at}"), "UTF-8 text", "another encoding")
    })
}

/// Options of `text`.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    #[command(flatten)]
    text: TextArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Shows the chunks of a text, their estimated seconds and every rewrite with its rule.
///
/// # Errors
/// As [`TextArgs::read`] and [`TextArgs::options`].
pub fn run(args: &ShowArgs) -> anyhow::Result<Outcome> {
    let prepared = speech::prepare(&args.text.read()?, &args.text.options(speech::DEFAULT_CHUNK_SECONDS)?);
    match args.json {
        true => print_json(&prepared)?,
        false => super::print(&prepared)?,
    }
    Ok(Outcome::Done)
}
