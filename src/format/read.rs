//! Opening an export: every tensor's name, type, shape and scale is checked before any is handed out.

use std::path::{Path, PathBuf};

use half::f16;

use super::layout::{GROUP, REFERENCE_FILE, REPORT_FILE, WEIGHTS_FILE, projection_name};
use super::report::Report;
use crate::config::{CodecConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::tensors::{Bytes, Dtype, Tensor, TensorFile};

/// The files of an export, wherever they are: in a folder, in two (a published int4 file beside the original
/// repository's tokenizer and codec), or in the program itself.
#[derive(Clone, Debug)]
pub struct Files {
    /// Name of the model in messages: its folder or repository.
    pub name: String,
    /// The int4 file.
    pub weights: TensorFile,
    /// `config.json`.
    pub config: Bytes,
    /// `tokenizer.json`.
    pub tokenizer: Bytes,
    /// `codec/config.json` and `codec/model.safetensors`; absent in an export made with `--no-codec`.
    pub codec: Option<(Bytes, TensorFile)>,
    /// `export.json`; absent in exports published by others.
    pub report: Option<Bytes>,
}

impl Files {
    /// Maps the files of an export folder.
    ///
    /// The int4 file is `model.safetensors`, or the only `*.safetensors` of the folder.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] naming the file that is missing or damaged.
    pub fn in_folder(folder: &Path) -> Result<Files> {
        Files::in_folders(folder, folder)
    }

    /// Maps an export whose tokenizer, config and codec are in `companions` where `folder` lacks them.
    ///
    /// # Errors
    /// As [`Files::in_folder`].
    pub fn in_folders(folder: &Path, companions: &Path) -> Result<Files> {
        Files::at(&Paths::find(folder, companions)?)
    }

    /// Maps the files at these places.
    ///
    /// # Errors
    /// As [`Files::in_folder`].
    pub fn at(paths: &Paths) -> Result<Files> {
        let codec = match &paths.codec {
            Some((config, weights)) => Some((Bytes::map(config)?, TensorFile::open(weights)?)),
            None => None,
        };
        Ok(Files {
            name: paths.folder.display().to_string(),
            weights: TensorFile::open(&paths.weights)?,
            config: Bytes::map(&paths.config)?,
            tokenizer: Bytes::map(&paths.tokenizer)?,
            codec,
            report: paths.report.as_deref().map(Bytes::map).transpose()?,
        })
    }
}

/// Where the files of an export are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The export's own folder.
    pub folder: PathBuf,
    /// The int4 file.
    pub weights: PathBuf,
    /// `config.json`.
    pub config: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// `codec/config.json` and `codec/model.safetensors`.
    pub codec: Option<(PathBuf, PathBuf)>,
    /// `export.json`.
    pub report: Option<PathBuf>,
}

impl Paths {
    /// Finds the files of an export; those that `folder` lacks are looked for in `companions`.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] when there is no int4 file, or more than one.
    pub fn find(folder: &Path, companions: &Path) -> Result<Paths> {
        let find = |name: &str| Some(folder.join(name)).filter(|p| p.exists()).unwrap_or_else(|| companions.join(name));
        let codec = (find("codec/config.json"), find("codec/model.safetensors"));
        Ok(Paths {
            folder: folder.to_owned(),
            weights: weights_path(folder)?,
            config: find("config.json"),
            tokenizer: find("tokenizer.json"),
            codec: Some(codec).filter(|(_, weights)| weights.exists()),
            report: Some(folder.join(REPORT_FILE)).filter(|path| path.exists()),
        })
    }

    /// Every file with its name in an export.
    pub fn named(&self) -> Vec<(String, &Path)> {
        let weights = self.weights.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut named = vec![(weights, self.weights.as_path())];
        named.push(("config.json".to_owned(), &self.config));
        named.push(("tokenizer.json".to_owned(), &self.tokenizer));
        if let Some((config, weights)) = &self.codec {
            named.push(("codec/config.json".to_owned(), config));
            named.push(("codec/model.safetensors".to_owned(), weights));
        }
        named.extend(self.report.as_deref().map(|path| (REPORT_FILE.to_owned(), path)));
        named
    }
}

fn weights_path(folder: &Path) -> Result<PathBuf> {
    let default = folder.join(WEIGHTS_FILE);
    if default.exists() {
        return Ok(default);
    }
    let entries = std::fs::read_dir(folder).map_err(Error::io("read the folder", folder))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .filter(|path| path.file_name().is_some_and(|name| name != REFERENCE_FILE))
        .collect();
    match (found.pop(), found.is_empty()) {
        (Some(path), true) => Ok(path),
        (one, _) => {
            let count = found.len() + usize::from(one.is_some());
            Err(Error::invalid(folder.display(), "weights", "one .safetensors file", format!("{count} of them"))
                .with_hint("give the folder that rumik-export wrote"))
        }
    }
}

