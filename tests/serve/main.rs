//! The server from outside: real connections, the demonstration model where it matters, a stub at chosen speed elsewhere.

#[path = "../common/http.rs"]
mod http;
#[path = "../common/stub.rs"]
mod stub;

mod audio;
mod deploy;
mod keys;
mod overload;
mod refusals;
mod streams;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rumik::engine::cpu::{self, CpuEngine};
use rumik::format::Export;
use rumik::pass::Standing;
use rumik::serve::{Condition, Limits, Options, Server, Source};
use rumik::speech::Speech;
use stub::{Controls, Stub};

/// How long a test waits for something that will come; only a broken server lets it pass.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a free port.
pub(crate) struct Served {
    server: Server,
    pub(crate) address: SocketAddr,
    pub(crate) controls: Controls,
}

impl Served {
    pub(crate) fn drain(&self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(self.server.drain());
    }

    pub(crate) fn condition(&self) -> Condition {
        self.server.condition()
    }
}

/// Options of a test: a free port.
pub(crate) fn options(queue: usize) -> Options {
    Options { bind: "127.0.0.1:0".parse().unwrap(), queue, ..Options::default() }
}

pub(crate) fn start(options: Options, controls: Controls, load: impl FnOnce() -> Source + Send + 'static) -> Served {
    let server = Server::start(options, move || Ok(load())).unwrap();
    let served = Served { address: server.address(), server, controls };
    until("the server is ready", || served.condition() == Condition::Ready);
    served
}

/// A stub of `slots` that takes `frame_ms` for a frame, behind `options`.
pub(crate) fn serve_stub(options: Options, slots: usize, frame_ms: u64, frames: Option<usize>) -> Served {
    serve_as(|stub| stub, options, slots, frame_ms, frames)
}

/// The same, of another kind.
pub(crate) fn serve_as(
    kind: impl FnOnce(Stub) -> Stub,
    options: Options,
    slots: usize,
    frame_ms: u64,
    frames: Option<usize>,
) -> Served {
    let controls = Controls::default();
    let stub = kind(Stub::new(slots, Duration::from_millis(frame_ms), frames, controls.clone()));
    let served = start(options, controls, move || stub.source());
    served.controls.admitted.lock().unwrap().clear(); // the probe
    served
}

/// The demonstration model in `slots`.
pub(crate) fn serve_demo(slots: usize) -> Served {
    start(options(32), Controls::default(), move || {
        let export = Export::from_files(rumik::demo::files().unwrap()).unwrap();
        let speech = Speech::load(&export.config, &export.tokenizer).unwrap();
        let engine = CpuEngine::new(
            export,
            cpu::Options { slots, threads: Some(2), positions: Some(2048), ..Default::default() },
        )
        .unwrap();
        Source {
            name: "rumik-demo".to_owned(),
            engine: Box::new(engine),
            speech,
            notice: None,
            chunk_seconds: rumik::demo::CHUNK_SECONDS,
            standing: Standing::BuiltIn,
        }
    })
}

/// Limits with another time for a frame to wait.
pub(crate) fn impatient(write_timeout_ms: u64) -> Limits {
    Limits { write_timeout: Duration::from_millis(write_timeout_ms), ..Limits::default() }
}

/// Waits for something that will come.
#[track_caller]
pub(crate) fn until(what: &str, reached: impl Fn() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A text of so many pieces of at most 6 s.
pub(crate) fn long_text(pieces: usize) -> String {
    "The sister of my good friend opened the window of the big house and saw the rain in the evening. ".repeat(pieces)
}
