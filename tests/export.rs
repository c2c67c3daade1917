//! Writing exports with the real program: safety (case D16), determinism, options, and synthetic checkpoints.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{DEMO, PROGRAM, Said, TINY, contents, copy_of_tiny, export, names};
use rumik::checkpoint::Checkpoint;
use rumik::format::{Export, Report};
use rumik::tensors::write::hex;
use sha2::{Digest, Sha256};

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let made = ["1", "2", "5"].map(|threads| {
        let out = root.path().join(threads);
        export(Path::new(TINY), &out, &["--threads", threads]).succeeds();
        contents(&out)
    });
    assert!(made[0] == made[1] && made[0] == made[2]);
}

#[test]
fn the_report_gives_the_digests_of_the_files() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let said = export(Path::new(TINY), &out, &["--json", "--source-name", "someone/some-model"]);
    assert_eq!(said.succeeds().stdout, std::fs::read_to_string(out.join("export.json")).unwrap());
    let report = Report::parse("stdout", said.stdout.as_bytes()).unwrap();
    assert_eq!(report.source.name, "someone/some-model");
    let digest = |path: &Path| hex(&Sha256::digest(std::fs::read(path).unwrap()));
    assert_eq!(report.output.content.sha256, digest(&out.join("model.safetensors")));
    assert_eq!(report.source.files.len(), 2);
    for file in &report.source.files {
        assert_eq!(file.content.sha256, digest(&Path::new(TINY).join(&file.name)), "{}", file.name);
    }
    assert!(std::fs::read_to_string(out.join("README.md")).unwrap().contains("base_model: someone/some-model"));
}

/// A whole export with the content it should have; anything else fails.
#[track_caller]
fn is_whole(out: &Path, expected: &[(std::path::PathBuf, Vec<u8>)]) {
    Export::open(out).unwrap();
    assert!(contents(out) == expected, "{} is not what an undisturbed run writes", out.display());
}

#[test]
fn kill_at_any_moment_leaves_nothing_or_everything() {
    let root = tempfile::tempdir().unwrap();
    let reference = root.path().join("reference");
    let begun = Instant::now();
    export(Path::new(TINY), &reference, &[]).succeeds();
    let whole_run = begun.elapsed();
    let expected = contents(&reference);
    for replaces_an_older_export in [false, true] {
        let place = root.path().join(format!("place-{replaces_an_older_export}"));
        std::fs::create_dir(&place).unwrap();
        let (out, old) = (place.join("out"), place.join(".out.rumik-old"));
        for moment in 0..10u32 {
            if replaces_an_older_export {
                export(Path::new(TINY), &out, &["--force"]).succeeds();
            } else if out.exists() {
                std::fs::remove_dir_all(&out).unwrap(); // a run that was over before the kill
            }
            let mut run = Command::new(PROGRAM);
            run.arg(TINY).arg("--out").arg(&out).arg("--force").stdout(Stdio::null()).stderr(Stdio::null());
            let mut run = run.spawn().unwrap();
            std::thread::sleep(whole_run * (2 * moment + 1) / 20);
            run.kill().unwrap();
            run.wait().unwrap();
            match (out.exists(), old.exists()) {
                (true, _) => is_whole(&out, &expected),
                (false, true) => is_whole(&old, &expected), // between the two renames; the next run puts it back
                (false, false) => assert!(!replaces_an_older_export, "the older export is gone"),
            }
        }
        export(Path::new(TINY), &out, &["--force"]).succeeds();
        is_whole(&out, &expected);
        assert_eq!(names(&place), ["out"], "leftovers are cleaned");
    }
}

