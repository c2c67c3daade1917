//! Everything that configuration and headers say of a checkpoint, checked before any weight is read.
//!
//! The files may be anywhere: [`SourceFiles`] is all that is asked of a place, so that a dry run can check a remote
//! checkpoint through byte ranges without fetching its data.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::codec::{self, CodecOutline};
use super::layout::{is_ignored, model_tensors};
use crate::config::{CodecConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::format::layout::{GROUP, PROJECTIONS, projection_name};
use crate::tensors::{Dtype, Header};

/// Largest configuration or index file read, in bytes.
const LARGEST_JSON: u64 = 16 << 20;
/// Element types a source tensor may have.
const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];
/// Index of a sharded checkpoint.
const INDEX_FILE: &str = "model.safetensors.index.json";
/// The weights of a checkpoint in one file.
const SINGLE_FILE: &str = "model.safetensors";
/// Files that must be there, though nothing in them is read here.
const REQUIRED: [&str; 3] = ["tokenizer.json", "LICENSE", "NOTICE"];

/// A place that holds the files of a checkpoint.
pub trait SourceFiles {
    /// The place in messages: a folder, or a repository with its revision.
    fn place(&self) -> String;

    /// Size of a file in bytes; `None` when there is no such file. `name` may contain `/`.
    ///
    /// # Errors
    /// When the place cannot answer.
    fn size(&self, name: &str) -> Result<Option<u64>>;

    /// Bytes of a file. `range` lies inside it.
    ///
    /// # Errors
    /// When they cannot be had.
    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>>;
}

/// A local folder.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`.
    pub fn new(path: &Path) -> Folder {
        Folder(path.to_owned())
    }
}

impl SourceFiles for Folder {
    fn place(&self) -> String {
        self.0.display().to_string()
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        let path = self.0.join(name);
        match std::fs::metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.len())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("look at", &path)(e)),
        }
    }

    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let path = self.0.join(name);
        let mut file = File::open(&path).map_err(Error::io("open", &path))?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(Error::io("read", &path))?;
        Ok(bytes)
    }
}

/// One weight file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its size.
    pub bytes: u64,
}

/// What a header says of a source tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// The file, for messages.
    pub place: Arc<str>,
}

/// What configuration and headers say of a checkpoint; holding one means that all of it was checked.
#[derive(Clone, Debug)]
pub struct Outline {
    /// The place in messages.
    pub place: String,
    /// `config.json`.
    pub config: ModelConfig,
    /// The weight files by name.
    pub shards: Vec<Shard>,
    /// The tensors of the language model and its stop head; ignored ones are left out.
    pub tensors: BTreeMap<String, SourceTensor>,
    /// The codec, where the checkpoint has one.
    pub codec: Option<CodecOutline>,
}

impl Outline {
    /// Reads configuration, index and headers and checks all of it: the index against the shards both ways, sizes of files,
    /// names, shapes and types of tensors, columns in whole groups, the tokenizer and licence files, and the codec.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file and tensor; [`Error::Io`] or [`Error::Network`] when a file cannot be read.
    pub fn read(files: &dyn SourceFiles) -> Result<Outline> {
        let place = files.place();
        let config = ModelConfig::parse(&format!("{place}/config.json"), &small_file(files, "config.json")?)?;
        for name in REQUIRED {
            required(files, name)?;
        }
        let (shards, tensors) = weights(files)?;
        let outline = Outline { codec: codec_outline(files, &config)?, place, config, shards, tensors };
        outline.check()?;
        Ok(outline)
    }

    /// Bytes that an export reads: every tensor, and the audio rows of the embedding once more for the head.
    pub fn source_bytes(&self) -> u64 {
        let bytes = |t: &SourceTensor| t.shape.iter().product::<usize>() as u64 * t.dtype.bitsize() as u64 / 8;
        let embedding = self.tensors.get("model.embed_tokens.weight").map_or(0, bytes);
        let head = embedding / self.config.vocab_size as u64 * self.config.audio_rows() as u64;
        self.tensors.values().map(bytes).sum::<u64>() + head
    }

