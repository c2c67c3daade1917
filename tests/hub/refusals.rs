//! Servers that refuse, answer nonsense or try to break out; disks that are full.

use super::*;

#[test]
fn refusals_say_what_to_do() {
    for (status, parts) in [(401, ["401", "HF_TOKEN"]), (403, ["403", "gated"]), (404, ["404", "revision dev"])] {
        let (server, cache) = (server(), cache());
        server.fail_listing(&[Fault::Status(status)]);
        let error = hub(&server, &cache).snapshot(REPO, "dev", &source()).unwrap_err();
        assert_says(&error, &["org/model@dev", parts[0], parts[1], &server.endpoint]);
        assert_eq!(server.seen().len(), 1, "a refusal is final");
    }
    let (server, cache) = (server(), cache());
    server.fail(SHARD, &[Fault::Status(403)]);
    let token = Token::new("hf_secret").unwrap();
    let error = Hub::new(Settings { token, ..settings(&server, cache.path()) });
    let error = error.snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[SHARD, "403", "the token sent gives no access"]);
    assert!(!error.to_string().contains("hf_secret"));
    let error = hub(&server, &cache).file_info(REPO, COMMIT, "no.json").unwrap_err();
    assert_says(&error, &[REPO, COMMIT, "no.json", "404"]);
}

#[test]
fn a_busy_server_is_asked_again() {
    let (server, cache) = (server(), cache());
    server.fail_listing(&[Fault::Status(503), Fault::Status(429)]);
    server.fail(SHARD, &[Fault::Status(500), Fault::DropAt(40), Fault::Status(502)]);
    let found = hub(&server, &cache).snapshot(REPO, "main", &source()).unwrap();
    assert_whole(&server, &found.folder);
    server.fail_listing(&[Fault::Status(503); 9]);
    assert_eq!(hub(&server, &cache).snapshot(REPO, "main", &source()).unwrap(), found);
    let error = hub(&server, &cache).snapshot(REPO, "dev", &source()).unwrap_err();
    assert_says(&error, &["org/model@dev", "503", "try again later"]);
}

#[test]
fn no_server_and_no_cache() {
    let cache = cache();
    let settings = settings(&server(), cache.path());
    let error = Hub::new(settings).snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[REPO, COMMIT, "check the connection", "HF_HUB_OFFLINE"]);
}

#[test]
fn a_repository_of_another_kind_is_refused_before_any_download() {
    let (server, cache) = (Server::start(), cache());
    server.add("config.json", noise(1, 100), false);
    server.add("tokenizer.json", noise(2, 100), false);
    let error = hub(&server, &cache).snapshot(REPO, COMMIT, &Wanted::source(false)).unwrap_err();
    assert_says(&error, &[REPO, COMMIT, "model.safetensors", "no such file"]);
    assert_eq!(server.sent(), 0);
}

#[test]
fn hostile_answers_write_nothing_outside() {
    let outer = cache();
    let inner = outer.path().join("inner");
    let attack = |prepare: &dyn Fn(&Server)| {
        let _ = fs::remove_dir_all(&inner);
        let server = server();
        prepare(&server);
        let error = Hub::new(settings(&server, &inner)).snapshot(REPO, "main", &source()).unwrap_err();
        assert_eq!(fs::read_dir(outer.path()).unwrap().filter(|e| e.as_ref().unwrap().path() != inner).count(), 0);
        error
    };
    for name in ["codec/..\\..\\..\\x.json", "tokenizer:x.json", "tokenizer\u{1}.json"] {
        assert_says(&attack(&|server| server.list_also(name)), &["file name", REPO]);
    }
    for commit in ["../../../../outside", "", "main", &"F".repeat(40)] {
        assert_says(&attack(&|server| server.set_commit(commit)), &["listing", "commit hash"]);
    }
    for shard in ["../../../../x.safetensors", "/x.safetensors", "setup.py"] {
        let index = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
        let error = attack(&|server| server.add(INDEX_FILE, index.clone().into_bytes(), false));
        assert_says(&error, &[INDEX_FILE, "weight_map", shard]);
    }
    for etag in ["../../../../outside", "", "abc"] {
        assert_says(&attack(&|server| server.set_etag(SHARD, etag)), &[SHARD, "ETag", "HF_ENDPOINT"]);
    }
}

