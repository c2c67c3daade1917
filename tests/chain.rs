//! The whole chain on real input: a repository on a Hub, the int4 export made from it, and speech from that export, all
//! with the programs as they are.

#[path = "hub/server.rs"]
#[allow(dead_code, reason = "the download tests use the rest")]
mod server;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use server::{COMMIT, REPO, Server};
use tempfile::TempDir;

const DEMO: &str = "fixtures/demo";
const TEXT: &str = "Good morning, and welcome to the show.";

/// The demonstration checkpoint, published.
fn server() -> Server {
    let server = Server::start();
    for folder in ["", "codec/"] {
        for entry in std::fs::read_dir(Path::new(DEMO).join(folder)).unwrap().map(Result::unwrap) {
            let name = format!("{folder}{}", entry.file_name().to_str().unwrap());
            if entry.path().is_file() && !name.starts_with("golden.") {
                let large = name.ends_with(".safetensors") || name == "tokenizer.json";
                server.add(&name, std::fs::read(entry.path()).unwrap(), large);
            }
        }
    }
    server
}

/// A program with its Hub set to the server and a cache of its own.
fn program(path: &str, server: &Server, home: &TempDir) -> Command {
    let mut command = Command::new(path);
    for variable in ["HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"] {
        command.env_remove(variable);
    }
    command.env("HF_ENDPOINT", &server.endpoint).env("HF_HOME", home.path().join("hf"));
    command
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn from_a_repository_to_speech() {
    let (server, home) = (server(), tempfile::tempdir().unwrap());
    let (export_program, run_program) = (env!("CARGO_BIN_EXE_rumik-export"), env!("CARGO_BIN_EXE_rumik-run"));
    let out = home.path().join("int4");

    // A dry run reads headers only.
    let plan = run(program(export_program, &server, &home).args([REPO, "--dry-run", "--json"]));
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan["revision"], COMMIT, "{plan}");
    assert!(server.sent() < server.size() / 5, "{} of {} bytes for a dry run", server.sent(), server.size());
    assert!(!out.exists());

    run(program(export_program, &server, &home).arg(REPO).arg("--out").arg(&out));
    let report: Value = serde_json::from_slice(&std::fs::read(out.join("export.json")).unwrap()).unwrap();
    assert_eq!((&report["source"]["name"], &report["source"]["revision"]), (&REPO.into(), &COMMIT.into()));

    // Once more, without a server to ask.
    let sent = server.sent();
    let again = home.path().join("again");
    run(program(export_program, &server, &home).args([REPO, "--revision", COMMIT, "--offline", "--out"]).arg(&again));
    assert_eq!(server.sent(), sent);
    for name in ["model.safetensors", "export.json", "README.md", "codec/model.safetensors"] {
        assert_eq!(std::fs::read(out.join(name)).unwrap(), std::fs::read(again.join(name)).unwrap(), "{name}");
    }

    let say = |model: &[&str]| {
        let arguments = ["say", TEXT, "--out", "-", "--seed", "3"];
        run(program(run_program, &server, &home).args(arguments).args(model)).stdout
    };
    let spoken = say(&["--model", out.to_str().unwrap()]);
    assert!(spoken.len() > 2 * 24_000);
    assert_eq!(spoken, say(&[]), "the built-in voice is another export of the same checkpoint");
}
