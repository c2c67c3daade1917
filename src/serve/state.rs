//! What the engine's thread and the web side share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::metrics::Metrics;
use super::worker::Job;

/// Whether speech can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The model is being loaded.
    Loading,
    /// It speaks.
    Ready,
    /// The engine failed and has not spoken since.
    Failing,
    /// The engine's thread does not come round.
    Stalled,
    /// The server finishes what it has and takes nothing new.
    Draining,
    /// The engine's thread is gone.
    Stopped,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Condition::Loading => "loading",
            Condition::Ready => "ready",
            Condition::Failing => "failing",
            Condition::Stalled => "stalled",
            Condition::Draining => "draining",
            Condition::Stopped => "stopped",
        })
    }
}

/// A counter of what is there now.
#[derive(Debug, Default)]
pub struct Count(AtomicUsize);

impl Count {
    pub(super) fn inc(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dec(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

const LOADING: u8 = 0;
const SPEAKING: u8 = 1;
const FAILING: u8 = 2;
const STOPPED: u8 = 3;

/// The shared part.
pub struct Shared {
    /// What is counted and measured.
    pub metrics: Metrics,
    /// Streams that somebody listens to.
    pub listeners: Count,
    inbox: Mutex<Vec<Job>>,
    /// Places for requests, in slots and in the queue.
    places: OnceLock<Arc<Semaphore>>,
    engine: AtomicU8,
    draining: AtomicBool,
    stopping: AtomicBool,
    arrivals: AtomicU64,
    worker: OnceLock<Thread>,
    started: Instant,
    /// Milliseconds from `started` to the last round of the engine's thread.
    heartbeat: AtomicU64,
    stall: Duration,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("condition", &self.condition()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(stall: Duration) -> Shared {
        Shared {
            metrics: Metrics::new(),
            listeners: Count::default(),
            inbox: Mutex::default(),
            places: OnceLock::new(),
            engine: AtomicU8::new(LOADING),
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            arrivals: AtomicU64::new(0),
            worker: OnceLock::new(),
            started: Instant::now(),
            heartbeat: AtomicU64::new(0),
            stall,
        }
    }

    /// Whether speech can be had now.
    pub fn condition(&self) -> Condition {
        let age = self.uptime().saturating_sub(Duration::from_millis(self.heartbeat.load(Ordering::Relaxed)));
        match self.engine.load(Ordering::Acquire) {
            STOPPED => Condition::Stopped,
            _ if self.is_draining() => Condition::Draining,
            LOADING => Condition::Loading,
            _ if age > self.stall => Condition::Stalled,
            FAILING => Condition::Failing,
            _ => Condition::Ready,
        }
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// A place for one request, in a slot or in the queue; none when all are taken.
    pub fn place(&self) -> Option<OwnedSemaphorePermit> {
        self.places.get()?.clone().try_acquire_owned().ok()
    }

    /// Requests that hold a place.
    pub fn placed(&self) -> usize {
        self.places.get().map_or(0, |places| self.metrics.places.get() as usize - places.available_permits())
    }

    pub(super) fn next_arrival(&self) -> u64 {
        self.arrivals.fetch_add(1, Ordering::Relaxed)
    }

    /// Hands a request to the engine's thread.
    pub(super) fn submit(&self, job: Job) {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        self.wake();
    }

    pub(super) fn take_new(&self) -> Vec<Job> {
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Brings the engine's thread round if it rests.
    pub(super) fn wake(&self) {
        self.worker.get().into_iter().for_each(Thread::unpark);
    }

    pub(super) fn beat(&self) {
        self.heartbeat.store(self.uptime().as_millis() as u64, Ordering::Relaxed);
    }

    /// Opens for requests: `places` of them at once.
    pub(super) fn open(&self, worker: Thread, places: usize) {
        self.metrics.places.set(places as i64);
        let _ = self.worker.set(worker);
        let _ = self.places.set(Arc::new(Semaphore::new(places)));
        self.speaks();
    }

    pub(super) fn speaks(&self) {
        self.beat();
        self.engine.store(SPEAKING, Ordering::Release);
    }

    pub(super) fn fails(&self) {
        self.engine.store(FAILING, Ordering::Release);
    }

    /// The engine's thread is gone: whatever it left is told so by dropping it.
    pub(super) fn stopped(&self) {
        self.engine.store(STOPPED, Ordering::Release);
        self.take_new();
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Ends everything that speaks, at the next frame.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
