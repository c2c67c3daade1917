//! `rumik-run serve`: the HTTP server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::HeaderValue;
use clap::Args;

use super::Outcome;
use super::model::{Model, ModelArgs};
use super::text::read_lexicon;
use crate::error::{Error, Result};
use crate::serve::{Keys, Limits, Options, Server, Source};

/// Name of the built-in voice in requests.
const DEMO: &str = "rumik-demo";

/// Options of `serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Serve an export that has no pass of the release gate; every response says so
    #[arg(long)]
    unverified: bool,
    /// Address and port to listen on
    #[arg(long, default_value = "127.0.0.1:8080", value_name = "ADDRESS:PORT")]
    bind: SocketAddr,
    /// Streams at once; 4 on the processor and 16 on a GPU if not given
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Requests that may wait for a slot; more are refused with 429
    #[arg(long, default_value_t = Options::default().queue, value_name = "N")]
    queue: usize,
    /// File of API keys, one a line; without it everyone who reaches the address is let in
    #[arg(long, value_name = "FILE")]
    api_keys: Option<PathBuf>,
    /// Origin whose pages may ask, as `https://example.org`; may be given again
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<HeaderValue>,
    /// Further name of the model in requests, such as tts-1; may be given again
    #[arg(long, value_name = "NAME")]
    model_name: Vec<String>,
    /// File of lines `word → spoken`, applied to every text
    #[arg(long, value_name = "FILE")]
    lexicon: Option<PathBuf>,
    /// Longest text accepted
    #[arg(long, default_value_t = Limits::default().text_chars, value_name = "CHARACTERS")]
    max_text: usize,
    /// Connections at once
    #[arg(long, default_value_t = Limits::default().connections, value_name = "N")]
    max_connections: usize,
    /// Longest wait for a slot
    #[arg(long, default_value_t = seconds(Limits::default().queue_timeout), value_name = "SECONDS")]
    queue_timeout: f64,
    /// A listener who lets a frame wait longer is cut off
    #[arg(long, default_value_t = seconds(Limits::default().write_timeout), value_name = "SECONDS")]
    write_timeout: f64,
    /// Longest request, from its arrival to its last sample
    #[arg(long, default_value_t = seconds(Limits::default().time_limit), value_name = "SECONDS")]
    time_limit: f64,
    /// Time that running requests get to finish after SIGTERM
    #[arg(long, default_value_t = seconds(Limits::default().drain_timeout), value_name = "SECONDS")]
    drain_timeout: f64,
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

/// A time limit of the command line.
fn limit(option: &'static str, seconds: f64) -> Result<Duration> {
    const LONGEST: f64 = 7.0 * 86_400.0;
    match seconds > 0.0 && seconds <= LONGEST {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => {
            Err(Error::input(option, format!("found {seconds}, expected more than 0 and at most {LONGEST} seconds")))
        }
    }
}

fn at_least_one(option: &'static str, value: usize) -> Result<usize> {
    match value {
        0 => Err(Error::input(option, "expected at least 1, found 0")),
        _ => Ok(value),
    }
}

/// Serves until it is told to end.
///
/// # Errors
/// Whatever keeps it from listening or the model from loading.
pub fn run(args: &ServeArgs) -> anyhow::Result<Outcome> {
    let options = args.options()?;
    let loaded = args.clone();
    let server = Server::start(options, move || source(&loaded))?;
    eprintln!("listening on http://{}", server.address());
    server.wait()?;
    Ok(Outcome::Done)
}

fn source(args: &ServeArgs) -> Result<Source> {
    let model = Model::open_with(&args.model, args.slots)?;
    let standing = match args.unverified {
        true => model.standing,
        false => model.standing.require()?,
    };
    let name = args.model.model.as_ref().map_or_else(|| DEMO.to_owned(), |_| name_in_requests(&model.name));
    eprintln!("{name} on {}, {} slots", model.engine.info().backend, model.engine.info().slots);
    eprintln!("{}: {}", if standing.is_verified() { "gate" } else { "WARNING" }, standing.summary());
    if let Some(notice) = model.notice {
        eprintln!("note: {notice}");
    }
    let Model { engine, speech, notice, chunk_seconds, .. } = model;
    Ok(Source { name, engine, speech, notice, chunk_seconds, standing })
}

/// The last part of a folder's path: paths of the server are nobody's business.
fn name_in_requests(name: &str) -> String {
    Path::new(name).file_name().map_or_else(|| name.to_owned(), |last| last.to_string_lossy().into_owned())
}

impl ServeArgs {
    fn options(&self) -> Result<Options> {
        let lexicon = self.lexicon.as_deref().map(read_lexicon).transpose()?.unwrap_or_default();
        Ok(Options {
            bind: self.bind,
            queue: self.queue,
            keys: self.api_keys.as_deref().map(Keys::read).transpose()?,
            cors: self.cors.clone(),
            model_names: self.model_name.clone(),
            lexicon,
            limits: Limits {
                text_chars: at_least_one("--max-text", self.max_text)?,
                connections: at_least_one("--max-connections", self.max_connections)?,
                queue_timeout: limit("--queue-timeout", self.queue_timeout)?,
                write_timeout: limit("--write-timeout", self.write_timeout)?,
                time_limit: limit("--time-limit", self.time_limit)?,
                drain_timeout: limit("--drain-timeout", self.drain_timeout)?,
                ..Limits::default()
            },
        })
    }
}
