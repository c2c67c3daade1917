//! The gate: every check on one export, in order, and the record of it.

use std::path::Path;

use super::asr::Whisper;
use super::audio::Pair;
use super::behaviour::Trial;
use super::journal::Journal;
use super::limits::{Limits, kind_of};
use super::record::{EngineFacts, ExportFacts, LimitKind, MatrixFigure, Mode, Outcome, Record, ReferenceFacts};
use super::reference::{Item, ReferenceFile};
use super::{Comparison, Verdict, differing, kernels, listen, parity, quality, weights};
use crate::checkpoint::Checkpoint;
use crate::config::{MIN_NEW_TOKENS, ModelConfig};
use crate::engine::{Backend, Engine};
use crate::error::Result;
use crate::format::{Encoding, Export, FileDigest, Files, Paths, Report};
use crate::pass::{Digests, ENGINE_SOURCES};
use crate::reference::Device;
use crate::speech::Speech;
use crate::tensors::write::Digested;

/// Slots that the engine needs, so that sequences can be compared alone and in company.
pub const SLOTS: usize = 3;
/// Longest sequence of a quick run; a sliding window is crossed only when it is shorter.
const QUICK_POSITIONS: usize = 1024;
/// Tokens of a sequence that is compared position by position.
const LONGEST: usize = 256;
/// Positions compared on both sides of the point where the window begins to slide.
const AROUND_WINDOW: usize = 24;

/// Digest of the sources of gate and reference, which decide what is measured.
const GATE_SOURCES: &str = env!("RUMIK_GATE_SOURCES");

/// What is verified.
pub struct Subject<'a> {
    /// Where its files are.
    pub paths: &'a Paths,
    /// Its files.
    pub files: &'a Files,
    /// The same, read.
    pub export: &'a Export,
    /// The engine that is to serve it, with [`SLOTS`] slots.
    pub engine: &'a mut dyn Engine,
    /// Who writes down what both models say; without it the error rates are left out.
    pub recogniser: Option<&'a mut Whisper>,
}

/// Against what, and how strictly.
pub struct Plan<'a> {
    /// What the original says.
    pub reference: &'a ReferenceFile,
    /// The original's weights, where they are at hand.
    pub source: Option<&'a Checkpoint>,
    /// Where candle runs.
    pub device: &'a Device,
    /// How much is run.
    pub mode: Mode,
    /// The limits.
    pub limits: &'a Limits,
    /// Folder to keep finished parts in, for a run that is stopped.
    pub cache: Option<&'a Path>,
}

/// What a run gives.
pub struct Checked {
    /// The record.
    pub record: Record,
    /// Both models' speech, for a report.
    pub pairs: Vec<Pair>,
    /// Parts that an earlier run, which was stopped, had done.
    pub resumed: usize,
    /// What was kept of this run; to be finished once the record is safe.
    pub journal: Journal,
}

