//! Streams that share an engine: what one does, fails or leaves does not change the others.

use std::io::Read as _;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rumik::serve::{Condition, Limits, Options, STREAM_FRAMES, Server};
use serde_json::{Value, json};

use crate::http::{Incoming, begin, connect, get, metric, speak};
use crate::stub::{Controls, Stub};
use crate::{Served, impatient, long_text, options, serve_as, serve_stub, stub, until};

/// Speech of `seconds`, over as many pieces of text as that needs.
fn request(seconds: f64, seed: u64) -> Value {
    json!({ "input": long_text(20), "response_format": "pcm", "max_seconds": seconds, "seed": seed })
}

/// What a stub says for a seed: pieces of 3072 tokens at most, and what is left.
fn expected(seconds: f64, seed: u64) -> Vec<i16> {
    let mut frames = (seconds * 12.5 + 1e-9) as usize;
    let mut samples = Vec::new();
    for sequence in 0.. {
        let piece = frames.min(3072 / 8);
        samples.extend((0..piece * stub::FRAME).map(|i| stub::sample(seed, sequence, i)));
        frames -= piece;
        if frames == 0 {
            break;
        }
    }
    samples
}

fn slots_are_free(served: &Served) {
    until("all slots are free", || metric(served.address, "rumik_slots_busy") == 0.0);
    assert_eq!(metric(served.address, "rumik_queue_length"), 0.0);
}

/// Each stream gets its own samples in order, whoever else speaks; long texts go on without a break.
#[test]
fn nothing_is_lost_or_swapped_between_streams() {
    let served = serve_stub(options(64), 3, 0, None);
    thread::scope(|scope| {
        for seed in 0..12 {
            let address = served.address;
            scope.spawn(move || {
                let seconds = 0.4 + 7.0 * (seed % 6) as f64;
                let reply = speak(address, &request(seconds, seed));
                assert_eq!((reply.status, reply.whole), (200, true), "stream {seed}");
                assert!(reply.samples() == expected(seconds, seed), "stream {seed} has other samples");
                assert_eq!(reply.header("x-rumik-truncated"), Some("true"));
                assert_eq!(reply.header("x-rumik-seed"), Some(seed.to_string().as_str()));
            });
        }
    });
    slots_are_free(&served);
    assert_eq!(metric(served.address, "rumik_requests_completed_total"), 12.0);
}

/// A connection whose peer's system takes little at once.
fn narrow(served: &Served) -> std::net::TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(8 << 10).unwrap();
        let stream = socket.connect(served.address).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream
    })
}

/// D11: the producer waits for a slow reader, alone; the server holds no more of its stream than it says, and not for ever.
#[test]
fn a_slow_reader_stops_nobody_and_is_cut_off() {
    const BUFFERS: usize = 8 * (64 << 10); // sockets of both sides and the web library's buffer, with the system's overhead
    let served = serve_stub(Options { limits: impatient(1000), ..options(4) }, 2, 1, None);
    let mut slow = begin(narrow(&served), &request(300.0, 1));
    assert_eq!(slow.head().status, 200);
    slow.chunk().unwrap();
    until("its slot is held", || metric(served.address, "rumik_slots_held") == 1.0);
    let made = served.controls.frames();
    assert!(made <= STREAM_FRAMES + 2 + BUFFERS / (2 * stub::FRAME), "{made} frames were made for a reader of two");

    let reply = speak(served.address, &request(5.0, 2));
    assert!(reply.whole && reply.samples() == expected(5.0, 2), "the other stream suffered");
    assert!(served.controls.frames() <= made + 62 + 4, "the slow reader's stream went on");

    until("it is cut off", || metric(served.address, "rumik_slow_readers_total") == 1.0);
    slots_are_free(&served);
    assert!(!slow.finish().whole, "a cut stream looks whole");
    assert_eq!(metric(served.address, "rumik_hang_ups_total"), 0.0);
}

