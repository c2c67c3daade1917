//! D10, alone in its process because it looks at the process's memory: listeners who leave in the middle.

#[path = "common/http.rs"]
mod http;
#[path = "common/stub.rs"]
mod stub;

use std::time::{Duration, Instant};

use http::{begin, connect, metric, speak};
use rumik::serve::{Condition, Options, Server, resident_bytes};
use serde_json::json;
use stub::{Controls, Stub};

const FRAME_MS: u64 = 5;
/// Steps in half a second, the longest that speech for nobody may go on.
const STEPS_IN_HALF_A_SECOND: usize = 500 / FRAME_MS as usize;
/// Hang-ups after which memory is looked at for the first time: the allocator has seen everything by then.
const WARM_UP: usize = 20;

fn until(what: &str, reached: impl Fn() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn speech_stops_when_its_listener_leaves() {
    let controls = Controls::default();
    let engine = Stub::new(2, Duration::from_millis(FRAME_MS), None, controls.clone());
    let options = Options { bind: "127.0.0.1:0".parse().unwrap(), ..Options::default() };
    let server = Server::start(options, move || Ok(engine.source())).unwrap();
    let address = server.address();
    until("it is ready", || server.condition() == Condition::Ready);
    let text = "The sister of my good friend opened the window of the big house. ".repeat(60);
    let body = json!({ "input": text, "response_format": "pcm", "max_seconds": 60 });
    let mut memory = 0;
    for round in 0..WARM_UP + 100 {
        if round == WARM_UP {
            memory = resident_bytes();
        }
        let mut stream = begin(connect(address), &body);
        assert_eq!(stream.head().status, 200);
        assert!(stream.chunk().is_some() && stream.chunk().is_some());
        let steps = controls.steps();
        drop(stream);
        until("its slot is free", || metric(address, "rumik_slots_busy") == 0.0);
        let more = controls.steps() - steps;
        assert!(more <= STEPS_IN_HALF_A_SECOND, "round {round}: {more} steps for nobody");
    }
    assert_eq!(metric(address, "rumik_hang_ups_total"), (WARM_UP + 100) as f64);
    let grown = resident_bytes() as f64 / memory as f64;
    assert!(grown < 1.05, "memory grew to {grown:.3} of what it was");
    let reply = speak(address, &json!({ "input": "Good morning", "response_format": "pcm", "max_seconds": 1 }));
    assert_eq!((reply.whole, reply.samples().len()), (true, 12 * stub::FRAME));
    assert_eq!(metric(address, "rumik_slots_busy"), 0.0);
}
