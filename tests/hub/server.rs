//! A small Hub on this machine, with a second host for large files, that can be told to misbehave.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use sha1::Digest;

/// What can be wrong with one answer to a request for content.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Closes the connection after this share of the content.
    DropAt(u64),
    /// Falls silent after this share of the content.
    StallAt(u64),
    /// Answers 200 and everything, whatever range was asked for.
    IgnoreRange,
    /// Answers this status and an empty page.
    Status(u16),
    /// Answers a range that starts a byte late.
    WrongRange,
    /// Changes the byte in the middle.
    WrongByte,
    /// Sends a byte more, and says so.
    WrongSize,
    /// Sends a byte more without stating a length.
    Endless,
}

/// One request that came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub host: &'static str,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

/// What a file is and where its next answers go wrong.
#[derive(Clone, Default)]
struct Entry {
    bytes: Arc<Vec<u8>>,
    large: bool,
    etag: Option<String>,
    faults: VecDeque<Fault>,
}

struct State {
    commit: String,
    files: BTreeMap<String, Entry>,
    extra_names: Vec<String>,
    listing_faults: VecDeque<Fault>,
    seen: Vec<Seen>,
    sent: u64,
    cdn: String,
}

pub struct Server {
    pub endpoint: String,
    addresses: [String; 2],
    state: Arc<Mutex<State>>,
    stopped: Arc<AtomicBool>,
}

