//! A random but well-conditioned checkpoint in the source layout, so that export, engine and codec can be rehearsed and
//! timed at full size without a download.
//!
//! It speaks noise, but it speaks: unit tokens follow each other quantizer by quantizer (see `weights`), so every eight tokens
//! make a frame, and the stop head never fires, so speech runs to the cap. The files depend on preset and seed alone.

mod codec;
mod presets;
mod tokenizer;
mod weights;

use std::num::NonZeroUsize;
use std::path::Path;

use serde_json::{Value, json};

pub use presets::Preset;
use weights::{Fill, Weight};

use super::layout::model_tensors;
use crate::config::{CodecConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::format::write::write_file;
use crate::staging::Staging;
use crate::tensors::Dtype;
use crate::tensors::write::{TensorSpec, TensorWriter};

/// First words of a synthetic checkpoint's NOTICE, by which one is told from a folder that must not be replaced.
const NOTICE: &str = "Random weights made by rumik-export synth";
const LICENCE: &str =
    "CC0 1.0 Universal\n\nThese weights are random numbers. They come without warranty of any kind.\n";
/// Elements generated together.
const BLOCK: usize = 8 << 20;

/// What to make.
#[derive(Clone, Copy, Debug)]
pub struct SynthOptions {
    /// Sizes.
    pub preset: Preset,
    /// Seed of every weight.
    pub seed: u64,
    /// Replaces a checkpoint that this function wrote.
    pub force: bool,
    /// All processors when `None`.
    pub threads: Option<NonZeroUsize>,
}

/// Writes a random checkpoint into the folder `out`, which appears when it is complete. `progress` is told of bytes written.
///
/// # Errors
/// [`Error::Input`] when `out` may not be written, [`Error::Io`] when the file system refuses.
pub fn synth(out: &Path, options: SynthOptions, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
    let threads = options.threads.map_or(0, NonZeroUsize::get);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::Unsupported { what: format!("{threads} threads"), why: e.to_string() })?;
    let ours =
        |folder: &Path| std::fs::read_to_string(folder.join("NOTICE")).is_ok_and(|text| text.starts_with(NOTICE));
    let staging = Staging::begin(out, options.force, ours)?;
    pool.install(|| write(staging.folder(), options, progress))?;
    staging.commit()
}

fn write(folder: &Path, options: SynthOptions, progress: &dyn Fn(u64)) -> Result<()> {
    let Presets { model_json, codec_json, model, codec, stop_inner } = Presets::of(options.preset)?;
    let preset = match options.preset {
        Preset::Tiny => "tiny",
        Preset::Full => "full",
    };
    let notice = format!("{NOTICE}, preset {preset}, seed {}. They make noise, not speech.\n", options.seed);
    write_file(&folder.join("LICENSE"), LICENCE.as_bytes())?;
    write_file(&folder.join("NOTICE"), notice.as_bytes())?;
    write_json(&folder.join("config.json"), &model_json)?;
    write_json(
        &folder.join("generation_config.json"),
        &json!({"bos_token_id": 2, "eos_token_id": 8, "pad_token_id": 0}),
    )?;
    write_json(&folder.join("tokenizer.json"), &tokenizer::tokenizer(&model))?;
    write_json(&folder.join("tokenizer_config.json"), &tokenizer::tokenizer_config(&model))?;
    language_model(folder, &model, stop_inner, options.seed, progress)?;
    std::fs::create_dir(folder.join("codec")).map_err(Error::io("create the folder", &folder.join("codec")))?;
    write_json(&folder.join("codec/config.json"), &codec_json)?;
    write_json(&folder.join("codec/preprocessor_config.json"), &presets::preprocessor())?;
    let weights = codec::weights(&codec);
    write_tensors(&folder.join("codec/model.safetensors"), Dtype::F32, &weights, options.seed, progress)
}

/// Configurations of a preset, as JSON and as read back, so that a preset that contradicts itself cannot be written.
struct Presets {
    model_json: Value,
    codec_json: Value,
    model: ModelConfig,
    codec: CodecConfig,
    stop_inner: usize,
}

impl Presets {
    fn of(preset: Preset) -> Result<Presets> {
        let (model_json, codec_json) = (presets::model(preset), presets::codec(preset));
        let model = ModelConfig::parse("preset", model_json.to_string().as_bytes())?;
        let codec = CodecConfig::parse("preset codec", codec_json.to_string().as_bytes())?;
        Ok(Presets { model, codec, stop_inner: preset.stop_inner(), model_json, codec_json })
    }
}

/// The language model in two shards of about the same size, with their index.
fn language_model(
    folder: &Path,
    config: &ModelConfig,
    stop_inner: usize,
    seed: u64,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let tensors = model_tensors(config, stop_inner);
    let all: Vec<Weight> = tensors.into_iter().map(|(name, shape)| weights::model(config, name, shape)).collect();
    let total: usize = all.iter().map(Weight::len).sum();
    let mut sum = 0;
    let before_half = |weight: &&Weight| {
        sum += weight.len();
        sum <= total / 2
    };
    let cut = all.iter().take_while(before_half).count().max(1);
    let mut map = serde_json::Map::new();
    for (number, weights) in [(1, &all[..cut]), (2, &all[cut..])] {
        let name = format!("model-{number:05}-of-00002.safetensors");
        write_tensors(&folder.join(&name), Dtype::BF16, weights, seed, progress)?;
        map.extend(weights.iter().map(|weight| (weight.name.clone(), Value::from(name.as_str()))));
    }
    let metadata = json!({"total_parameters": total, "total_size": 2 * total});
    write_json(&folder.join("model.safetensors.index.json"), &json!({"metadata": metadata, "weight_map": map}))
}

fn write_tensors(path: &Path, dtype: Dtype, weights: &[Weight], seed: u64, progress: &dyn Fn(u64)) -> Result<()> {
    let specs: Vec<TensorSpec> = weights.iter().map(|w| TensorSpec::new(&w.name, dtype, &w.shape)).collect();
    let mut writer = TensorWriter::create(path, &[("format", "pt")], &specs)?;
    for weight in weights {
        let rows_at_once = (BLOCK / weight.columns()).max(1);
        for first in (0..weight.rows()).step_by(rows_at_once) {
            let rows = first..weight.rows().min(first + rows_at_once);
            let bytes = weight.bytes(dtype, seed, rows);
            writer.write(&bytes)?;
            progress(bytes.len() as u64);
        }
    }
    writer.finish().map(drop)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    write_file(path, format!("{value:#}\n").as_bytes())
}

/// Names with their shapes, and how each is filled.
fn filled(tensors: Vec<(String, Vec<usize>)>, fill: impl Fn(&str, &[usize]) -> Fill) -> Vec<Weight> {
    let fill = |(name, shape): (String, Vec<usize>)| Weight { fill: fill(&name, &shape), name, shape };
    tensors.into_iter().map(fill).collect()
}
