use std::fs;
use std::path::PathBuf;

use super::*;
use crate::format::{FileDigest, SourceReport};
use crate::verify::Comparison;
use crate::verify::limits::Limits;
use crate::verify::record::{
    EngineFacts, ExportFacts, Parity, Quality, RECORD_FILE, Record, ReferenceFacts, SamplingFacts,
};

/// A folder that looks like an export to everything that does not read tensors.
struct Folder {
    folder: tempfile::TempDir,
    paths: Paths,
}

impl Folder {
    fn new() -> Folder {
        let folder = tempfile::tempdir().unwrap();
        for name in ["model.safetensors", "config.json", "tokenizer.json"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let paths = Paths::find(folder.path(), folder.path()).unwrap();
        Folder { folder, paths }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A record in which everything passes, just within its limit.
    fn record(&self, backend: Backend) -> Record {
        let (limits, mut digests) = (Limits::default(), Digests::default());
        let comparison = |name: &&str| Comparison {
            name: (*name).to_owned(),
            measured: limits.of(name).bound(),
            limit: limits.of(name),
            passed: true,
            measurements: 1,
            note: String::new(),
        };
        let file = |(name, path): (String, &Path)| FileDigest { name, content: digests.of(path).unwrap() };
        Record {
            verdict: Outcome::Pass,
            mode: Mode::Full,
            limits: LimitKind::Default,
            export: ExportFacts { files: self.paths.named().into_iter().map(file).collect(), matrices: Vec::new() },
            engine: EngineFacts {
                version: "0".into(),
                sources: ENGINE_SOURCES.into(),
                backend,
                description: String::new(),
                device: String::new(),
                driver: None,
            },
            reference: ReferenceFacts {
                source: SourceReport { name: "source".into(), revision: None, files: Vec::new() },
                prompts: String::new(),
                sha256: String::new(),
                sampling: SamplingFacts { temperature: 0.8, top_k: 30 },
                kl_error: 0.0,
            },
            comparisons: REQUIRED.iter().map(comparison).collect(),
            kernels: Vec::new(),
            parity: Parity::default(),
            quality: Quality::default(),
            speech: None,
            digest: String::new(),
        }
    }

    fn write(&self, records: impl IntoIterator<Item = Record>) {
        let sealed = records.into_iter().map(|record| record.seal().unwrap()).collect();
        fs::write(self.path(RECORD_FILE), Document::new(sealed).to_json().unwrap()).unwrap();
    }

    fn check(&self, backend: Backend) -> Result<Pass> {
        check(&self.paths, backend, &mut Digests::default())
    }

    #[track_caller]
    fn refuses(&self, parts: &[&str]) {
        let error = self.check(Backend::Cpu).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("run `rumik-verify "), "{error}");
        parts.iter().for_each(|part| assert!(error.contains(part), "{part:?} is missing in: {error}"));
    }

    /// Rewrites the file as text.
    fn edit(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.path(RECORD_FILE)).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(self.path(RECORD_FILE), text.replacen(from, to, 1)).unwrap();
    }
}

#[test]
fn a_matching_pass_is_accepted_and_says_how_it_was_made() {
    let folder = Folder::new();
    folder.write([folder.record(Backend::Cuda), folder.record(Backend::Cpu)]);
    let pass = folder.check(Backend::Cpu).unwrap();
    assert_eq!((pass.backend, pass.mode, pass.limits), (Backend::Cpu, Mode::Full, LimitKind::Default));
    assert_eq!(folder.check(Backend::Cuda).unwrap().backend, Backend::Cuda);
    assert_eq!(Standing::Passed(pass).summary(), "passed (full, default limits)");
}

#[test]
fn without_a_pass_the_command_to_run_is_named() {
    let folder = Folder::new();
    folder.refuses(&["verify.json", "no such file", "--source SOURCE`"]);
    let error = folder.check(Backend::Cuda).unwrap_err().to_string();
    assert!(error.contains(" --device cuda`"), "{error}");
    fs::write(folder.path(REFERENCE_FILE), "").unwrap();
    let command = format!("run `rumik-verify {}`", folder.folder.path().display());
    folder.refuses(&[&command]);
    folder.write([folder.record(Backend::Cuda)]);
    folder.refuses(&["none for this kind of device"]);
}

