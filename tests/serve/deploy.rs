//! What deploy/ and docs/ say of the server is true: metrics and options that they name exist.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::http::{get, speak};
use crate::{options, serve_stub};

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Words of `text` that begin with `start`, made of lower-case letters and `joint`.
fn words(text: &str, start: &str, joint: char) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c == joint;
    let found = text.match_indices(start).filter(|(at, _)| !text[..*at].ends_with(|c| is_part(c) || c == '-'));
    let word = |at: usize| text[at..].split(|c| !is_part(c)).next().unwrap_or_default().to_owned();
    found.map(|(at, _)| word(at)).filter(|word| word[start.len()..].starts_with(|c: char| c != joint)).collect()
}

/// Families of `/metrics`, and the names of their series.
fn metrics() -> (BTreeSet<String>, BTreeSet<String>) {
    let served = serve_stub(options(4), 1, 1, Some(2));
    assert_eq!(speak(served.address, &json!({})).status, 400); // a family with labels is shown once it has counted
    let text = String::from_utf8(get(served.address, "/metrics").body).unwrap();
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else { continue };
        let suffixes: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            other => panic!("{name}: {other}"),
        };
        series.extend(suffixes.iter().map(|suffix| format!("{name}{suffix}")));
        families.insert(if kind == "counter" { format!("{name}_total") } else { name.to_owned() });
    }
    (families, series)
}

#[test]
fn every_metric_that_is_written_of_exists() {
    let (families, series) = metrics();
    let adapter = read("deploy/kubernetes/prometheus-adapter.yaml");
    for path in [
        "deploy/grafana/rumik.json",
        "deploy/prometheus/rumik.rules.yml",
        "deploy/prometheus/rumik.rules.test.yml",
        "deploy/kubernetes/base/autoscaler.yaml",
        "deploy/kubernetes/prometheus-adapter.yaml",
    ] {
        let named = words(&read(path), "rumik_", '_');
        assert!(!named.is_empty(), "{path} names no metric");
        for name in named {
            assert!(series.contains(&name) || adapter.contains(&format!("as: {name}")), "{path}: no metric {name}");
        }
    }
    assert_eq!(words(&read("docs/serving.md"), "rumik_", '_'), families, "docs/serving.md names other metrics");
}

#[test]
fn every_option_that_is_written_of_exists() {
    let help = |command: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_rumik-run")).args([command, "--help"]).output().unwrap();
        words(&String::from_utf8(output.stdout).unwrap(), "--", '-')
    };
    let (serve, batch) = (help("serve"), help("batch"));
    for path in [
        "deploy/Dockerfile",
        "deploy/compose.yaml",
        "deploy/kubernetes/base/deployment.yaml",
        "deploy/kubernetes/gpu/deployment.yaml",
        "deploy/kubernetes/batch.yaml",
    ] {
        let text = read(path);
        let line = text.lines().find(|line| !line.trim_start().starts_with('#') && line.contains("--") && runs(line));
        let line = line.unwrap_or_else(|| panic!("{path} runs nothing"));
        let known = if line.contains("batch") { &batch } else { &serve };
        for option in words(line, "--", '-') {
            assert!(known.contains(&option), "{path}: no option {option}");
        }
    }
    let documented = words(&read("docs/serving.md"), "--", '-');
    let others = ["--example", "--json", "--out", "--release"].map(str::to_owned); // of cargo and of other commands
    for option in documented.iter().filter(|option| !others.contains(option)) {
        assert!(serve.contains(option), "docs/serving.md: no option {option}");
    }
}

/// Whether a line of a manifest gives the program its arguments.
fn runs(line: &str) -> bool {
    ["args:", "command:", "CMD"].iter().any(|key| line.trim_start().starts_with(key))
}
