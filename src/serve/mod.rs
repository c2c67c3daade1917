//! `rumik-run serve`: many streams on one engine, behind an HTTP interface after OpenAI's.
//!
//! ```text
//! connections (net) ─▶ paths, keys, fields (api) ─▶ Job ─▶ engine's thread (worker, waiting)
//!         ▲                                                   │ frames, at most 50 a stream (stream)
//!         └────────────── container or events (body, encode) ◀┘
//! ```
//!
//! The web side is asynchronous and never touches the engine; one thread owns it. They share `state::Shared` alone.
//! `docs/serving.md` has the interface, the limits and the figures.

mod api;
mod body;
pub mod encode;
mod keys;
mod metrics;
mod net;
mod page;
mod state;
mod stream;
mod waiting;
mod worker;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderValue;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::engine::{Engine, Info};
use crate::error::{Error, Result};
use crate::pass::Standing;
use crate::speech::{Lexicon, Pace, Speech, Style};
use api::error::ApiError;
pub use keys::Keys;
pub use metrics::resident_bytes;
pub use state::Condition;
use state::Shared;
pub use stream::STREAM_FRAMES;
use worker::Worker;

/// What the engine says before it is called ready.
const PROBE: &str = "Hello";
/// Threads of the web side: little work, none of it long.
const WEB_THREADS: usize = 2;
/// How often a drain looks whether it is over.
const DRAIN_STEP: Duration = Duration::from_millis(20);

/// How long and how large things may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Characters of a text.
    pub text_chars: usize,
    /// Connections at once.
    pub connections: usize,
    /// Time for the head of a request, and again for its body.
    pub header_timeout: Duration,
    /// Time that a request waits for its first samples.
    pub queue_timeout: Duration,
    /// Time that a frame waits for its listener.
    pub write_timeout: Duration,
    /// Time for a whole request.
    pub time_limit: Duration,
    /// Time that running requests get when the server is told to end.
    pub drain_timeout: Duration,
    /// Age of the engine thread's heartbeat at which it counts as stalled.
    pub stall: Duration,
    /// Time without a request after which the engine proves anew that it speaks.
    pub proof: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 1 << 20,
            text_chars: 10_000,
            connections: 1024,
            header_timeout: Duration::from_secs(10),
            queue_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            time_limit: Duration::from_secs(30 * 60),
            drain_timeout: Duration::from_secs(30),
            stall: Duration::from_secs(15),
            proof: Duration::from_secs(30),
        }
    }
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub bind: SocketAddr,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Keys that let in; without them everyone is let in.
    pub keys: Option<Keys>,
    /// Origins whose pages may ask; none by default.
    pub cors: Vec<HeaderValue>,
    /// Names of the model in requests, beside its own.
    pub model_names: Vec<String>,
    /// Words of the operator, applied to every text.
    pub lexicon: Lexicon,
    /// Sizes and times.
    pub limits: Limits,
}

impl Default for Options {
    /// 127.0.0.1:8080, 32 waiting requests, nothing else.
    fn default() -> Options {
        Options {
            bind: SocketAddr::from(([127, 0, 0, 1], 8080)),
            queue: 32,
            keys: None,
            cors: Vec::new(),
            model_names: Vec::new(),
            lexicon: Lexicon::default(),
            limits: Limits::default(),
        }
    }
}

/// A model that is ready to be served.
pub struct Source {
    /// Its name in requests.
    pub name: String,
    /// The backend.
    pub engine: Box<dyn Engine>,
    /// Its prompt builder.
    pub speech: Speech,
    /// What a listener should know about this voice.
    pub notice: Option<&'static str>,
    /// Longest utterance that the model speaks well, in seconds.
    pub chunk_seconds: f64,
    /// How far its speech has been proven.
    pub standing: Standing,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).field("standing", &self.standing).finish_non_exhaustive()
    }
}

/// What is known about the model once it is loaded.
struct Catalog {
    models: Vec<String>,
    speech: Speech,
    info: Info,
    notice: Option<&'static str>,
    chunk_seconds: f64,
    standing: Standing,
    lexicon: Lexicon,
}

impl Catalog {
    /// How a text is prepared that asks for nothing special.
    fn preparation(&self, pace: Option<Pace>) -> crate::speech::Options {
        crate::speech::Options {
            chunk_seconds: self.chunk_seconds,
            pace,
            lexicon: self.lexicon.clone(),
            ..crate::speech::Options::default()
        }
    }
}

/// What the handlers share.
struct App {
    options: Options,
    shared: Arc<Shared>,
    catalog: OnceLock<Catalog>,
    /// Seconds since 1970 at the start.
    created: u64,
}

impl App {
    fn catalog(&self) -> std::result::Result<&Catalog, ApiError> {
        self.catalog.get().ok_or_else(|| ApiError::unavailable("loading", "the model is being loaded", 5))
    }