/// An int4 matrix, `w[n, k] = code[n, k] * scale[n, k / 128] + min[n, k / 128]`.
#[derive(Clone, Debug)]
pub struct Int4Matrix {
    /// Outputs (rows).
    pub n: usize,
    /// Inputs (columns), a multiple of 128.
    pub k: usize,
    /// `[n, k / 2]`: two codes a byte, the low nibble is the even column.
    pub codes: Bytes,
    /// `[n, k / 128]`, finite.
    pub scale: Vec<f16>,
    /// `[n, k / 128]`, finite.
    pub min: Vec<f16>,
}

/// An int8 matrix, `w[n, k] = code[n, k] * scale[n]`.
#[derive(Clone, Debug)]
pub struct Int8Matrix {
    /// Outputs (rows).
    pub n: usize,
    /// Inputs (columns).
    pub k: usize,
    /// `[n, k]` i8.
    pub codes: Bytes,
    /// `[n]`, finite.
    pub scale: Vec<f16>,
}

impl Int8Matrix {
    /// Codes of one row.
    pub fn row(&self, n: usize) -> impl Iterator<Item = i8> + '_ {
        self.codes[n * self.k..(n + 1) * self.k].iter().map(|&byte| byte as i8)
    }
}

/// A decoder layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Weight of the one LayerNorm, `[hidden]`.
    pub norm: Vec<f32>,
    /// Queries, `[heads * head_dim, hidden]`.
    pub q: Int4Matrix,
    /// Keys, `[kv_heads * head_dim, hidden]`.
    pub k: Int4Matrix,
    /// Values, `[kv_heads * head_dim, hidden]`.
    pub v: Int4Matrix,
    /// Attention output, `[hidden, heads * head_dim]`.
    pub o: Int4Matrix,
    /// MLP gate, `[intermediate, hidden]`.
    pub gate: Int4Matrix,
    /// MLP up, `[intermediate, hidden]`.
    pub up: Int4Matrix,
    /// MLP down, `[hidden, intermediate]`.
    pub down: Int4Matrix,
}

/// The output head over the audio rows.
#[derive(Clone, Debug)]
pub enum Head {
    /// `head.audio_weight`, BF16 `[rows, hidden]`.
    Bf16(Tensor),
    /// `head.audio_qweight` and `head.audio_scale`.
    Int8(Int8Matrix),
}

/// LayerNorm, Linear, GELU, Linear on the final normed hidden state; never quantized.
#[derive(Clone, Debug)]
pub struct StopHead {
    /// Width of the inner layer.
    pub inner: usize,
    /// `stop_predictor.0`, `[hidden]`.
    pub norm_weight: Vec<f32>,
    /// `stop_predictor.0`, `[hidden]`.
    pub norm_bias: Vec<f32>,
    /// `stop_predictor.1`, `[inner, hidden]`.
    pub up_weight: Vec<f32>,
    /// `stop_predictor.1`, `[inner]`.
    pub up_bias: Vec<f32>,
    /// `stop_predictor.3`, `[inner]`.
    pub down_weight: Vec<f32>,
    /// `stop_predictor.3`.
    pub down_bias: f32,
}

/// The codec's files.
#[derive(Clone, Debug)]
pub struct Codec {
    /// `codec/config.json`.
    pub config: CodecConfig,
    /// `codec/model.safetensors`.
    pub weights: TensorFile,
}

/// An export, checked as a whole.
#[derive(Clone, Debug)]
pub struct Export {
    /// Name of the model in messages.
    pub name: String,
    /// `config.json`.
    pub config: ModelConfig,
    /// Decoder layers in order.
    pub layers: Vec<Layer>,
    /// Input embedding, all rows.
    pub embedding: Int8Matrix,
    /// Output head, audio rows.
    pub head: Head,
    /// Token id of each head row: a permutation of the unit ids and `</audio>`.
    pub audio_ids: Vec<u32>,
    /// Weight of the last LayerNorm, `[hidden]`.
    pub norm: Vec<f32>,
    /// The stop head.
    pub stop: StopHead,
    /// The codec, unless exported without.
    pub codec: Option<Codec>,
    /// `tokenizer.json`.
    pub tokenizer: Bytes,
    /// `export.json`, unless published by others.
    pub report: Option<Bytes>,
}

impl Export {
    /// Opens and checks an export folder.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] naming file and tensor.
    pub fn open(folder: &Path) -> Result<Export> {
        Export::from_files(Files::in_folder(folder)?)
    }

