//! From `--model` to an engine that is ready: the built-in demo, an export folder, or an export on the Hub.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::engine::Engine;
use crate::engine::cpu::{CpuEngine, Options};
use crate::error::Result;
use crate::format::{Export, Files};
use crate::hub::{self, DEFAULT_REPO, DEFAULT_REVISION, Hub, Location, Wanted};
use crate::speech::{DEFAULT_CHUNK_SECONDS, Speech};

/// Where to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// The fastest device this build and machine have.
    #[default]
    Auto,
    /// The processor.
    Cpu,
}

/// Options of every command that runs a model.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Export folder, or Hub repository of an export; without it a built-in demonstration voice speaks
    #[arg(long, value_name = "DIR|REPO")]
    pub model: Option<String>,
    /// Revision of the Hub repository
    #[arg(long, default_value = "main", requires = "model")]
    pub revision: String,
    /// Use only what is already downloaded
    #[arg(long)]
    pub offline: bool,
    /// Where to run
    #[arg(long, value_enum, default_value_t)]
    pub device: Device,
    /// Processor threads; all cores if not given
    #[arg(long)]
    pub threads: Option<usize>,
}

/// A model, ready to speak.
pub struct Model {
    /// Its name in messages.
    pub name: String,
    /// The backend.
    pub engine: Box<dyn Engine>,
    /// Its prompt builder.
    pub speech: Speech,
    /// What a listener should know about this voice.
    pub notice: Option<&'static str>,
    /// Longest utterance that the model speaks well, in seconds.
    pub chunk_seconds: f64,
}

impl Model {
    /// Finds, checks and loads a model for one speaker.
    ///
    /// # Errors
    /// [`crate::Error`] naming the file, tensor or option at fault.
    pub fn open(args: &ModelArgs) -> Result<Model> {
        let Source { files, notice, chunk_seconds } = Source::find(args)?;
        let export = Export::from_files(files)?;
        let speech = Speech::load(&export.config, &export.tokenizer)?;
        let name = export.name.clone();
        let options = Options { threads: args.threads, ..Options::default() };
        let engine = match args.device {
            Device::Auto | Device::Cpu => Box::new(CpuEngine::new(export, options)?),
        };
        Ok(Model { name, engine, speech, notice, chunk_seconds })
    }
}

/// A model's files and what is known about it beyond them.
struct Source {
    files: Files,
    notice: Option<&'static str>,
    chunk_seconds: f64,
}

impl Source {
    fn find(args: &ModelArgs) -> Result<Source> {
        let Some(model) = &args.model else { return Source::demo() };
        let files = match hub::resolve(model)? {
            Location::Folder(folder) => Files::in_folder(&folder)?,
            Location::Repo(repo) => {
                let hub = Hub::from_env(args.offline)?;
                let folder = hub.snapshot(&repo, &args.revision, &Wanted::export())?.folder;
                Files::in_folders(&folder, &companions(&hub, &folder)?)?
            }
        };
        Ok(Source { files, notice: None, chunk_seconds: DEFAULT_CHUNK_SECONDS })
    }

    #[cfg(feature = "demo")]
    fn demo() -> Result<Source> {
        use crate::demo;
        Ok(Source { files: demo::files()?, notice: Some(demo::NOTICE), chunk_seconds: demo::CHUNK_SECONDS })
    }

    #[cfg(not(feature = "demo"))]
    fn demo() -> Result<Source> {
        let message = "this build has no built-in voice (feature demo); give an export folder or repository";
        Err(crate::Error::input("--model", message))
    }
}

/// A published int4 file may come without config, tokenizer and codec; they are the original repository's then.
fn companions(hub: &Hub, folder: &Path) -> Result<PathBuf> {
    let complete = ["config.json", "tokenizer.json", "codec/model.safetensors"].iter().all(|f| folder.join(f).exists());
    if complete {
        return Ok(folder.to_owned());
    }
    Ok(hub.snapshot(DEFAULT_REPO, DEFAULT_REVISION, &Wanted::companions())?.folder)
}
