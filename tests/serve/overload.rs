//! D12: more requests than there is room for, and whose turn it is.

use std::thread;

use rumik::serve::{Condition, Keys, Limits, Options};
use serde_json::{Value, json};

use crate::http::{JSON, Reply, ask, begin, connect, get, metric, speak};
use crate::{options, serve_stub, until};

fn request(seed: u64) -> Value {
    json!({ "input": "Good morning", "response_format": "pcm", "seed": seed })
}

/// D12.
#[test]
fn what_does_not_fit_is_refused_at_once_and_the_rest_is_served_in_order() {
    let served = serve_stub(options(2), 2, 20, Some(20));
    let address = served.address;
    let replies: Vec<(u64, Reply)> = thread::scope(|scope| {
        let ask = |seed| {
            let admitted = served.controls.admitted.clone();
            let asked = scope.spawn(move || (seed, speak(address, &request(seed))));
            // One after another, so that there is an order; the first two go straight into slots.
            if seed < 2 {
                until("it has a slot", || admitted.lock().unwrap().contains(&seed));
            } else if seed < 4 {
                until("it waits", || metric(address, "rumik_queue_length") == (seed - 1) as f64);
            }
            asked
        };
        let asked: Vec<_> = (0..10).map(ask).collect();
        until("the others are refused", || asked[4..].iter().all(|thread| thread.is_finished()));
        assert_eq!(get(address, "/health").status, 200);
        assert_eq!(served.condition(), Condition::Ready);
        asked.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (seed, reply) in &replies {
        if *seed < 4 {
            assert_eq!((reply.status, reply.whole, reply.samples().len()), (200, true, 20 * 1920), "request {seed}");
            continue;
        }
        assert_eq!(reply.status, 429, "request {seed}");
        assert_eq!(reply.error()["type"], "rate_limit_error");
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=60).contains(&wait), "{wait}");
    }
    assert_eq!(*served.controls.admitted.lock().unwrap(), [0, 1, 2, 3]);
    assert_eq!(metric(address, "rumik_requests_completed_total"), 4.0);
    assert_eq!(metric(address, r#"rumik_errors_total{kind="overloaded"}"#), 6.0);
    until("all slots are free", || metric(address, "rumik_slots_busy") == 0.0);
    assert_eq!(metric(address, "rumik_queue_length"), 0.0);
}

/// One key's many requests do not delay the first of another.
#[test]
fn a_newcomer_overtakes_who_has_more() {
    let keys = Keys::parse("keys.txt", "a-key-of-a-user-0001\na-key-of-a-user-0002\n").unwrap();
    let served = serve_stub(Options { keys: Some(keys), ..options(8) }, 1, 10, Some(20));
    let (address, admitted) = (served.address, served.controls.admitted.clone());
    thread::scope(|scope| {
        let ask = |seed: u64, user: u64| {
            let key = format!("authorization: Bearer a-key-of-a-user-000{user}");
            let body = request(seed).to_string();
            scope.spawn(move || {
                let reply = ask(address, "POST", "/v1/audio/speech", &[JSON, &key], body.as_bytes());
                assert_eq!((reply.status, reply.samples().len()), (200, 20 * 1920));
            });
        };
        ask(0, 1);
        until("the first speaks", || admitted.lock().unwrap().len() == 1);
        for seed in 1..4 {
            ask(seed, 1);
            until("it waits", || metric(address, "rumik_queue_length") == seed as f64);
        }
        ask(9, 2);
    });
    assert_eq!(*admitted.lock().unwrap(), [0, 9, 1, 2, 3]);
}

#[test]
fn who_waits_too_long_is_told_so() {
    let limits = Limits { queue_timeout: std::time::Duration::from_millis(100), ..Limits::default() };
    let served = serve_stub(Options { limits, ..options(4) }, 1, 20, None);
    let body = json!({ "input": "Good morning", "response_format": "pcm", "max_seconds": 20 });
    let mut first = begin(connect(served.address), &body);
    assert_eq!(first.head().status, 200);
    let reply = speak(served.address, &request(1));
    assert_eq!((reply.status, reply.error()["code"].as_str()), (503, Some("queue_timeout")));
    assert!(reply.header("retry-after").is_some());
    until("it is forgotten", || metric(served.address, "rumik_queue_length") == 0.0);
    drop(first);
    until("the slot is free", || metric(served.address, "rumik_slots_busy") == 0.0);
    assert_eq!(speak(served.address, &json!({ "input": "Good morning", "max_seconds": 0.5 })).status, 200);
}

#[test]
fn who_leaves_the_queue_gives_the_place_back() {
    let served = serve_stub(options(1), 1, 5, None);
    let address = served.address;
    let long = json!({ "input": "Good morning", "response_format": "pcm", "max_seconds": 20 });
    let mut speaking = begin(connect(address), &long);
    assert_eq!(speaking.head().status, 200);
    for round in 1..6 {
        let waiting = begin(connect(address), &request(round));
        until("it waits", || metric(address, "rumik_queue_length") == 1.0);
        assert_eq!(speak(address, &request(9)).status, 429);
        drop(waiting);
        until("it is gone", || metric(address, "rumik_queue_length") == 0.0);
    }
    assert_eq!(served.controls.admitted.lock().unwrap().len(), 1, "one who left was served");
    assert_eq!(metric(address, "rumik_hang_ups_total"), 5.0);
}
