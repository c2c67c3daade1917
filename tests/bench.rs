//! `rumik-run bench` and `rumik-verify agree` as people use them. Only what the figures are is tested, never how large.

use std::process::{Command, Output};

use serde_json::Value;

fn program(name: &str) -> Command {
    Command::new(match name {
        "run" => env!("CARGO_BIN_EXE_rumik-run"),
        _ => env!("CARGO_BIN_EXE_rumik-verify"),
    })
}

fn output(name: &str, arguments: &[&str]) -> Output {
    program(name).args(arguments).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn measures_the_demo_on_the_processor() {
    let plan = ["bench", "--device", "cpu", "--slots", "1,2", "--positions", "200,100000", "--clip-seconds", "0.5"];
    let report = json(&output("run", &[&plan[..], &["--phase-head", "--json"]].concat()));
    let lines = report["decoding"].as_array().unwrap();
    let keys: Vec<_> =
        lines.iter().map(|l| (l["slots"].as_u64(), l["positions"].as_u64(), l["approximate"].as_bool())).collect();
    let key = |slots, approximate| (Some(slots), Some(200), Some(approximate));
    assert_eq!(keys, [key(1, false), key(2, false), key(1, true), key(2, true)], "what does not fit is left out");
    for line in lines {
        let (frame, rate) = (line["frame_ms"]["median"].as_f64().unwrap(), line["tokens_per_second"].as_f64().unwrap());
        let tokens = 8.0 * line["slots"].as_f64().unwrap();
        assert!((rate * frame / 1e3 - tokens).abs() < 1e-6, "{line}");
        assert!(line["of_copy_rate"].as_f64().unwrap() > 0.0);
    }
    assert!(report["traffic"]["weight_bytes"].as_u64().unwrap() > 1_000_000);
    assert!(report["codec_ms"]["median"].as_f64().unwrap() > 0.0);
    assert!(report["clip"]["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["backend"].as_str().unwrap().starts_with("cpu"));
    assert_eq!(report["memory"], Value::Null, "the model runs from its file");
    assert_eq!(report["kernels"].as_array().unwrap().len(), 0);
}

#[test]
fn says_what_it_cannot_measure() {
    let cases: [(&[&str], &str); 4] = [
        (&["--slots", "0"], "--slots: expected 1 to 64"),
        (&["--positions", "0"], "--positions: expected at least 1"),
        (&["--positions", "100000"], "--positions: none of them fits"),
        (&["--clip-seconds", "0"], "--clip-seconds: expected 0.1"),
    ];
    for (arguments, part) in cases {
        let output = output("run", &[&["bench", "--device", "cpu"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(part), "{part:?} is missing in: {stderr}");
    }
}

#[test]
fn the_processor_agrees_with_itself() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("int4");
    let export = Command::new(env!("CARGO_BIN_EXE_rumik-export"))
        .args(["fixtures/golden/tiny", "--out"])
        .arg(&out)
        .args(["--head", "int8"])
        .output()
        .unwrap();
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let model = out.to_str().unwrap();
    let verdict =
        json(&output("verify", &["agree", model, "--device", "cpu", "--steps", "40", "--slots", "3", "--json"]));
    let comparisons = verdict["comparisons"].as_array().unwrap();
    for name in ["logits_relative", "company.tokens", "company.samples", "decode_and_prefill.tokens", "samples_snr_db"]
    {
        let found = comparisons.iter().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(found["passed"], true, "{found}");
    }
    let measured = |name: &str| comparisons.iter().find(|c| c["name"] == name).unwrap()["measured"].as_f64();
    assert_eq!(measured("logits_relative"), Some(0.0), "the same engine twice");
    assert_eq!(measured("tokens_agreement"), Some(1.0));
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_build_without_gpu_code_says_so() {
    for arguments in
        [["golden", "fixtures/golden/tiny", "--device", "cuda"], ["agree", "fixtures/nothing", "--device", "cuda:1"]]
    {
        let output = output("verify", &arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains("--features cuda") || stderr.contains("fixtures/nothing"), "{stderr}");
    }
}
