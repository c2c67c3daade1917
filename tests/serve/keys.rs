//! Keys, origins, and slow or unfinished requests.

use std::io::{Read, Write};
use std::time::Duration;

use rumik::serve::{Keys, Limits, Options};
use serde_json::json;

use crate::http::{JSON, ask, connect, get};
use crate::{options, serve_stub};

const KEY: &str = "authorization: Bearer a-key-of-a-user-0001";

#[test]
fn with_keys_only_their_owners_speak() {
    let keys = Keys::parse("keys.txt", "a-key-of-a-user-0001\na-key-of-a-user-0002\n").unwrap();
    let served = serve_stub(Options { keys: Some(keys), ..options(4) }, 1, 1, Some(2));
    let body = json!({ "input": "Good morning" }).to_string();
    let speak = |headers: &[&str]| ask(served.address, "POST", "/v1/audio/speech", headers, body.as_bytes());
    for headers in [&[JSON][..], &[JSON, "authorization: Bearer a-key-of-a-user-0003"]] {
        let reply = speak(headers);
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(reply.error()["code"], "invalid_api_key");
    }
    assert_eq!(speak(&[JSON, KEY]).status, 200);
    assert_eq!(get(served.address, "/v1/voices").status, 401);
    for open in ["/health", "/ready", "/metrics", "/openapi.json"] {
        assert_eq!(get(served.address, open).status, 200, "{open}");
    }
}

#[test]
fn pages_of_other_origins_are_let_in_only_by_name() {
    let origin = "origin: https://app.example";
    let closed = serve_stub(options(4), 1, 1, Some(2));
    assert_eq!(ask(closed.address, "GET", "/v1/voices", &[origin], &[]).header("access-control-allow-origin"), None);
    let cors = vec!["https://app.example".parse().unwrap()];
    let open = serve_stub(Options { cors, ..options(4) }, 1, 1, Some(2));
    let allowed = |origin: &str| {
        let reply = ask(open.address, "GET", "/v1/voices", &[origin], &[]);
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        reply.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(allowed(origin).as_deref(), Some("https://app.example"));
    assert_eq!(allowed("origin: https://evil.example"), None);
}

/// Heads and bodies that never end are not waited for for ever.
#[test]
fn a_request_that_does_not_arrive_is_given_up() {
    let limits = Limits { header_timeout: Duration::from_millis(200), ..Limits::default() };
    let served = serve_stub(Options { limits, ..options(4) }, 1, 1, Some(2));
    let mut silent = connect(served.address);
    silent.write_all(b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\n").unwrap();
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).unwrap(); // ends: the server closed it
    let mut half = connect(served.address);
    half.write_all(b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n").unwrap();
    half.write_all(b"content-length: 100\r\nconnection: close\r\n\r\n{\"input\":").unwrap();
    let mut answer = Vec::new();
    half.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(get(served.address, "/health").status, 200);
}
