//! From `--model` to an engine that is ready: the built-in demo, an export folder, or an export on the Hub.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::engine::Engine;
use crate::engine::cpu::{CpuEngine, Options};
#[cfg(not(feature = "demo"))]
use crate::error::Error;
use crate::error::Result;
use crate::format::{Export, Files};
use crate::hub::{self, DEFAULT_REPO, DEFAULT_REVISION, Hub, Location, Wanted};
use crate::speech::Speech;

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
}

impl Model {
    /// Finds, checks and loads a model for one speaker.
    ///
    /// # Errors
    /// [`Error`] naming the file, tensor or option at fault.
    pub fn open(args: &ModelArgs) -> Result<Model> {
        let (files, notice) = files(args)?;
        let export = Export::from_files(files)?;
        let speech = Speech::load(&export.config, &export.tokenizer)?;
        let name = export.name.clone();
        let options = Options { threads: args.threads, ..Options::default() };
        let engine = match args.device {
            Device::Auto | Device::Cpu => Box::new(CpuEngine::new(export, options)?),
        };
        Ok(Model { name, engine, speech, notice })
    }
}

fn files(args: &ModelArgs) -> Result<(Files, Option<&'static str>)> {
    let Some(model) = &args.model else { return demo_files() };
    let folder = match hub::resolve(model)? {
        Location::Folder(folder) => return Ok((Files::in_folder(&folder)?, None)),
        Location::Repo(repo) => Hub::from_env(args.offline)?.snapshot(&repo, &args.revision, &Wanted::export())?.folder,
    };
    let companions = companions(&folder, args.offline)?;
    Ok((Files::in_folders(&folder, &companions)?, None))
}

/// A published int4 file may come without config, tokenizer and codec; they are the original repository's then.
fn companions(folder: &std::path::Path, offline: bool) -> Result<PathBuf> {
    let complete = ["config.json", "tokenizer.json", "codec/model.safetensors"].iter().all(|f| folder.join(f).exists());
    if complete {
        return Ok(folder.to_owned());
    }
    let wanted = Wanted::companions();
    Ok(Hub::from_env(offline)?.snapshot(DEFAULT_REPO, DEFAULT_REVISION, &wanted)?.folder)
}

#[cfg(feature = "demo")]
fn demo_files() -> Result<(Files, Option<&'static str>)> {
    Ok((crate::demo::files()?, Some(crate::demo::NOTICE)))
}

#[cfg(not(feature = "demo"))]
fn demo_files() -> Result<(Files, Option<&'static str>)> {
    Err(Error::input("--model", "this build has no built-in voice (feature demo); give an export folder or repository"))
}
