//! Whisper in candle: samples to text, greedily.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{D, DType, Device, IndexOp, Result as CandleResult, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::whisper::{self, Config, model};
use serde::Deserialize;
use tokenizers::Tokenizer;

use super::Language;
use super::mel::{HOP, Mel, RATE_HZ};
use super::resample::resample;
use crate::error::{Error, Result};
use crate::hub::{Hub, Wanted};
use crate::tensors::{Dtype, TensorFile};

/// The recogniser that is used unless another is named.
pub const DEFAULT_REPO: &str = "openai/whisper-base";

/// Samples the encoder hears at once: 30 s.
const SPAN: usize = 30 * RATE_HZ;
/// Silence put before and after an utterance, in samples: a word at the very edge is often lost.
const LEAD: usize = RATE_HZ / 10;
const TAIL: usize = 3 * RATE_HZ / 10;

/// A loaded recogniser.
pub struct Whisper {
    model: model::Whisper,
    tokenizer: Tokenizer,
    mel: Mel,
    /// Text ids that may not be chosen, and those that may not be chosen first.
    suppressed: Vec<u32>,
    suppressed_first: Vec<u32>,
    end: u32,
    device: Device,
}

impl std::fmt::Debug for Whisper {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Whisper").field("mel", &self.mel.bands()).finish_non_exhaustive()
    }
}

/// What the configuration files say about ids that are not to be chosen; newer models have it in the second file.
#[derive(Default, Deserialize)]
struct Suppressed {
    #[serde(default)]
    suppress_tokens: Option<Vec<u32>>,
    #[serde(default)]
    begin_suppress_tokens: Option<Vec<u32>>,
}

impl Whisper {
    /// Loads a folder in the Hub's layout (`config.json`, `model.safetensors`, `tokenizer.json`), or a repository of
    /// the Hub through its cache. The weights are run in f32 on the CPU.
    ///
    /// # Errors
    /// As [`Hub::snapshot`] for a repository; [`Error::Io`] and [`Error::Invalid`] for a folder that is no Whisper model.
    pub fn load(place: &str, offline: bool) -> Result<Whisper> {
        let folder = Path::new(place);
        if folder.is_dir() {
            return Whisper::open(folder);
        }
        let snapshot = Hub::from_env(offline)?.snapshot(place, "main", &Wanted::source(false))?;
        Whisper::open(&snapshot.folder)
    }

