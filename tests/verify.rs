//! `rumik-verify` on the demonstration model, as a user runs it, and what its verdict is worth afterwards.

#[cfg(all(feature = "demo", feature = "serve"))]
#[path = "common/http.rs"]
mod http;
#[path = "verify/resume.rs"]
mod resume;
#[cfg(all(feature = "demo", feature = "serve"))]
#[path = "verify/serving.rs"]
mod serving;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use rumik::engine::Backend;
use rumik::format::Paths;
use rumik::pass::{Digests, Pass, check};
use rumik::verify::record::{Document, LimitKind, Mode, Outcome};
use serde_json::Value;

const REFERENCE: &str = "fixtures/verify/demo-quick.safetensors";

/// How long a test waits for something that will come.
const PATIENCE: Duration = Duration::from_secs(300);

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An export folder of the demonstration model, and a cache folder of its own.
struct Export {
    folder: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl Export {
    fn new() -> Export {
        let folder = tempfile::tempdir().unwrap();
        let copy = |from: &str| {
            let to = folder.path().join(from.split_once('/').unwrap().1);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(Path::new("fixtures").join(from), to).unwrap();
        };
        let own = ["demo-int4/model.safetensors", "demo-int4/export.json", "demo/config.json", "demo/tokenizer.json"];
        own.iter().chain(&["demo/codec/config.json", "demo/codec/model.safetensors"]).for_each(|name| copy(name));
        Export { folder, cache: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn verify(&self, options: &[&str]) -> Output {
        verify_with(self.cache.path(), &[&[self.folder.path().to_str().unwrap()], options].concat())
    }

    fn pass(&self) -> rumik::Result<Pass> {
        let paths = Paths::find(self.folder.path(), self.folder.path()).unwrap();
        check(&paths, Backend::Cpu, &mut Digests::default())
    }
}

/// Runs the program with a cache folder of its own.
fn verify(args: &[&str]) -> Output {
    verify_with(tempfile::tempdir().unwrap().path(), args)
}

fn verify_with(cache: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-verify"));
    command.args(args).env("XDG_CACHE_HOME", cache).output().unwrap()
}

#[track_caller]
fn refused(output: &Output, words: &[&str]) {
    let message = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), output.stdout.len(), message.lines().count()), (Some(2), 0, 1), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "{word:?} is not in: {message}"));
}

#[test]
fn the_demonstration_export_passes_and_its_pass_is_for_these_files() {
    let export = Export::new();
    let output = export.verify(&["--reference", REFERENCE, "--quick", "--device", "cpu", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let failed: Vec<&Value> = json["comparisons"].as_array().unwrap().iter().filter(|c| c["passed"] == false).collect();
    assert_eq!((output.status.code(), failed), (Some(0), vec![]), "{said}");

    let written = std::fs::read(export.path("verify.json")).unwrap();
    let document = Document::parse("verify.json", &written).unwrap();
    let record = document.of(Backend::Cpu).unwrap();
    assert_eq!((record.verdict, record.mode, record.limits), (Outcome::Pass, Mode::Quick, LimitKind::Default));
    assert_eq!(record.quality.codebooks.len(), 8);
    assert_eq!(record.parity.layers.len(), 8);
    assert_eq!(record.export.matrices.len(), 56);
    assert_eq!(serde_json::to_value(record).unwrap(), json);
    assert!(
        !String::from_utf8(written).unwrap().contains(export.folder.path().to_str().unwrap()),
        "a path of this machine"
    );
    export.pass().unwrap();

    // the same files again: the same bytes
    let before = std::fs::read(export.path("verify.json")).unwrap();
    assert_eq!(export.verify(&["--reference", REFERENCE, "--quick", "--device", "cpu"]).status.code(), Some(0));
    assert_eq!(std::fs::read(export.path("verify.json")).unwrap(), before);

    let mut tokenizer = std::fs::read(export.path("tokenizer.json")).unwrap();
    tokenizer.push(b' ');
    std::fs::write(export.path("tokenizer.json"), tokenizer).unwrap();
    let error = export.pass().unwrap_err().to_string();
    assert!(error.contains("tokenizer.json") && error.contains("run `rumik-verify "), "{error}");
}

#[test]
fn a_broken_export_fails_and_limits_by_hand_are_named() {
    let export = Export::new();
    let mut weights = std::fs::read(export.path("model.safetensors")).unwrap();
    let middle = weights.len() / 2;
    weights[middle] ^= 0x77;
    std::fs::write(export.path("model.safetensors"), weights).unwrap();
    let options = ["--reference", REFERENCE, "--quick", "--device", "cpu", "--limit", "engine.top1=0.9"];
    let output = export.verify(&options);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    let row = table.lines().find(|line| line.starts_with("files.report_mismatches")).unwrap();
    assert!(row.contains("FAIL"), "{row}");
    let document = Document::parse("verify.json", &std::fs::read(export.path("verify.json")).unwrap()).unwrap();
    let record = document.of(Backend::Cpu).unwrap();
    assert_eq!((record.verdict, record.limits), (Outcome::Fail, LimitKind::Custom));
    assert!(export.pass().unwrap_err().to_string().contains("files.report_mismatches"));
}

#[test]
fn a_reference_is_made_resumed_and_bound_to_its_original() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("reference.safetensors");
    let options =
        ["--quick", "--prompts", "demo", "--max-new-tokens", "12", "--no-pcm", "--out", out.to_str().unwrap()];
    let make = || verify(&[&["reference", "fixtures/demo"], &options[..]].concat());
    let output = make();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let first = std::fs::read(&out).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "something was left beside the file");
    make();
    assert_eq!(std::fs::read(&out).unwrap(), first, "another run gives other bytes");

    let export = Export::new();
    let mut report: Value = serde_json::from_slice(&std::fs::read(export.path("export.json")).unwrap()).unwrap();
    report["source"]["files"][0]["sha256"] = Value::from("0".repeat(64));
    std::fs::write(export.path("export.json"), report.to_string()).unwrap();
    refused(&export.verify(&["--reference", out.to_str().unwrap(), "--quick"]), &["source", "other weights, of demo"]);
    refused(&export.verify(&["--reference", out.to_str().unwrap()]), &[]);
}

