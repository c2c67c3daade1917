//! Load on the server: `cargo run --release --example serve_load -- stub` and `… -- demo`. The figures of `docs/serving.md`.
//!
//! `soak`: as `stub`, with more rounds of requests and mishaps. `stub`: 64 clients on an engine that takes no time to speak of, so that the server is what is measured; every sample of
//! every stream is compared. `demo`: the demonstration model, heard by clients who play as they hear.

#[path = "../tests/common/http.rs"]
mod http;
#[path = "../tests/common/stub.rs"]
mod stub;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use http::{JSON, ask, begin, connect, get, metric, speak};
use rumik::engine::cpu::{self, CpuEngine};
use rumik::engine::sampler::philox;
use rumik::engine::{Engine, Request, Sampling};
use rumik::format::Export;
use rumik::pass::Standing;
use rumik::serve::{Condition, Limits, Options, Server, Source};
use rumik::speech::Speech;
use serde_json::{Value, json};
use stub::{Controls, FRAME, Stub, sample};

const CLIENTS: usize = 64;
const TEXT: &str = "Good morning, and welcome to the show. My sister opened the window.";

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("stub") => on_stub(0),
        Some("soak") => on_stub(12),
        Some("demo") => {
            let asked: Vec<usize> = std::env::args().skip(2).filter_map(|count| count.parse().ok()).collect();
            on_demo(if asked.is_empty() { &[1, 2, 4, 6, 8] } else { &asked });
        }
        Some("server") => be_the_server(),
        _ => eprintln!("usage: serve_load stub|soak|demo [CLIENTS...]"),
    }
}

fn serve(queue: usize, limits: Limits, load: impl FnOnce() -> Source + Send + 'static) -> Server {
    let options = Options { bind: "127.0.0.1:0".parse().unwrap(), queue, limits, ..Options::default() };
    let server = Server::start(options, move || Ok(load())).unwrap();
    while server.condition() != Condition::Ready {
        thread::sleep(Duration::from_millis(5));
    }
    server
}

/// Runs `count` numbered pieces of work on `clients` threads.
fn all(clients: usize, count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    work(number);
                }
            });
        }
    });
}

fn random(number: usize, below: usize) -> usize {
    philox([number as u32, 0, 0, 0], [1, 2])[0] as usize % below
}

/// Asks for `frames` frames with a seed and compares every sample.
fn checked(address: SocketAddr, seed: usize, frames: usize) {
    let body =
        json!({ "input": TEXT, "response_format": "pcm", "seed": seed, "max_seconds": frames as f64 * 0.08 + 0.01 });
    let reply = speak(address, &body);
    assert_eq!((reply.status, reply.whole), (200, true), "{}", String::from_utf8_lossy(&reply.body));
    let expected: Vec<u8> = (0..frames * FRAME).flat_map(|i| sample(seed as u64, 0, i).to_le_bytes()).collect();
    assert!(reply.body == expected, "request {seed}: lost or swapped samples");
}

/// The server in a process of its own, so that its memory and its processor time are nobody else's.
struct Apart {
    process: Child,
    address: SocketAddr,
}

impl Apart {
    fn start() -> Apart {
        let program = std::env::current_exe().unwrap();
        let mut process =
            Command::new(program).arg("server").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Apart { process, address: line.trim().parse().unwrap() }
    }

    fn metric(&self, name: &str) -> f64 {
        metric(self.address, name)
    }

    fn megabytes(&self) -> f64 {
        self.metric("rumik_resident_memory_bytes") / 1e6
    }

