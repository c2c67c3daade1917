//! What int4 costs the demonstration model: in weights, in distributions and in speech.
//!
//! ```text
//! cargo run --release --example demo_quality -- --out target/quality
//! python3 fixtures/demo/recipe/transcribe.py --whisper FOLDER target/quality
//! ```
//!
//! The checkpoint is exported with both heads, and the exports are compared with the source model in candle, in bf16 and
//! in f32. Distributions are compared by teacher forcing along the reference's own greedy speech. Everything is decoded
//! by the same codec, so that only the codes differ in what is heard. `docs/quality.md` has the results.

mod models;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rumik::audio::{append_i16, wav_header};
use rumik::checkpoint::Checkpoint;
use rumik::config::ModelConfig;
use rumik::engine::cpu::{CpuEngine, Options};
use rumik::engine::mimi::Decoder;
use rumik::engine::{Engine, Sampling};
use rumik::format::{Export, HeadKind, Report};
use rumik::quant::{ExportOptions, export};
use rumik::reference::{Device, Precision, Reference};
use rumik::speech::{Speech, Style};
use serde::{Deserialize, Serialize};

use models::Model;
use tables::{Collected, Distributions, SpeechFacts, Weights, codes, print_speech};

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 1 };
/// Names of the models, in the order of every list of them here.
const MODELS: [&str; 4] = ["bf16", "int4", "int4-int8head", "f32"];
/// References and what is held against them, as places in [`MODELS`].
const COMPARED: [(usize, &[usize]); 2] = [(0, &[1, 2]), (3, &[0, 1, 2])];
/// The models that are sampled.
const SAMPLED: [usize; 2] = [0, 1];

/// Compare the demonstration model's int4 export with its source
#[derive(Parser)]
struct Args {
    /// Checkpoint in the source layout, with prompts.json
    #[arg(long, default_value = "fixtures/demo")]
    source: PathBuf,
    /// Folder for quality.json and the WAV files; without it the tables are printed and nothing is kept
    #[arg(long)]
    out: Option<PathBuf>,
    /// How often every prompt is sampled (temperature 0.8, top-k 30), with seeds 1, 2, …
    #[arg(long, default_value_t = 1)]
    seeds: u64,
}

/// A sentence of `prompts.json`.
#[derive(Deserialize)]
struct Line {
    id: u32,
    group: String,
    speaker: String,
    description: Option<String>,
    text: String,
    /// The prompt's ids, made by this crate.
    #[serde(skip)]
    ids: Vec<u32>,
}

/// The new tokens of every line.
type Spoken = Vec<Vec<u32>>;

#[derive(Serialize)]
struct Quality {
    weights: Weights,
    distributions: Vec<Distributions>,
    speech: Vec<SpeechFacts>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let checkpoint = Checkpoint::open(&args.source)?;
    let config = &checkpoint.config;
    let lines = read_lines(&args.source, config)?;
    let folder = tempfile::tempdir()?;
    let (report, int4) = quantized(&checkpoint, folder.path(), HeadKind::Bf16)?;
    let (_, int8_head) = quantized(&checkpoint, folder.path(), HeadKind::Int8)?;
    let reference = |precision| {
        let get = |name: &str| checkpoint.get(name).cloned();
        Reference::load(config, get, precision, &Device::Cpu).map(Box::new)
    };
    let mut models: [Box<dyn Model>; 4] =
        [reference(Precision::Bf16)?, Box::new(int4), Box::new(int8_head), reference(Precision::F32)?];

    let weights = Weights::of(&report);
    weights.print();

    let voice = args.out.as_deref().map(|out| Voice::new(&checkpoint, out)).transpose()?;
    let mut sets: Vec<(String, Spoken)> = Vec::new();
    let mut speak = |set: String, model: &mut dyn Model, sampling, seed| -> Result<()> {
        eprintln!("speaking {set}");
        let spoken = model.speak(&lines, sampling, seed)?;
        voice.iter().try_for_each(|voice| voice.write(&set, &lines, &spoken))?;
        sets.push((set, spoken));
        Ok(())
    };
    for (name, model) in MODELS.iter().zip(&mut models) {
        speak(format!("{name}-greedy"), model.as_mut(), GREEDY, 0)?;
    }
    for seed in 1..=args.seeds {
        for model in SAMPLED {
            let set = format!("{}-sampled-{seed}", MODELS[model]);
            speak(set, models[model].as_mut(), Sampling::default(), seed)?;
        }
    }

