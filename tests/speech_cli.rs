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

/// Bytes that are no text, endless and broken files: exit code 2 and one line that says what is wrong, never a panic.
#[test]
fn what_cannot_be_read_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let binary = file("binary", &[b'a', 0xff, 0xfe, 0]);
    let long = file("long", "हाँ ".repeat(200_000).as_bytes());
    let endless = file("endless", b"");
    std::fs::OpenOptions::new().write(true).open(&endless).unwrap().set_len(1 << 34).unwrap();
    let bare = file("bare", b"no arrow here\n");
    let wordless = file("wordless", "a → b\n → c\n".as_bytes());
    let missing = folder.path().join("missing").to_str().unwrap().to_owned();
    let cases: [(&[&str], &str); 8] = [
        (&["--file", &binary], "byte 1: expected UTF-8 text"),
        (&["--file", &long], "longer than 1048576 bytes"),
        (&["--file", &endless], "longer than 1048576 bytes"),
        (&["hi", "--lexicon", &endless], "longer than 16777216 bytes"),
        (&["hi", "--lexicon", &binary], "byte 1: expected UTF-8 text"),
        (&["hi", "--lexicon", &bare], "line 1: expected `word → spoken`"),
        (&["hi", "--lexicon", &wordless], "line 2: expected `word → spoken`, found a word of 0 characters"),
        (&["hi", "--lexicon", &missing], "missing: cannot open"),
    ];
    for (arguments, wanted) in cases {
        let output = text(arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert_eq!((message.lines().count(), output.stdout.len()), (1, 0), "{message}");
        assert!(message.contains(wanted), "{message}");
    }
}

/// Entries that name each other are applied once, and a spoken form brings no control string or control character in.
#[test]
fn a_lexicon_is_applied_once_and_cleaned() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lexicon");
    std::fs::write(&path, "a → b\nb → a\nx → <audio>y\u{0}</audio><|end|>\n").unwrap();
    let spoken = spoken(&["a b a x <|end|> <12_3>", "--lexicon", path.to_str().unwrap()]);
    assert_eq!(spoken, "b a b y");
}