#[test]
fn a_stale_or_failed_pass_is_refused() {
    let folder = Folder::new();
    let mut record = folder.record(Backend::Cpu);
    record.engine.sources = "0".repeat(64);
    folder.write([record]);
    folder.refuses(&["another engine", "stale"]);
    let mut record = folder.record(Backend::Cpu);
    record.comparisons[0].measured = f64::NAN;
    let name = record.comparisons[0].name.clone();
    folder.write([record]);
    folder.refuses(&["a failure", &name]);
}

#[test]
fn a_pass_of_other_files_is_refused() {
    let folder = Folder::new();
    folder.write([folder.record(Backend::Cpu)]);
    fs::write(folder.path("tokenizer.json"), "another").unwrap();
    folder.refuses(&["tokenizer.json", "that was verified", "another ("]);
    fs::write(folder.path("tokenizer.json"), "tokenizer.json").unwrap();
    assert!(folder.check(Backend::Cpu).is_ok());
    fs::write(folder.path("export.json"), "{}").unwrap();
    let with_report = Paths::find(folder.folder.path(), folder.folder.path()).unwrap();
    let error = check(&with_report, Backend::Cpu, &mut Digests::default()).unwrap_err().to_string();
    assert!(error.contains("export.json") && error.contains("a file that was not"), "{error}");
}

#[test]
fn an_edited_pass_is_refused() {
    let folder = Folder::new();
    let mut failed = folder.record(Backend::Cpu);
    failed.comparisons[0].measured = 9.0;
    folder.write([failed]);
    folder.edit("\"verdict\": \"fail\"", "\"verdict\": \"pass\"");
    folder.refuses(&["digest", "edited"]);
    folder.write([folder.record(Backend::Cpu)]);
    folder.edit("\"at_most\": 0.01", "\"at_most\": 0.5");
    folder.refuses(&["digest", "edited"]);
    folder.write([folder.record(Backend::Cpu)]);
    folder.edit("  \"format\"", " \"format\"");
    folder.refuses(&["bytes that rumik-verify writes"]);
    folder.edit("\"version\": 1", "\"version\": 2");
    folder.refuses(&["version"]);
    fs::write(folder.path(RECORD_FILE), "{}").unwrap();
    folder.refuses(&["a record of rumik-verify"]);
}

/// Somebody who also computes the digest anew: the comparisons and limits are checked for themselves.
#[test]
fn limits_and_comparisons_are_checked_against_the_built_in_ones() {
    let folder = Folder::new();
    let mut record = folder.record(Backend::Cpu);
    record.comparisons[0].limit = crate::verify::Limit::AtMost(5.0);
    folder.write([record.clone()]);
    folder.refuses(&["limits", "edited"]); // it says that they are the default ones
    record.limits = LimitKind::Custom;
    folder.write([record]);
    let pass = folder.check(Backend::Cpu).unwrap();
    assert_eq!(Standing::Passed(pass).summary(), "passed (full, custom limits)");
    let mut record = folder.record(Backend::Cpu);
    let gone = record.comparisons.remove(3);
    folder.write([record]);
    folder.refuses(&[&gone.name, "not whole"]);
    let mut record = folder.record(Backend::Cpu);
    record.comparisons[0].name = "engine.vibes".into();
    record.comparisons.extend(folder.record(Backend::Cpu).comparisons);
    folder.write([record]);
    folder.refuses(&["engine.vibes"]);
    let mut record = folder.record(Backend::Cpu);
    record.comparisons[0].measurements = 0;
    folder.write([record]);
    folder.refuses(&["a failure"]); // a comparison that was never made
}

#[test]
fn an_unverified_model_may_not_serve_and_says_why() {
    let folder = Folder::new();
    let standing = Standing::of(&folder.paths, Backend::Cpu);
    assert!(!standing.is_verified() && standing.summary().starts_with("unverified: "));
    assert!(standing.require().unwrap_err().to_string().contains("run `rumik-verify "));
    assert!(Standing::BuiltIn.require().unwrap().is_verified());
    assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
}
