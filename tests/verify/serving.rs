//! What `rumik-run` makes of a pass: it serves only what was verified, and says what to do about anything else.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use rumik::engine::Backend;
use rumik::verify::Limit;
use rumik::verify::record::{Document, LimitKind, Outcome, Record};
use serde_json::json;

use super::http::{get, speak};
use super::{Export, REFERENCE};

impl Export {
    fn serve(&self, options: &[&str]) -> Command {
        let folder = self.folder.path().to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-run"));
        command.args(["serve", "--model", folder, "--device", "cpu", "--bind", "127.0.0.1:0", "--slots", "1"]);
        command.args(options).env("XDG_CACHE_HOME", self.cache.path());
        command
    }

    /// Tries to serve and must be refused in one line, the last, with the command that would help.
    #[track_caller]
    fn not_served(&self, words: &[&str]) {
        let output = self.serve(&[]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("listening on ")).collect();
        assert_eq!((output.status.code(), output.stdout.len(), lines.len()), (Some(2), 0, 1), "{said}");
        let command = format!("run `rumik-verify {} --source ", self.folder.path().display());
        [words, &["error: ", &command]].concat().iter().for_each(|word| {
            assert!(lines[0].contains(word), "{word:?} is not in: {said}");
        });
    }

    fn document(&self) -> Document {
        Document::parse("verify.json", &std::fs::read(self.path("verify.json")).unwrap()).unwrap()
    }

    /// Writes a record as somebody would who also computes its digest anew.
    fn forge(&self, edit: fn(&mut Record)) {
        let mut record = self.document().of(Backend::Cpu).unwrap().clone();
        edit(&mut record);
        record.digest = record.content_digest().unwrap();
        std::fs::write(self.path("verify.json"), Document::new(vec![record]).to_json().unwrap()).unwrap();
    }

    fn edit_record(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.path("verify.json")).unwrap();
        assert!(text.contains(from), "{from}");
        std::fs::write(self.path("verify.json"), text.replacen(from, to, 1)).unwrap();
    }
}

/// A running server, ended with the test.
struct Served {
    child: Child,
    address: SocketAddr,
    said: Vec<String>,
}

