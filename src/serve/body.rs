//! A response while it is spoken: bytes of a container, or server-sent events that carry them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body::Frame;
use serde_json::json;

use super::App;
use super::api::error::ApiError;
use super::encode::{Encoder, Format};
use super::stream::{Event, Failure, Listener, Sound, Totals};

const SEED: &str = "x-rumik-seed";
const FIRST_AUDIO_MS: &str = "x-rumik-first-audio-ms";
const SAMPLE_RATE: &str = "x-rumik-sample-rate";
const WARNING: &str = "x-rumik-warning";
const TOKENS: &str = "x-rumik-tokens";
const SECONDS: &str = "x-rumik-seconds";
const REAL_TIME_FACTOR: &str = "x-rumik-real-time-factor";
const TRUNCATED: &str = "x-rumik-truncated";

/// Headers of ours, in front of the speech or, the last four in a stream, behind it.
pub(super) const HEADERS: [&str; 8] =
    [SEED, FIRST_AUDIO_MS, SAMPLE_RATE, WARNING, TOKENS, SECONDS, REAL_TIME_FACTOR, TRUNCATED];

/// How speech is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Bytes as they come.
    Stream,
    /// Server-sent events with bytes as they come.
    Events,
    /// All bytes at the end, with exact sizes.
    Whole,
}

/// What is told about a request beside its speech.
pub(super) struct Account {
    app: Arc<App>,
    seed: u64,
    dropped: Vec<String>,
    first_audio: Duration,
    rate_hz: usize,
    block: usize,
}

impl Account {
    /// Opened with the first samples.
    pub(super) fn new(app: &Arc<App>, seed: u64, dropped: Vec<String>, begun: Instant) -> Account {
        let first_audio = begun.elapsed();
        app.shared.metrics.first_audio(first_audio);
        let (rate_hz, block) = app.catalog().map_or((0, 0), |c| (c.info.sample_rate_hz, c.info.samples_per_frame));
        Account { app: app.clone(), seed, dropped, first_audio, rate_hz, block }
    }

    fn seconds(&self, totals: &Totals) -> f64 {
        totals.samples as f64 / self.rate_hz as f64
    }

    fn real_time_factor(&self, totals: &Totals) -> f64 {
        totals.working.as_secs_f64() / self.seconds(totals)
    }

    fn first_audio_ms(&self) -> f64 {
        (self.first_audio.as_secs_f64() * 1e4).round() / 10.0
    }

    fn warning(&self) -> Option<String> {
        let dropped: Vec<String> = self.dropped.iter().map(|tag| tag.escape_default().to_string()).collect();
        (!dropped.is_empty()).then(|| format!("left out of the text: {}", dropped.join(" ")))
    }

    /// Known with the first samples.
    fn head(&self, headers: &mut HeaderMap) {
        put(headers, SEED, self.seed);
        put(headers, FIRST_AUDIO_MS, self.first_audio_ms());
        put(headers, SAMPLE_RATE, self.rate_hz);
        self.warning().into_iter().for_each(|warning| put(headers, WARNING, warning));
    }

    /// Known at the end.
    fn tail(&self, totals: &Totals, headers: &mut HeaderMap) {
        put(headers, TOKENS, totals.tokens);
        put(headers, SECONDS, self.seconds(totals));
        put(headers, REAL_TIME_FACTOR, format!("{:.4}", self.real_time_factor(totals)));
        put(headers, TRUNCATED, totals.truncated);
    }

    /// The last event: OpenAI's fields, and ours in an object of their own.
    fn done(&self, totals: &Totals) -> serde_json::Value {
        json!({
            "type": "speech.audio.done",
            "usage": {
                "input_tokens": totals.prompt_tokens,
                "output_tokens": totals.tokens,
                "total_tokens": totals.prompt_tokens + totals.tokens,
            },
            "rumik": {
                "tokens": totals.tokens,
                "seconds": self.seconds(totals),
                "first_audio_ms": self.first_audio_ms(),
                "real_time_factor": self.real_time_factor(totals),
                "truncated": totals.truncated,
                "seed": self.seed,
                "dropped": self.dropped,
            },
        })
    }

    fn close(&self, totals: &Totals) {
        self.app.shared.metrics.completed(self.seconds(totals), self.real_time_factor(totals));
    }
}

