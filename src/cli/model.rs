//! From `--model` to an engine that is ready: the built-in demo, an export folder, or an export on the Hub.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use crate::engine::Engine;
use crate::engine::cpu::{CpuEngine, Options};
use crate::error::{Error, Result};
use crate::format::{Export, Files, Paths};
use crate::hub::{self, DEFAULT_REPO, DEFAULT_REVISION, Hub, Location, Wanted};
use crate::pass::Standing;
use crate::speech::{DEFAULT_CHUNK_SECONDS, Speech};

/// Positions of a slot: a prompt of 256 tokens and the longest speech accepted.
const POSITIONS: usize = 256 + crate::config::LARGEST_MAX_NEW_TOKENS;
/// Slots of a server that was not told how many, on the processor.
const CPU_SLOTS: usize = 4;
/// The same on a GPU.
#[cfg(feature = "cuda")]
const GPU_SLOTS: usize = 16;

/// Where to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A GPU that can take the model, else the processor.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU by its number.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(text: &str) -> Result<Device> {
        let gpu = |number: &str| number.parse().map(Device::Cuda).ok();
        match text {
            "auto" => Some(Device::Auto),
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(gpu),
        }
        .ok_or_else(|| Error::input("--device", format!("found {text:?}, expected auto, cpu, cuda or cuda:N")))
    }
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
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
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
    /// How far its speech has been proven on this kind of backend. Serving asks for [`Standing::require`].
    pub standing: Standing,
}

impl Model {
    /// Finds, checks and loads a model for one speaker.
    ///
    /// # Errors
    /// [`crate::Error`] naming the file, tensor or option at fault.
    pub fn open(args: &ModelArgs) -> Result<Model> {
        Model::open_with(args, Some(1))
    }

    /// As [`Model::open`], for `slots` speakers at once; as many as are sensible on the device if not given.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(args: &ModelArgs, slots: Option<usize>) -> Result<Model> {
        let Source { files, paths, notice, chunk_seconds } = Source::find(args)?;
        let export = Export::from_files(files)?;
        let speech = Speech::load(&export.config, &export.tokenizer)?;
        let name = export.name.clone();
        let engine = engine(export, args, slots)?;
        let standing = paths.map_or(Standing::BuiltIn, |paths| Standing::of(&paths, engine.info().kind));
        Ok(Model { name, engine, speech, notice, chunk_seconds, standing })
    }
}

/// The engine that the arguments ask for, with `slots` slots; as many as are sensible on the device if not given.
pub(super) fn engine(export: Export, args: &ModelArgs, slots: Option<usize>) -> Result<Box<dyn Engine>> {
    let gpu = match args.device {
        Device::Cpu => None,
        Device::Cuda(number) => Some(cuda(&export, number, slots)?),
        Device::Auto => automatic(&export, slots),
    };
    if let Some(engine) = gpu {
        return Ok(engine);
    }
    let positions = Some(positions(&export));
    let slots = slots.unwrap_or(CPU_SLOTS);
    Ok(Box::new(CpuEngine::new(export, Options { slots, threads: args.threads, positions })?))
}

fn positions(export: &Export) -> usize {
    POSITIONS.min(export.config.max_position_embeddings)
}

/// The first GPU, if it will do; the reason on stderr, if not.
#[cfg(feature = "cuda")]
fn automatic(export: &Export, slots: Option<usize>) -> Option<Box<dyn Engine>> {
    cuda(export, 0, slots).inspect_err(|error| eprintln!("note: running on the processor: {error}")).ok()
}

#[cfg(not(feature = "cuda"))]
fn automatic(_: &Export, _: Option<usize>) -> Option<Box<dyn Engine>> {
    None
}

#[cfg(feature = "cuda")]
fn cuda(export: &Export, ordinal: usize, slots: Option<usize>) -> Result<Box<dyn Engine>> {
    use crate::engine::cuda::{CudaEngine, Options};
    let slots = slots.unwrap_or(GPU_SLOTS);
    let options = Options { ordinal, slots, positions: positions(export), ..Options::default() };
    Ok(Box::new(CudaEngine::open(export, &options)?))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: &Export, _: usize, _: Option<usize>) -> Result<Box<dyn Engine>> {
    let why = "this build has no GPU code; build with --features cuda".to_owned();
    Err(Error::Unsupported { what: "--device cuda".to_owned(), why })
}

/// A model's files and what is known about it beyond them.
struct Source {
    files: Files,
    /// Where they are; none for the model that is compiled in.
    paths: Option<Paths>,
    notice: Option<&'static str>,
    chunk_seconds: f64,
}

impl Source {
    fn find(args: &ModelArgs) -> Result<Source> {
        let Some(model) = &args.model else { return Source::demo() };
        let paths = match hub::resolve(model)? {
            Location::Folder(folder) => Paths::find(&folder, &folder)?,
            Location::Repo(repo) => {
                let hub = Hub::from_env(args.offline)?;
                let folder = hub.snapshot(&repo, &args.revision, &Wanted::export())?.folder;
                Paths::find(&folder, &companions(&hub, &folder)?)?
            }
        };
        let files = Files::at(&paths)?;
        Ok(Source { files, paths: Some(paths), notice: None, chunk_seconds: DEFAULT_CHUNK_SECONDS })
    }

    #[cfg(feature = "demo")]
    fn demo() -> Result<Source> {
        use crate::demo;
        Ok(Source {
            files: demo::files()?,
            paths: None,
            notice: Some(demo::NOTICE),
            chunk_seconds: demo::CHUNK_SECONDS,
        })
    }

    #[cfg(not(feature = "demo"))]
    fn demo() -> Result<Source> {
        let message = "this build has no built-in voice (feature demo); give an export folder or repository";
        Err(Error::input("--model", message))
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
