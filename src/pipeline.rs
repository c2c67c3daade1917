//! Text to speech, stage by stage.
//!
//! ```text
//! text ──speech──▶ chunks, prompt ids ──engine::start──▶ running slot ──engine::step──▶ codes [q] and PCM [1920] per frame
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::config::{DEFAULT_MAX_NEW_TOKENS, LARGEST_MAX_NEW_TOKENS, MIN_NEW_TOKENS};
use crate::engine::{End, Engine, Info, Request, Sampling, sampler};
use crate::error::{Error, Result};
use crate::speech::{self, Prompt, Speech, Style};

/// The slot a single speaker uses.
const SLOT: usize = 0;

/// What to say and how.
#[derive(Clone, Debug, Default)]
pub struct Script<'a> {
    /// The text.
    pub text: &'a str,
    /// Voice and manner.
    pub style: Style,
    /// How the text is read and cut into chunks.
    pub preparation: speech::Options,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Seed of the noise: the same script, model and seed give the same speech.
    pub seed: u64,
    /// Longest speech in seconds; the model's default cap of 20.5 s a chunk if absent.
    pub max_seconds: Option<f64>,
}

/// Speech as it leaves the engine.
#[derive(Debug)]
pub struct Sound<'a> {
    /// Samples, a multiple of the frame length, full scale ±1.
    pub pcm: &'a [f32],
    /// Time since the first prompt was read, for a player's start rule.
    pub elapsed: Duration,
}

/// One chunk of the text, spoken.
#[derive(Clone, Debug)]
pub struct Utterance {
    /// The text of the chunk.
    pub text: String,
    /// Its prompt ids.
    pub prompt: Vec<u32>,
    /// Tokens chosen, `</audio>` included if it ended by it.
    pub tokens: Vec<u32>,
    /// Codes of the complete frames, `[frames, q]`.
    pub codes: Vec<u32>,
    /// Why it ended.
    pub end: End,
}

/// How long the stages took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timings {
    /// Running the first prompt.
    pub prefill: Duration,
    /// From the start of the first prompt to the first samples.
    pub first_audio: Duration,
    /// From the start of the first prompt to the last sample.
    pub total: Duration,
}

/// A script, spoken.
#[derive(Clone, Debug)]
pub struct Spoken {
    /// Its chunks in order.
    pub utterances: Vec<Utterance>,
    /// Control strings that were left out of the text, each once.
    pub dropped: Vec<String>,
    /// How long it took.
    pub timings: Timings,
}

impl Spoken {
    /// Tokens of all chunks.
    pub fn tokens(&self) -> usize {
        self.utterances.iter().map(|u| u.tokens.len()).sum()
    }

    /// Frames of all chunks, `q` codes each.
    pub fn frames(&self, q: usize) -> usize {
        self.utterances.iter().map(|u| u.codes.len() / q).sum()
    }
}

/// Speaks a script and hands out sound while it is made.
///
/// All chunks are checked before the first is spoken, so that a bad request makes no sound.
///
/// # Errors
/// [`Error::Input`] naming the field at fault; engine errors; whatever `listener` returns, which ends the speech at once.
/// The slot is free afterwards in every case.
pub fn speak(
    engine: &mut dyn Engine,
    speech: &Speech,
    script: &Script<'_>,
    listener: &mut dyn FnMut(Sound<'_>) -> Result<()>,
) -> Result<Spoken> {
    let mut plan = Plan::new(engine.info(), speech, script)?;
    let mut clock = Clock::start();
    let mut utterances = Vec::new();
    while let Some(request) = plan.request() {
        let spoken = utterance(engine, &request, &mut clock, listener);
        engine.reset(SLOT);
        let (tokens, codes, end) = spoken?;
        let Some(Piece { text, prompt }) = plan.advance(tokens.len()) else { break };
        utterances.push(Utterance { text, prompt, tokens, codes, end });
    }
    Ok(Spoken { utterances, dropped: plan.dropped, timings: clock.stop() })
}

/// One chunk of text, ready for the engine.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The text of the chunk.
    pub text: String,
    /// Its prompt ids.
    pub prompt: Vec<u32>,
}

/// A script ready to be spoken, one request to the engine after another; whoever owns the engine says when.
#[derive(Clone, Debug)]
pub struct Plan {
    pieces: VecDeque<Piece>,
    /// Control strings that were left out of the text, each once.
    pub dropped: Vec<String>,
    sampling: Sampling,
    seed: u64,
    sequence: u32,
    budget: Budget,
}

