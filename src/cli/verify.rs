//! `rumik-verify EXPORT` and `rumik-verify reference`: the release gate.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use sha2::{Digest, Sha256};

use super::model::{self, ModelArgs};
use super::output::{check_place, write_whole};
use super::{Outcome, Progress, Units, print_json};
use crate::checkpoint::{Checkpoint, Located, SourceRequest, locate};
use crate::config::DEFAULT_MAX_NEW_TOKENS;
use crate::error::{Error, Result};
use crate::format::{Export, Files, Paths};
use crate::pass::REFERENCE_FILE;
use crate::reference::{self, Device, Precision, Reference};
use crate::tensors::Bytes;
use crate::tensors::write::hex;
use crate::verify::asr::{DEFAULT_REPO, Whisper};
use crate::verify::audio::Pair;
use crate::verify::check::{Checked, Plan, SLOTS, Subject, check};
use crate::verify::html::{Heard, Report, Speed, page};
use crate::verify::limits::Limits;
use crate::verify::prompts::{Bundled, PromptSet};
use crate::verify::record::{self, Document, Mode, RECORD_FILE, Record};
use crate::verify::reference::{Job, ReferenceFile, make};

/// Where the original is, and how it is run.
#[derive(Args, Clone, Debug)]
pub struct OriginalArgs {
    /// Commit, tag or branch of the source's repository
    #[arg(long, value_name = "REV")]
    revision: Option<String>,
    /// Use no network
    #[arg(long)]
    offline: bool,
    /// Where the original runs: auto, cpu, cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    reference_device: String,
    /// Hold one layer of the original at a time: 4 GB of memory are enough then
    #[arg(long)]
    stream_layers: bool,
    /// Prompts: model, or demo in the few words that the demonstration model knows
    #[arg(long, value_name = "SET", default_value = "model")]
    prompts: Bundled,
    /// Cut the original's speech after so many tokens
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_NEW_TOKENS as u32,
          value_parser = clap::value_parser!(u32).range(1..))]
    max_new_tokens: u32,
    /// Fewer prompts, every check
    #[arg(long)]
    quick: bool,
}

/// Options of `rumik-verify EXPORT`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Export folder
    export: Option<PathBuf>,
    /// Reference file of the original; by default the one that the export carries
    #[arg(long, value_name = "FILE", conflicts_with = "source")]
    reference: Option<PathBuf>,
    /// The original itself: folder or Hub repository. Its weights are compared too, and a reference is made first
    #[arg(long, value_name = "DIR|REPO")]
    source: Option<String>,
    #[command(flatten)]
    original: OriginalArgs,
    /// Where the engine runs: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: model::Device,
    /// Processor threads of the engine; all cores if not given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Replace a limit; the record then says that its limits are custom
    #[arg(long, value_name = "NAME=NUMBER")]
    limit: Vec<String>,
    /// Let Whisper write down both models' speech, and hold the error rates against each other; the model is a folder in
    /// the Hub's layout or a repository of the Hub
    #[arg(long, value_name = "DIR|REPO", num_args = 0..=1, default_missing_value = DEFAULT_REPO)]
    asr: Option<String>,
    /// Write a page to look at and listen to
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print the record as one JSON document
    #[arg(long)]
    json: bool,
}

/// Options of `rumik-verify reference`.
#[derive(Args, Clone, Debug)]
pub struct ReferenceArgs {
    /// The original: folder or Hub repository [default: rumik-ai/rumik-oss-1, pinned]
    source: Option<String>,
    /// File to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Leave the speech out: a smaller file, without which the audio checks decode it again
    #[arg(long)]
    no_pcm: bool,
    #[command(flatten)]
    original: OriginalArgs,
}

