//! One request's way from the engine's thread to its listener: a bounded channel of frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::state::Shared;

/// Frames of a stream that wait for their listener at most: 4 s of speech, 192 kB of samples. A stream with no room is held.
pub const STREAM_FRAMES: usize = 50;

/// What a listener hears.
#[derive(Debug)]
pub enum Event {
    /// Samples of a frame.
    Sound(Sound),
    /// The end, after all of the speech.
    Done(Totals),
    /// The end, in the middle.
    Failed(Failure),
}

/// Samples of one frame period.
#[derive(Debug)]
pub struct Sound {
    /// 16-bit samples at the model's rate.
    pub pcm: Vec<i16>,
    /// When they were made.
    pub made: Instant,
}

/// What was spoken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Ids of all prompts.
    pub prompt_tokens: usize,
    /// Tokens made.
    pub tokens: usize,
    /// Samples made.
    pub samples: usize,
    /// Whether a length limit ended the speech before the text did.
    pub truncated: bool,
    /// Time in a slot, holds not counted.
    pub working: Duration,
}

/// Why a stream ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The engine failed.
    Engine,
    /// The model said nothing at all.
    Silence,
    /// The request took longer than it may.
    TimeLimit,
    /// The server stops.
    Stopping,
}

/// The engine's end.
#[derive(Debug)]
pub(super) struct Voice(mpsc::Sender<Event>);

impl Voice {
    /// Whether a frame can be sent. The last place is kept for the end.
    pub(super) fn has_room(&self) -> bool {
        self.0.capacity() > 1
    }

    /// Whether the listener went away.
    pub(super) fn is_unheard(&self) -> bool {
        self.0.is_closed()
    }

    /// Sends what there is room for; a listener who left hears nothing.
    pub(super) fn send(&self, event: Event) {
        let _ = self.0.try_send(event);
    }
}

/// Whether a connection was cut off because its peer took nothing for too long: the connection says so, and whatever streams
/// over it can tell a slow reader from one who hung up.
#[derive(Clone, Debug, Default)]
pub struct Cut(Arc<AtomicBool>);

impl Cut {
    /// Says that the peer is given up.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The listener's end. Dropped before the end of the speech, it is a hang-up.
#[derive(Debug)]
pub struct Listener {
    events: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    /// Time that a frame may wait for the listener.
    patience: Duration,
    /// Whether the connection gave its peer up.
    cut: Cut,
    ended: bool,
}

/// Both ends of a stream over a connection.
pub(super) fn stream(shared: &Arc<Shared>, patience: Duration, cut: Cut) -> (Voice, Listener) {
    let (sender, events) = mpsc::channel(STREAM_FRAMES + 1);
    shared.listeners.inc();
    (Voice(sender), Listener { events, shared: shared.clone(), patience, cut, ended: false })
}

impl Listener {
    /// The next event; after an end, or when the engine's thread is gone, nothing.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = self.events.poll_recv(context);
        if let Poll::Ready(event) = &event {
            self.ended = !matches!(event, Some(Event::Sound(_)));
            self.shared.wake(); // there is room again
        }
        event
    }

    /// As [`Listener::poll_next`].
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Leaves without having hung up: the server itself does not wait any longer.
    pub fn leave(mut self) {
        self.ended = true;
    }

    /// Whether a frame waited longer than it may: the listener does not keep up and is cut off.
    pub fn is_late_for(&mut self, sound: &Sound) -> bool {
        let late = sound.made.elapsed() > self.patience;
        if late {
            self.ended = true;
            self.shared.metrics.slow_readers.inc();
        }
        late
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.events.close();
        match (self.ended, self.cut.is_set()) {
            (true, _) => {}
            (false, true) => {
                super::log("a listener was cut off: it took nothing");
                self.shared.metrics.slow_readers.inc();
            }
            (false, false) => {
                self.shared.metrics.hang_ups.inc();
            }
        }
        self.shared.listeners.dec();
        self.shared.wake();
    }
}