/// A reader that takes a little now and then does not keep up either; one that pauses for less than the limit does.
#[test]
fn a_reader_that_sips_is_cut_off_and_one_that_pauses_is_not() {
    let served = serve_stub(Options { limits: impatient(1500), ..options(4) }, 2, 1, None);
    let mut pausing = begin(narrow(&served), &request(30.0, 1));
    let mut sipping = begin(narrow(&served), &request(300.0, 2));
    let is_cut = || metric(served.address, "rumik_slow_readers_total") > 0.0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_cut() && sipping.reader.read(&mut [0; 512]).is_ok_and(|count| count > 0) {
                thread::sleep(Duration::from_millis(125)); // 4 KiB a second, of 48 kB that are spoken
            }
        });
        assert_eq!(pausing.head().status, 200);
        pausing.chunk().unwrap();
        thread::sleep(Duration::from_millis(500));
        let reply = pausing.finish();
        assert!(reply.whole && reply.samples() == expected(30.0, 1), "a pause below the limit broke a stream");
        until("the other is cut off", is_cut);
    });
    let mut rest = Vec::new();
    let _ = sipping.reader.read_to_end(&mut rest); // what the system still held
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a cut stream looks whole");
    slots_are_free(&served);
    assert_eq!(metric(served.address, "rumik_slow_readers_total"), 1.0);
    assert_eq!(metric(served.address, "rumik_hang_ups_total"), 0.0);
}

fn begun(served: &Served, seconds: f64, seed: u64) -> Incoming {
    let mut incoming = begin(connect(served.address), &request(seconds, seed));
    assert_eq!(incoming.head().status, 200);
    incoming
}

/// An engine that fails ends what runs as an error, in the manner of each response, and speaks again afterwards.
#[test]
fn a_failure_of_the_engine_is_told_and_survived() {
    let served = serve_stub(options(4), 2, 2, None);
    let bytes = begun(&served, 60.0, 1);
    let mut events = begin(connect(served.address), &{
        let mut body = request(60.0, 2);
        body["stream_format"] = json!("sse");
        body
    });
    events.head();
    served.controls.broken.store(true, Ordering::SeqCst);
    assert!(!bytes.finish().whole, "a broken stream looks whole");
    let events = events.finish();
    let text = String::from_utf8(events.body.clone()).unwrap();
    let last: Value = serde_json::from_str(text.trim_end().rsplit("data: ").next().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["error"]["code"]), (&json!("error"), &json!("engine_failed")));

    until("it says so", || served.condition() == Condition::Failing);
    assert_eq!(get(served.address, "/ready").status, 503);
    assert_eq!(get(served.address, "/health").status, 200);
    let refused = speak(served.address, &request(1.0, 3));
    assert_eq!((refused.status, refused.error()["code"].as_str()), (503, Some("not_ready")));
    served.controls.broken.store(false, Ordering::SeqCst);
    until("it speaks again", || get(served.address, "/ready").status == 200);
    let reply = speak(served.address, &request(1.0, 3));
    assert!(reply.whole && reply.samples() == expected(1.0, 3));
    slots_are_free(&served);
    assert_eq!(metric(served.address, "rumik_engine_failures_total"), 1.0);
}

/// The prompt of a newcomer is read in pieces between the frames of those who speak, no more of them than a frame period holds, or half
/// of one where samples come a step late.
#[test]
fn the_prompt_of_a_newcomer_delays_nobody() {
    newcomer(&serve_stub(options(4), 2, 5, None), 2);
    newcomer(&serve_as(Stub::late, options(4), 2, 5, None), 1);
}

/// `room`: pieces between two frames at most.
fn newcomer(served: &Served, room: usize) {
    const PIECE_MS: usize = 30; // so that two of them and a frame fit into 80 ms, and three do not; one into 40
    let controls = &served.controls;
    let mut speaking = begun(served, 60.0, 1);
    speaking.chunk().unwrap();
    controls.piece_ms.store(PIECE_MS, Ordering::SeqCst);
    controls.most_pieces.store(0, Ordering::SeqCst);
    let mut body = request(1.0, 2);
    body["instructions"] = json!("quick brown foxes ".repeat(16)); // 288 characters
    let reply = speak(served.address, &body);
    assert!(reply.whole && reply.samples() == expected(1.0, 2), "the newcomer suffered");
    let most = controls.most_pieces.load(Ordering::SeqCst);
    assert!((1..=room).contains(&most), "{most} pieces were read between two frames");
    assert!(controls.prompt_pieces.load(Ordering::SeqCst) >= 4, "the prompt is too short to show anything");
    drop(speaking);
    slots_are_free(served);
}