pub const REPO: &str = "org/model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// SHA-256 of a content, or the SHA-1 of it as a git blob.
pub fn hash(bytes: &[u8], large: bool) -> String {
    let digest = match large {
        true => sha2::Sha256::digest(bytes).to_vec(),
        false => {
            sha1::Sha1::new().chain_update(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize().to_vec()
        }
    };
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Server {
    /// Starts an empty repository at [`COMMIT`].
    pub fn start() -> Server {
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [0, 1].map(|i: usize| listeners[i].local_addr().unwrap().to_string());
        let state = Arc::new(Mutex::new(State {
            commit: COMMIT.to_owned(),
            files: BTreeMap::new(),
            extra_names: Vec::new(),
            listing_faults: VecDeque::new(),
            seen: Vec::new(),
            sent: 0,
            cdn: format!("http://{}", addresses[1]),
        }));
        let stopped = Arc::new(AtomicBool::new(false));
        for (listener, host) in listeners.into_iter().zip(["hub", "cdn"]) {
            let (state, stopped) = (state.clone(), stopped.clone());
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    if stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    let state = state.clone();
                    thread::spawn(move || serve(stream, host, &state));
                }
            });
        }
        Server { endpoint: format!("http://{}", addresses[0]), addresses, state, stopped }
    }

    pub fn add(&self, name: &str, bytes: Vec<u8>, large: bool) {
        let entry = Entry { bytes: Arc::new(bytes), large, ..Entry::default() };
        self.state.lock().unwrap().files.insert(name.to_owned(), entry);
    }

    /// The next answers for a file's content, then normal ones.
    pub fn fail(&self, name: &str, faults: &[Fault]) {
        self.state.lock().unwrap().files.get_mut(name).unwrap().faults.extend(faults);
    }

    /// The next answers to a request for the list of files.
    pub fn fail_listing(&self, faults: &[Fault]) {
        self.state.lock().unwrap().listing_faults.extend(faults);
    }

    pub fn set_etag(&self, name: &str, etag: &str) {
        self.state.lock().unwrap().files.get_mut(name).unwrap().etag = Some(etag.to_owned());
    }

    pub fn set_commit(&self, commit: &str) {
        self.state.lock().unwrap().commit = commit.to_owned();
    }

    /// Lists a name that is no file.
    pub fn list_also(&self, name: &str) {
        self.state.lock().unwrap().extra_names.push(name.to_owned());
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.state.lock().unwrap().files[name].bytes.to_vec()
    }

    pub fn hash(&self, name: &str) -> String {
        let state = self.state.lock().unwrap();
        hash(&state.files[name].bytes, state.files[name].large)
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Requests for the content of a file so far, by range.
    pub fn downloads(&self, name: &str) -> Vec<Option<String>> {
        let path = format!("/{REPO}/resolve/{}/{name}", self.state.lock().unwrap().commit);
        self.seen()
            .into_iter()
            .filter(|seen| seen.method == "GET" && seen.path == path)
            .map(|seen| seen.range)
            .collect()
    }

    /// Bytes of content sent so far.
    pub fn sent(&self) -> u64 {
        self.state.lock().unwrap().sent
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.state.lock().unwrap().files.values().map(|entry| entry.bytes.len() as u64).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        for address in &self.addresses {
            let _ = TcpStream::connect(address); // wakes the listener so that it goes away
        }
        while self.addresses.iter().any(|address| TcpStream::connect(address).is_ok()) {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn serve(mut stream: TcpStream, host: &'static str, state: &Mutex<State>) -> Option<()> {
    let seen = read_request(&stream, host)?;
    state.lock().unwrap().seen.push(seen.clone());
    let listing = format!("/api/models/{REPO}/revision/");
    let resolved = format!("/{REPO}/resolve/");
    if seen.path.starts_with(&listing) {
        return list(stream, state);
    }
    if let Some(name) = seen.path.strip_prefix("/moved/").or_else(|| seen.path.strip_prefix("/blob/")) {
        return content(stream, &seen, name, state);
    }
    let Some((_, name)) = seen.path.strip_prefix(&resolved).and_then(|rest| rest.split_once('/')) else {
        return answer(&mut stream, 404, "", b"");
    };
    let (entry, cdn) = {
        let state = state.lock().unwrap();
        (state.files.get(name).cloned(), state.cdn.clone())
    };
    let Some(entry) = entry else {
        return answer(&mut stream, 404, "", b"");
    };
    let etag = entry.etag.unwrap_or_else(|| hash(&entry.bytes, entry.large));
    let linked = format!("X-Linked-Size: {}\r\nX-Linked-ETag: \"{etag}\"\r\n", entry.bytes.len());
    match (entry.large, name) {
        (true, _) => answer(&mut stream, 302, &format!("{linked}Location: {cdn}/blob/{name}\r\n"), b"elsewhere"),
        // The Hub sends small files round a corner of its own, too.
        (_, "config.json") => answer(&mut stream, 307, &format!("Location: /moved/{name}\r\n"), b"moved"),
        _ => content(stream, &seen, name, state),
    }
}

fn read_request(stream: &TcpStream, host: &'static str) -> Option<Seen> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut seen = Seen { host, method, path, range: None, authorization: None };
    for line in lines {
        let line = line.ok()?;
        let Some((key, value)) = line.split_once(": ") else { break };
        match key.to_ascii_lowercase().as_str() {
            "range" => seen.range = Some(value.to_owned()),
            "authorization" => seen.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(seen)
}

fn list(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut state = state.lock().unwrap();
    if let Some(Fault::Status(status)) = state.listing_faults.pop_front() {
        return answer(&mut stream, status, "", b"");
    }
    let names = state.files.keys().chain(&state.extra_names);
    let siblings: Vec<_> = names.map(|name| serde_json::json!({ "rfilename": name })).collect();
    let body = serde_json::json!({ "sha": state.commit, "siblings": siblings, "private": false }).to_string();
    answer(&mut stream, 200, "Content-Type: application/json\r\n", body.as_bytes())
}

fn answer(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}

/// Sends the content of a file, or does what its next fault says.
fn content(mut stream: TcpStream, seen: &Seen, name: &str, state: &Mutex<State>) -> Option<()> {
    let (entry, fault) = {
        let mut state = state.lock().unwrap();
        let entry = state.files.get_mut(name)?;
        let fault = if seen.method == "GET" { entry.faults.pop_front() } else { None };
        (entry.clone(), fault)
    };
    let mut bytes = entry.bytes.to_vec();
    let size = bytes.len();
    let etag = entry.etag.unwrap_or_else(|| hash(&bytes, false));
    // The second host has ETags of its own, as real ones do.
    let etag = if seen.host == "cdn" { "\"an-etag-of-the-second-host\"".to_owned() } else { format!("W/\"{etag}\"") };
    let asked = seen.range.as_deref().and_then(parse_range).map(|(start, end)| (start, end.unwrap_or(size).min(size)));
    let (mut status, mut start, mut end) = asked.map_or((200, 0, size), |(start, end)| (206, start, end));
    let mut headers = format!("ETag: {etag}\r\n");
    match fault {
        Some(Fault::Status(status)) => return answer(&mut stream, status, "", b""),
        Some(Fault::IgnoreRange) => (status, start, end) = (200, 0, size),
        Some(Fault::WrongRange) => start += 1,
        Some(Fault::WrongByte) => bytes[size / 2] ^= 1,
        Some(Fault::WrongSize | Fault::Endless) => {
            bytes.push(0);
            (status, start, end) = (200, 0, size + 1);
        }
        _ if start >= size && size > 0 => return answer(&mut stream, 416, "", b""),
        _ => {}
    }
    if status == 206 {
        headers += &format!("Content-Range: bytes {start}-{}/{size}\r\n", end - 1);
    }
    if !matches!(fault, Some(Fault::Endless)) {
        headers += &format!("Content-Length: {}\r\n", end - start);
    }
    let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    if seen.method == "HEAD" {
        return Some(());
    }
    let stop = match fault {
        Some(Fault::DropAt(percent) | Fault::StallAt(percent)) => start + (end - start) * percent as usize / 100,
        _ => end,
    };
    for chunk in bytes[start..stop].chunks(64 << 10) {
        stream.write_all(chunk).ok()?;
        state.lock().unwrap().sent += chunk.len() as u64;
    }
    if let Some(Fault::StallAt(_)) = fault {
        let _ = stream.read(&mut [0]); // until the client gives up
    }
    Some(())
}

/// `bytes=10-` or `bytes=10-19`, as start and end.
fn parse_range(value: &str) -> Option<(usize, Option<usize>)> {
    let (start, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    Some((start.parse().ok()?, last.parse::<usize>().ok().map(|last| last + 1)))
}