impl Plan {
    /// Text → chunks → prompt ids. Everything that can be wrong with a script is found here, before any sound.
    ///
    /// # Errors
    /// [`Error::Input`] naming the field at fault.
    pub fn new(info: &Info, speech: &Speech, script: &Script<'_>) -> Result<Plan> {
        sampler::check(script.sampling)?;
        let budget = Budget::new(info, script.max_seconds)?;
        let prepared = speech::prepare(script.text, &script.preparation);
        let mut dropped: Vec<String> = prepared.dropped().into_iter().map(str::to_owned).collect();
        let mut pieces = VecDeque::new();
        for chunk in prepared.speakable()? {
            let Prompt { ids, dropped: late } = speech.prompt(&script.style, &chunk.text)?;
            dropped.extend(late);
            pieces.push_back(Piece { text: chunk.text, prompt: ids });
        }
        Ok(Plan { pieces, dropped, sampling: script.sampling, seed: script.seed, sequence: 0, budget })
    }

    /// The pieces still to be spoken, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter()
    }

    /// What the engine is to speak next; `None` when all is said or the time limit is reached.
    pub fn request(&self) -> Option<Request<'_>> {
        let piece = self.pieces.front().filter(|_| !self.budget.is_spent())?;
        Some(Request {
            prompt: &piece.prompt,
            sampling: self.sampling,
            max_new_tokens: self.budget.for_prompt(piece.prompt.len()),
            seed: self.seed,
            sequence: self.sequence,
        })
    }

    /// Takes the piece that was spoken in `tokens` tokens off the plan.
    pub fn advance(&mut self, tokens: usize) -> Option<Piece> {
        self.budget.spend(tokens);
        self.sequence += 1;
        self.pieces.pop_front()
    }
}

/// Prompt ids → tokens `[n]`, codes `[frames, q]`, and sound on the way.
fn utterance(
    engine: &mut dyn Engine,
    request: &Request,
    clock: &mut Clock,
    listener: &mut dyn FnMut(Sound<'_>) -> Result<()>,
) -> Result<(Vec<u32>, Vec<u32>, End)> {
    engine.start(SLOT, request)?;
    clock.prompt_read();
    let (mut tokens, mut codes, mut end) = (Vec::new(), Vec::new(), None);
    while end.is_none() {
        let mut heard = Ok(());
        engine.step(&mut |step| {
            tokens.extend_from_slice(step.tokens);
            codes.extend_from_slice(step.codes);
            end = step.end;
            if !step.pcm.is_empty() {
                heard = listener(Sound { pcm: step.pcm, elapsed: clock.sound_made() });
            }
        })?;
        heard?;
    }
    Ok((tokens, codes, end.unwrap_or(End::Length)))
}

/// Tokens that may still be made: by request for the whole script, by default for each chunk.
#[derive(Clone, Debug)]
struct Budget {
    left: usize,
    per_chunk: usize,
    positions: usize,
}

impl Budget {
    fn new(info: &Info, max_seconds: Option<f64>) -> Result<Budget> {
        let positions = info.positions;
        let Some(seconds) = max_seconds else {
            return Ok(Budget { left: usize::MAX, per_chunk: DEFAULT_MAX_NEW_TOKENS, positions });
        };
        let tokens = (seconds * info.config.tokens_per_second()).floor();
        if tokens.is_nan() || tokens <= MIN_NEW_TOKENS as f64 {
            return Err(Error::input("max_seconds", format!("{seconds}: expected more than one frame of 0.08 s")));
        }
        Ok(Budget { left: tokens as usize, per_chunk: LARGEST_MAX_NEW_TOKENS, positions })
    }

    /// Cap for a chunk: what is left, the model's limit, and the room beside its prompt.
    fn for_prompt(&self, prompt_tokens: usize) -> usize {
        self.left.min(self.per_chunk).min(self.positions.saturating_sub(prompt_tokens))
    }

    fn spend(&mut self, tokens: usize) {
        self.left = self.left.saturating_sub(tokens);
    }

    /// Too little is left for another frame.
    fn is_spent(&self) -> bool {
        self.left <= MIN_NEW_TOKENS
    }
}

struct Clock {
    started: Instant,
    timings: Timings,
}

impl Clock {
    fn start() -> Clock {
        Clock { started: Instant::now(), timings: Timings::default() }
    }

    fn prompt_read(&mut self) {
        if self.timings.prefill.is_zero() {
            self.timings.prefill = self.started.elapsed();
        }
    }

    /// Time since the first prompt was read.
    fn sound_made(&mut self) -> Duration {
        let now = self.started.elapsed();
        if self.timings.first_audio.is_zero() {
            self.timings.first_audio = now;
        }
        now - self.timings.prefill
    }

    fn stop(mut self) -> Timings {
        self.timings.total = self.started.elapsed();
        self.timings
    }
}