/// A device that is lost while nobody speaks is known before anybody asks.
#[test]
fn an_idle_engine_proves_that_it_speaks() {
    let limits = Limits { proof: Duration::from_millis(100), ..Limits::default() };
    let served = serve_stub(Options { limits, ..options(4) }, 1, 1, None);
    until("it speaks to nobody", || served.controls.frames() > 3);
    served.controls.broken.store(true, Ordering::SeqCst);
    until("its failure is known", || get(served.address, "/ready").json()["status"] == "failing");
    served.controls.broken.store(false, Ordering::SeqCst);
    until("it speaks again", || get(served.address, "/ready").status == 200);
    let reply = speak(served.address, &request(1.0, 3));
    assert!(reply.whole && reply.samples() == expected(1.0, 3));
    assert_eq!(metric(served.address, "rumik_requests_completed_total"), 1.0);
}

/// Before the first byte a failure is a status.
#[test]
fn a_failure_before_the_first_sample_is_a_500() {
    let served = serve_stub(options(4), 1, 2, None);
    served.controls.broken.store(true, Ordering::SeqCst);
    let reply = speak(served.address, &request(1.0, 1));
    served.controls.broken.store(false, Ordering::SeqCst);
    assert_eq!((reply.status, reply.error()["type"].as_str()), (500, Some("server_error")));
}

/// The web server answers while the engine's thread hangs; `/ready` looks at that thread.
#[test]
fn an_engine_that_hangs_is_not_ready() {
    let limits = Limits { stall: Duration::from_millis(1500), ..Limits::default() };
    let served = serve_stub(Options { limits, ..options(4) }, 1, 1, None);
    let stream = begun(&served, 600.0, 1);
    served.controls.stuck.store(true, Ordering::SeqCst);
    until("it stalls", || get(served.address, "/ready").json()["status"] == "stalled");
    assert_eq!(get(served.address, "/health").status, 200);
    drop(stream);
    served.controls.stuck.store(false, Ordering::SeqCst);
    until("it goes on", || get(served.address, "/ready").status == 200);
    slots_are_free(&served);
}

/// It listens while the model is loaded, lives, and says when to come back.
#[test]
fn a_server_that_loads_is_alive_and_not_ready() {
    let (loaded, wait) = std::sync::mpsc::channel();
    let controls = Controls::default();
    let stub = Stub::new(1, Duration::from_millis(1), None, controls.clone());
    let server = Server::start(options(4), move || {
        wait.recv().unwrap();
        Ok(stub.source())
    })
    .unwrap();
    let address = server.address();
    let served = Served { server, address, controls };
    assert_eq!(get(address, "/health").status, 200);
    let ready = get(address, "/ready");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &json!("loading")));
    for refused in [speak(address, &request(1.0, 1)), get(address, "/v1/models"), get(address, "/v1/voices")] {
        assert_eq!((refused.status, refused.error()["code"].as_str()), (503, Some("loading")));
        assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    }
    loaded.send(()).unwrap();
    until("it is ready", || get(address, "/ready").status == 200);
    assert!(speak(address, &request(1.0, 1)).samples() == expected(1.0, 1));
    slots_are_free(&served);
}

/// Running requests end, new ones are refused, `/ready` says so.
#[test]
fn a_drain_finishes_what_runs() {
    let served = serve_stub(options(4), 1, 4, None);
    let running = begun(&served, 4.0, 1);
    thread::scope(|scope| {
        let reading = scope.spawn(move || running.finish());
        let draining = scope.spawn(|| served.drain());
        until("it drains", || served.condition() == Condition::Draining);
        assert_eq!(get(served.address, "/ready").json()["status"], "draining");
        let refused = speak(served.address, &request(1.0, 2));
        assert_eq!((refused.status, refused.header("connection")), (503, Some("close")));
        assert!(refused.header("retry-after").is_some());
        draining.join().unwrap();
        let reply = reading.join().unwrap();
        assert!(reply.whole && reply.samples() == expected(4.0, 1));
    });
}

/// A request that takes longer than it may ends as an error.
#[test]
fn the_time_limit_ends_a_request() {
    let limits = Limits { time_limit: Duration::from_millis(300), ..Limits::default() };
    let served = serve_stub(Options { limits, ..options(4) }, 1, 20, None);
    let mut body = request(60.0, 1);
    body["stream"] = json!(false);
    let reply = speak(served.address, &body);
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("time_limit")));
    slots_are_free(&served);
}