/// The original says nothing but one token to each prompt: no whole frame, and no speech to fill a window with.
#[test]
fn a_reference_of_one_token_a_prompt_ends_in_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("reference.safetensors");
    let out = out.to_str().unwrap();
    let options = ["--quick", "--prompts", "demo", "--max-new-tokens", "1", "--out", out];
    let made = verify(&[&["reference", "fixtures/demo"], &options[..]].concat());
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    let export = Export::new();
    let output = export.verify(&["--reference", out, "--quick", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().any(|line| line.starts_with("engine.top1") && line.contains(" pass ")), "{table}");
    assert!(export.path("verify.json").exists());
}

/// Random weights leave everything open, so that every row of every step is stored.
#[test]
fn an_export_of_random_weights_is_measured_against_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let (source, export) = (folder.path().join("source"), folder.path().join("export"));
    let [source, export] = [&source, &export].map(|path| path.to_str().unwrap());
    for args in [&["synth", "--preset", "tiny", "--out", source][..], &[source, "--out", export]] {
        let output = Command::new(env!("CARGO_BIN_EXE_rumik-export")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let options = ["--source", source, "--quick", "--max-new-tokens", "40", "--device", "cpu", "--json"];
    let output = verify(&[&[export], &options[..]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
    let comparisons = json["comparisons"].as_array().unwrap();
    let of = |part: &str| comparisons.iter().filter(|c| c["name"].as_str().unwrap().starts_with(part)).count();
    assert_eq!((of("weights."), of("engine.")), (3, 10), "{comparisons:?}");
    let failed = comparisons.iter().filter(|c| c["passed"] == false);
    let sound = ["files.", "weights.", "kernels.", "engine.", "reference."]; // what four bits cost such a model is no matter
    let faults: Vec<&Value> =
        failed.filter(|c| sound.iter().any(|part| c["name"].as_str().unwrap().starts_with(part))).collect();
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn what_cannot_be_verified_is_said_in_one_line() {
    let export = Export::new();
    refused(&verify(&[]), &["EXPORT"]);
    refused(&verify(&["/nowhere"]), &["/nowhere"]);
    refused(&export.verify(&[]), &["--reference", "carries none"]);
    refused(&export.verify(&["--limit", "engine.vibes=1"]), &["--limit", "engine.vibes", "engine.mean_kl"]);
    refused(&export.verify(&["--reference", "Cargo.toml"]), &["Cargo.toml"]);
    refused(&export.verify(&["--reference-device", "abacus"]), &["--reference-device", "abacus"]);
    refused(&export.verify(&["--reference", REFERENCE]), &["all of the set", "--quick"]);
    refused(&export.verify(&["--reference", REFERENCE, "--quick", "--report", "/nowhere/page.html"]), &["/nowhere"]);
    refused(&export.verify(&["--reference", REFERENCE, "--quick", "--report", "/"]), &["/: expected a file name"]);
    assert_eq!(verify(&["reference", "fixtures/demo", "--max-new-tokens", "0", "--out", "x"]).status.code(), Some(2));
    assert!(!export.path("verify.json").exists());
}
