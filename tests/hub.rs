//! Downloads from a Hub that drops, lies, stalls and vanishes. The server is on this machine; nothing else is asked.
//!
//! Case D17, after huggingface/hf-hub#196, drakulavich/kesha-voice-kit#889, huggingface/huggingface_hub#4143 and #4487.

#[path = "hub/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rumik::hub::{Hub, INDEX_FILE, Settings, Token, Wanted};
use server::{COMMIT, Fault, REPO, Server};
use tempfile::TempDir;

const SHARD: &str = "model-00001-of-00002.safetensors";
/// Everything that a source checkpoint is taken for; the server has more.
const SOURCE_FILES: [&str; 12] = [
    "LICENSE",
    "NOTICE",
    "codec/config.json",
    "codec/model.safetensors",
    "codec/preprocessor_config.json",
    "config.json",
    "generation_config.json",
    SHARD,
    "model-00002-of-00002.safetensors",
    INDEX_FILE,
    "tokenizer.json",
    "tokenizer_config.json",
];

/// Bytes without a period, different for each seed.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let step = |state: &mut u64| {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((*state >> 56) as u8)
    };
    (0..length).scan(seed, |state, _| step(state)).collect()
}

/// A repository like the published one, 3 MB.
fn server() -> Server {
    let server = Server::start();
    for (seed, name) in SOURCE_FILES.into_iter().enumerate() {
        let (length, large) = match name {
            SHARD => (2 << 20, true),
            "tokenizer.json" => (100_000, true),
            _ if name.ends_with(".safetensors") => (500_000, true),
            _ => (1000 + seed, false),
        };
        server.add(name, noise(seed as u64, length), large);
    }
    let index = format!(r#"{{"weight_map": {{"a": "{SHARD}", "b": "{}"}}}}"#, SHARD.replace("00001-", "00002-"));
    server.add(INDEX_FILE, index.into_bytes(), false);
    for name in [".gitattributes", "README.md", "modeling_rumik_oss.py", "codec/modeling.py"] {
        server.list_also(name);
    }
    server
}

fn settings(server: &Server, cache: &Path) -> Settings {
    Settings {
        retries: 3,
        backoff: Duration::from_millis(1),
        stall: Duration::from_secs(20), // longer than any pause of a busy machine
        ..Settings::new(server.endpoint.clone(), cache)
    }
}

fn hub(server: &Server, cache: &TempDir) -> Hub {
    Hub::new(settings(server, cache.path()))
}

fn cache() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn source() -> Wanted {
    Wanted::source(true)
}

/// Every file under a folder: its path, and its link's target or its content.
fn tree(folder: &Path) -> BTreeMap<String, Result<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            match fs::read_link(&path) {
                Ok(target) => drop(found.insert(name, Ok(target))),
                Err(_) if path.is_dir() => folders.push(path),
                Err(_) => drop(found.insert(name, Err(fs::read(&path).unwrap()))),
            }
        }
    }
    found
}

fn blobs(cache: &TempDir) -> PathBuf {
    cache.path().join("models--org--model/blobs")
}

fn incomplete(server: &Server, cache: &TempDir, name: &str) -> PathBuf {
    blobs(cache).join(format!("{}.incomplete", server.hash(name)))
}

fn assert_whole(server: &Server, folder: &Path) {
    for name in SOURCE_FILES {
        assert!(fs::read(folder.join(name)).unwrap() == server.bytes(name), "{name} differs");
    }
    assert!(!folder.join("modeling_rumik_oss.py").exists());
    let blobs = folder.parent().unwrap().parent().unwrap().join("blobs");
    assert!(tree(&blobs).keys().all(|name| !name.ends_with(".incomplete")));
}

fn assert_says(error: &rumik::Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    assert!(!message.contains('\n'), "{message}");
}

