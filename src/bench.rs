//! How fast an engine speaks: the measurements behind `rumik-run bench`.

use std::time::Instant;

use serde::Serialize;

use crate::engine::{Engine, Request, Sampling};
use crate::error::Result;

/// Tokens of the prompt whose prefill and first frame are timed: a sentence's typical length.
pub const PROMPT_TOKENS: usize = 34;

/// Speed of decoding at some number of streams and positions.
#[derive(Clone, Debug, Serialize)]
pub struct Decoding {
    /// Streams at once.
    pub slots: usize,
    /// Positions in the cache, in the middle of the measurement.
    pub positions: usize,
    /// Milliseconds of a frame period (8 tokens a stream, codec included): median, 10th and 90th percentile.
    pub frame_ms: [f64; 3],
    /// Tokens a second, all streams together.
    pub tokens_per_second: f64,
    /// Seconds of audio a second of computing, one stream.
    pub real_time_factor: f64,
}

/// How soon a stream begins.
#[derive(Clone, Debug, Serialize)]
pub struct Beginning {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Milliseconds of prefill: median, 10th and 90th percentile.
    pub prefill_ms: [f64; 3],
    /// Milliseconds from the request to the first frame's samples.
    pub first_frame_ms: [f64; 3],
}

fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    [values[n / 2], values[n / 10], values[n - 1 - n / 10]]
}

/// Ids that any model has, different from each other.
fn prompt(engine: &dyn Engine, tokens: usize) -> Vec<u32> {
    let vocabulary = engine.info().config.vocab_size as u32;
    (0..tokens as u32).map(|i| (i * 7919 + 17) % vocabulary).collect()
}

fn request(prompt: &[u32], max_new_tokens: usize, seed: u64) -> Request<'_> {
    Request { prompt, sampling: Sampling::default(), max_new_tokens, seed, sequence: 0 }
}

/// Times `frames` frame periods of `slots` streams around `positions`. All slots must be free. A stream that ends starts anew,
/// outside the measured time.
///
/// # Errors
/// Those of the engine.
pub fn decoding(engine: &mut dyn Engine, slots: usize, positions: usize, frames: usize) -> Result<Decoding> {
    let quantizers = engine.info().config.num_quantizers;
    let before = positions.saturating_sub(frames * quantizers / 2).max(1);
    let prompt = prompt(engine, before);
    let new_tokens = engine.info().positions - before;
    let mut seed = 1;
    for slot in 0..slots {
        seed += 1;
        engine.start(slot, &request(&prompt, new_tokens, seed))?;
    }
    let mut times = Vec::with_capacity(frames);
    while times.len() < frames {
        let (mut ended, mut short) = (Vec::new(), false);
        let begun = Instant::now();
        engine.step(&mut |step| {
            ended.extend(step.end.map(|_| step.slot));
            short |= step.tokens.len() < quantizers;
        })?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        if !short {
            times.push(took);
        }
        for slot in ended {
            engine.reset(slot);
            seed += 1;
            engine.start(slot, &request(&prompt, new_tokens, seed))?;
        }
    }
    (0..slots).for_each(|slot| engine.reset(slot));
    let frame_ms = spread(times);
    let per_second = 1e3 / frame_ms[0];
    Ok(Decoding {
        slots,
        positions,
        frame_ms,
        tokens_per_second: per_second * (quantizers * slots) as f64,
        real_time_factor: per_second / engine.info().config.frame_rate_hz,
    })
}

/// Times `repeats` beginnings in slot 0, which must be free.
///
/// # Errors
/// Those of the engine.
pub fn beginning(engine: &mut dyn Engine, tokens: usize, repeats: usize) -> Result<Beginning> {
    let prompt = prompt(engine, tokens);
    let (mut prefill, mut first) = (Vec::new(), Vec::new());
    for seed in 0..repeats as u64 + 2 {
        let begun = Instant::now();
        engine.start(0, &request(&prompt, engine.info().positions - tokens, seed))?;
        let prefilled = begun.elapsed().as_secs_f64() * 1e3;
        engine.step(&mut |_| {})?;
        if seed >= 2 {
            prefill.push(prefilled);
            first.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        engine.reset(0);
    }
    Ok(Beginning { prompt: tokens, prefill_ms: spread(prefill), first_frame_ms: spread(first) })
}
