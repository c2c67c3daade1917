//! A plain HTTP client that sees what libraries hide: chunks, trailers, and whether a response was whole.

#![allow(dead_code)] // each user takes its own part

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

/// A response.
#[derive(Debug, Default)]
pub struct Reply {
    pub status: u16,
    /// Names in lower case; trailers come after the headers.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Sizes of the chunks of a chunked body.
    pub chunks: Vec<usize>,
    /// Whether the body came to its declared end.
    pub whole: bool,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The object of an error in OpenAI's shape.
    #[track_caller]
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        for key in ["message", "type", "param", "code"] {
            assert!(error.get(key).is_some(), "no {key:?} in {error}");
        }
        error
    }

    pub fn samples(&self) -> Vec<i16> {
        samples(&self.body)
    }
}

/// Little-endian samples.
pub fn samples(bytes: &[u8]) -> Vec<i16> {
    assert_eq!(bytes.len() % 2, 0, "half a sample");
    bytes.chunks(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}

/// Sends a request and leaves the response to be read.
pub fn send(mut stream: TcpStream, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Incoming {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|line| head += &format!("{line}\r\n"));
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let _ = stream.write_all(body); // a server may refuse a body before it has all of it
    Incoming { reader: BufReader::with_capacity(4096, stream), reply: Reply::default() }
}

/// A response being read.
pub struct Incoming {
    pub reader: BufReader<TcpStream>,
    pub reply: Reply,
}

impl Incoming {
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|&count| count > 0)?;
        Some(line.trim_end().to_owned())
    }

    /// Reads status and headers.
    pub fn head(&mut self) -> &Reply {
        if let Some(line) = self.line() {
            self.reply.status = line.split(' ').nth(1).unwrap().parse().unwrap();
            self.fields();
        }
        &self.reply
    }

    fn fields(&mut self) -> bool {
        while let Some(line) = self.line() {
            let Some((name, value)) = line.split_once(':') else { return true };
            self.reply.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        false
    }

    /// Reads one chunk of a chunked body; none at the end, or when the connection broke.
    pub fn chunk(&mut self) -> Option<usize> {
        let size = usize::from_str_radix(&self.line()?, 16).ok()?;
        if size == 0 {
            self.reply.whole = self.fields();
            return None;
        }
        let mut bytes = vec![0; size + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        self.reply.body.extend_from_slice(&bytes[..size]);
        self.reply.chunks.push(size);
        Some(size)
    }

    /// Reads all that is left.
    pub fn finish(mut self) -> Reply {
        if self.reply.status == 0 {
            self.head();
        }
        match self.reply.header("content-length").map(|length| length.parse().unwrap()) {
            Some(length) => {
                let mut bytes = vec![0; length];
                self.reply.whole = self.reader.read_exact(&mut bytes).is_ok();
                self.reply.body = bytes;
            }
            None => while self.chunk().is_some() {},
        }
        self.reply
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

/// Asks and reads the whole response.
pub fn ask(address: SocketAddr, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Reply {
    send(connect(address), method, path, &[headers, &["connection: close"]].concat(), body).finish()
}

pub fn get(address: SocketAddr, path: &str) -> Reply {
    ask(address, "GET", path, &[], &[])
}

pub const JSON: &str = "content-type: application/json";

/// Asks for speech.
pub fn speak(address: SocketAddr, body: &Value) -> Reply {
    ask(address, "POST", "/v1/audio/speech", &[JSON, "te: trailers"], body.to_string().as_bytes())
}

/// Asks for speech and leaves it to be read.
pub fn begin(stream: TcpStream, body: &Value) -> Incoming {
    send(stream, "POST", "/v1/audio/speech", &[JSON], body.to_string().as_bytes())
}

/// Value of a metric without labels.
#[track_caller]
pub fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = String::from_utf8(get(address, "/metrics").body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().unwrap()
}
