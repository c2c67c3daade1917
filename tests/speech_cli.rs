//! `rumik-run text` as people use it.

use std::process::{Command, Output};

use serde_json::Value;

fn text(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rumik-run")).arg("text").args(arguments).output().unwrap()
}

/// What is spoken, from the JSON document.
#[track_caller]
fn spoken(arguments: &[&str]) -> String {
    let output = text(&[arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let chunks = document["chunks"].as_array().unwrap().iter().map(|chunk| chunk["text"].as_str().unwrap());
    chunks.collect::<Vec<_>>().join(" ")
}

/// The document has the keys that were promised, and no others.
#[test]
fn json_has_the_promised_shape() {
    let output = text(&["**कुल** ₹500", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&document), ["chunks"]);
    let chunk = &document["chunks"][0];
    let sorted = |mut keys: Vec<String>| {
        keys.sort();
        keys
    };
    assert_eq!(sorted(keys(chunk)), ["rewrites", "seconds", "text"]);
    assert!(chunk["seconds"].as_f64().is_some_and(|seconds| seconds > 0.5));
    let rewrites = chunk["rewrites"].as_array().unwrap();
    assert!(rewrites.iter().all(|rewrite| sorted(keys(rewrite)) == ["from", "rule", "to"]));
    let money = rewrites.iter().find(|rewrite| rewrite["rule"] == "money").unwrap();
    assert_eq!((money["from"].as_str(), money["to"].as_str()), (Some("₹500"), Some("पाँच सौ रुपये")));
}

#[test]
fn every_option_of_the_reader_has_a_flag() {
    assert_eq!(spoken(&["₹1.5 करोड़"]), "एक दशमलव पाँच करोड़ रुपये");
    assert_eq!(spoken(&["₹1.5 करोड़", "--short-forms"]), "डेढ़ करोड़ रुपये");
    assert_eq!(spoken(&["500", "--fallback-language", "ta"]), "ஐநூறு");
    assert_eq!(spoken(&["कुल 5", "--language", "en"]), "कुल five");
    assert_eq!(spoken(&["**कुल** 5", "--keep-markup", "--no-normalize"]), "**कुल** 5");
    let chunks = |seconds: &str| {
        let output = text(&["एक दो तीन चार पाँच। छह सात आठ नौ दस।", "--json", "--chunk-seconds", seconds]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["chunks"].as_array().unwrap().len()
    };
    assert_eq!((chunks("25"), chunks("2")), (1, 2));
    let refused = text(&["x", "--chunk-seconds", "31"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--chunk-seconds: 31: expected 1 to 30 seconds"));
}

#[test]
fn the_report_lines_rules_and_rewrites_up() {
    let output = text(&["Meet Dr. Rao at 5 pm on 15/08/2026 <audio>"]);
    let report = String::from_utf8(output.stdout).unwrap();
    for line in [
        "chunk 1 of 1, about",
        "  abbreviation    Dr.  →  Doctor",
        "  time            5 pm  →  five P M",
        "  control string  <audio>  →  (nothing)",
    ] {
        assert!(report.lines().any(|found| found.starts_with(line)), "{line} is missing in:\n{report}");
    }
}
