//! D7 and D9: what cannot be spoken is refused at once, in OpenAI's shape, with the field's name.

use serde_json::{Value, json};

use crate::http::{JSON, Reply, ask, get, metric, speak};
use crate::{Served, options, serve_stub, until};

fn server() -> Served {
    serve_stub(options(4), 1, 1, Some(2))
}

#[track_caller]
fn refused(reply: &Reply, status: u16, param: Option<&str>, words: &[&str]) {
    let text = String::from_utf8_lossy(&reply.body);
    assert_eq!(reply.status, status, "{text}");
    let error = reply.error();
    assert_eq!(error["param"].as_str(), param, "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(words.iter().all(|word| message.contains(word)) && !message.contains('\n'), "{words:?}: {message}");
}

/// D7.
#[test]
fn a_text_with_nothing_to_say_is_refused_before_the_engine_moves() {
    let served = server();
    for text in ["", "   \t\n", "।।…!?", "😀😀"] {
        let reply = speak(served.address, &json!({ "input": text, "response_format": "pcm" }));
        refused(&reply, 400, Some("input"), &["nothing to say"]);
    }
    assert!(served.controls.admitted.lock().unwrap().is_empty(), "the engine was asked");
    let reply = speak(served.address, &json!({ "input": "नमस्ते 😀", "response_format": "pcm" }));
    assert_eq!((reply.status, reply.samples().len()), (200, 2 * 1920));
    let reply = ask(served.address, "POST", "/v1/text", &[JSON], json!({ "input": "नमस्ते 😀" }).to_string().as_bytes());
    assert_eq!(reply.json()["chunks"][0]["text"], "नमस्ते");
}

/// D9: the table of bad fields.
#[test]
fn a_bad_field_is_refused_by_its_name() {
    let served = server();
    let before = served.controls.frames(); // the server proves to itself that the engine speaks
    let cases: [(&str, Value, &[&str]); 24] = [
        ("voice", json!("nobody"), &["Ira", "Aisha", "Siya", "Zoya"]),
        ("voice", json!("../x"), &["Ira"]),
        ("voice", json!(""), &["Ira"]),
        ("voice", json!(7), &["a string"]),
        ("speed", json!(0), &["pace"]),
        ("speed", json!(-1), &["pace"]),
        ("speed", json!(5), &["pace"]),
        ("speed", json!("fast"), &["a number"]),
        ("response_format", json!("ogg"), &["wav", "pcm", "mp3", "opus", "flac"]),
        ("stream_format", json!("chunks"), &["audio", "sse"]),
        ("stream", json!("yes"), &["true or false"]),
        ("model", json!("gpt-4o-mini-tts"), &["stub"]),
        ("tone", json!("cheerful"), &["happy"]),
        ("accent", json!("french"), &["hindi"]),
        ("pace", json!("quick"), &["steady"]),
        ("instructions", json!("x".repeat(301)), &["300"]),
        ("temperature", json!(-0.5), &["0"]),
        ("temperature", json!("hot"), &["a number"]),
        ("top_k", json!(0), &["at least 1"]),
        ("top_k", json!(1.5), &["whole number"]),
        ("seed", json!(-3), &["whole number"]),
        ("max_seconds", json!(0), &["0.08"]),
        ("normalize", json!(1), &["true or false"]),
        ("lang_code", json!("a"), &["unknown field"]),
    ];
    for (param, value, words) in cases {
        let mut body = json!({ "input": "Good morning" });
        body[param] = value;
        refused(&speak(served.address, &body), 400, Some(param), words);
    }
    let both = json!({ "input": "Good morning", "tone": "sad", "instructions": "calm" });
    refused(&speak(served.address, &both), 400, Some("instructions"), &["tone"]);
    let both = json!({ "input": "Good morning", "stream": false, "stream_format": "sse" });
    refused(&speak(served.address, &both), 400, Some("stream"), &["sse"]);
    refused(&speak(served.address, &json!({})), 400, Some("input"), &["none"]);
    refused(&speak(served.address, &json!({ "input": 5 })), 400, Some("input"), &["a string"]);
    let long = json!({ "input": "क".repeat(10_001) });
    refused(&speak(served.address, &long), 400, Some("input"), &["10001", "10000"]);
    assert!(served.controls.admitted.lock().unwrap().is_empty(), "the engine was asked");
    assert_eq!(served.controls.frames(), before);
}

/// D9: bodies and methods.
#[test]
fn a_body_that_is_not_one_is_refused_and_the_server_goes_on() {
    let served = server();
    let post = |headers: &[&str], body: &[u8]| ask(served.address, "POST", "/v1/audio/speech", headers, body);
    for body in [&b"not json"[..], b"", b"[1]", b"{\"input\":", b"{\"input\":\"\xff\"}", br#"{"input":"half \ud83d"}"#]
    {
        refused(&post(&[JSON], body), 400, None, &[]);
    }
    let huge = json!({ "input": "x".repeat(3 << 20) }).to_string();
    refused(&post(&[JSON], huge.as_bytes()), 413, None, &["1048576"]);
    let body = json!({ "input": "Good morning" }).to_string();
    refused(&post(&["content-type: text/plain"], body.as_bytes()), 415, None, &["application/json"]);
    refused(&post(&[], body.as_bytes()), 415, None, &["application/json"]);
    refused(&get(served.address, "/v1/audio/speech"), 405, None, &["method"]);
    refused(&get(served.address, "/v1/audio/speeches"), 404, None, &["openapi"]);
    refused(&get(served.address, "/v1/models/other"), 404, None, &["other"]);
    let good = post(&["content-type: Application/JSON; charset=utf-8"], body.as_bytes());
    assert_eq!(good.status, 200);
    // The last sample is on its way before the slot is free.
    until("the slot is free", || metric(served.address, "rumik_slots_busy") == 0.0);
}

#[test]
fn the_description_names_every_path_and_field() {
    let served = server();
    let document = get(served.address, "/openapi.json").json();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let path = path.replace("{id}", "stub");
            let reply = ask(served.address, &method.to_uppercase(), &path, &[JSON], br#"{"input":"Good morning"}"#);
            assert_eq!(reply.status, 200, "{method} {path}: {}", String::from_utf8_lossy(&reply.body));
        }
    }
    let schema = &document["components"]["schemas"]["Speech"]["properties"];
    for (field, about) in schema.as_object().unwrap() {
        // A value of a wrong type is refused by name: the field is known.
        let reply = speak(served.address, &json!({ "input": "Good morning", field: ["no"] }));
        refused(&reply, 400, Some(field), &["a list"]);
        for word in about["enum"].as_array().into_iter().flatten() {
            let mut body = json!({ "input": "Good morning" });
            body[field] = word.clone();
            assert_eq!(speak(served.address, &body).status, 200, "{field}: {word}");
        }
    }
}

#[test]
fn the_lists_are_in_openais_shape() {
    let served = server();
    let models = get(served.address, "/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("stub")));
    assert!(models["data"][0]["created"].as_u64().is_some());
    assert_eq!(get(served.address, "/v1/models/stub").json()["object"], "model");
    let voices = get(served.address, "/v1/voices").json();
    let names: Vec<&str> = voices["data"].as_array().unwrap().iter().map(|v| v["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["Ira", "Aisha", "Siya", "Zoya"]);
    assert_eq!(voices["sample_rate"], 24_000);
    assert_eq!(get(served.address, "/health").json()["status"], "ok");
    assert_eq!(get(served.address, "/ready").json()["status"], "ready");
}