#[test]
fn impossible_names_from_users_are_refused_before_any_request() {
    let (server, cache) = (server(), cache());
    let hub = hub(&server, &cache);
    for repo in ["", "name", "../x", "org/../x", "a/b/c", "/org/x"] {
        assert_says(&hub.snapshot(repo, COMMIT, &source()).unwrap_err(), &["repository", repo]);
    }
    for revision in ["", "../../x", "/x", "a b", "a\\b"] {
        assert_says(&hub.snapshot(REPO, revision, &source()).unwrap_err(), &["revision", "branch"]);
    }
    for file in ["", "../x", "/x"] {
        assert_says(&hub.file_info(REPO, COMMIT, file).unwrap_err(), &["file", file]);
    }
    assert!(server.seen().is_empty());
}

#[test]
fn a_range_is_read_without_the_file() {
    let (server, cache) = (server(), cache());
    let hub = hub(&server, &cache);
    server.fail(SHARD, &[Fault::DropAt(40)]);
    assert_eq!(hub.read_range(REPO, COMMIT, SHARD, 100..300).unwrap(), server.bytes(SHARD)[100..300]);
    let info = hub.file_info(REPO, COMMIT, SHARD).unwrap();
    assert_eq!((info.size, info.hash.hex()), (2 << 20, server.hash(SHARD).as_str()));
    let info = hub.file_info(REPO, COMMIT, "config.json").unwrap();
    assert_eq!((info.size, info.hash.hex()), (1005, server.hash("config.json").as_str()));
    assert_eq!(server.sent(), 280);
    assert!(tree(cache.path()).is_empty());
    let past = hub.read_range(REPO, COMMIT, SHARD, (2 << 20) - 1..(2 << 20) + 1).unwrap_err();
    assert_says(&past, &[SHARD, "shorter"]);
    assert_says(&hub.read_range(REPO, COMMIT, SHARD, 5 << 20..6 << 20).unwrap_err(), &[SHARD, "shorter"]);
    assert_says(&hub.read_range(REPO, COMMIT, SHARD, 0..1 << 40).unwrap_err(), &["range", SHARD]);
}

#[test]
fn a_server_that_ignores_ranges_is_left_before_it_sends_much() {
    const SIZE: usize = 64 << 20;
    let (server, cache) = (server(), cache());
    server.add(SHARD, vec![0; SIZE], true);
    server.fail(SHARD, &[Fault::IgnoreRange]);
    let error = hub(&server, &cache).read_range(REPO, COMMIT, SHARD, 0..8).unwrap_err();
    assert_says(&error, &[SHARD, "ignored", "whole file"]);
    // What it sends before it notices is up to the buffers of the two sockets.
    assert!(server.sent() < SIZE as u64 / 2, "{} bytes sent", server.sent());
}

#[test]
fn headers_first_then_weights() {
    let (server, cache) = (server(), cache());
    let hub = hub(&server, &cache);
    let found = hub.snapshot(REPO, COMMIT, &source().without_weights()).unwrap();
    assert!(found.folder.join(INDEX_FILE).is_file() && !found.folder.join(SHARD).exists());
    assert!(server.sent() < 200_000);
    assert_whole(&server, &hub.snapshot(REPO, COMMIT, &source()).unwrap().folder);
}

/// Every write to `/dev/full` answers that the disk is full.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let (server, cache) = (server(), cache());
    fs::create_dir_all(blobs(&cache)).unwrap();
    let path = incomplete(&server, &cache, SHARD);
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let error = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[path.to_str().unwrap(), "No space left", "2097152 bytes", "HF_HOME"]);
    assert_eq!(server.downloads(SHARD).len(), 1, "a full disk is not tried again");
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (server, cache) = (server(), cache());
    let path = cache.path().join("models--org--model");
    fs::write(&path, "a file where the folder belongs").unwrap();
    let error = hub(&server, &cache).snapshot(REPO, COMMIT, &source()).unwrap_err();
    assert_says(&error, &[path.to_str().unwrap(), "cannot create"]);
}
