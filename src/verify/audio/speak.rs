//! Both models' speech of a run: the engine speaks what the reference spoke, from the same noise.

use std::time::{Duration, Instant};

use super::{Layout, OneShot, PairFacts, Take, TakeFacts};
use crate::config::ModelConfig;
use crate::engine::frames::Frames;
use crate::engine::{End, Engine, Request};
use crate::error::Result;
use crate::verify::journal::Part;
use crate::verify::reference::{Item, ReferenceFile};
use crate::verify::snr_db;

/// The slot that speaks.
const SLOT: usize = 0;

/// A prompt, spoken by both models.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Id of the prompt.
    pub id: String,
    /// The reference's take.
    pub reference: Take,
    /// The engine's take.
    pub engine: Take,
    /// The engine's codes, decoded in one piece.
    pub one_shot: Vec<f32>,
    /// How long the engine took.
    pub took: Duration,
}

impl Pair {
    /// The pair in figures.
    pub fn facts(&self, layout: &Layout) -> PairFacts {
        PairFacts {
            id: self.id.clone(),
            reference: TakeFacts::of(&self.reference, layout),
            engine: TakeFacts::of(&self.engine, layout),
            streaming_snr_db: snr_db(&self.engine.pcm, &self.one_shot),
        }
    }
}

/// What the engine made of a prompt.
#[derive(Clone, Debug)]
pub struct Spoken {
    take: Take,
    took: Duration,
}

/// Every number of a take is an integer below 2^32 or an f32, so f64 holds it exactly.
impl Part for Spoken {
    fn numbers(&self) -> Vec<f64> {
        let Take { tokens, codes, pcm, end } = &self.take;
        let end = ENDS.iter().position(|known| known == end).unwrap_or(ENDS.len());
        let head = [self.took.as_secs_f64(), end as f64, tokens.len() as f64, codes.len() as f64];
        let integers = tokens.iter().chain(codes).copied().map(f64::from);
        head.into_iter().chain(integers).chain(pcm.iter().copied().map(f64::from)).collect()
    }

    fn of(numbers: &[f64]) -> Option<Spoken> {
        let (&[took, end, tokens, codes], rest) = numbers.split_first_chunk()?;
        let (tokens, rest) = rest.split_at_checked(tokens as usize)?;
        let (codes, pcm) = rest.split_at_checked(codes as usize)?;
        let integers = |numbers: &[f64]| numbers.iter().map(|number| *number as u32).collect();
        let take = Take {
            tokens: integers(tokens),
            codes: integers(codes),
            pcm: pcm.iter().map(|sample| *sample as f32).collect(),
            end: *ENDS.get(end as usize)?,
        };
        Some(Spoken { take, took: Duration::try_from_secs_f64(took).ok()? })
    }
}

/// Ways to end, by number.
const ENDS: [End; 3] = [End::StopHead, End::AudioEnd, End::Length];

/// Lets the engine speak a prompt of the reference file with the reference's seed, sampling and cap.
///
/// # Errors
/// Engine errors, those of a slot or a cache that is too small for the prompt among them.
pub fn speak(engine: &mut dyn Engine, file: &ReferenceFile, item: &Item) -> Result<Spoken> {
    let request = Request {
        prompt: &item.ids,
        sampling: file.facts.sampling(),
        max_new_tokens: file.facts.max_new_tokens,
        seed: item.prompt.seed,
        sequence: 0,
    };
    let start = Instant::now();
    let take = utterance(engine, &request);
    let took = start.elapsed();
    engine.reset(SLOT);
    Ok(Spoken { take: take?, took })
}

/// Puts the engine's take beside the reference's.
///
/// The reference's samples are those of the file, or decoded by `codec` where it holds none.
///
/// # Errors
/// Errors of the codec.
pub fn pair(spoken: Spoken, item: &Item, config: &ModelConfig, codec: &OneShot) -> Result<Pair> {
    let Spoken { take, took } = spoken;
    let one_shot = codec.decode(&take.codes)?;
    let reference = reference_take(item, config, codec)?;
    Ok(Pair { id: item.prompt.id.clone(), reference, engine: take, one_shot, took })
}

fn utterance(engine: &mut dyn Engine, request: &Request) -> Result<Take> {
    engine.start(SLOT, request)?;
    let mut take = Take { tokens: Vec::new(), codes: Vec::new(), pcm: Vec::new(), end: End::Length };
    // A sound engine ends by itself; one that makes nothing more is measured as it is.
    let mut running = true;
    while running {
        running = false;
        engine.step(&mut |step| {
            take.tokens.extend(step.tokens);
            take.codes.extend(step.codes);
            take.pcm.extend(step.pcm);
            running = step.end.is_none() && !step.tokens.is_empty();
            take.end = step.end.unwrap_or(take.end);
        })?;
    }
    Ok(take)
}

fn reference_take(item: &Item, config: &ModelConfig, codec: &OneShot) -> Result<Take> {
    let (mut frames, mut codes) = (Frames::new(config), Vec::new());
    item.tokens.iter().for_each(|id| frames.push(*id, &mut codes));
    let pcm = match item.pcm.is_empty() {
        true => codec.decode(&codes)?,
        false => item.pcm.iter().map(|sample| f32::from(*sample) / 32767.0).collect(),
    };
    let ended = item.tokens.last() == Some(&config.audio_end_token_id);
    let end = match (ended, item.stopped) {
        (true, true) => End::StopHead,
        (true, false) => End::AudioEnd,
        (false, _) => End::Length,
    };
    Ok(Take { tokens: item.tokens.clone(), codes, pcm, end })
}
