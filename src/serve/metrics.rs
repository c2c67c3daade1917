//! What the server counts and measures, for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Media type of [`Metrics::render`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Upper ends of the buckets for a frame period, in seconds; 0.08 is the budget at 12.5 frames a second.
const FRAME_BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.16, 0.64];
/// Upper ends of the buckets for the time to the first audio, in seconds.
const FIRST_AUDIO_BUCKETS: [f64; 12] = [0.01, 0.02, 0.04, 0.08, 0.12, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 15.0];
/// Upper ends of the buckets for the real-time factor: seconds of work in a second of speech.
const RATE_BUCKETS: [f64; 10] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0];

/// Kind of a refused or failed request: the label `kind`.
type Kinds = Family<[(&'static str, &'static str); 1], Counter>;

/// The metrics of a server.
pub struct Metrics {
    registry: Registry,
    /// Speech requests that ended well.
    pub completed: Counter,
    /// Requests refused and failed.
    errors: Kinds,
    /// Listeners who left before the end.
    pub hang_ups: Counter,
    /// Listeners cut off because they did not keep up.
    pub slow_readers: Counter,
    /// Failures of the engine.
    pub engine_failures: Counter,
    /// Requests whose speech was ended by a length limit.
    pub truncated: Counter,
    /// Tokens made by requests that ended well.
    pub tokens: Counter,
    /// Audio sent by requests that ended well.
    pub audio_seconds: Counter<f64, AtomicU64>,
    /// Frame periods that took longer than their audio lasts.
    late_frames: Counter,
    frame_seconds: Histogram,
    first_audio_seconds: Histogram,
    real_time_factor: Histogram,
    /// Requests waiting for a slot.
    pub waiting: Gauge,
    /// Requests that fit at once, in slots and in the queue.
    pub places: Gauge,
    /// Slots.
    pub slots: Gauge,
    /// Slots in use.
    pub slots_busy: Gauge,
    /// Slots in use that wait for their listener.
    pub slots_held: Gauge,
    /// Device memory reserved.
    pub device_bytes: Gauge,
    resident_bytes: Gauge,
    /// Milliseconds in a slot, of all requests that ended well.
    working_ms: AtomicU64,
    ended: AtomicU64,
}

impl Metrics {
    pub(super) fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("rumik"),
            completed: Counter::default(),
            errors: Kinds::default(),
            hang_ups: Counter::default(),
            slow_readers: Counter::default(),
            engine_failures: Counter::default(),
            truncated: Counter::default(),
            tokens: Counter::default(),
            audio_seconds: Counter::default(),
            late_frames: Counter::default(),
            frame_seconds: Histogram::new(FRAME_BUCKETS),
            first_audio_seconds: Histogram::new(FIRST_AUDIO_BUCKETS),
            real_time_factor: Histogram::new(RATE_BUCKETS),
            waiting: Gauge::default(),
            places: Gauge::default(),
            slots: Gauge::default(),
            slots_busy: Gauge::default(),
            slots_held: Gauge::default(),
            device_bytes: Gauge::default(),
            resident_bytes: Gauge::default(),
            working_ms: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        };
        metrics.register_counters();
        metrics.register_histograms();
        metrics.register_gauges();
        metrics
    }

    fn register_counters(&mut self) {
        let r = &mut self.registry;
        r.register("requests_completed", "Speech requests that ended well", self.completed.clone());
        r.register("errors", "Requests refused or failed, by kind", self.errors.clone());
        r.register("hang_ups", "Listeners who left before the end", self.hang_ups.clone());
        r.register("slow_readers", "Listeners cut off because they did not keep up", self.slow_readers.clone());
        r.register("engine_failures", "Failures of the engine", self.engine_failures.clone());
        r.register("truncated", "Requests whose speech a length limit ended", self.truncated.clone());
        r.register("tokens", "Tokens made by requests that ended well", self.tokens.clone());
        r.register_with_unit("audio", "Audio of requests that ended well", Unit::Seconds, self.audio_seconds.clone());
        r.register("late_frames", "Frame periods longer than their audio", self.late_frames.clone());
    }

    fn register_histograms(&mut self) {
        let r = &mut self.registry;
        let help = "Time of a frame period of all running slots, prompts read meanwhile included; the budget is 0.08";
        r.register_with_unit("frame", help, Unit::Seconds, self.frame_seconds.clone());
        let help = "Time from a request to its first samples, waiting included";
        r.register_with_unit("first_audio", help, Unit::Seconds, self.first_audio_seconds.clone());
        let help = "Seconds that a request's pieces were in a slot, holds not counted, in a second of speech";
        r.register("real_time_factor", help, self.real_time_factor.clone());
    }

    fn register_gauges(&mut self) {
        let r = &mut self.registry;
        r.register("queue_length", "Requests waiting for a slot", self.waiting.clone());
        r.register("places", "Requests that fit at once, in slots and in the queue", self.places.clone());
        r.register("slots", "Slots", self.slots.clone());
        r.register("slots_busy", "Slots in use", self.slots_busy.clone());
        r.register("slots_held", "Slots in use that wait for their listener", self.slots_held.clone());
        let help = "Device memory reserved for weights, cache and codec; 0 on the processor";
        r.register_with_unit("device_memory", help, Unit::Bytes, self.device_bytes.clone());
        r.register_with_unit("resident_memory", "Memory of the process", Unit::Bytes, self.resident_bytes.clone());
    }

    /// Counts a refused or failed request.
    pub fn error(&self, kind: &'static str) {
        self.errors.get_or_create(&[("kind", kind)]).inc();
    }

    pub(super) fn frame(&self, took: Duration, period: Duration) {
        self.frame_seconds.observe(took.as_secs_f64());
        self.late_frames.inc_by(u64::from(took > period));
    }

    pub(super) fn took(&self, working: Duration) {
        self.working_ms.fetch_add(working.as_millis() as u64, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Mean time that a request was in a slot; 0 before the first.
    pub fn mean_request_seconds(&self) -> f64 {
        let (sum, count) = (self.working_ms.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
        sum as f64 / 1e3 / count.max(1) as f64
    }

    pub(super) fn first_audio(&self, after: Duration) {
        self.first_audio_seconds.observe(after.as_secs_f64());
    }

    pub(super) fn completed(&self, audio_seconds: f64, real_time_factor: f64) {
        self.completed.inc();
        self.audio_seconds.inc_by(audio_seconds);
        self.real_time_factor.observe(real_time_factor);
    }

    /// All of it, as [`MEDIA_TYPE`] asks for.
    pub fn render(&self) -> String {
        self.resident_bytes.set(resident_bytes());
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry); // a String takes everything
        text
    }
}

/// Memory of this process, in bytes; 0 where the system does not say.
pub fn resident_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).map_or(0, |kilobytes: i64| kilobytes << 10)
}
