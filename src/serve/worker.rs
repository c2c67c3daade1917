//! The thread that owns the engine: continuous batching, one frame period at a time.
//!
//! ```text
//! new requests ─▶ waiting ─▶ slot: prompt pieces ─▶ frames ─▶ end ─▶ next piece of the text, or done
//!                    ▲                                          │
//!                    └──────────── a long text ◀────────────────┘
//! ```
//!
//! Requests join and leave between two frames. A slot whose stream is full is held, so a slow listener stops nobody else; one
//! whose listener left is reset before the next frame. Prompts are read in pieces between the frames, as many as the frame
//! period has room for.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::OwnedSemaphorePermit;

use super::state::Shared;
use super::stream::{Event, Failure, Sound, Totals, Voice};
use super::waiting::{Client, Waiting};
use crate::audio::to_i16;
use crate::engine::{End, Engine, Request, Sampling, Step};
use crate::error::{Error, Result};
use crate::pipeline::Plan;

/// Longest rest of an idle thread, which is also the age of the heartbeat then.
const REST: Duration = Duration::from_millis(500);
/// Time between attempts to speak after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// A request, ready to be spoken.
pub(super) struct Job {
    /// What is still to be spoken.
    pub plan: Plan,
    /// Whose it is.
    pub client: Client,
    /// Place in the order of requests.
    pub arrival: u64,
    /// When it has to be done.
    pub deadline: Instant,
    /// Where the sound goes.
    pub voice: Voice,
    /// What was spoken so far.
    pub totals: Totals,
    /// Its place among all requests, given back with it.
    pub _place: OwnedSemaphorePermit,
}

/// A request in a slot.
struct Speaker {
    job: Job,
    prompt_is_read: bool,
    held: bool,
    /// Since when it is in the slot, or was let go on.
    since: Instant,
    tokens: usize,
    end: Option<End>,
}

impl Speaker {
    fn new(job: Job) -> Speaker {
        Speaker { job, prompt_is_read: false, held: false, since: Instant::now(), tokens: 0, end: None }
    }

    fn hold(&mut self, held: bool) {
        self.held = held;
        match held {
            true => self.job.totals.working += self.since.elapsed(),
            false => self.since = Instant::now(),
        }
    }

    /// Takes what the engine made in a frame period.
    fn hear(&mut self, step: &Step<'_>) {
        self.tokens += step.tokens.len();
        self.end = step.end;
        self.job.totals.tokens += step.tokens.len();
        self.job.totals.samples += step.pcm.len();
        if !step.pcm.is_empty() {
            let pcm = step.pcm.iter().map(|&sample| to_i16(sample)).collect();
            self.job.voice.send(Event::Sound(Sound { pcm, made: Instant::now() }));
        }
    }
}

/// The engine and everyone it speaks for.
pub(super) struct Worker {
    engine: Box<dyn Engine>,
    shared: Arc<Shared>,
    waiting: Waiting<Job>,
    slots: Vec<Option<Speaker>>,
    /// A prompt that shows whether the engine speaks.
    probe: Vec<u32>,
    /// Audio of a frame, which is the time there is to make it.
    period: Duration,
    /// Time of the last frame of all slots, and of the last piece of a prompt.
    frame_took: Duration,
    piece_took: Duration,
    /// When the engine last made a frame, and how long that is taken for a proof that it can.
    spoke: Instant,
    proof: Duration,
}

impl Worker {
    /// Takes over an engine and lets it speak once.
    pub(super) fn new(
        engine: Box<dyn Engine>,
        shared: Arc<Shared>,
        probe: Vec<u32>,
        proof: Duration,
    ) -> Result<Worker> {
        let info = engine.info();
        let period = Duration::from_secs_f64(1.0 / info.config.frame_rate_hz);
        let slots = (0..info.slots).map(|_| None).collect();
        shared.metrics.slots.set(info.slots as i64);
        shared.metrics.device_bytes.set(engine.device_bytes() as i64);
        let mut worker = Worker {
            engine,
            shared,
            waiting: Waiting::default(),
            slots,
            probe,
            period,
            frame_took: Duration::ZERO,
            piece_took: Duration::ZERO,
            spoke: Instant::now(),
            proof,
        };
        worker.try_to_speak()?;
        Ok(worker)
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        while !self.shared.is_stopping() {
            self.shared.beat();
            for job in self.shared.take_new() {
                self.waiting.push(job.client, false, job.arrival, job);
            }
            self.dismiss();
            let seated = self.seat();
            self.report();
            if let Err(error) = seated.and_then(|()| self.advance()) {
                self.recover(&error);
            }
        }
        self.end_all(Failure::Stopping);
        self.report();
    }