#[test]
fn an_existing_output_is_untouched_without_force() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("model.safetensors"), "mine").unwrap();
    let options: [&[&str]; 2] = [&[], &["--force"]];
    for (options, reason) in options.into_iter().zip(["give --force", "not written by this program"]) {
        export(Path::new(TINY), &out, options).refuses(&["--out", "exists", reason]);
        assert_eq!(std::fs::read(out.join("model.safetensors")).unwrap(), b"mine");
        assert_eq!(names(root.path()), ["out"]);
    }
    // an export into which somebody put a file of their own
    let shared = root.path().join("shared");
    export(Path::new(TINY), &shared, &[]).succeeds();
    std::fs::write(shared.join("thesis.txt"), "years").unwrap();
    export(Path::new(TINY), &shared, &["--force"]).refuses(&["--out", "holds other files"]);
    assert_eq!(std::fs::read(shared.join("thesis.txt")).unwrap(), b"years");
    // a file in its place is refused as well
    let file = root.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    export(Path::new(TINY), &file, &["--force"]).refuses(&["--out", "file exists"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn output_and_input_may_not_overlap() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("a/source");
    std::fs::create_dir_all(&source).unwrap();
    copy_of_tiny(&source);
    let before = contents(root.path());
    for out in ["a/source", "a/source/out", "a/source/../source/codec", "a"] {
        export(&source, &root.path().join(out), &["--force"]).refuses(&["--out", "overlap"]);
    }
    assert!(contents(root.path()) == before);
}

/// Runs `script` in a mount namespace of its own with a small tmpfs at `$1`; `None` where the system allows no mounts.
fn on_tmpfs(mount_options: &str, folder: &Path, script: &str) -> Option<Said> {
    let mount = format!("mount -t tmpfs -o {mount_options} none \"$1\" || exit 99; {script}");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &mount, PROGRAM]).arg(folder).arg(TINY);
    let said = Said::from(command.output().ok()?);
    let mounted = said.code != Some(99) && !said.stderr.contains("unshare");
    if !mounted {
        eprintln!("NOT RUN on a tmpfs ({mount_options}): this system allows no mounts");
    }
    mounted.then_some(said)
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let run = "\"$0\" \"$2\" --out \"$1/out\"; status=$?; ls -A \"$1\"; exit $status";
    // sizes at which the weights, a companion and the codec run out of room
    for size in ["size=400k", "size=1700k", "size=3m"] {
        if let Some(said) = on_tmpfs(size, root.path(), run) {
            said.refuses(&[".out.rumik-partial/", "cannot write", "No space left on device"]);
            assert_eq!(said.stdout, "", "nothing is left");
        }
    }
    // and everywhere: a limit on the size of files fails in the same place
    let out = root.path().join("out");
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$2\" --out \"$1\"", PROGRAM]).arg(&out).arg(TINY);
    Said::from(limited.output().unwrap()).refuses(&[
        ".out.rumik-partial/model.safetensors",
        "cannot write",
        "File too large",
    ]);
    assert!(names(root.path()).is_empty());
}

#[test]
fn a_read_only_folder_is_named() {
    let root = tempfile::tempdir().unwrap();
    if let Some(said) = on_tmpfs("ro", root.path(), "exec \"$0\" \"$2\" --out \"$1/out\"") {
        said.refuses(&["cannot create the folder", "Read-only file system"]);
    }
    // everywhere: no file can be made in a file, nor in what the kernel shows as a folder
    let file = root.path().join("file");
    std::fs::write(&file, "").unwrap();
    export(Path::new(TINY), &file.join("out"), &[]).refuses(&["file", "cannot create the folder"]);
    if cfg!(target_os = "linux") {
        export(Path::new(TINY), Path::new("/proc/self/out"), &[]).refuses(&["/proc/self", "cannot create the folder"]);
    }
}

#[test]
fn options_are_refused_with_a_reason() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    export(Path::new(TINY), &out, &["--head", "int4"]).refuses(&["--head", "int4 is refused", "KL divergence", "int8"]);
    export(Path::new(TINY), &out, &["--revision", "main"]).refuses(&["--revision", "local folder"]);
    export(Path::new("no/such/folder"), &out, &[]).refuses(&["SOURCE", "no/such/folder"]);
    assert!(names(root.path()).is_empty());
}

#[test]
fn a_dry_run_says_what_an_export_is() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let said = export(Path::new(DEMO), &out, &["--dry-run", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&said.succeeds().stdout).unwrap();
    assert!(names(root.path()).is_empty(), "a dry run writes nothing");
    export(Path::new(DEMO), &out, &[]).succeeds();
    let size = |name: &str| std::fs::metadata(out.join(name)).unwrap().len();
    assert_eq!(plan["weights_bytes"], size("model.safetensors"));
    assert_eq!(plan["codec_bytes"], size("codec/model.safetensors"));
    assert_eq!(plan["licence"], "CC0 1.0 Universal");
    assert_eq!(plan["source"], "demo");
    let text = export(Path::new(DEMO), &out, &["--dry-run"]);
    assert!(text.succeeds().stdout.contains("licence: CC0 1.0 Universal"));
}