/// Verifies an export, writes `verify.json` into it and prints the verdict.
///
/// # Errors
/// Whatever keeps the verdict from being reached.
pub fn run(args: &CheckArgs) -> anyhow::Result<Outcome> {
    let Some(folder) = &args.export else {
        anyhow::bail!("EXPORT: nothing given; give an export folder, or a command (see --help)");
    };
    args.report.iter().try_for_each(|file| check_place(file))?;
    let mut limits = Limits::default();
    args.limit.iter().try_for_each(|assignment| limits.set(assignment))?;
    let device = reference::device(&args.original.reference_device)?;
    let paths = Paths::find(folder, folder)?;
    let files = Files::at(&paths)?;
    let export = Export::from_files(files.clone())?;
    let (reference, source) = args.reference(folder, &device)?;

    let engine_args = ModelArgs {
        model: None,
        revision: String::new(),
        offline: true,
        device: args.device,
        threads: args.threads,
        phase_head: false,
    };
    let mut engine = model::engine(export.clone(), &engine_args, Some(SLOTS))?;
    let mode = if args.original.quick { Mode::Quick } else { Mode::Full };
    let cache = cache_folder()?;
    let cache = Some(cache.as_path());
    let plan = Plan { reference: &reference, source: source.as_ref(), device: &device, mode, limits: &limits, cache };
    let mut recogniser = args.asr.as_deref().map(|place| Whisper::load(place, args.original.offline)).transpose()?;
    let recogniser = recogniser.as_mut();
    let subject = Subject { paths: &paths, files: &files, export: &export, engine: &mut *engine, recogniser };
    let mut bars = Bars::default();
    let checked = check(subject, &plan, &mut |label, done, total| bars.show(label, done, total));
    bars.finish();
    let Checked { record, pairs, resumed, journal } = checked?;
    if resumed > 0 {
        eprintln!("note: {resumed} parts had been done by a run that was stopped");
    }
    match args.json {
        true => print_json(&record)?,
        false => print_table(&record)?,
    }
    save(&paths, &record)?;
    journal.finish();
    if let Some(file) = &args.report {
        write_whole(file, report(&record, &pairs, engine.info().sample_rate_hz, &bars.took).as_bytes())?;
    }
    Ok(if record.verdict == record::Outcome::Pass { Outcome::Done } else { Outcome::Failed })
}

impl CheckArgs {
    /// The reference to hold the export against: a file, the one that the export carries, or one made of the source now.
    fn reference(&self, folder: &Path, device: &Device) -> Result<(ReferenceFile, Option<Checkpoint>)> {
        let carried = folder.join(REFERENCE_FILE);
        match (&self.reference, &self.source) {
            (Some(file), _) => Ok((ReferenceFile::open(file)?, None)),
            (None, Some(source)) => {
                let (checkpoint, job) = self.original.job(Some(source), true)?;
                let file = cached(&checkpoint, &job)?;
                // One that is not there, or damaged, is made.
                let reference = ReferenceFile::open(&file).or_else(|_| {
                    self.original.make(&checkpoint, &job, device, &file)?;
                    ReferenceFile::open(&file)
                })?;
                Ok((reference, Some(checkpoint)))
            }
            (None, None) if carried.exists() => Ok((ReferenceFile::open(&carried)?, None)),
            (None, None) => Err(Error::input(
                "--reference",
                "nothing given, and the export carries none; give --reference FILE, or --source with the original",
            )),
        }
    }
}

impl OriginalArgs {
    fn job(&self, source: Option<&String>, pcm: bool) -> Result<(Checkpoint, Job)> {
        let request = SourceRequest {
            source: source.cloned(),
            revision: self.revision.clone(),
            name: None,
            offline: self.offline,
            codec: true,
        };
        let located: Located = locate(&request)?;
        let checkpoint = Checkpoint::open(&located.folder)?;
        let prompts = PromptSet::bundled(self.prompts)?;
        let most = (self.max_new_tokens as usize).min(checkpoint.config.max_position_embeddings / 2);
        Ok((checkpoint, Job { located, prompts, quick: self.quick, max_new_tokens: most, pcm }))
    }

    fn make(&self, checkpoint: &Checkpoint, job: &Job, device: &Device, out: &Path) -> Result<()> {
        let tensors = checkpoint.clone();
        let weights = move |name: &str| tensors.get(name).cloned();
        let config = &checkpoint.config;
        let model = match self.stream_layers {
            true => Reference::streamed(config, weights, Precision::Bf16, device)?,
            false => Reference::load(config, weights, Precision::Bf16, device)?,
        };
        let mut bars = Bars::default();
        let made = make(checkpoint, &model, job, out, &mut |done, total| bars.show("the original speaks", done, total));
        bars.finish();
        made
    }
}

/// Makes a reference file.
///
/// # Errors
/// Whatever keeps it from being made; nothing is left under its name then, and the next run goes on where this one was.
pub fn run_reference(args: &ReferenceArgs) -> anyhow::Result<Outcome> {
    let device = reference::device(&args.original.reference_device)?;
    let (checkpoint, job) = args.original.job(args.source.as_ref(), !args.no_pcm)?;
    args.original.make(&checkpoint, &job, &device, &args.out)?;
    let file = ReferenceFile::open(&args.out)?;
    let steps: usize = file.items.iter().map(|item| item.tokens.len()).sum();
    let bytes = Bytes::map(&args.out)?.len();
    eprintln!("{}: {} prompts, {steps} steps, {bytes} bytes", args.out.display(), file.items.len());
    Ok(Outcome::Done)
}