    /// Checks the files of an export. Reads headers and the small tensors; the codes stay where they are.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file and tensor.
    pub fn from_files(files: Files) -> Result<Export> {
        let place = |name: &str| format!("{}/{name}", files.name);
        let config = ModelConfig::parse(&place("config.json"), &files.config)?;
        if let Some(json) = &files.report {
            Report::parse(&place(REPORT_FILE), json)?;
        }
        let weights = &files.weights;
        let hidden = config.hidden_size;
        let codec = match files.codec {
            Some((json, weights)) => {
                Some(Codec { config: CodecConfig::parse(&place("codec/config.json"), &json)?, weights })
            }
            None => None,
        };
        let layers = (0..config.num_layers()).map(|i| layer(weights, &config, i));
        Ok(Export {
            layers: layers.collect::<Result<_>>()?,
            embedding: int8(
                weights,
                "model.embed_tokens.qweight",
                "model.embed_tokens.scale",
                config.vocab_size,
                hidden,
            )?,
            head: head(weights, &config)?,
            audio_ids: audio_ids(weights, &config)?,
            norm: weights.get_f32("model.norm.weight", &[hidden])?,
            stop: stop_head(weights, hidden)?,
            codec,
            tokenizer: files.tokenizer,
            report: files.report,
            name: files.name,
            config,
        })
    }
}

fn layer(file: &TensorFile, config: &ModelConfig, index: usize) -> Result<Layer> {
    let (hidden, wide) = (config.hidden_size, config.intermediate_size);
    let (queries, keys) = (config.query_size(), config.key_value_size());
    let matrix = |projection: &str, n, k| int4(file, &projection_name(index, projection), n, k);
    Ok(Layer {
        norm: file.get_f32(&projection_name(index, "input_layernorm.weight"), &[hidden])?,
        q: matrix("self_attn.q_proj", queries, hidden)?,
        k: matrix("self_attn.k_proj", keys, hidden)?,
        v: matrix("self_attn.v_proj", keys, hidden)?,
        o: matrix("self_attn.o_proj", hidden, queries)?,
        gate: matrix("mlp.gate_proj", wide, hidden)?,
        up: matrix("mlp.up_proj", wide, hidden)?,
        down: matrix("mlp.down_proj", hidden, wide)?,
    })
}

fn int4(file: &TensorFile, name: &str, n: usize, k: usize) -> Result<Int4Matrix> {
    if !k.is_multiple_of(GROUP) {
        return Err(Error::invalid(
            file.place(),
            name,
            format!("columns in groups of {GROUP}"),
            format!("{k} columns"),
        ));
    }
    let groups = [n, k / GROUP];
    Ok(Int4Matrix {
        n,
        k,
        codes: file.get_as(&format!("{name}.qweight"), &[Dtype::U8], &[n, k / 2])?.data.clone(),
        scale: finite_f16(file, &format!("{name}.scale"), &groups)?,
        min: finite_f16(file, &format!("{name}.min"), &groups)?,
    })
}

fn int8(file: &TensorFile, codes: &str, scale: &str, n: usize, k: usize) -> Result<Int8Matrix> {
    Ok(Int8Matrix {
        n,
        k,
        codes: file.get_as(codes, &[Dtype::I8], &[n, k])?.data.clone(),
        scale: finite_f16(file, scale, &[n])?,
    })
}

fn finite_f16(file: &TensorFile, name: &str, shape: &[usize]) -> Result<Vec<f16>> {
    let tensor = file.get_as(name, &[Dtype::F16], shape)?;
    let values = tensor.to_f16()?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(index) => Err(tensor.invalid("finite values", format!("{} at index {index}", values[index]))),
        None => Ok(values),
    }
}

fn head(file: &TensorFile, config: &ModelConfig) -> Result<Head> {
    let (rows, hidden) = (config.audio_rows(), config.hidden_size);
    if file.find("head.audio_weight").is_some() {
        return Ok(Head::Bf16(file.get_as("head.audio_weight", &[Dtype::BF16], &[rows, hidden])?.clone()));
    }
    Ok(Head::Int8(int8(file, "head.audio_qweight", "head.audio_scale", rows, hidden)?))
}

fn audio_ids(file: &TensorFile, config: &ModelConfig) -> Result<Vec<u32>> {
    let tensor = file.get_as("head.audio_ids", &[Dtype::I32, Dtype::I64], &[config.audio_rows()])?;
    let ids = tensor.to_i64()?;
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    let mut wanted = config.audio_ids();
    wanted.sort_unstable();
    match sorted.iter().zip(&wanted).find(|(found, wanted)| **found != i64::from(**wanted)) {
        Some((found, _)) => Err(tensor.invalid("each unit id and </audio> once", format!("{found}, or a repeated id"))),
        None => Ok(ids.iter().map(|&id| id as u32).collect()),
    }
}

fn stop_head(file: &TensorFile, hidden: usize) -> Result<StopHead> {
    let inner = file.get("stop_predictor.1.weight")?.shape.first().copied().unwrap_or(0);
    let get = |name: &str, shape: &[usize]| file.get_f32(&format!("stop_predictor.{name}"), shape);
    Ok(StopHead {
        inner,
        norm_weight: get("0.weight", &[hidden])?,
        norm_bias: get("0.bias", &[hidden])?,
        up_weight: get("1.weight", &[inner, hidden])?,
        up_bias: get("1.bias", &[inner])?,
        down_weight: get("3.weight", &[1, inner])?,
        down_bias: get("3.bias", &[1])?[0],
    })
}