    /// Width inside the stop head.
    pub fn stop_inner(&self) -> usize {
        self.tensors.get("stop_predictor.1.weight").and_then(|t| t.shape.first().copied()).unwrap_or(0)
    }

    /// The tensors against the configuration.
    fn check(&self) -> Result<()> {
        self.check_groups()?;
        if self.config.num_layers() > self.tensors.len() {
            // a number in a configuration must not decide how much memory its own check takes
            let found = format!("{} (num_hidden_layers)", self.config.num_layers());
            let expected = format!("no more layers than the {} tensors of the weight files", self.tensors.len());
            return Err(Error::invalid(&self.place, "config.json", expected, found));
        }
        let expected = model_tensors(&self.config, self.stop_inner());
        for (name, shape) in &expected {
            check_tensor(&self.place, &self.tensors, name, &FLOATS, shape)?;
        }
        let known: BTreeSet<&str> = expected.iter().map(|(name, _)| name.as_str()).collect();
        match self.tensors.iter().find(|(name, _)| !known.contains(name.as_str())) {
            Some((name, tensor)) => {
                let found = format!("{} {:?}", tensor.dtype, tensor.shape);
                Err(Error::invalid(&tensor.place, name, "no tensor of that name in this architecture", found))
            }
            None => Ok(()),
        }
    }

    /// Columns of every int4 matrix come in whole groups.
    fn check_groups(&self) -> Result<()> {
        for projection in PROJECTIONS {
            let name = projection_name(0, projection) + ".weight";
            let [_, k] = super::layout::projection_shape(&self.config, projection);
            if !k.is_multiple_of(GROUP) {
                let place = self.tensors.get(&name).map_or(self.place.as_str(), |tensor| &tensor.place);
                return Err(Error::invalid(
                    place,
                    name,
                    format!("columns in groups of {GROUP}"),
                    format!("{k} columns"),
                ));
            }
        }
        Ok(())
    }
}

/// Checks type and shape of one tensor that must be there.
pub(super) fn check_tensor(
    place: &str,
    tensors: &BTreeMap<String, SourceTensor>,
    name: &str,
    dtypes: &[Dtype],
    shape: &[usize],
) -> Result<()> {
    let dtypes_text = dtypes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
    let expected = format!("{dtypes_text} {shape:?}");
    let Some(tensor) = tensors.get(name) else {
        return Err(Error::invalid(place, name, expected, "nothing of that name"));
    };
    if !dtypes.contains(&tensor.dtype) || tensor.shape != shape {
        return Err(Error::invalid(&tensor.place, name, expected, format!("{} {:?}", tensor.dtype, tensor.shape)));
    }
    Ok(())
}

/// A small text file of a checkpoint.
///
/// # Errors
/// [`Error::Invalid`] when it is missing or larger than 16 MiB.
pub fn text(files: &dyn SourceFiles, name: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&small_file(files, name)?).into_owned())
}

fn required(files: &dyn SourceFiles, name: &str) -> Result<u64> {
    let missing = || Error::invalid(files.place(), name, "the file", "nothing of that name");
    files.size(name)?.ok_or_else(missing)
}

fn small_file(files: &dyn SourceFiles, name: &str) -> Result<Vec<u8>> {
    let size = required(files, name)?;
    if size > LARGEST_JSON {
        let expected = format!("at most {LARGEST_JSON} bytes");
        return Err(Error::invalid(files.place(), name, expected, format!("{size} bytes")));
    }
    files.read(name, 0..size)
}

/// Header of one safetensors file, and the file's size.
fn header(files: &dyn SourceFiles, name: &str) -> Result<(Header, u64)> {
    let place = format!("{}/{name}", files.place());
    let size = required(files, name)?;
    let length = Header::length(&place, &files.read(name, 0..size.min(8))?, size)?;
    Ok((Header::parse(&place, &files.read(name, 0..length)?, size)?, size))
}