/// Layout: "Hub Local Cache" in the Hub's documentation, and what huggingface_hub's `snapshot_download` leaves.
#[test]
fn the_cache_is_laid_out_as_the_python_tools_do() {
    let (server, cache) = (server(), cache());
    let found = hub(&server, &cache).snapshot(REPO, "main", &source()).unwrap();
    assert_eq!(found.commit, COMMIT);
    assert_eq!(found.folder, cache.path().join("models--org--model/snapshots").join(COMMIT));
    assert_whole(&server, &found.folder);
    let mut expected = BTreeMap::from([("models--org--model/refs/main".to_owned(), Err(COMMIT.into()))]);
    for name in SOURCE_FILES {
        let hash = server.hash(name);
        let up = if name.starts_with("codec/") { "../../../" } else { "../../" };
        let snapshot = format!("models--org--model/snapshots/{COMMIT}/{name}");
        expected.insert(snapshot, Ok(PathBuf::from(format!("{up}blobs/{hash}"))));
        expected.insert(format!(".locks/models--org--model/{hash}.lock"), Err(Vec::new()));
        expected.insert(format!("models--org--model/blobs/{hash}"), Err(server.bytes(name)));
    }
    assert_eq!(tree(cache.path()).keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert!(tree(cache.path()) == expected);
}

#[test]
fn only_wanted_files_are_asked_for_and_never_code() {
    let (server, cache) = (server(), cache());
    hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
    let asked: Vec<String> = server.seen().into_iter().map(|seen| seen.path).collect();
    assert!(!asked.iter().any(|path| path.ends_with(".py") || path.ends_with(".md")), "{asked:?}");
    let whole: u64 = SOURCE_FILES.iter().map(|name| server.bytes(name).len() as u64).sum();
    assert_eq!(server.sent(), whole);
}

#[test]
fn a_dropped_connection_is_resumed_at_once() {
    let (server, cache) = (server(), cache());
    server.fail(SHARD, &[Fault::DropAt(40)]);
    let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
    assert_whole(&server, &found.folder);
    let resumed = format!("bytes={}-", (2 << 20) * 40 / 100);
    assert_eq!(server.downloads(SHARD), [None, Some(resumed)]);
    assert!(server.sent() * 10 < server.size() * 12, "{} of {}", server.sent(), server.size());
}

#[test]
fn a_download_given_up_is_resumed_by_the_next_run() {
    let (server, cache) = (server(), cache());
    server.fail(SHARD, &[Fault::DropAt(40)]);
    let impatient = Settings { retries: 0, ..settings(&server, cache.path()) };
    let error = Hub::new(impatient).snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[REPO, COMMIT, SHARD, "838860 of 2097152 bytes", "run again"]);
    let left = incomplete(&server, &cache, SHARD);
    assert_eq!(fs::metadata(&left).unwrap().len(), 838_860);
    assert!(!blobs(&cache).join(server.hash(SHARD)).exists());
    let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
    assert_whole(&server, &found.folder);
    assert_eq!(server.downloads(SHARD), [None, Some("bytes=838860-".to_owned())]);
    assert!(server.sent() * 10 < server.size() * 12, "{} of {}", server.sent(), server.size());
}

#[test]
fn many_drops_with_progress_do_not_use_up_the_retries() {
    let (server, cache) = (server(), cache());
    server.add(SHARD, noise(7, 12 << 20), true);
    server.fail(SHARD, &[Fault::DropAt(15); 6]);
    let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
    assert_whole(&server, &found.folder);
    assert_eq!(server.downloads(SHARD).len(), 7);
    assert!(server.sent() * 10 < server.size() * 12, "{} of {}", server.sent(), server.size());
}

#[test]
fn a_server_that_drops_everything_is_given_up() {
    let (server, cache) = (server(), cache());
    server.fail(SHARD, &[Fault::DropAt(1); 20]);
    let error = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[SHARD, "of 2097152 bytes"]);
    assert_eq!(server.downloads(SHARD).len(), 4);
}

#[test]
fn an_empty_file_is_a_file() {
    let (server, cache) = (server(), cache());
    server.add("NOTICE", Vec::new(), false);
    server.add("codec/model.safetensors", Vec::new(), true);
    let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
    assert_whole(&server, &found.folder);
}

#[test]
fn a_stalled_connection_is_resumed() {
    let (server, cache) = (server(), cache());
    server.fail(SHARD, &[Fault::StallAt(40)]);
    let stall = Duration::from_secs(1);
    let hub = Hub::new(Settings { stall, ..settings(&server, cache.path()) });
    let found = hub.snapshot(REPO, COMMIT, &source()).unwrap();
    assert_whole(&server, &found.folder);
    assert_eq!(server.downloads(SHARD), [None, Some("bytes=838860-".to_owned())]);
    assert!(server.sent() * 10 < server.size() * 12, "{} of {}", server.sent(), server.size());
}