    /// Seconds after which a place is likely to be free: one request each, as long as they took so far, at least 1.
    fn retry_after(&self) -> u64 {
        self.shared.metrics.mean_request_seconds().ceil().clamp(1.0, 60.0) as u64
    }
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    draining: watch::Sender<bool>,
    drain_timeout: Duration,
    worker: Option<JoinHandle<Result<()>>>,
    runtime: Option<Runtime>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens at once and loads the model meanwhile, on the thread that will own the engine.
    ///
    /// # Errors
    /// [`Error::Input`] when the address cannot be listened on. An error of `load` comes from [`Server::wait`].
    pub fn start(options: Options, load: impl FnOnce() -> Result<Source> + Send + 'static) -> Result<Server> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WEB_THREADS)
            .enable_all()
            .build()
            .map_err(|error| Error::input("serve", format!("cannot start threads: {error}")))?;
        let limits = options.limits;
        let listener = {
            let _inside = runtime.enter();
            net::listen(options.bind)?
        };
        let address = listener.local_addr().unwrap_or(options.bind);
        let shared = Arc::new(Shared::new(limits.stall));
        let created = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |age| age.as_secs());
        let app = Arc::new(App { options, shared: shared.clone(), catalog: OnceLock::new(), created });
        let (draining, watcher) = watch::channel(false);
        runtime.spawn(net::serve(listener, api::router(&app), limits, watcher));
        let worker = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || work(&app, load))
            .map_err(|error| Error::input("serve", format!("cannot start a thread: {error}")))?;
        let drain_timeout = limits.drain_timeout;
        Ok(Server { address, shared, draining, drain_timeout, worker: Some(worker), runtime: Some(runtime) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether speech can be had now.
    pub fn condition(&self) -> Condition {
        self.shared.condition()
    }

    /// Serves until SIGTERM or SIGINT, then drains; a second signal ends it at once.
    ///
    /// # Errors
    /// Whatever kept the model from loading.
    pub fn wait(mut self) -> Result<()> {
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let shared = self.shared.clone();
        let ended = runtime.block_on(async {
            tokio::select! {
                () = signal() => false,
                () = stopped(&shared) => true,
            }
        });
        if !ended {
            log("draining: running requests are finished, new ones refused");
            runtime.block_on(async {
                tokio::select! {
                    () = self.drain() => {}
                    () = signal() => {}
                }
            });
        }
        self.shared.stop();
        let loaded = self.worker.take().map_or(Ok(()), |worker| worker.join().unwrap_or_else(|_| Err(panicked())));
        runtime.shutdown_timeout(Duration::from_secs(1));
        loaded
    }

    /// Refuses new requests, and comes back when those that run are finished or their time is over.
    pub async fn drain(&self) {
        self.shared.drain();
        let _ = self.draining.send(true);
        let until = Instant::now() + self.drain_timeout;
        while Instant::now() < until && (self.shared.placed() > 0 || self.shared.listeners.get() > 0) {
            tokio::time::sleep(DRAIN_STEP).await;
        }
        tokio::time::sleep(5 * DRAIN_STEP).await; // the last bytes leave
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The life of the engine's thread: loads, speaks once, opens the server, works until told to stop.
fn work(app: &App, load: impl FnOnce() -> Result<Source>) -> Result<()> {
    /// Tells the web side, even when this thread panics.
    struct Gone<'a>(&'a Shared);
    impl Drop for Gone<'_> {
        fn drop(&mut self) {
            self.0.stopped();
        }
    }
    let _gone = Gone(&app.shared);
    let source = load()?;
    let info = source.engine.info().clone();
    if info.sample_rate_hz == 0 {
        let message = "this export has no codec (--no-codec) and makes tokens only; export again with the codec";
        return Err(Error::input("--model", message));
    }
    let probe = source.speech.prompt(&Style::default(), PROBE)?.ids;
    let places = info.slots + app.options.queue;
    let worker = Worker::new(source.engine, app.shared.clone(), probe, app.options.limits.proof)?;
    let mut models = vec![source.name];
    models.extend(app.options.model_names.iter().cloned());
    let _ = app.catalog.set(Catalog {
        models,
        speech: source.speech,
        info,
        notice: source.notice,
        chunk_seconds: source.chunk_seconds,
        standing: source.standing,
        lexicon: app.options.lexicon.clone(),
    });
    app.shared.open(std::thread::current(), places);
    worker.run();
    Ok(())
}

fn panicked() -> Error {
    Error::Device { device: "the engine".to_owned(), action: "go on", reason: "its thread panicked".to_owned() }
}

/// Comes back when the engine's thread is gone.
async fn stopped(shared: &Shared) {
    while shared.condition() != Condition::Stopped {
        tokio::time::sleep(5 * DRAIN_STEP).await;
    }
}

/// Comes back when the process is told to end.
async fn signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// One line for the operator. Never a text, a key or an address of a listener.
fn log(line: &str) {
    eprintln!("serve: {line}");
}
