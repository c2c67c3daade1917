//! `rumik-run say`: text to a file, to stdout or to the sound card, while it is made.

mod sinks;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use super::model::{Model, ModelArgs};
use super::output::{AudioFormat, check_places, is_stdout, write_whole};
use super::text::TextArgs;
use super::{Outcome, one_line, print_json};
use crate::engine::{End, Sampling};
use crate::error::{Error, Result};
use crate::pipeline::{self, Script, Spoken};
use crate::speech::{Accent, Style, Tone};
use sinks::Sinks;
use summary::{Summary, tokens_document};

/// Options of `say`.
#[derive(Args, Clone, Debug)]
pub struct SayArgs {
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    model: ModelArgs,
    /// Voice; the model's first one if not given
    #[arg(long)]
    voice: Option<String>,
    /// happy, sad, angry, excited or professional
    #[arg(long)]
    tone: Option<Tone>,
    /// hindi, telugu, tamil, kannada, bengali, punjabi or indian-english
    #[arg(long)]
    accent: Option<Accent>,
    /// Free description of the voice, instead of tone, accent and pace
    #[arg(long, conflicts_with_all = ["tone", "accent", "pace"])]
    description: Option<String>,
    /// Seed of the sampling noise: same text, model and seed, same speech
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Sampling temperature; 0 always takes the best token
    #[arg(long, default_value_t = Sampling::default().temperature)]
    temperature: f32,
    /// Number of best tokens that are sampled from
    #[arg(long, default_value_t = Sampling::default().top_k)]
    top_k: usize,
    /// Stop after this much speech
    #[arg(long, value_name = "SECONDS")]
    max_seconds: Option<f64>,
    /// Where the speech goes: FILE.wav, FILE.pcm, or `-` for stdout
    #[arg(long, short, value_name = "FILE|-")]
    out: Option<PathBuf>,
    /// wav, or pcm (16-bit little-endian samples); by default what the name of --out says, pcm on stdout
    #[arg(long, requires = "out")]
    format: Option<AudioFormat>,
    /// Write prompt ids, token ids and frames to a JSON file
    #[arg(long, value_name = "FILE.json")]
    tokens_out: Option<PathBuf>,
    /// Print timings and counts as one JSON document on stdout
    #[arg(long)]
    json: bool,
    /// Play through the sound card
    #[cfg(feature = "speaker")]
    #[arg(long)]
    play: bool,
}

/// Speaks.
///
/// # Errors
/// Whatever keeps it from speaking; nothing is left under the final names then.
pub fn run(args: &SayArgs) -> anyhow::Result<Outcome> {
    let text = args.text.read()?;
    let format = args.check_outputs()?;
    let loading = Instant::now();
    let mut model = Model::open(&args.model)?;
    let loaded = loading.elapsed();
    let script = Script {
        text: &text,
        style: args.style(),
        preparation: args.text.options(model.chunk_seconds)?,
        sampling: Sampling { temperature: args.temperature, top_k: args.top_k },
        seed: args.seed,
        max_seconds: args.max_seconds,
    };
    let mut sinks = Sinks::open(args, format, &model, &script)?;
    let spoken = pipeline::speak(&mut *model.engine, &model.speech, &script, &mut |sound| sinks.hear(&sound))?;
    let q = model.engine.info().config.num_quantizers;
    if spoken.frames(q) == 0 {
        let found = format!("none in {} tokens", spoken.tokens());
        let advice = "the export may be damaged: make it again with rumik-export";
        return Err(Error::invalid(&model.name, "speech", "at least one frame", found).with_hint(advice).into());
    }
    let playback = sinks.finish(&spoken)?;
    warn(&model, &spoken);
    if let Some(path) = &args.tokens_out {
        write_whole(path, format!("{}\n", tokens_document(&spoken, q)).as_bytes())?;
    }
    let summary = Summary::new(&model, &spoken, loaded, args.seed, playback);
    match args.json {
        true => print_json(&summary.json())?,
        false => summary.print(),
    }
    Ok(Outcome::Done)
}

impl SayArgs {
    /// Refuses what cannot work before the model is loaded.
    fn check_outputs(&self) -> Result<Option<AudioFormat>> {
        #[cfg(feature = "speaker")]
        let heard = self.play;
        #[cfg(not(feature = "speaker"))]
        let heard = false;
        let outputs: Vec<&Path> = self.out.iter().chain(&self.tokens_out).map(PathBuf::as_path).collect();
        let model = self.model.model.as_deref().map(Path::new).filter(|path| path.is_dir());
        let inputs: Vec<&Path> = model.into_iter().chain(self.text.file()).collect();
        check_places(&outputs, &inputs)?;
        if self.tokens_out.as_deref().is_some_and(is_stdout) {
            return Err(Error::input("--tokens-out", "expected the name of a file, found `-`"));
        }
        let Some(out) = &self.out else {
            if !heard && !self.json && self.tokens_out.is_none() {
                let play = if cfg!(feature = "speaker") {
                    "or --play"
                } else {
                    "(or build with the feature speaker for --play)"
                };
                return Err(Error::input("--out", format!("say where the speech goes: --out FILE.wav {play}")));
            }
            return Ok(None);
        };
        if self.json && is_stdout(out) {
            return Err(Error::input("--json", "stdout already carries the speech; give --out a file"));
        }
        self.format.map_or_else(|| AudioFormat::of(out), Ok).map(Some)
    }

    fn style(&self) -> Style {
        Style {
            voice: self.voice.clone(),
            tone: self.tone,
            accent: self.accent,
            pace: self.text.pace,
            description: self.description.clone(),
        }
    }
}

/// Tells on stderr what the listener would otherwise only wonder about.
fn warn(model: &Model, spoken: &Spoken) {
    if let Some(notice) = model.notice {
        eprintln!("note: {notice}");
    }
    if !model.standing.is_verified() {
        eprintln!("warning: {}", one_line(&model.standing.summary()));
    }
    if !spoken.dropped.is_empty() {
        eprintln!("warning: left out of the text, as control tokens: {}", spoken.dropped.join(" "));
    }
    if spoken.utterances.iter().any(|utterance| utterance.end == End::Length) {
        eprintln!("warning: the speech was cut at its length limit");
    }
}
