//! From a checkpoint to an export folder.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde::Serialize;

use super::model::{Encoded, Encoder};
use crate::checkpoint::{Checkpoint, Outline};
use crate::error::{Error, Result};
use crate::format::layout::{RECORD_FILE, REFERENCE_FILE, REPORT_FILE, WEIGHTS_FILE};
use crate::format::write::{check_finite, digest, verify, write_companions};
use crate::format::{FileDigest, HeadKind, Method, Report, ReportOptions, SourceReport, export_tensors, metadata};
use crate::staging::Staging;
use crate::tensors::write::{Digested, TensorSpec, TensorWriter, header_bytes};

/// Buffers that may wait for the disk; with bands of a few MB this bounds the memory of a slow disk.
const WAITING_BUFFERS: usize = 2;

/// How to export.
#[derive(Clone, Debug, Default)]
pub struct ExportOptions {
    /// How the output head is stored.
    pub head: HeadKind,
    /// How scales are chosen.
    pub method: Method,
    /// Leaves the codec out.
    pub no_codec: bool,
    /// Lets tensors through that are zero throughout.
    pub allow_zero_tensors: bool,
    /// Replaces an existing export.
    pub force: bool,
    /// Threads that quantize; one more writes and one hashes the source. All processors when `None`.
    pub threads: Option<NonZeroUsize>,
    /// Repository id of the source, or its folder's own name.
    pub source_name: String,
    /// Commit of the source, where it is known.
    pub revision: Option<String>,
}

/// What an export would be, known from headers alone.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Repository id of the source, or its folder's own name.
    pub source: String,
    /// Commit of the source, where it is known.
    pub revision: Option<String>,
    /// First line of the source's licence.
    pub licence: String,
    /// How the output head is stored.
    pub head: HeadKind,
    /// How scales are chosen.
    pub method: Method,
    /// Bytes of the source's weight files.
    pub source_bytes: u64,
    /// Bytes of `model.safetensors`.
    pub weights_bytes: u64,
    /// Bytes of the codec, 0 without.
    pub codec_bytes: u64,
    /// Tensors of `model.safetensors`.
    pub tensors: usize,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let revision = self.revision.as_deref().unwrap_or("no revision");
        writeln!(f, "source: {} ({revision}), {} of weights", self.source, mib(self.source_bytes))?;
        writeln!(f, "licence: {}", self.licence)?;
        writeln!(f, "output: {} tensors, {}, head {}", self.tensors, mib(self.weights_bytes), self.head)?;
        writeln!(f, "codec: {}", if self.codec_bytes > 0 { mib(self.codec_bytes) } else { "left out".to_owned() })
    }
}

/// Works out an export without reading or writing weights. `licence` is the first line of the source's licence.
///
/// # Errors
/// [`Error::Invalid`] when the codec is wanted and the source has none.
pub fn plan(outline: &Outline, options: &ExportOptions, licence: String) -> Result<Plan> {
    let tensors = planned_tensors(outline, options.head);
    let data: u64 = tensors.iter().map(TensorSpec::bytes).sum();
    Ok(Plan {
        source: options.source_name.clone(),
        revision: options.revision.clone(),
        licence,
        head: options.head,
        method: options.method,
        source_bytes: outline.shards.iter().map(|shard| shard.bytes).sum(),
        weights_bytes: header_bytes(&metadata(options.head), &tensors).len() as u64 + data,
        codec_bytes: if options.no_codec { 0 } else { codec_bytes(outline)? },
        tensors: tensors.len(),
    })
}

