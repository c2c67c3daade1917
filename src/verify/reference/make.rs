//! Making a reference file: the original model speaks every prompt, a wave of prompts at a time.
//!
//! A finished wave is kept in a folder beside the file, so that an interrupted run goes on where it was. Waves are fixed
//! by the set: going on gives the same bytes as never having stopped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Compact, FORMAT, Facts, ModelFacts, check_digest, data_digest};
use crate::checkpoint::{Checkpoint, Located};
use crate::config::MIN_NEW_TOKENS;
use crate::engine::frames::Frames;
use crate::engine::mimi::Decoder;
use crate::engine::sampler::{Noise, choose};
use crate::engine::{Sampling, mimi};
use crate::error::{Error, Result};
use crate::format::{FileDigest, SourceReport};
use crate::pass::Digests;
use crate::reference::{Outlook, Reference, Rule};
use crate::speech::Speech;
use crate::tensors::write::{TensorSpec, TensorWriter};
use crate::tensors::{Bytes, Dtype, TensorFile};
use crate::verify::prompts::PromptSet;
use crate::verify::record::SamplingFacts;

/// Prompts that go through the model side by side: enough to read the weights seldom, few enough that their keys and
/// values fit beside a layer in 4 GB.
const WAVE: usize = 16;

/// What to make.
#[derive(Clone, Debug)]
pub struct Job {
    /// Where the checkpoint was found.
    pub located: Located,
    /// The prompts.
    pub prompts: PromptSet,
    /// Only those marked for a quick run.
    pub quick: bool,
    /// Steps after which speech is ended.
    pub max_new_tokens: usize,
    /// Whether to keep the speech as samples too.
    pub pcm: bool,
}

/// Data of one tensor with its type; its shape is flat.
type Flat = (Dtype, Vec<u8>);