fn put(headers: &mut HeaderMap, name: &'static str, value: impl ToString) {
    if let Ok(value) = HeaderValue::from_str(&value.to_string()) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Speech on its way out.
pub(super) struct SpeechBody {
    listener: Listener,
    encoder: Box<dyn Encoder>,
    format: Format,
    shape: Shape,
    account: Account,
    /// Encoded and not sent yet.
    bytes: Vec<u8>,
    frames: VecDeque<Frame<Bytes>>,
    over: bool,
}

/// Ends a response in the middle, so that no client takes it for whole.
#[derive(Debug, thiserror::Error)]
#[error("the speech ended early: {0}")]
pub(super) struct Broken(String);

impl SpeechBody {
    /// Starts with the first samples.
    pub(super) fn new(
        listener: Listener,
        format: Format,
        shape: Shape,
        account: Account,
        first: &Sound,
    ) -> Result<SpeechBody, ApiError> {
        let mut bytes = Vec::new();
        let mut encoder = format.encoder(account.rate_hz as u32, account.block, &mut bytes)?;
        encoder.push(&first.pcm, &mut bytes)?;
        Ok(SpeechBody { listener, encoder, format, shape, account, bytes, frames: VecDeque::new(), over: false })
    }

    /// A response that streams.
    pub(super) fn into_response(self, body: impl FnOnce(SpeechBody) -> Body) -> Response {
        let mut headers = HeaderMap::new();
        let media_type = match self.shape {
            Shape::Events => "text/event-stream".to_owned(),
            _ => self.format.media_type(self.account.rate_hz as u32),
        };
        put(&mut headers, "content-type", media_type);
        self.account.head(&mut headers);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert("x-accel-buffering", HeaderValue::from_static("no")); // nginx: pass every frame on
        if self.shape == Shape::Stream {
            put(&mut headers, "trailer", HEADERS[4..].join(", "));
        }
        (headers, body(self)).into_response()
    }

    /// Waits for all of it: a response with exact sizes.
    pub(super) async fn collect(mut self) -> Result<Response, ApiError> {
        let totals = loop {
            match self.listener.next().await {
                Some(Event::Sound(sound)) => self.encoder.push(&sound.pcm, &mut self.bytes)?,
                Some(Event::Done(totals)) => break totals,
                Some(Event::Failed(failure)) => return Err(failure.into()),
                None => return Err(Failure::Engine.into()),
            }
        };
        let head = self.encoder.finish(&mut self.bytes)?;
        self.bytes[..head.len()].copy_from_slice(&head);
        self.account.close(&totals);
        let mut headers = HeaderMap::new();
        put(&mut headers, "content-type", self.format.media_type(self.account.rate_hz as u32));
        self.account.head(&mut headers);
        self.account.tail(&totals, &mut headers);
        Ok((headers, self.bytes).into_response())
    }

    /// What is encoded leaves as one frame.
    fn flush(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let frame = match self.shape {
            Shape::Events => event(&json!({ "type": "speech.audio.delta", "audio": STANDARD.encode(&bytes) })),
            Shape::Stream | Shape::Whole => bytes.into(),
        };
        self.frames.push_back(Frame::data(frame));
    }

    fn hear(&mut self, sound: &Sound) -> Result<(), Broken> {
        if self.listener.is_late_for(sound) {
            super::log("a listener was cut off: it did not keep up");
            return Err(Broken("the listener did not keep up".to_owned()));
        }
        self.encoder.push(&sound.pcm, &mut self.bytes).map_err(|error| Broken(error.to_string()))
    }

    fn end(&mut self, totals: &Totals) -> Result<(), Broken> {
        self.encoder.finish(&mut self.bytes).map_err(|error| Broken(error.to_string()))?;
        self.flush();
        self.account.close(totals);
        match self.shape {
            Shape::Events => self.frames.push_back(Frame::data(event(&self.account.done(totals)))),
            Shape::Stream | Shape::Whole => {
                let mut trailers = HeaderMap::new();
                self.account.tail(totals, &mut trailers);
                self.frames.push_back(Frame::trailers(trailers));
            }
        }
        Ok(())
    }

    /// An event says why; bytes of audio can only stop.
    fn fail(&mut self, failure: Failure) -> Result<(), Broken> {
        let error = ApiError::from(failure);
        self.account.app.shared.metrics.error(error.code);
        if self.shape != Shape::Events {
            return Err(Broken(error.message));
        }
        self.flush();
        self.frames.push_back(Frame::data(event(&json!({ "type": "error", "error": error.object() }))));
        Ok(())
    }
}

fn event(value: &serde_json::Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

impl http_body::Body for SpeechBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        loop {
            self.flush();
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let event = ready!(self.listener.poll_next(context));
            self.over = !matches!(event, Some(Event::Sound(_)));
            let done = match event {
                Some(Event::Sound(sound)) => self.hear(&sound),
                Some(Event::Done(totals)) => self.end(&totals),
                Some(Event::Failed(failure)) => self.fail(failure),
                None => self.fail(Failure::Engine),
            };
            if let Err(broken) = done {
                self.over = true;
                return Poll::Ready(Some(Err(broken)));
            }
        }
    }
}