    /// Loads a folder.
    ///
    /// # Errors
    /// As [`Whisper::load`].
    pub fn open(folder: &Path) -> Result<Whisper> {
        let (config, mut suppressed): (Config, Suppressed) =
            (read_json(&folder.join("config.json"))?, read_json(&folder.join("config.json"))?);
        let newer = folder.join("generation_config.json");
        if suppressed.suppress_tokens.is_none() && newer.is_file() {
            suppressed = read_json(&newer)?;
        }
        let place = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&place)
            .map_err(|e| Error::invalid(place.display(), "content", "a saved tokenizer", e))?;
        let end = special(&tokenizer, whisper::EOT_TOKEN)?;
        let device = Device::Cpu;
        let weights = TensorFile::open(&folder.join("model.safetensors"))?;
        let builder = VarBuilder::from_tensors(tensors(&weights, &device)?, DType::F32, &device);
        let mel = Mel::new(config.num_mel_bins);
        let model = model::Whisper::load(&builder, config);
        let model = model.map_err(|e| Error::invalid(weights.place(), "weights", "a Whisper model", e))?;
        let ids = |ids: Option<Vec<u32>>| ids.unwrap_or_default();
        Ok(Whisper {
            model,
            tokenizer,
            mel,
            suppressed: ids(suppressed.suppress_tokens),
            suppressed_first: ids(suppressed.begin_suppress_tokens),
            end,
            device,
        })
    }

    /// Writes down what is said in `pcm`, mono at `rate_hz`, in spans of 30 s.
    ///
    /// # Errors
    /// [`Error::Input`] for samples that are not finite or a rate that cannot be resampled; [`Error::Device`] when the
    /// model fails.
    pub fn hear(&mut self, pcm: &[f32], rate_hz: usize, language: Language) -> Result<String> {
        let speech = resample(pcm, rate_hz)?;
        if speech.is_empty() {
            return Ok(String::new());
        }
        let padded = [vec![0.0; LEAD], speech, vec![0.0; TAIL]].concat();
        let spans: Vec<String> =
            padded.chunks(SPAN).map(|span| self.hear_span(span, language)).collect::<Result<_>>()?;
        Ok(spans.join(" ").trim().to_owned())
    }

    fn hear_span(&mut self, pcm: &[f32], language: Language) -> Result<String> {
        let mut span = pcm.to_vec();
        span.resize(SPAN, 0.0);
        let mel = self.mel.whisper(&span);
        let first = [whisper::SOT_TOKEN, language.token(), whisper::TRANSCRIBE_TOKEN, whisper::NO_TIMESTAMPS_TOKEN];
        let prompt: Vec<u32> = first.iter().map(|token| special(&self.tokenizer, token)).collect::<Result<_>>()?;
        let said = self.write(&mel, &prompt).map_err(failure)?;
        let text = self.tokenizer.decode(&said, true);
        text.map_err(|e| Error::invalid("whisper", "tokens", "text", e))
    }

    /// Ids after `prompt` up to the end, the best at each step.
    fn write(&mut self, mel: &[f32], prompt: &[u32]) -> CandleResult<Vec<u32>> {
        let mel = Tensor::from_slice(mel, (1, self.mel.bands(), SPAN / HOP), &self.device)?;
        self.model.reset_kv_cache();
        let heard = self.model.encoder.forward(&mel, true)?;
        let most = self.model.config.max_target_positions / 2;
        let mut ids = prompt.to_vec();
        while ids.len() < most {
            let tokens = Tensor::from_slice(&ids, (1, ids.len()), &self.device)?;
            let states = self.model.decoder.forward(&tokens, &heard, ids.len() == prompt.len())?;
            let last = states.i((.., ids.len() - 1..))?;
            let logits = self.model.decoder.final_linear(&last)?.i((0, 0))?;
            let next =
                self.choose(&logits.narrow(D::Minus1, 0, self.end as usize + 1)?.to_vec1()?, ids.len() == prompt.len());
            if next == self.end {
                break;
            }
            ids.push(next);
        }
        Ok(ids[prompt.len()..].to_vec())
    }

    /// The best of the text ids and the end; the control ids behind the end are not looked at.
    fn choose(&self, logits: &[f32], first: bool) -> u32 {
        let barred = |id: &u32| self.suppressed.contains(id) || (first && self.suppressed_first.contains(id));
        let allowed = (0..logits.len() as u32).filter(|id| !barred(id));
        let better = |a: u32, b: u32| if logits[b as usize] > logits[a as usize] { b } else { a };
        allowed.reduce(better).unwrap_or(self.end)
    }
}

fn special(tokenizer: &Tokenizer, token: &str) -> Result<u32> {
    let id = tokenizer.token_to_id(token);
    id.ok_or_else(|| Error::invalid("the recogniser's tokenizer.json", token, "a multilingual Whisper token", "none"))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let json = std::fs::read(path).map_err(Error::io("read", path))?;
    serde_json::from_slice(&json).map_err(|e| Error::invalid(path.display(), "content", "a Whisper configuration", e))
}

fn tensors(weights: &TensorFile, device: &Device) -> Result<HashMap<String, Tensor>> {
    let floats = weights.tensors().values().filter(|t| matches!(t.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16));
    let load = |tensor: &crate::tensors::Tensor| {
        let values = Tensor::from_vec(tensor.to_f32()?, tensor.shape.clone(), device).map_err(failure)?;
        Ok((tensor.name.clone(), values))
    };
    floats.map(load).collect()
}

fn failure(error: candle_core::Error) -> Error {
    Error::Device { device: "candle".into(), action: "run the recogniser", reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_model_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Whisper::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("config.json"), "{error}");
    }
}