#[test]
fn inspect_tells_sources_from_exports() {
    let inspect = |path: &str| {
        let said: Said = Command::new(PROGRAM).args(["inspect", path, "--json"]).output().unwrap().into();
        serde_json::from_str::<serde_json::Value>(&said.succeeds().stdout).unwrap()
    };
    let source = inspect(DEMO);
    assert_eq!((&source["kind"], &source["report"]), (&"source".into(), &serde_json::Value::Null));
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    export(Path::new(DEMO), &out, &["--head", "int8", "--no-codec"]).succeeds();
    let export = inspect(out.to_str().unwrap());
    assert_eq!((&export["kind"], &export["codec"]), (&"export".into(), &false.into()));
    assert_eq!(export["report"]["options"]["head"], "int8");
    assert_eq!(export["config"]["model_type"], "rumik_oss");
    assert_eq!(export["tensors"].as_array().unwrap().len(), 188);
    let text: Said = Command::new(PROGRAM).arg("inspect").arg(&out).output().unwrap().into();
    assert!(text.succeeds().stdout.contains("head.audio_weight Int8 [2049, 256]: 0."));
}

fn synth(out: &Path, options: &[&str]) -> Said {
    let mut command = Command::new(PROGRAM);
    command.args(["synth", "--preset", "tiny", "--out"]).arg(out).args(options);
    command.output().unwrap().into()
}

#[test]
fn synthetic_checkpoints_depend_on_their_seed_alone() {
    let root = tempfile::tempdir().unwrap();
    let made = [["7", "1"], ["7", "3"], ["8", "3"]].map(|[seed, threads]| {
        let out = root.path().join(format!("{seed}-{threads}"));
        synth(&out, &["--seed", seed, "--threads", threads]).succeeds();
        contents(&out)
    });
    assert!(made[0] == made[1] && made[0] != made[2]);
    synth(&root.path().join("7-1"), &[]).refuses(&["--out", "exists", "--force"]);
    synth(&root.path().join("7-1"), &["--force", "--seed", "8"]).succeeds();
    assert!(contents(&root.path().join("7-1")) == made[2]);
    synth(root.path(), &["--force"]).refuses(&["--out", "exists", "not written by this program"]);
}

#[test]
fn a_synthetic_checkpoint_exports_with_ordinary_errors() {
    let root = tempfile::tempdir().unwrap();
    let (source, out) = (root.path().join("source"), root.path().join("out"));
    synth(&source, &[]).succeeds();
    assert!(Checkpoint::open(&source).unwrap().codec.is_some());
    export(&source, &out, &[]).succeeds();
    let report = Report::parse("export.json", &Export::open(&out).unwrap().report.unwrap()).unwrap();
    // performance.md: 9.98 % for a Gaussian; four summed bytes have shorter tails, so a little less
    let query = report.matrices.iter().find(|m| m.name == "model.layers.0.self_attn.q_proj.weight").unwrap();
    assert!((0.085..0.105).contains(&query.error.relative_error), "{}", query.error.relative_error);
}

/// The synthetic tokenizer keeps what the real one promises: BOS first, and the control tokens as single ids.
#[test]
fn a_synthetic_tokenizer_has_the_ids_of_its_config() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    synth(&source, &[]).succeeds();
    let config = Checkpoint::open(&source).unwrap().config;
    let tokenizer = tokenizers::Tokenizer::from_file(source.join("tokenizer.json")).unwrap();
    let encoding = tokenizer.encode("<text>Ira: नमस्ते <63_7><audio>", true).unwrap();
    let ids = encoding.get_ids();
    assert_eq!(ids[..2], [config.bos_token_id, config.text_start_token_id]);
    assert_eq!(ids[ids.len() - 2..], [config.last_unit_id, config.audio_start_token_id]);
    assert_eq!(tokenizer.decode(&ids[2..ids.len() - 2], true).unwrap(), "Ira: नमस्ते ");
}

/// Two runs with the same output: one waits for neither and breaks neither.
#[test]
fn two_runs_at_once_do_not_disturb_each_other() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("out");
    let runs: Vec<_> = (0..3)
        .map(|_| {
            let mut run = Command::new(PROGRAM);
            run.arg(TINY).arg("--out").arg(&out).arg("--no-codec").stderr(Stdio::piped()).stdout(Stdio::null());
            std::thread::sleep(Duration::from_millis(5));
            run.spawn().unwrap()
        })
        .collect();
    let said: Vec<Said> = runs.into_iter().map(|run| run.wait_with_output().unwrap().into()).collect();
    assert_eq!(said.iter().filter(|said| said.code == Some(0)).count(), 1);
    for loser in said.iter().filter(|said| said.code != Some(0)) {
        assert!(loser.stderr.contains("another run is writing") || loser.stderr.contains("exists"), "{}", loser.stderr);
    }
    Export::open(&out).unwrap();
    assert_eq!(names(root.path()), ["out"]);
}