#[test]
fn a_range_that_is_ignored_refused_or_wrong_restarts_cleanly() {
    for answer in [Fault::IgnoreRange, Fault::Status(416), Fault::WrongRange] {
        let (server, cache) = (server(), cache());
        server.fail(SHARD, &[Fault::DropAt(40), answer]);
        let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
        assert_whole(&server, &found.folder);
        let again = if matches!(answer, Fault::IgnoreRange) { 2 } else { 3 };
        assert_eq!(server.downloads(SHARD).len(), again, "{answer:?}");
        assert_eq!(server.downloads(SHARD).get(2), (again == 3).then_some(&None), "{answer:?}");
    }
}

#[test]
fn a_beginning_that_others_left_is_used_or_thrown_away() {
    for case in ["half", "whole", "too long", "of something else"] {
        let (server, cache) = (server(), cache());
        let mut left = server.bytes(SHARD);
        match case {
            "half" => left.truncate(1 << 20),
            "too long" => left.push(0),
            "of something else" => left[..1 << 20].fill(1),
            _ => {}
        }
        fs::create_dir_all(blobs(&cache)).unwrap();
        fs::write(incomplete(&server, &cache, SHARD), left).unwrap();
        let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
        assert_whole(&server, &found.folder);
        let asked = match case {
            "half" => vec![Some("bytes=1048576-".to_owned())],
            "whole" => vec![],
            _ => vec![None],
        };
        assert_eq!(server.downloads(SHARD), asked, "{case}");
    }
}

#[test]
fn a_damaged_download_is_made_once_more() {
    for fault in [Fault::WrongByte, Fault::WrongSize, Fault::Endless] {
        let (server, cache) = (server(), cache());
        for name in [SHARD, "NOTICE"] {
            server.fail(name, &[fault]);
        }
        let found = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap();
        assert_whole(&server, &found.folder);
        assert_eq!(server.downloads(SHARD), [None, None], "{fault:?}");
        assert_eq!(server.downloads("NOTICE"), [None, None], "{fault:?}");
    }
}

#[test]
fn a_file_that_stays_damaged_is_deleted_and_named() {
    for fault in [Fault::WrongByte, Fault::WrongSize, Fault::Endless] {
        for name in [SHARD, "NOTICE"] {
            let (server, cache) = (server(), cache());
            server.fail(name, &[fault; 9]);
            let error = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap_err();
            let expected = match fault {
                Fault::WrongByte => server.hash(name),
                _ => format!("{} bytes", server.bytes(name).len()),
            };
            assert_says(&error, &[REPO, COMMIT, name, "expected", &expected, "found", "two downloads", "deleted"]);
            assert_eq!(server.downloads(name), [None, None], "{fault:?}");
            let left = tree(cache.path());
            assert!(!left.keys().any(|path| path.contains(".incomplete")), "{:?}", left.keys());
            assert!(!left.keys().any(|path| path.ends_with(&server.hash(name))), "{:?}", left.keys());
            assert!(!left.keys().any(|path| path.ends_with(name)), "{:?}", left.keys());
        }
    }
}

#[test]
fn the_token_stays_with_the_hub() {
    let (server, cache) = (server(), cache());
    let token = Token::new("hf_secret").unwrap();
    let hub = Hub::new(Settings { token, ..settings(&server, cache.path()) });
    hub.snapshot(REPO, "main", &source()).unwrap();
    hub.read_range(REPO, "main", SHARD, 0..8).unwrap();
    let seen = server.seen();
    assert!(seen.iter().filter(|seen| seen.host == "cdn").count() >= 5);
    for request in seen {
        let expected = (request.host == "hub").then_some("Bearer hf_secret");
        assert_eq!(request.authorization.as_deref(), expected, "{request:?}");
    }
}

#[path = "hub/cached.rs"]
mod cached;
#[path = "hub/refusals.rs"]
mod refusals;
