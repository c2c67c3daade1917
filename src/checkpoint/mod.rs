//! The source model: `config.json`, the weights in one or several safetensors files, tokenizer, licence and codec.
//!
//! [`Outline`] is everything that can be known from headers, and is checked as a whole before any weight is read;
//! [`Checkpoint`] adds the weights themselves, memory-mapped.

mod codec;
mod layout;
mod outline;
mod source;
pub mod synth;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use codec::{CodecOutline, codec_tensors};
pub use layout::{is_ignored, model_tensors, projection_shape};
pub use outline::{Folder, Outline, Shard, SourceFiles, SourceTensor, text};
pub use source::{Located, SourceRequest, locate, look};

use crate::config::{CodecConfig, ModelConfig};
use crate::error::{Error, Result};
use crate::tensors::{Tensor, TensorFile};

/// The codec's files.
#[derive(Clone, Debug)]
pub struct SourceCodec {
    /// `codec/config.json`.
    pub config: CodecConfig,
    /// `codec/model.safetensors`: the MimiModel layout, of which only the decoder half is checked.
    pub weights: TensorFile,
}

/// A source checkpoint, checked as a whole and mapped.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The folder, as messages name it.
    pub place: String,
    /// The folder.
    pub folder: PathBuf,
    /// `config.json`.
    pub config: ModelConfig,
    /// What the headers say.
    pub outline: Outline,
    /// The tensors of the language model and its stop head by name; ignored ones are left out.
    pub tensors: BTreeMap<String, Tensor>,
    /// The codec, where the checkpoint has one.
    pub codec: Option<SourceCodec>,
}

impl Checkpoint {
    /// Opens a local checkpoint: checks all headers, then maps the weights.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Invalid`] naming file and tensor; see [`Outline::read`].
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        let outline = Outline::read(&Folder::new(folder))?;
        let mut tensors = BTreeMap::new();
        for shard in &outline.shards {
            let file = TensorFile::open(&folder.join(&shard.name))?;
            let known = file.tensors().iter().filter(|(name, _)| !is_ignored(name));
            tensors.extend(known.map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        let codec = match &outline.codec {
            Some(codec) => Some(SourceCodec {
                config: codec.config.clone(),
                weights: TensorFile::open(&folder.join("codec/model.safetensors"))?,
            }),
            None => None,
        };
        let config = outline.config.clone();
        Ok(Checkpoint { place: outline.place.clone(), folder: folder.to_owned(), config, outline, tensors, codec })
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the architecture has no such tensor.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| Error::invalid(&self.place, name, "the tensor", "nothing of that name"))
    }
}