/// Makes a reference file at `out`, or says why not; nothing is left under that name then.
///
/// `progress` is told tokens made and the largest number there can be.
///
/// # Errors
/// Errors of the checkpoint and of the device; [`Error::Io`]; [`Error::Invalid`] for a prompt that the model cannot speak.
pub fn make(
    checkpoint: &Checkpoint,
    reference: &Reference,
    job: &Job,
    out: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<()> {
    let facts = facts(checkpoint, job)?;
    let tokenizer = Bytes::map(&checkpoint.folder.join("tokenizer.json"))?;
    let speech = Speech::load(&checkpoint.config, &tokenizer)?;
    let ids = job.prompts.ids(&speech)?;
    let held: Vec<usize> = facts.held().map(|(n, _)| n).collect();
    let journal = Journal::open(out, &facts)?;
    let codec = match (&checkpoint.codec, job.pcm) {
        (Some(codec), true) => Some(Decoder::load(&codec.config, &codec.weights, checkpoint.config.num_quantizers)?),
        _ => None,
    };
    let waves: Vec<&[usize]> = held.chunks(WAVE).collect();
    for (number, wave) in waves.iter().enumerate() {
        if !journal.has(number) {
            let done = number * WAVE * job.max_new_tokens;
            let mut made = |tokens: usize| progress(done + tokens, held.len() * job.max_new_tokens);
            let tensors = speak(reference, &facts, wave, &ids, codec.as_ref(), &mut made)?;
            journal.keep(number, &tensors)?;
        }
        progress((number + 1) * WAVE * job.max_new_tokens, held.len() * job.max_new_tokens);
    }
    journal.finish(out, waves.len(), &facts)
}

/// What the file will say about itself.
///
/// # Errors
/// [`Error::Io`] when a shard cannot be read; [`Error::Input`] for a quick run of a set that marks no prompt for it.
pub fn facts(checkpoint: &Checkpoint, job: &Job) -> Result<Facts> {
    let mut digests = Digests::of_user();
    let shard = |name: &str| -> Result<FileDigest> {
        Ok(FileDigest { name: name.to_owned(), content: digests.of(&checkpoint.folder.join(name))? })
    };
    let files = checkpoint.outline.shards.iter().map(|shard| shard.name.as_str()).map(shard);
    let sampling = Sampling::default();
    let facts = Facts {
        source: SourceReport {
            name: job.located.name.clone(),
            revision: job.located.revision.clone(),
            files: files.collect::<Result<_>>()?,
        },
        model: ModelFacts::from(&checkpoint.config),
        sampling: SamplingFacts {
            temperature: crate::verify::number::rounded(f64::from(sampling.temperature)),
            top_k: sampling.top_k,
        },
        max_new_tokens: job.max_new_tokens,
        quick: job.quick,
        prompts: job.prompts.clone(),
    };
    if facts.held().next().is_none() {
        return Err(Error::input("--quick", format!("the set {} marks no prompt for it", job.prompts.name)));
    }
    Ok(facts)
}

/// Speaks the prompts `wave` and gives everything there is to store, by the names that it has in the file.
fn speak(
    reference: &Reference,
    facts: &Facts,
    wave: &[usize],
    ids: &[Vec<u32>],
    codec: Option<&Decoder>,
    made: &mut dyn FnMut(usize),
) -> Result<BTreeMap<String, Flat>> {
    let prompts: Vec<&[u32]> = wave.iter().map(|n| &ids[*n][..]).collect();
    let mut tapes: Vec<Tape> = wave.iter().map(|_| Tape::default()).collect();
    let rule = Rule { max_new_tokens: facts.max_new_tokens, ..Rule::default() };
    let (sampling, mut fault, mut tokens) = (facts.sampling(), None, 0);
    let all = reference.generate_all(&prompts, rule, &mut |outlook| {
        tokens += 1;
        made(tokens);
        if let Err(error) = tapes[outlook.sequence].add(&outlook) {
            fault.get_or_insert(error);
        }
        let seed = facts.prompts.prompts[wave[outlook.sequence]].seed;
        let noise = Noise { seed, sequence: 0, step: outlook.step as u32 };
        choose(&outlook.logits[..outlook.allowed], sampling, noise).unwrap_or(0)
    })?;
    if let Some(error) = fault {
        return Err(error);
    }
    let mut tensors = BTreeMap::new();
    for ((n, tape), generated) in wave.iter().zip(tapes).zip(all) {
        let mut put = |name: &str, dtype, data| tensors.insert(format!("{n}.{name}"), (dtype, data));
        let words = |ids: &[u32]| ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect::<Vec<u8>>();
        put("ids", Dtype::I32, words(&ids[*n]));
        put("tokens", Dtype::I32, words(&generated.ids));
        put("counts", Dtype::I32, words(&tape.counts));
        put("stop", Dtype::F32, tape.stop);
        put("entropy", Dtype::F32, tape.entropy);
        put("tail", Dtype::F32, tape.tail);
        put("rows", Dtype::U16, tape.rows);
        put("logits", Dtype::BF16, tape.logits);
        if let Some(codec) = codec {
            put("pcm", Dtype::I16, samples(codec, reference, &generated.ids)?);
        }
    }
    Ok(tensors)
}

fn samples(codec: &Decoder, reference: &Reference, ids: &[u32]) -> Result<Vec<u8>> {
    let (mut frames, mut codes, mut pcm, mut bytes) =
        (Frames::new(reference.config()), Vec::new(), Vec::new(), Vec::new());
    ids.iter().for_each(|id| frames.push(*id, &mut codes));
    if !codes.is_empty() {
        let mut state: mimi::State = codec.state();
        codec.step(&mut state, &codes, &mut pcm)?;
    }
    crate::audio::append_i16(&pcm, &mut bytes);
    Ok(bytes)
}

/// What is stored of one sequence, step by step.
#[derive(Default)]
struct Tape {
    counts: Vec<u32>,
    stop: Vec<u8>,
    entropy: Vec<u8>,
    tail: Vec<u8>,
    rows: Vec<u8>,
    logits: Vec<u8>,
}

impl Tape {
    fn add(&mut self, outlook: &Outlook) -> Result<()> {
        let compact = Compact::of(outlook.logits)?;
        self.counts.push(compact.rows.len() as u32);
        self.stop.extend(outlook.stop_probability.to_le_bytes());
        self.entropy.extend(compact.entropy.to_le_bytes());
        self.tail.extend(compact.tail.to_le_bytes());
        self.rows.extend(compact.rows.iter().flat_map(|row| row.to_le_bytes()));
        self.logits.extend(compact.logits.iter().flat_map(|logit| logit.to_le_bytes()));
        debug_assert!(outlook.stopped <= (outlook.step >= MIN_NEW_TOKENS));
        Ok(())
    }
}

/// Finished waves, in a folder beside the file that they will become.
struct Journal {
    folder: PathBuf,
}

impl Journal {
    /// Opens the folder; what another job left in it is removed.
    fn open(out: &Path, facts: &Facts) -> Result<Journal> {
        let name = out.file_name().ok_or_else(|| Error::input("--out", "no file name"))?;
        let folder = out.with_file_name(format!(".{}.rumik-partial", name.to_string_lossy()));
        let (about, stated) = (folder.join("facts.json"), json!(facts).to_string());
        if std::fs::read_to_string(&about).ok().as_deref() != Some(&stated) {
            if folder.exists() {
                std::fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
            }
            std::fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
            std::fs::write(&about, stated).map_err(Error::io("write", &about))?;
        }
        Ok(Journal { folder })
    }

    fn wave(&self, number: usize) -> PathBuf {
        self.folder.join(format!("{number}.safetensors"))
    }

    /// Whether a wave is there as it was kept; one that is damaged is spoken again.
    fn has(&self, number: usize) -> bool {
        TensorFile::open(&self.wave(number)).is_ok_and(|file| check_digest(&file).is_ok())
    }

    /// Keeps a wave, whole or not at all.
    fn keep(&self, number: usize, tensors: &BTreeMap<String, Flat>) -> Result<()> {
        let data = || tensors.iter().map(|(name, (dtype, data))| (name.as_str(), *dtype, &data[..]));
        let digest = data_digest(data().map(|(name, _, data)| (name, data)));
        let digest = [("digest", Dtype::U8, &digest[..])];
        write(&self.wave(number), &[("format", FORMAT)], data().chain(digest))
    }

    /// Puts the waves together, and removes the folder.
    fn finish(&self, out: &Path, waves: usize, facts: &Facts) -> Result<()> {
        let files: Vec<TensorFile> = (0..waves).map(|n| TensorFile::open(&self.wave(n))).collect::<Result<_>>()?;
        let all = || files.iter().flat_map(|file| file.tensors()).map(|(name, tensor)| (name.as_str(), tensor));
        let all = || all().filter(|(name, _)| *name != "digest"); // a wave's own
        let digest = data_digest(all().map(|(name, tensor)| (name, &*tensor.data)));
        let data = all().map(|(name, tensor)| (name, tensor.dtype, &*tensor.data));
        let facts = json!(facts).to_string();
        write(out, &[("format", FORMAT), ("facts", &facts)], data.chain([("digest", Dtype::U8, &digest[..])]))?;
        std::fs::remove_dir_all(&self.folder).map_err(Error::io("remove", &self.folder))
    }
}

/// Writes flat tensors to a file that appears under its name when it is whole.
fn write<'a>(
    path: &Path,
    metadata: &[(&str, &str)],
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [u8])>,
) -> Result<()> {
    let tensors: Vec<_> = tensors.collect();
    let spec = |(name, dtype, data): &(&str, Dtype, &[u8])| {
        TensorSpec::new(*name, *dtype, &[data.len() * 8 / dtype.bitsize()])
    };
    let specs: Vec<TensorSpec> = tensors.iter().map(spec).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.rumik-tmp"));
    let _ = std::fs::remove_file(&temporary); // what a killed run left
    let mut writer = TensorWriter::create(&temporary, metadata, &specs)?;
    tensors.iter().try_for_each(|(_, _, data)| writer.write(data))?;
    writer.finish()?;
    std::fs::rename(&temporary, path).map_err(Error::io("rename the finished file to", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_that_was_damaged_is_not_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal { folder: folder.path().to_owned() };
        assert!(!journal.has(0));
        journal.keep(0, &BTreeMap::from([("0.stop".to_owned(), (Dtype::F32, vec![7; 64]))])).unwrap();
        assert!(journal.has(0));
        let whole = std::fs::read(journal.wave(0)).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..9], &[]] {
            std::fs::write(journal.wave(0), damaged).unwrap();
            assert!(!journal.has(0));
        }
        for at in whole.len() - 96..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            std::fs::write(journal.wave(0), flipped).unwrap();
            assert!(!journal.has(0), "a flipped bit at {at}");
        }
    }
}
