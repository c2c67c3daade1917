//! Text to speech, stage by stage.
//!
//! ```text
//! text ──speech──▶ chunks, prompt ids ──engine::start──▶ running slot ──engine::step──▶ codes [q] and PCM [1920] per frame
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::config::{LARGEST_MAX_NEW_TOKENS, MIN_NEW_TOKENS};
use crate::engine::{End, Engine, Info, Request, Sampling, sampler};
use crate::error::{Error, Result};
use crate::speech::{self, Prompt, Speech, Style};

/// The slot a single speaker uses.
const SLOT: usize = 0;
/// How much longer than estimated a chunk may last before its speech is taken for one that does not find its end.
pub const LONGEST_SHARE: f64 = 2.0;
/// Seconds that any chunk may last beyond that: a laugh, a sigh, a pause.
pub const GRACE_SECONDS: f64 = 5.0;

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
    /// Longest speech in seconds. In any case a chunk ends at [`LARGEST_MAX_NEW_TOKENS`]; if this is absent, also at
    /// [`LONGEST_SHARE`] times its estimated seconds and [`GRACE_SECONDS`] more.
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
        let Some(Piece { text, prompt, .. }) = plan.advance(tokens.len()) else { break };
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
    /// Tokens after which it is ended.
    pub max_new_tokens: usize,
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
            // What cleaning named already may come up again when the tokenizer has more control strings of the kind.
            for string in late {
                if !dropped.contains(&string) {
                    dropped.push(string);
                }
            }
            let max_new_tokens = budget.for_piece(ids.len(), chunk.seconds)?;
            pieces.push_back(Piece { text: chunk.text, prompt: ids, max_new_tokens });
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
            max_new_tokens: piece.max_new_tokens.min(self.budget.left),
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

/// Tokens that may still be made: for the whole script if it says so, and for each chunk.
#[derive(Clone, Debug)]
struct Budget {
    left: usize,
    /// Whether the script says how long it may last; else the length of each chunk's text does.
    by_request: bool,
    positions: usize,
    tokens_per_second: f64,
}

impl Budget {
    fn new(info: &Info, max_seconds: Option<f64>) -> Result<Budget> {
        let tokens_per_second = info.config.tokens_per_second();
        let left = match max_seconds {
            None => usize::MAX,
            Some(seconds) if seconds * tokens_per_second > MIN_NEW_TOKENS as f64 => {
                (seconds * tokens_per_second).floor() as usize
            }
            Some(seconds) => {
                return Err(Error::input("max_seconds", format!("{seconds}: expected more than one frame of 0.08 s")));
            }
        };
        Ok(Budget { left, by_request: max_seconds.is_some(), positions: info.positions, tokens_per_second })
    }

    /// Cap for a chunk of so many estimated seconds: the model's limit, the room beside its prompt, and what its text can need.
    fn for_piece(&self, prompt_tokens: usize, seconds: f64) -> Result<usize> {
        let room = self.positions.saturating_sub(prompt_tokens);
        if room <= MIN_NEW_TOKENS {
            let message = format!(
                "a sentence of {prompt_tokens} tokens leaves no room for speech in {} positions",
                self.positions
            );
            return Err(Error::input("input", message));
        }
        let needed = ((LONGEST_SHARE * seconds + GRACE_SECONDS) * self.tokens_per_second) as usize;
        let cap = LARGEST_MAX_NEW_TOKENS.min(room);
        Ok(if self.by_request { cap } else { cap.min(needed) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::engine::Backend;

    fn info(positions: usize) -> Info {
        Info {
            backend: "none".to_owned(),
            kind: Backend::Cpu,
            config: ModelConfig::parse("config.json", include_bytes!("../fixtures/demo/config.json")).unwrap(),
            slots: 1,
            positions,
            samples_per_frame: 1920,
            sample_rate_hz: 24_000,
            steps_late: 0,
            audio_ids: Vec::new(),
        }
    }

    /// Estimated seconds and cap in seconds of each piece.
    fn caps(text: &str, chunk_seconds: f64, max_seconds: Option<f64>, positions: usize) -> Result<Vec<(f64, f64)>> {
        let info = info(positions);
        let speech = Speech::load(&info.config, include_bytes!("../fixtures/demo/tokenizer.json"))?;
        let preparation = speech::Options { chunk_seconds, ..speech::Options::default() };
        let script = Script { text, preparation: preparation.clone(), max_seconds, ..Script::default() };
        let plan = Plan::new(&info, &speech, &script)?;
        let chunks = speech::prepare(text, &preparation).chunks;
        Ok(chunks.iter().zip(plan.pieces()).map(|(c, p)| (c.seconds, p.max_new_tokens as f64 / 100.0)).collect())
    }

    #[test]
    fn a_chunk_has_more_time_than_its_text_takes_and_never_much_more() {
        let text = "The sister of my good friend opened the window of the big house and saw the rain. ".repeat(30);
        for chunk_seconds in [3.0, 6.0, 25.0, 30.0] {
            let caps = caps(&text, chunk_seconds, None, 3328).unwrap();
            assert!(caps.iter().any(|(seconds, _)| *seconds > 0.7 * chunk_seconds), "{caps:?}");
            for (seconds, cap) in caps {
                assert!((30.7f64).min(1.5 * seconds) <= cap && cap <= 30.72, "{seconds} s, cap {cap} s");
            }
        }
        let [(_, hello)] = caps("Hello", 25.0, None, 3328).unwrap()[..] else { panic!("one piece") };
        assert!((5.0..7.0).contains(&hello), "{hello} s for one word");
        let [(_, hello)] = caps("Hello", 25.0, Some(20.0), 3328).unwrap()[..] else { panic!("one piece") };
        assert_eq!(hello, 30.72, "the request says how long it may last");
    }

    #[test]
    fn a_prompt_that_leaves_no_room_for_speech_is_refused() {
        let error = caps("The sister of my good friend opened the window.", 25.0, None, 16).unwrap_err().to_string();
        assert!(error.starts_with("input: a sentence of ") && error.contains("16 positions"), "{error}");
    }
}