/// Where a reference made on the way is kept: the same original, prompts and options are not run twice.
fn cached(checkpoint: &Checkpoint, job: &Job) -> Result<PathBuf> {
    let facts = crate::verify::reference::facts(checkpoint, job)?;
    let key = hex(&Sha256::digest(serde_json::to_string(&facts).unwrap_or_default()));
    Ok(cache_folder()?.join(format!("reference-{}.safetensors", &key[..16])))
}

/// The folder for what a later run can use, made if need be.
fn cache_folder() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let folder = folder.unwrap_or_else(std::env::temp_dir).join("rumik");
    std::fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
    Ok(folder)
}

/// Writes the record into the export, beside that of another kind of backend if it is of the same files.
fn save(paths: &Paths, record: &Record) -> Result<()> {
    let file = paths.folder.join(RECORD_FILE);
    let place = file.display().to_string();
    let known = Bytes::map(&file).and_then(|json| Document::parse(&place, &json)).map(|document| document.records);
    let others = known
        .unwrap_or_default()
        .into_iter()
        .filter(|other| other.engine.backend != record.engine.backend && other.export.files == record.export.files);
    let document = Document::new(others.chain([record.clone()]).collect());
    write_whole(&file, &document.to_json()?)
}

/// The page of a run.
fn report<'a>(record: &Record, pairs: &'a [Pair], sample_rate_hz: usize, took: &[(&'static str, Duration)]) -> String {
    let heard = |pair: &'a Pair| Heard {
        id: &pair.id,
        reference: &pair.reference.pcm,
        engine: &pair.engine.pcm,
        sample_rate_hz,
    };
    let takes: Vec<Heard> = pairs.iter().map(heard).collect();
    let speaking = Speed {
        what: "int4 engine, one prompt at a time".to_owned(),
        speech_s: record.speech.as_ref().map_or(0.0, |speech| speech.engine.seconds),
        wall_s: pairs.iter().map(|pair| pair.took.as_secs_f64()).sum(),
    };
    let part = |(what, took): &(&'static str, Duration)| Speed {
        what: format!("check: {what}"),
        speech_s: 0.0,
        wall_s: took.as_secs_f64(),
    };
    let speeds: Vec<Speed> = std::iter::once(speaking).chain(took.iter().map(part)).collect();
    page(&Report { record, takes: &takes, speeds: &speeds })
}

fn print_table(record: &Record) -> anyhow::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let engine = &record.engine;
    writeln!(out, "engine     {} ({}), {}", engine.description, engine.version, engine.device)?;
    writeln!(out, "reference  {}, prompts {}", record.reference.source.name, record.reference.prompts)?;
    writeln!(out)?;
    writeln!(out, "codebook   steps  entropy  mean KL  p99 KL   top-1   top-5  draws differ")?;
    let overall = record.quality.codebooks.iter().enumerate().map(|(q, figures)| (q.to_string(), figures));
    for (name, f) in overall.chain([("all".to_owned(), &record.quality.overall)]) {
        let (top1, top5, draws) = (100.0 * f.top1, 100.0 * f.top5, 100.0 * f.draw_distance);
        writeln!(
            out,
            "{name:8} {:7} {:8.3} {:8.4} {:7.3} {top1:6.1}% {top5:6.1}% {draws:12.1}%",
            f.steps, f.entropy, f.mean_kl, f.p99_kl
        )?;
    }
    writeln!(out, "\n{}", record.table())?;
    Ok(())
}

/// One bar after another, and how long each of them was there.
#[derive(Default)]
struct Bars {
    current: Option<(&'static str, Progress, Instant)>,
    took: Vec<(&'static str, Duration)>,
}

impl Bars {
    fn show(&mut self, label: &'static str, done: usize, total: usize) {
        if self.current.as_ref().is_none_or(|(current, ..)| *current != label) {
            self.finish();
            self.current = Some((label, Progress::new(label, total as u64, Units::Items), Instant::now()));
        }
        if let Some((_, bar, _)) = &self.current {
            bar.set(done as u64);
        }
    }

    fn finish(&mut self) {
        if let Some((label, bar, since)) = self.current.take() {
            bar.finish();
            self.took.push((label, since.elapsed()));
        }
    }
}