    let mut distributions = Vec::new();
    for (reference, candidates) in COMPARED {
        eprintln!("scoring along the greedy speech of {}", MODELS[reference]);
        distributions.extend(compare(config, &mut models, reference, candidates, &lines, &sets[reference].1)?);
    }
    distributions.iter().for_each(Distributions::print);
    let facts = |(name, spoken): &(String, Spoken)| SpeechFacts::of(config, name, spoken, &sets[0].1);
    let speech: Vec<SpeechFacts> = sets.iter().map(facts).collect();
    print_speech(&speech);

    if let Some(out) = &args.out {
        let json = serde_json::to_string_pretty(&Quality { weights, distributions, speech })?;
        fs::write(out.join("quality.json"), json + "\n").context("cannot write quality.json")?;
    }
    Ok(())
}

fn read_lines(source: &Path, config: &ModelConfig) -> Result<Vec<Line>> {
    #[derive(Deserialize)]
    struct File {
        prompts: Vec<Line>,
    }
    let read = |name: &str| {
        let path = source.join(name);
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let mut lines = serde_json::from_slice::<File>(&read("prompts.json")?).context("prompts.json")?.prompts;
    ensure!(!lines.is_empty(), "prompts.json: no prompts");
    let speech = Speech::load(config, &read("tokenizer.json")?)?;
    for line in &mut lines {
        let (voice, description) = (Some(line.speaker.clone()), line.description.clone());
        line.ids = speech.prompt(&Style { voice, description, ..Style::default() }, &line.text)?.ids;
    }
    Ok(lines)
}

/// Exports through the same function as `rumik-export`, and loads the result.
fn quantized(checkpoint: &Checkpoint, folder: &Path, head: HeadKind) -> Result<(Report, CpuEngine)> {
    let out = folder.join(head.to_string());
    let options = ExportOptions { head, no_codec: true, source_name: "demo".to_owned(), ..Default::default() };
    let report = export(checkpoint, &out, &options, &|_| ())?;
    let engine = CpuEngine::new(Export::open(&out)?, Options::default())?;
    ensure!(engine.info().audio_ids == checkpoint.config.audio_ids(), "the export's head has rows in another order");
    Ok((report, engine))
}

/// Holds candidates against a reference, step by step along what the reference said.
fn compare(
    config: &ModelConfig,
    models: &mut [Box<dyn Model>; 4],
    reference: usize,
    candidates: &[usize],
    lines: &[Line],
    spoken: &Spoken,
) -> Result<Vec<Distributions>> {
    let mut collected: Vec<Collected> = candidates.iter().map(|_| Collected::default()).collect();
    for (line, new) in lines.iter().zip(spoken) {
        let expected = models[reference].steps(&line.ids, new)?;
        for (&candidate, collected) in candidates.iter().zip(&mut collected) {
            let found = models[candidate].steps(&line.ids, new)?;
            collected.add(config, &line.group, new, &expected, &found)?;
        }
    }
    let finish =
        |(&c, collected): (&usize, Collected)| collected.finish(MODELS[reference], MODELS[c], config.num_quantizers);
    Ok(candidates.iter().zip(collected).map(finish).collect())
}

/// The codec, and where its WAV files go.
struct Voice<'a> {
    decoder: Decoder,
    config: &'a ModelConfig,
    sample_rate_hz: usize,
    out: &'a Path,
}

impl<'a> Voice<'a> {
    fn new(checkpoint: &'a Checkpoint, out: &'a Path) -> Result<Voice<'a>> {
        let (config, codec) = (&checkpoint.config, checkpoint.codec.as_ref().context("the checkpoint has no codec")?);
        let decoder = Decoder::load(&codec.config, &codec.weights, config.num_quantizers)?;
        Ok(Voice { decoder, config, sample_rate_hz: codec.config.sampling_rate, out })
    }

    /// Writes `SET/ID.wav` for every line that has a frame.
    fn write(&self, set: &str, lines: &[Line], spoken: &Spoken) -> Result<()> {
        let folder = self.out.join(set);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut state = self.decoder.state();
        for (line, new) in lines.iter().zip(spoken) {
            let (codes, mut pcm, mut samples) = (codes(self.config, new), Vec::new(), Vec::new());
            if codes.is_empty() {
                continue;
            }
            state.reset();
            self.decoder.step(&mut state, &codes, &mut pcm)?;
            append_i16(&pcm, &mut samples);
            let path = folder.join(format!("{:02}.wav", line.id));
            let file = [&wav_header(self.sample_rate_hz as u32, samples.len() as u32)[..], &samples].concat();
            fs::write(&path, file).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}