fn source_tensors(place: String, header: Header) -> impl Iterator<Item = (String, SourceTensor)> {
    let place: Arc<str> = Arc::from(place);
    header
        .entries
        .into_iter()
        .map(move |(name, entry)| (name, SourceTensor { dtype: entry.dtype, shape: entry.shape, place: place.clone() }))
}

/// Shards and tensors of the language model. Like transformers, a single file goes before an index.
fn weights(files: &dyn SourceFiles) -> Result<(Vec<Shard>, BTreeMap<String, SourceTensor>)> {
    if files.size(SINGLE_FILE)?.is_none() && files.size(INDEX_FILE)?.is_some() {
        return sharded(files);
    }
    let (header, bytes) = header(files, SINGLE_FILE)?;
    let tensors = source_tensors(format!("{}/{SINGLE_FILE}", files.place()), header);
    let shard = Shard { name: SINGLE_FILE.to_owned(), bytes };
    Ok((vec![shard], tensors.filter(|(name, _)| !is_ignored(name)).collect()))
}

fn sharded(files: &dyn SourceFiles) -> Result<(Vec<Shard>, BTreeMap<String, SourceTensor>)> {
    let index = weight_map(&format!("{}/{INDEX_FILE}", files.place()), &small_file(files, INDEX_FILE)?)?;
    let names: BTreeSet<&String> = index.values().collect();
    let (mut shards, mut tensors) = (Vec::new(), BTreeMap::new());
    for shard in names {
        let place = format!("{}/{shard}", files.place());
        let (header, bytes) = header(files, shard)?;
        for name in header.entries.keys().filter(|name| !is_ignored(name) && index.get(*name) != Some(shard)) {
            let found = index.get(name).map_or("no such entry".to_owned(), |other| format!("it in {other}"));
            return Err(Error::invalid(place, name, format!("an entry of {INDEX_FILE} for it"), found));
        }
        let missing = |(name, file): &(&String, &String)| *file == shard && !header.entries.contains_key(*name);
        if let Some((name, _)) = index.iter().filter(|(name, _)| !is_ignored(name)).find(missing) {
            let expected = format!("the tensor ({INDEX_FILE} says it is here)");
            return Err(Error::invalid(place, name, expected, "nothing of that name"));
        }
        tensors.extend(source_tensors(place, header).filter(|(name, _)| !is_ignored(name)));
        shards.push(Shard { name: shard.clone(), bytes });
    }
    Ok((shards, tensors))
}

/// The index: tensor name to file name.
fn weight_map(place: &str, json: &[u8]) -> Result<BTreeMap<String, String>> {
    let index: Value = serde_json::from_slice(json).map_err(|e| Error::invalid(place, "content", "JSON", e))?;
    let Some(Value::Object(map)) = index.get("weight_map") else {
        return Err(Error::invalid(place, "weight_map", "an object of tensor and file names", "none"));
    };
    if map.is_empty() {
        return Err(Error::invalid(place, "weight_map", "tensor names", "an empty object"));
    }
    map.iter()
        .map(|(name, file)| match file.as_str() {
            // a name that leads out of the checkpoint must not choose what is read
            Some(file) if file.ends_with(".safetensors") && !file.contains(['/', '\\']) => {
                Ok((name.clone(), file.to_owned()))
            }
            _ => Err(Error::invalid(place, name, "a file name ending in .safetensors, without a path", file)),
        })
        .collect()
}

/// The codec, when the checkpoint has either of its files.
fn codec_outline(files: &dyn SourceFiles, model: &ModelConfig) -> Result<Option<CodecOutline>> {
    let (config, weights) = ("codec/config.json", "codec/model.safetensors");
    if files.size(config)?.is_none() && files.size(weights)?.is_none() {
        return Ok(None);
    }
    let place = format!("{}/{config}", files.place());
    let config = CodecConfig::parse(&place, &small_file(files, config)?)?;
    let (header, bytes) = header(files, weights)?;
    let place = format!("{}/{weights}", files.place());
    let tensors = source_tensors(place.clone(), header).collect();
    codec::check(&place, &config, model, &tensors)?;
    Ok(Some(CodecOutline { config, bytes }))
}