/// Told what is being done, how much of it is done, and how much there is.
pub type Progress<'a> = &'a mut dyn FnMut(&'static str, usize, usize);

/// Runs every check. A run that was stopped goes on: sequences and prompts that it had finished are not run again.
///
/// # Errors
/// [`crate::Error::Invalid`] when reference and export do not belong together, before anything is measured; errors of
/// files, engine and candle. A figure that is bad is no error: it fails its comparison.
pub fn check(subject: Subject<'_>, plan: &Plan<'_>, progress: Progress<'_>) -> Result<Checked> {
    let Subject { paths, files, export, engine, recogniser } = subject;
    let (reference, limits) = (plan.reference, plan.limits);
    let report = files.report.as_ref().map(|json| Report::parse(&files.name, json)).transpose()?;
    reference.check_fits(&export.config, report.as_ref())?;
    let items = reference.items_of(plan.mode == Mode::Quick)?;
    let mut verdict = Verdict::default();

    let digests = file_digests(paths, progress)?;
    judge_files(&digests, report.as_ref(), export, &items, &mut verdict, limits)?;
    let journal = match plan.cache {
        Some(cache) => Journal::open(cache, &about(engine, &digests, plan))?,
        None => Journal::none(),
    };
    if let Some(source) = plan.source {
        progress("weights", 0, 1);
        weights::judge(export, &files.weights, source, &mut verdict, limits)?;
    }

    progress("kernels", 0, 1);
    let kernels = judge_kernels(engine, &mut verdict, limits)?;

    let model = parity::dequantized_model(export, &files.weights, plan.device)?;
    let sequences = sequences(&items, plan.mode, &export.config);
    let positions: usize = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    let (mut done, all) = (0, positions * export.config.num_layers());
    let parity = parity::judge(engine, &model, &sequences, &journal, (&mut verdict, limits), &mut |count| {
        done += count;
        progress("engine against candle", done, all);
    })?;
    drop(model);
    let trial = trial(&items, plan.mode);
    progress("choices", 0, 2);
    let judged = trial.judge_choices(engine, &mut verdict, limits);
    progress("choices", 1, 2);
    let judged = judged.and_then(|()| trial.judge_slots(engine, &mut verdict, limits));
    fail_or_stop(judged, "engine.choice_ends", &mut verdict, limits)?;

    let steps: usize = items.iter().map(|item| item.tokens.len()).sum();
    let mut done = 0;
    let quality = quality::judge(engine, (reference, &items), &journal, (&mut verdict, limits), &mut |count| {
        done += count;
        progress("engine against the original", done, steps);
    })?;

    let judged = listen::judge(
        (engine, export),
        (reference, &items),
        recogniser,
        &journal,
        (&mut verdict, limits),
        &mut |label, done| progress(label, done, items.len()),
    );
    let (speech, pairs) = fail_or_stop(judged, "audio.prompts_missing", &mut verdict, limits)?.unzip();
    let pairs = pairs.unwrap_or_default();

    let kl_error = verdict.measured("reference.kl_error");
    let record = Record {
        verdict: Outcome::Fail, // until it is sealed
        mode: plan.mode,
        limits: kind_of(&verdict.comparisons).unwrap_or(LimitKind::Custom),
        export: ExportFacts { files: digests, matrices: report.as_ref().map(matrices).unwrap_or_default() },
        engine: engine_facts(engine),
        reference: ReferenceFacts {
            source: reference.facts.source.clone(),
            prompts: reference.facts.prompts.name.clone(),
            sha256: reference.sha256.clone(),
            sampling: reference.facts.sampling,
            kl_error,
        },
        comparisons: verdict.comparisons,
        kernels,
        parity,
        quality,
        speech,
        digest: String::new(),
    };
    Ok(Checked { record: record.seal()?, pairs, resumed: journal.taken(), journal })
}

/// Everything that the measured figures depend on. Limits are not among it: what is kept was not judged.
fn about(engine: &dyn Engine, digests: &[FileDigest], plan: &Plan) -> serde_json::Value {
    serde_json::json!({
        "gate": GATE_SOURCES,
        "engine": engine_facts(engine),
        "files": digests,
        "reference": plan.reference.sha256,
        "mode": plan.mode,
        "candle": format!("{:?}", plan.device.location()),
    })
}

/// An engine that refuses to speak after a check has failed is another failure (it refuses logits that are not finite);
/// one that refuses although all is well could not be judged.
fn fail_or_stop<T>(judged: Result<T>, name: &str, verdict: &mut Verdict, limits: &Limits) -> Result<Option<T>> {
    match judged {
        Err(error) if verdict.failures().next().is_some() => {
            verdict.measure(name, limits.of(name), f64::NAN, || error.to_string());
            Ok(None)
        }
        other => other.map(Some),
    }
}

fn file_digests(paths: &Paths, progress: Progress) -> Result<Vec<FileDigest>> {
    let (named, mut digests) = (paths.named(), Digests::of_user());
    let total = named.len();
    let digest = |(index, (name, path)): (usize, (String, &Path))| {
        progress("hashing", index, total);
        Ok(FileDigest { name, content: digests.of(path)? })
    };
    named.into_iter().enumerate().map(digest).collect()
}

/// The weights are those of the report, and the tokenizer makes the ids that the original was given.
fn judge_files(
    digests: &[FileDigest],
    report: Option<&Report>,
    export: &Export,
    items: &[&Item],
    verdict: &mut Verdict,
    limits: &Limits,
) -> Result<()> {
    if let (Some(report), Some(weights)) = (report, digests.first()) {
        judge_report(&weights.content, report, verdict, limits);
    }
    let speech = Speech::load(&export.config, &export.tokenizer)?;
    for item in items {
        // A prompt that cannot be built at all is one that differs throughout.
        let ids = item.prompt.ids(&speech).unwrap_or_default();
        let (count, _) = differing(&ids, &item.ids);
        verdict.measure("files.prompt_ids", limits.of("files.prompt_ids"), count, || item.prompt.id.clone());
    }
    Ok(())
}

/// Known answers of every kernel that this backend has: one comparison for the verdict, all of them for the record.
fn judge_kernels(engine: &dyn Engine, verdict: &mut Verdict, limits: &Limits) -> Result<Vec<Comparison>> {
    let info = engine.info();
    let backend = match info.kind {
        Backend::Cpu => kernels::Backend::Cpu,
        Backend::Cuda => kernels::Backend::Cuda(ordinal(&info.backend)),
    };
    let tests = kernels::run(backend)?;
    let failed: Vec<&str> = tests.failures().map(|test| test.name.as_str()).collect();
    // A run without a test has no failures either, and is none.
    let count = if tests.comparisons.is_empty() { f64::NAN } else { failed.len() as f64 };
    let all = format!("{} known answers", tests.comparisons.len());
    let note = || if failed.is_empty() { all } else { failed.join(", ") };
    verdict.measure("kernels.failed", limits.of("kernels.failed"), count, note);
    Ok(tests.comparisons)
}

/// The number of the GPU in an engine's description, `cuda:1 (NVIDIA L4)`.
fn ordinal(description: &str) -> usize {
    let number = description.strip_prefix("cuda:").unwrap_or_default();
    number.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether the weights are those that `export.json` was written for.
pub fn judge_report(weights: &Digested, report: &Report, verdict: &mut Verdict, limits: &Limits) {
    let different = f64::from(u8::from(report.output.content != *weights));
    let limit = limits.of("files.report_mismatches");
    verdict.measure("files.report_mismatches", limit, different, || "weights are not those of export.json".into());
}

/// The shortest prompts with all that the original says to them, to its end, and one sequence longer than the window.
pub fn sequences(items: &[&Item], mode: Mode, config: &ModelConfig) -> Vec<parity::Sequence> {
    let count = if mode == Mode::Quick { 4 } else { 12 };
    let whole = |item: &Item| [&item.ids[..], &item.tokens[..LONGEST.min(item.tokens.len())]].concat();
    let mut sequences: Vec<parity::Sequence> = shortest(items, count)
        .map(|item| parity::Sequence { name: item.prompt.id.clone(), ids: whole(item), from: 0 })
        .collect();
    let length = config.sliding_window + AROUND_WINDOW;
    if length <= config.max_position_embeddings && (mode == Mode::Full || length <= QUICK_POSITIONS) {
        sequences.push(longer_than_the_window(items, config));
    }
    sequences
}

/// A sequence that is longer than the sliding window, compared around the point where the window begins to slide.
///
/// It holds what the original says to all `items`, one after the other, as often as needed; the prompts themselves where it hardly
/// says anything.
fn longer_than_the_window(items: &[&Item], config: &ModelConfig) -> parity::Sequence {
    let prompts = || items.iter().flat_map(|item| &item.ids);
    let units = items.iter().flat_map(|item| item.tokens.split_last().map_or(&[][..], |(_, units)| units));
    let length = config.sliding_window + AROUND_WINDOW;
    let ids = prompts().take(MIN_NEW_TOKENS).chain(units.cycle()).chain(prompts().cycle());
    parity::Sequence {
        name: "a sequence longer than the window".to_owned(),
        ids: ids.copied().take(length).collect(),
        from: config.sliding_window.saturating_sub(AROUND_WINDOW),
    }
}

/// The shortest prompts, spoken long enough to end by themselves.
pub fn trial(items: &[&Item], mode: Mode) -> Trial {
    let (count, tokens) = if mode == Mode::Quick { (3, 128) } else { (6, 192) };
    Trial { prompts: shortest(items, count).map(|item| item.ids.clone()).collect(), tokens }
}

fn shortest<'a>(items: &[&'a Item], count: usize) -> impl Iterator<Item = &'a Item> {
    let mut items = items.to_vec();
    items.sort_by_key(|item| item.tokens.len()); // stable
    items.into_iter().take(count)
}

fn matrices(report: &Report) -> Vec<MatrixFigure> {
    let int4 = report.matrices.iter().filter(|matrix| matrix.encoding == Encoding::Int4);
    int4.map(|m| MatrixFigure { name: m.name.clone(), relative_error: m.error.relative_error }).collect()
}

fn engine_facts(engine: &dyn Engine) -> EngineFacts {
    let info = engine.info();
    EngineFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sources: ENGINE_SOURCES.to_owned(),
        backend: info.kind,
        description: info.backend.clone(),
        device: match info.kind {
            Backend::Cpu => processor(),
            Backend::Cuda => info.backend.clone(),
        },
        driver: match info.kind {
            Backend::Cpu => None,
            Backend::Cuda => driver(),
        },
    }
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let names = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = names.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

/// The version of NVIDIA's driver, where the system tells it.
fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    Some(text.lines().next()?.split_whitespace().collect::<Vec<_>>().join(" "))
}