impl Served {
    fn start(mut command: Command) -> Served {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(|line| line.unwrap());
        let (mut said, mut address) = (Vec::new(), None);
        // It listens before the model is there, and tells of both.
        while address.is_none()
            || !said.iter().any(|line: &String| line.contains("gate: ") || line.contains("WARNING: "))
        {
            let line = lines.next().unwrap_or_else(|| panic!("the server ended: {said:?}"));
            address = address.or(line.strip_prefix("listening on http://").and_then(|a| a.parse().ok()));
            said.push(line);
        }
        let served = Served { child, address: address.unwrap(), said };
        super::until("the server is ready", || get(served.address, "/ready").status == 200);
        served
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn speech() -> serde_json::Value {
    json!({"input": "Good morning.", "response_format": "pcm"})
}

#[test]
fn only_what_was_verified_is_served() {
    let export = Export::new();
    export.not_served(&["verify.json", "a pass of this export on cpu", "found no such file"]);
    let output = export.verify(&["--reference", REFERENCE, "--quick", "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let (record, tokenizer) = (std::fs::read(export.path("verify.json")).unwrap(), export.path("tokenizer.json"));
    let restore = || std::fs::write(export.path("verify.json"), &record).unwrap();

    let served = Served::start(export.serve(&[]));
    let health = get(served.address, "/health").json();
    assert_eq!((&health["verified"], &health["standing"]), (&json!(true), &json!("passed (quick, default limits)")));
    let reply = speak(served.address, &speech());
    assert_eq!((reply.status, reply.header("x-rumik-unverified")), (200, None));
    drop(served);

    // a stale pass: a file that changed since
    let sound = std::fs::read(&tokenizer).unwrap();
    std::fs::write(&tokenizer, [&sound[..], b" "].concat()).unwrap();
    export.not_served(&["tokenizer.json", "the file that was verified (SHA-256 ", "found another ("]);
    std::fs::remove_file(export.path("export.json")).unwrap();
    std::fs::write(&tokenizer, sound).unwrap();
    export.not_served(&["export.json", "found no such file"]);
    // a pass of another export
    let other = Export::new();
    let mut weights = std::fs::read(other.path("model.safetensors")).unwrap();
    let last = weights.len() - 1;
    weights[last] ^= 1;
    std::fs::write(other.path("model.safetensors"), weights).unwrap();
    std::fs::write(other.path("verify.json"), &record).unwrap();
    other.not_served(&["model.safetensors", "the file that was verified (SHA-256 ", "found another ("]);
    // a pass of another engine, of another kind of device, and a failure
    export.forge(|record| record.engine.sources = "0".repeat(64));
    export.not_served(&["found one by another engine", "it is stale"]);
    restore();
    export.forge(|record| record.engine.backend = Backend::Cuda);
    export.not_served(&["found none for this kind of device"]);
    restore();
    export.forge(|record| {
        record.comparisons[0].measured = 9.0;
        record.comparisons[0].passed = false;
        record.verdict = Outcome::Fail;
    });
    export.not_served(&["found a failure: files.report_mismatches"]);
    // a record that was edited, with and without a new digest
    restore();
    export.edit_record("\"at_most\": 0.15", "\"at_most\": 0.95");
    export.not_served(&["digest", "it was edited"]);
    restore();
    export.edit_record("\"mode\": \"quick\"", "\"mode\": \"full\"");
    export.not_served(&["digest", "it was edited"]);
    restore();
    export.forge(|record| record.comparisons[0].measured = 9.0);
    export.not_served(&["verdict", "what the comparisons say"]);
    restore();
    export.forge(|record| record.comparisons[3].limit = Limit::AtMost(1e9));
    export.not_served(&["limits", "it was edited"]);
    restore();
    export.forge(|record| {
        record.comparisons[3].limit = Limit::AtMost(1e9);
        record.limits = LimitKind::Custom;
    });
    std::fs::write(export.path("export.json"), std::fs::read("fixtures/demo-int4/export.json").unwrap()).unwrap();
    let served = Served::start(export.serve(&[]));
    assert_eq!(get(served.address, "/health").json()["standing"], json!("passed (quick, custom limits)"));
}

#[test]
fn what_is_served_unverified_says_so_everywhere() {
    let export = Export::new();
    let served = Served::start(export.serve(&["--unverified"]));
    let warning = served.said.iter().find(|line| line.starts_with("WARNING: ")).unwrap();
    assert!(warning.contains("unverified: ") && warning.contains("run `rumik-verify "), "{warning}");
    let health = get(served.address, "/health");
    assert_eq!(health.json()["verified"], json!(false));
    assert!(health.json()["standing"].as_str().unwrap().starts_with("unverified: "));
    let reply = speak(served.address, &speech());
    assert_eq!(reply.status, 200);
    for reply in [&health, &reply, &get(served.address, "/nowhere")] {
        assert_eq!(reply.header("x-rumik-unverified"), Some("true"), "{reply:?}");
    }
}

#[test]
fn say_warns_and_speaks() {
    let export = Export::new();
    let out = export.path("speech.wav");
    let say = |model: &[&str]| -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rumik-run"));
        command.args(["say", "Good morning.", "--device", "cpu", "--max-seconds", "2", "--out", out.to_str().unwrap()]);
        command.args(model).env("XDG_CACHE_HOME", export.cache.path()).output().unwrap()
    };
    let output = say(&["--model", export.folder.path().to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let warning = said.lines().find(|line| line.starts_with("warning: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(warning.contains("unverified: ") && warning.contains("run `rumik-verify "), "{warning}");
    assert!(std::fs::metadata(&out).unwrap().len() > 1000);
    let built_in = String::from_utf8(say(&[]).stderr).unwrap();
    assert!(!built_in.contains("warning: "), "{built_in}");
}