/// Exports a checkpoint into the folder `out`, which appears when all of it is written, read back and found right.
///
/// `progress` is told of source bytes as they are done; their sum is that of all source tensors and the head's rows.
/// The bytes written depend on the source and the options only, not on the number of threads.
///
/// # Errors
/// [`Error::Invalid`] naming a tensor that cannot be exported, [`Error::Input`] when `out` may not be written,
/// [`Error::Io`] when the file system refuses. Nothing is then left under the final name.
pub fn export(
    checkpoint: &Checkpoint,
    out: &Path,
    options: &ExportOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Report> {
    let outline = &checkpoint.outline;
    if !options.no_codec {
        codec_bytes(outline)?;
        check_codec(checkpoint)?;
    }
    refuse_overlap(checkpoint, out)?;
    let staging = Staging::begin(out, options.force, is_export)?;
    let tensors = planned_tensors(outline, options.head);
    let weights = staging.folder().join(WEIGHTS_FILE);
    let writer = TensorWriter::create(&weights, &metadata(options.head), &tensors)?;
    let (encoded, written, files) = encode(checkpoint, options, writer, progress)?;
    let source = SourceReport { name: options.source_name.clone(), revision: options.revision.clone(), files };
    let report = Report::new(source, written.clone(), report_options(options), encoded.notes, encoded.matrices);
    write_companions(&checkpoint.folder, staging.folder(), &report)?;
    verify(staging.folder(), &tensors, &written)?;
    staging.commit()?;
    Ok(report)
}

fn report_options(options: &ExportOptions) -> ReportOptions {
    ReportOptions {
        method: options.method,
        head: options.head,
        codec: !options.no_codec,
        allow_zero_tensors: options.allow_zero_tensors,
    }
}

fn planned_tensors(outline: &Outline, head: HeadKind) -> Vec<TensorSpec> {
    // the outline was checked: every tensor that is copied is there
    let unchanged = |name: &str| (outline.tensors[name].dtype, outline.tensors[name].shape.clone());
    export_tensors(&outline.config, head, unchanged)
}

fn codec_bytes(outline: &Outline) -> Result<u64> {
    let missing = || {
        let error = Error::invalid(&outline.place, "codec/model.safetensors", "the file", "nothing of that name");
        error.with_hint("give --no-codec to export without it")
    };
    outline.codec.as_ref().map(|codec| codec.bytes).ok_or_else(missing)
}

/// The codec is copied as it is, so it must be sound as it is.
fn check_codec(checkpoint: &Checkpoint) -> Result<()> {
    let tensors = checkpoint.codec.iter().flat_map(|codec| codec.weights.tensors().values());
    tensors.into_iter().try_for_each(check_finite)
}

/// True for a folder that this program wrote and nobody put anything into.
fn is_export(folder: &Path) -> bool {
    let known = |name: &str| {
        let files = [
            WEIGHTS_FILE,
            REPORT_FILE,
            RECORD_FILE,
            REFERENCE_FILE,
            "codec",
            "config.json",
            "generation_config.json",
            "LICENSE",
            "NOTICE",
            "README.md",
        ];
        files.contains(&name) || (name.starts_with("tokenizer") && name.ends_with(".json"))
    };
    let entries = std::fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().all(|entry| entry.file_name().to_str().is_some_and(known))
        && std::fs::read(folder.join(REPORT_FILE)).is_ok_and(|json| Report::parse(REPORT_FILE, &json).is_ok())
}

/// Refuses an output that is, holds or lies in the input.
fn refuse_overlap(checkpoint: &Checkpoint, out: &Path) -> Result<()> {
    let target = resolved(out);
    let mut inputs = vec![resolved(&checkpoint.folder)];
    inputs.extend(checkpoint.outline.shards.iter().map(|shard| resolved(&checkpoint.folder.join(&shard.name))));
    match inputs.iter().find(|input| target.starts_with(input) || input.starts_with(&target)) {
        Some(input) => {
            let message = format!("{} and the input {} overlap; give another folder", out.display(), input.display());
            Err(Error::input("--out", message))
        }
        None => Ok(()),
    }
}

/// The path with links followed, as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in absolute.ancestors() {
        if let (Ok(known), Ok(rest)) = (ancestor.canonicalize(), absolute.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { known } else { known.join(rest) };
        }
    }
    absolute
}

/// Quantizes, writes and hashes side by side: a pool quantizes, one thread writes, one digests the source files.
fn encode(
    checkpoint: &Checkpoint,
    options: &ExportOptions,
    writer: TensorWriter,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(Encoded, Digested, Vec<FileDigest>)> {
    let threads = options.threads.map_or(0, NonZeroUsize::get);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::Unsupported { what: format!("{threads} threads"), why: e.to_string() })?;
    let go_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let sources = scope.spawn(|| digest_sources(checkpoint, &go_on));
        let (sender, receiver) = sync_channel(WAITING_BUFFERS);
        let writing = scope.spawn(move || write_all(writer, receiver));
        let encoded = pool.install(|| run_encoder(checkpoint, options, sender, progress));
        let written = join(writing);
        if encoded.is_err() || written.is_err() {
            go_on.store(false, Ordering::Relaxed);
        }
        let sources = join(sources);
        // the encoder also fails when the writer does, with less to say
        match (encoded, written) {
            (Err(encoding), Err(Error::Shape { .. })) => Err(encoding),
            (_, Err(writing)) => Err(writing),
            (encoded, Ok(written)) => Ok((encoded?, written, sources?)),
        }
    })
}

fn run_encoder(
    checkpoint: &Checkpoint,
    options: &ExportOptions,
    sender: SyncSender<Vec<u8>>,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Encoded> {
    let sink = |bytes: Vec<u8>| sender.send(bytes).map_err(|_| Error::input("--out", "writing stopped"));
    let (head, allow_zero_tensors) = (options.head, options.allow_zero_tensors);
    Encoder { checkpoint, head, allow_zero_tensors, sink: &sink, progress, result: Encoded::default() }.run()
}

fn write_all(mut writer: TensorWriter, receiver: Receiver<Vec<u8>>) -> Result<Digested> {
    for bytes in receiver {
        writer.write(&bytes)?;
    }
    writer.finish()
}

fn digest_sources(checkpoint: &Checkpoint, go_on: &AtomicBool) -> Result<Vec<FileDigest>> {
    let shards = checkpoint.outline.shards.iter();
    let digest = |name: &String| digest(&checkpoint.folder.join(name), || go_on.load(Ordering::Relaxed));
    shards.map(|shard| Ok(FileDigest { name: shard.name.clone(), content: digest(&shard.name)? })).collect()
}

/// The result of a thread; its panic becomes ours.
fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
