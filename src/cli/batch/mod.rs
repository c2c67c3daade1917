//! `rumik-run batch`: many lines to files, resumable, the same result whatever the sharding.
//!
//! ```text
//! IN.jsonl ──line──▶ checked lines ──digest──▶ file names ──speak, all slots──▶ DIR/NAME.wav ──▶ DIR/manifest.jsonl
//! ```
//!
//! A file's name holds a digest of everything that decides its samples, so a file that is there needs no second look: the same
//! line is never spoken twice and a changed line is always spoken anew. `docs/batch.md` has the formats.

mod digest;
mod folder;
mod line;
mod speak;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::model::{Model, ModelArgs};
use super::text::read_lexicon;
use super::{Outcome, Progress, Units, print_json};
use crate::error::{Error, Result};
use crate::speech::{self, Lexicon};
use folder::{Folder, Row, Status};
use line::{Batch, Job};
use speak::Studio;

/// Refused lines that are told one by one; the manifest has all of them.
const REFUSALS_TOLD: usize = 20;

/// Options of `batch`.
#[derive(Args, Clone, Debug)]
pub struct BatchArgs {
    /// One JSON object a line: input, and if wanted id, voice, tone, accent, pace, instructions, seed, temperature, top_k,
    /// max_seconds, normalize, language
    #[arg(value_name = "IN.jsonl")]
    input: PathBuf,
    /// Folder for the WAV files and the manifest
    #[arg(long, short, value_name = "DIR")]
    out: PathBuf,
    /// Speak only every N-th line, beginning with line I, counted from 0
    #[arg(long, value_name = "I/N", default_value = "0/1")]
    shard: Shard,
    /// Lines spoken at once; 4 on the processor and 16 on a GPU if not given
    #[arg(long)]
    slots: Option<usize>,
    /// File of lines `word → spoken`, applied before everything else
    #[arg(long, value_name = "FILE")]
    lexicon: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    /// Print counts and times as one JSON document on stdout
    #[arg(long)]
    json: bool,
}

/// Part `index` of `count`: the lines whose number modulo `count` is `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Shard> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, count)) if index < count => Ok(Shard { index, count }),
            _ => Err(Error::input("--shard", format!("found {text:?}, expected I/N with I from 0 to N - 1"))),
        }
    }
}

/// Speaks the lines of this shard that are not spoken yet, then writes its manifest.
///
/// # Errors
/// Whatever keeps it from going on. What was finished until then is kept, and the next run begins there.
pub fn run(args: &BatchArgs) -> anyhow::Result<Outcome> {
    let lines = std::fs::read(&args.input).map_err(Error::io("read", &args.input))?;
    let lexicon = args.lexicon.as_deref().map(read_lexicon).transpose()?.unwrap_or_default();
    let mut model = Model::open_with(&args.model, args.slots)?;
    if model.engine.info().sample_rate_hz == 0 {
        return Err(
            Error::input("--model", "this export has no codec (--no-codec); export again with the codec").into()
        );
    }
    let batch = Batch::read(&lines, args.shard, &model, preparation(&model, lexicon));
    if batch.lines == 0 {
        let place = args.input.display();
        return Err(Error::invalid(place, "content", "one JSON object a line", "no line with anything in it").into());
    }
    tell_refusals(&args.input, &batch.refused);
    if let Some(notice) = model.notice {
        eprintln!("note: {notice}");
    }
    if !model.standing.is_verified() {
        eprintln!("warning: {}", model.standing.summary());
    }
    let mut folder = Folder::open(&args.out, args.shard)?;
    let summary = speak(args, &mut model, &batch, &mut folder)?;
    match args.json {
        true => print_json(&summary)?,
        false => summary.print(),
    }
    Ok(if summary.refused > 0 { Outcome::Failed } else { Outcome::Done })
}

fn preparation(model: &Model, lexicon: Lexicon) -> speech::Options {
    speech::Options { chunk_seconds: model.chunk_seconds, lexicon, ..speech::Options::default() }
}

fn tell_refusals(input: &Path, refused: &[Row]) {
    for row in refused.iter().take(REFUSALS_TOLD) {
        if let Status::Refused { error } = &row.status {
            eprintln!("warning: {}:{}: {error}", input.display(), row.line);
        }
    }
    if refused.len() > REFUSALS_TOLD {
        eprintln!("warning: and {} more lines, see the manifest", refused.len() - REFUSALS_TOLD);
    }
}

/// Speaks what is missing and writes the manifest.
fn speak(args: &BatchArgs, model: &mut Model, batch: &Batch, folder: &mut Folder) -> anyhow::Result<Summary> {
    let missing = missing(batch, folder);
    let progress = Progress::new("speaking", missing.len() as u64, Units::Items);
    let started = Instant::now();
    let mut failed = Vec::new();
    let mut seconds_of_speech = 0.0;
    Studio { model, batch, folder }.speak(&missing, &mut |job, result| {
        progress.add(1);
        match result {
            Ok(facts) => seconds_of_speech += facts.speech.seconds,
            Err(error) => failed.push(job.row(Status::Refused { error })),
        }
    })?;
    progress.finish();
    tell_refusals(&args.input, &failed);
    let spoken = missing.len() - failed.len();
    let refused = batch.refused.len() + failed.len();
    let done = batch.jobs.iter().filter_map(|job| Some(job.row(Status::Done(folder.facts(&job.file)?.clone()))));
    let mut rows: Vec<Row> = batch.refused.iter().cloned().chain(failed).chain(done).collect();
    rows.sort_by_key(|row| row.line);
    Ok(Summary {
        manifest: folder.write_manifest(&rows)?,
        backend: model.engine.info().backend.clone(),
        lines: rows.len(),
        spoken,
        kept: rows.len() - refused - spoken,
        refused,
        seconds_of_speech,
        wall_seconds: started.elapsed().as_secs_f64(),
    })
}

/// The jobs whose file is not there yet, each file once.
fn missing<'b>(batch: &'b Batch, folder: &Folder) -> Vec<&'b Job> {
    let mut wanted = std::collections::HashSet::new();
    batch.jobs.iter().filter(|job| folder.facts(&job.file).is_none() && wanted.insert(&job.file)).collect()
}

/// What a run did.
#[derive(Debug, Serialize)]
struct Summary {
    backend: String,
    /// Lines of this shard.
    lines: usize,
    /// Files made in this run.
    spoken: usize,
    /// Lines whose file was there already, or is another line's.
    kept: usize,
    /// Lines that cannot be spoken as they are.
    refused: usize,
    /// Speech made in this run.
    seconds_of_speech: f64,
    wall_seconds: f64,
    manifest: PathBuf,
}

impl Summary {
    fn print(&self) {
        let wall = Duration::from_secs_f64(self.wall_seconds);
        eprintln!(
            "{} lines: {} spoken, {} there already, {} refused; {:.1} s of speech in {:.1} s ({:.1} times real time), {}; {}",
            self.lines,
            self.spoken,
            self.kept,
            self.refused,
            self.seconds_of_speech,
            wall.as_secs_f64(),
            self.seconds_of_speech / self.wall_seconds.max(1e-9),
            self.backend,
            self.manifest.display(),
        );
    }
}