    /// Ends the requests that nobody listens to any more or that took too long.
    fn dismiss(&mut self) {
        let now = Instant::now();
        let over = |job: &Job| job.voice.is_unheard() || now >= job.deadline;
        for job in self.waiting.take(over) {
            job.voice.send(Event::Failed(Failure::TimeLimit));
        }
        for (slot, speaker) in self.slots.iter_mut().enumerate() {
            if let Some(speaker) = speaker.take_if(|speaker| over(&speaker.job)) {
                speaker.job.voice.send(Event::Failed(Failure::TimeLimit));
                self.engine.reset(slot);
            }
        }
    }

    /// Gives free slots to those who wait.
    fn seat(&mut self) -> Result<()> {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let mine = |client, speaker: &&Speaker| speaker.job.client == client;
            let slots = &self.slots;
            let slots_of = |client| slots.iter().flatten().filter(|speaker| mine(client, speaker)).count();
            let Some(job) = self.waiting.next(slots_of) else { break };
            let Some(request) = job.plan.request() else {
                finish(&job, &self.shared);
                continue;
            };
            let admitted = self.engine.admit(slot, &request);
            if let Err(error @ Error::Input { .. }) = &admitted {
                super::log(&format!("the engine refused a request that was checked: {error}"));
                job.voice.send(Event::Failed(Failure::Engine));
                continue;
            }
            self.slots[slot] = Some(Speaker::new(job));
            admitted?;
        }
        Ok(())
    }

    /// Makes a frame for all who speak, after a few pieces of prompts; rests if there is nothing to do.
    fn advance(&mut self) -> Result<()> {
        let begun = Instant::now();
        let speaking = self.let_go_and_hold();
        let read = self.read_prompts(begun, speaking > 0)?;
        if speaking == 0 {
            return if read { Ok(()) } else { self.rest() };
        }
        let frame = Instant::now();
        let slots = &mut self.slots;
        self.engine.step(&mut |step| slots[step.slot].iter_mut().for_each(|speaker| speaker.hear(&step)))?;
        self.frame_took = frame.elapsed();
        self.spoke = Instant::now();
        self.shared.metrics.frame(begun.elapsed(), self.period);
        self.after_frame();
        Ok(())
    }

    /// Waits until whoever brings or frees something wakes this thread. When it was idle for long, the engine speaks to nobody:
    /// a device that was lost meanwhile is known before the next request meets it.
    fn rest(&mut self) -> Result<()> {
        if self.spoke.elapsed() < self.proof || self.slots.iter().any(Option::is_some) {
            thread::park_timeout(REST.min(self.proof));
            return Ok(());
        }
        self.try_to_speak()
    }

    /// Holds the slots whose stream is full and lets the others go on; the number of those that will make a frame.
    fn let_go_and_hold(&mut self) -> usize {
        let mut speaking = 0;
        for (slot, speaker) in self.slots.iter_mut().enumerate() {
            let Some(speaker) = speaker.as_mut().filter(|speaker| speaker.prompt_is_read) else { continue };
            let full = !speaker.job.voice.has_room();
            if full != speaker.held {
                self.engine.hold(slot, full);
                speaker.hold(full);
            }
            speaking += usize::from(!full);
        }
        speaking
    }

    /// Reads pieces of prompts, the earliest request first: at least one, and while others speak no more than the frame
    /// period has room for, or half of it where samples come a step late. Whether any was read.
    fn read_prompts(&mut self, begun: Instant, others_speak: bool) -> Result<bool> {
        let mut read = false;
        let room = self.period / (1 + self.engine.info().steps_late as u32);
        loop {
            let unread = self.slots.iter().enumerate().filter_map(|(slot, speaker)| {
                let speaker = speaker.as_ref().filter(|speaker| !speaker.prompt_is_read)?;
                Some((speaker.job.arrival, slot))
            });
            let Some((_, slot)) = unread.min() else { break };
            let expected = begun.elapsed() + self.piece_took + self.frame_took;
            if read && others_speak && expected > room {
                break;
            }
            let piece = Instant::now();
            let ready = self.engine.prefill(slot)?;
            self.piece_took = piece.elapsed();
            read = true;
            if let Some(speaker) = self.slots[slot].as_mut().filter(|_| ready) {
                speaker.prompt_is_read = true;
                if !others_speak {
                    break; // nobody waits for the others' prompts to hear this one
                }
            }
        }
        Ok(read)
    }

    /// Frees the slots that ended; a text with pieces left waits for its next turn.
    fn after_frame(&mut self) {
        for (slot, speaker) in self.slots.iter_mut().enumerate() {
            let ended = speaker.take_if(|speaker| speaker.end.is_some());
            let Some(Speaker { mut job, since, tokens, end, .. }) = ended else { continue };
            job.totals.working += since.elapsed();
            self.engine.reset(slot);
            job.plan.advance(tokens);
            let cut = job.plan.request().is_none() && job.plan.pieces().next().is_some();
            job.totals.truncated |= cut || end == Some(End::Length);
            match job.plan.request().is_some() {
                true => self.waiting.push(job.client, true, job.arrival, job),
                false => finish(&job, &self.shared),
            }
        }
    }

    /// After a failure of the engine: everyone is told, and nobody is let in until it speaks again.
    fn recover(&mut self, error: &Error) {
        super::log(&format!("the engine failed; all running requests end with an error: {error}"));
        self.shared.metrics.engine_failures.inc();
        self.shared.fails();
        self.end_all(Failure::Engine);
        while let Err(error) = self.try_to_speak() {
            super::log(&format!("the engine still fails: {error}"));
            self.end_all(Failure::Engine);
            self.report();
            thread::sleep(RETRY);
            self.shared.beat();
            if self.shared.is_stopping() {
                return;
            }
        }
        self.shared.speaks();
    }

    /// Makes one frame of a fixed prompt; leaves all slots free.
    fn try_to_speak(&mut self) -> Result<()> {
        let request =
            Request { prompt: &self.probe, sampling: Sampling::default(), max_new_tokens: 16, seed: 0, sequence: 0 };
        let spoken = self.engine.start(0, &request).and_then(|()| self.engine.step(&mut |_| {}));
        (0..self.slots.len()).for_each(|slot| self.engine.reset(slot));
        self.spoke = Instant::now();
        spoken
    }

    fn end_all(&mut self, failure: Failure) {
        let mut jobs = self.waiting.take(|_| true);
        jobs.extend(self.shared.take_new());
        for (slot, speaker) in self.slots.iter_mut().enumerate() {
            jobs.extend(speaker.take().map(|speaker| speaker.job));
            self.engine.reset(slot);
        }
        jobs.iter().for_each(|job| job.voice.send(Event::Failed(failure)));
    }

    /// Sets the gauges.
    fn report(&self) {
        let metrics = &self.shared.metrics;
        metrics.waiting.set(self.waiting.len() as i64);
        metrics.slots_busy.set(self.slots.iter().flatten().count() as i64);
        metrics.slots_held.set(self.slots.iter().flatten().filter(|speaker| speaker.held).count() as i64);
    }
}

/// Tells the listener of a finished request its totals.
fn finish(job: &Job, shared: &Shared) {
    if job.totals.samples == 0 {
        return job.voice.send(Event::Failed(Failure::Silence));
    }
    shared.metrics.tokens.inc_by(job.totals.tokens as u64);
    shared.metrics.truncated.inc_by(u64::from(job.totals.truncated));
    shared.metrics.took(job.totals.working);
    job.voice.send(Event::Done(job.totals));
}