    /// Processor seconds of the threads of a name.
    fn seconds_of(&self, name: &str) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let is_named =
            |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        threads.flatten().map(|entry| entry.path()).filter(is_named).map(|path| run_seconds(&path)).sum()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What runs in that process: serves a stub until its input ends.
fn be_the_server() {
    let controls = Controls::default();
    let engine = Stub::new(CLIENTS, Duration::from_micros(100), None, controls.clone());
    thread::spawn(move || {
        loop {
            thread::sleep(Duration::from_millis(100));
            controls.admitted.lock().unwrap().clear(); // what the stub notes for tests is not the server's memory
        }
    });
    let limits = Limits { write_timeout: Duration::from_secs(2), ..Limits::default() };
    let server = serve(CLIENTS, limits, move || engine.source());
    println!("{}", server.address());
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// What is measured of memory begins when every buffer was once as full as it gets: after as many requests and as many mishaps.
fn on_stub(rounds: usize) {
    let server = Apart::start();
    overhead(&server);
    let requests = || all(CLIENTS, 10_000, |i| checked(server.address, i, 8 + random(i, 17)));
    requests();
    requests();
    println!("{}", mishaps(&server));
    let (before, begun) = (server.megabytes(), Instant::now());
    requests();
    println!(
        "10,000 requests in {:.1} s, each sample as expected; {}",
        begun.elapsed().as_secs_f64(),
        grown(&server, before)
    );
    println!("{}; {}", mishaps(&server), grown(&server, before));
    for round in 0..rounds {
        requests();
        let _ = mishaps(&server);
        println!("round {} of {rounds}: {}", round + 1, grown(&server, before));
    }
    requests();
    println!(
        "after 10,000 more: {} slots busy, {} waiting, /ready {}; {}",
        server.metric("rumik_slots_busy"),
        server.metric("rumik_queue_length"),
        get(server.address, "/ready").status,
        grown(&server, before)
    );
}

fn grown(server: &Apart, before: f64) -> String {
    let now = server.megabytes();
    format!("memory of the server {before:.1} MB before, {now:.1} MB now, {:+.1} %", 100.0 * (now / before - 1.0))
}

/// Processor time of the server's threads for a frame of one stream, the stub's own taken off, with all slots speaking.
fn overhead(server: &Apart) {
    const REQUESTS: usize = 640;
    const FRAMES: usize = 62;
    all(CLIENTS, REQUESTS, |i| checked(server.address, i, 25)); // everything was used once
    let own = 1e6 * stub_alone();
    let periods = || server.metric("rumik_frame_seconds_count");
    let (before, engine, web) = (periods(), server.seconds_of("engine"), server.seconds_of("tokio"));
    let begun = Instant::now();
    all(CLIENTS, REQUESTS, |i| checked(server.address, i, FRAMES));
    let wall = begun.elapsed().as_secs_f64();
    let made = (REQUESTS * FRAMES) as f64;
    let engine = 1e6 * (server.seconds_of("engine") - engine) / made;
    let web = 1e6 * (server.seconds_of("tokio") - web) / made;
    println!(
        "{CLIENTS} clients, {:.1} streams a period: {:.0} frames/s, {:.0} times real time in all; a frame takes the engine's thread \
         {:.1} us of processor beside the stub's own {own:.1}, the web threads {web:.1}",
        made / (periods() - before),
        made / wall,
        made / wall / 12.5,
        engine - own,
    );
}

/// Processor seconds that the stub itself takes for a frame.
fn stub_alone() -> f64 {
    const FRAMES: usize = 200;
    let mut stub = Stub::new(CLIENTS, Duration::from_micros(100), None, Controls::default());
    for slot in 0..CLIENTS {
        let request = Request {
            prompt: &[1],
            sampling: Sampling::default(),
            max_new_tokens: 3072,
            seed: slot as u64,
            sequence: 0,
        };
        stub.start(slot, &request).unwrap();
    }
    let mut samples = 0.0;
    let before = run_seconds(Path::new("/proc/thread-self"));
    (0..FRAMES).for_each(|_| stub.step(&mut |step| samples += step.pcm[0]).unwrap());
    let took = run_seconds(Path::new("/proc/thread-self")) - before;
    assert!(samples != 0.0);
    took / (FRAMES * CLIENTS) as f64
}

/// Processor seconds of a thread, as the scheduler counts them.
fn run_seconds(thread: &Path) -> f64 {
    let counts = std::fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
    counts.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// 1,000 hang-ups at random places, 16 readers who stop, 1,000 bodies that are none, all among good requests.
fn mishaps(server: &Apart) -> String {
    let counts = || ["rumik_hang_ups_total", "rumik_slow_readers_total"].map(|name| server.metric(name));
    let before = counts();
    let address = server.address;
    let long =
        |seed: usize| json!({ "input": TEXT.repeat(20), "response_format": "pcm", "seed": seed, "max_seconds": 60 });
    let hung_up = AtomicUsize::new(0);
    let slow: Vec<_> = (0..16).map(|i| begin(connect(address), &long(i))).collect();
    all(CLIENTS - 16, 3_000, |i| match i % 3 {
        0 => {
            let mut stream = begin(connect(address), &long(i));
            // Some leave before the first sample, some in the middle of a frame.
            if random(i, 4) > 0 && stream.head().status == 200 {
                (0..random(i, 20)).for_each(|_| _ = stream.chunk());
            }
            hung_up.fetch_add(1, Ordering::Relaxed);
        }
        1 => {
            let bodies: [&[u8]; 5] = [b"", b"{", b"{\"input\": 1}", br#"{"input":"\ud83d"}"#, b"\xff\xfe"];
            let reply = ask(address, "POST", "/v1/audio/speech", &[JSON], bodies[random(i, 5)]);
            assert_eq!(reply.status, 400);
        }
        _ => checked(address, i, 8 + random(i, 17)),
    });
    let until = Instant::now() + Duration::from_secs(20);
    while counts()[1] - before[1] < slow.len() as f64 && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
    let after = counts();
    format!(
        "{} hang-ups, of which the server had begun {}; {} readers who took nothing, {} of them cut off; 1,000 malformed bodies; \
         1,000 good requests among them, each sample as expected",
        hung_up.into_inner(),
        after[0] - before[0],
        slow.len(),
        after[1] - before[1],
    )
}

fn demo(slots: usize) -> Server {
    serve(32, Limits::default(), move || {
        let export = Export::from_files(rumik::demo::files().unwrap()).unwrap();
        let speech = Speech::load(&export.config, &export.tokenizer).unwrap();
        let engine =
            CpuEngine::new(export, cpu::Options { slots, positions: Some(2048), ..Default::default() }).unwrap();
        let (name, chunk_seconds) = ("demo".to_owned(), rumik::demo::CHUNK_SECONDS);
        Source { name, engine: Box::new(engine), speech, notice: None, chunk_seconds, standing: Standing::BuiltIn }
    })
}

/// One stream as a player hears it.
struct Heard {
    first_ms: f64,
    /// Worst lead of the sound over the playing that began with the first frame; negative: a gap.
    lead_ms: f64,
    seconds: f64,
}

fn hear(address: SocketAddr, body: &Value) -> Heard {
    let begun = Instant::now();
    let mut stream = begin(connect(address), body);
    assert_eq!(stream.head().status, 200);
    stream.chunk().unwrap();
    let first = begun.elapsed().as_secs_f64();
    let mut lead = f64::INFINITY;
    loop {
        let had = stream.reply.body.len() as f64 / 48_000.0;
        if stream.chunk().is_none() {
            break;
        }
        lead = lead.min(had - (begun.elapsed().as_secs_f64() - first));
    }
    assert!(stream.reply.whole);
    Heard { first_ms: 1e3 * first, lead_ms: 1e3 * lead, seconds: stream.reply.body.len() as f64 / 48_000.0 }
}

/// Processor seconds of the whole machine and of this process.
fn processor_seconds() -> (f64, f64) {
    let ticks = |fields: &str, at: &[usize]| -> f64 {
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        at.iter().map(|&i| fields[i].parse::<f64>().unwrap()).sum::<f64>() / 100.0
    };
    let all = std::fs::read_to_string("/proc/stat").unwrap();
    let own = std::fs::read_to_string("/proc/self/stat").unwrap();
    let own = own.rsplit(") ").next().unwrap();
    // user, nice, system, interrupts; user and system
    (ticks(all.lines().next().unwrap(), &[1, 2, 3, 6, 7]), ticks(own, &[11, 12]))
}

fn on_demo(clients: &[usize]) {
    const REQUESTS: usize = 24;
    let server = demo(16);
    let address = server.address();
    let body = |seed: usize| json!({ "input": TEXT, "response_format": "pcm", "seed": seed });
    (0..3).for_each(|i| _ = hear(address, &body(i)));
    println!(
        "clients | first audio p50, p95 (ms) | streams without a gap | worst lead (ms) | times real time, all together | cores that others had"
    );
    for &clients in clients {
        let heard = std::sync::Mutex::new(Vec::new());
        let (begun, before) = (Instant::now(), processor_seconds());
        all(clients, REQUESTS.max(4 * clients), |i| {
            let one = hear(address, &body(100 + i));
            heard.lock().unwrap().push(one);
        });
        let (wall, after) = (begun.elapsed().as_secs_f64(), processor_seconds());
        let others = ((after.0 - before.0) - (after.1 - before.1)) / wall;
        let mut heard = heard.into_inner().unwrap();
        heard.sort_by(|a, b| a.first_ms.total_cmp(&b.first_ms));
        let at = |share: f64| heard[((heard.len() - 1) as f64 * share).round() as usize].first_ms;
        let smooth = heard.iter().filter(|one| one.lead_ms >= 0.0).count();
        let worst = heard.iter().map(|one| one.lead_ms).fold(f64::INFINITY, f64::min);
        let seconds: f64 = heard.iter().map(|one| one.seconds).sum();
        println!(
            "{clients:7} | {:.0}, {:.0} | {smooth} of {} | {worst:.0} | {:.1} | {others:.2}",
            at(0.5),
            at(0.95),
            heard.len(),
            seconds / wall
        );
    }
}
