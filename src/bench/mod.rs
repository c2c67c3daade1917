//! How fast an engine speaks: the measurements behind `rumik-run bench`.

mod report;

use std::time::{Duration, Instant};

use serde::Serialize;

pub use report::{Clip, Report, Start};

use crate::engine::{Engine, Metered, Request, Sampling, Spread};
use crate::error::{Error, Result};

/// Tokens of the prompt whose prefill and first frame are timed: a sentence's typical length.
pub const PROMPT_TOKENS: usize = 34;
/// Measurements of one figure at most, and those that are made however long they take.
const REPEATS: usize = 40;
const LEAST_REPEATS: usize = 5;
/// Measurements thrown away: the first ones find cold caches and clocks.
const WARM_UP: usize = 2;
/// Longer than a pass of a device that works on after its samples are out.
const SETTLING: Duration = Duration::from_millis(2);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of streams.
    pub slots: Vec<usize>,
    /// Positions in the cache.
    pub positions: Vec<usize>,
    /// Time after which a figure is taken from the measurements made so far, five at least.
    pub patience: Duration,
    /// Length of the whole clip.
    pub clip_seconds: f64,
    /// Measure `--phase-head` as well.
    pub phase_head: bool,
}

/// Speed of decoding at some number of streams and positions.
#[derive(Clone, Debug, Serialize)]
pub struct Decoding {
    /// Streams at once.
    pub slots: usize,
    /// Positions in the cache, in the middle of the measurement.
    pub positions: usize,
    /// Milliseconds of a frame period (8 tokens a stream, codec included).
    pub frame_ms: Spread,
    /// Tokens a second, all streams together.
    pub tokens_per_second: f64,
    /// Seconds of audio a second of computing, each stream.
    pub real_time_factor: f64,
    /// Bytes of weights read a second.
    pub weight_bytes_per_second: f64,
    /// That over the copy rate measured in the same run.
    pub of_copy_rate: f64,
    /// True when the head was restricted to the current codebook (`--phase-head`).
    pub approximate: bool,
}

/// How soon a stream begins.
#[derive(Clone, Debug, Serialize)]
pub struct Beginning {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Milliseconds of prefill.
    pub prefill_ms: Spread,
    /// Milliseconds from the request to the first frame's samples.
    pub first_frame_ms: Spread,
}

/// Opens an engine for so many streams; the flag asks for the phase head.
pub type Open<'a> = dyn FnMut(usize, bool) -> Result<Box<dyn Metered>> + 'a;

/// Measures everything of a plan; `progress` hears what is about to be measured.
///
/// # Errors
/// Those of the engine; [`Error::Input`] when no position of the plan fits the model.
pub fn run(plan: &Plan, open: &mut Open<'_>, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    progress("start");
    let begun = Instant::now();
    let mut engine = open(1, false)?;
    let engine_seconds = begun.elapsed().as_secs_f64();
    let memory = engine.memory()?;
    progress("copy rate");
    let copy_rate = engine.copy_rate()?;
    progress("beginning");
    let beginning = beginning(&mut *engine, PROMPT_TOKENS, plan.patience)?;
    let codec_ms = engine.codec_ms(REPEATS)?;
    progress("whole clip");
    let clip = clip(&mut *engine, plan.clip_seconds, plan.patience)?;
    let positions: Vec<usize> = plan.positions.iter().copied().filter(|&at| fits(&*engine, at)).collect();
    if positions.is_empty() && !plan.positions.is_empty() {
        let most = engine.info().positions;
        return Err(Error::input("--positions", format!("none of them fits this model's {most} positions")));
    }
    let mut report = Report {
        model: String::new(),
        backend: engine.info().backend.clone(),
        start: Start { files_seconds: 0.0, engine_seconds },
        memory,
        copy_bytes_per_second: copy_rate,
        traffic: engine.traffic(),
        beginning,
        codec_ms,
        clip,
        decoding: Vec::new(),
        kernels: Vec::new(),
    };
    let mut decode = |engine: &mut dyn Metered, slots: usize, approximate, progress: &mut dyn FnMut(&str)| {
        for &at in &positions {
            progress(&format!("decoding, {slots} streams at {at} positions"));
            let run = decoding(engine, slots, at, plan.patience)?;
            report.decoding.push(rates(run, engine.traffic().weight_bytes, copy_rate, approximate));
        }
        Ok::<(), Error>(())
    };
    if plan.slots.contains(&1) {
        decode(&mut *engine, 1, false, progress)?;
    }
    progress("kernels");
    let place = positions.get(positions.len() / 2).copied().unwrap_or(PROMPT_TOKENS);
    let mut kernels = engine.kernel_times(1, place, REPEATS)?;
    kernels.extend(engine.kernel_times(PROMPT_TOKENS, PROMPT_TOKENS - 1, REPEATS)?);
    drop(engine);
    let most = plan.slots.iter().copied().max().unwrap_or(1);
    if most > 1 {
        let mut engine = open(most, false)?;
        for &slots in plan.slots.iter().filter(|&&slots| slots > 1) {
            decode(&mut *engine, slots, false, progress)?;
        }
        kernels.extend(engine.kernel_times(most, place, REPEATS)?);
    }
    if plan.phase_head {
        let mut engine = open(most, true)?;
        for &slots in &plan.slots {
            decode(&mut *engine, slots, true, progress)?;
        }
    }
    report.kernels = kernels;
    Ok(report)
}

fn rates(run: Decoding, weight_bytes: usize, copy_rate: f64, approximate: bool) -> Decoding {
    let weight_bytes_per_second = run.tokens_per_second / run.slots as f64 * weight_bytes as f64;
    Decoding { weight_bytes_per_second, of_copy_rate: weight_bytes_per_second / copy_rate, approximate, ..run }
}

/// Positions that [`decoding`] runs over before and after its middle.
fn span(engine: &dyn Engine) -> usize {
    (REPEATS + WARM_UP) * engine.info().config.num_quantizers / 2
}

fn fits(engine: &dyn Engine, positions: usize) -> bool {
    positions + span(engine) < engine.info().positions
}

/// Ids that any model has, different from each other.
fn prompt(engine: &dyn Engine, tokens: usize) -> Vec<u32> {
    let vocabulary = engine.info().config.vocab_size as u32;
    (0..tokens as u32).map(|i| (i * 7919 + 17) % vocabulary).collect()
}

fn request(prompt: &[u32], max_new_tokens: usize, seed: u64) -> Request<'_> {
    Request { prompt, sampling: Sampling::default(), max_new_tokens, seed, sequence: 0 }
}

/// Whether another measurement is worth its time.
fn more(made: usize, begun: Instant, patience: Duration) -> bool {
    made < LEAST_REPEATS || (made < REPEATS && begun.elapsed() < patience)
}

/// Times frame periods of `slots` streams around `positions`. All slots must be free. A stream that ends starts anew, outside
/// the measured time.
///
/// # Errors
/// Those of the engine.
pub fn decoding(engine: &mut dyn Engine, slots: usize, positions: usize, patience: Duration) -> Result<Decoding> {
    let quantizers = engine.info().config.num_quantizers;
    let before = positions.saturating_sub(span(engine)).max(1);
    let prompt = prompt(engine, before);
    let new_tokens = engine.info().positions - before;
    let mut seed = 0;
    let mut start = |engine: &mut dyn Engine, slot| {
        seed += 1;
        engine.start(slot, &request(&prompt, new_tokens, seed))
    };
    (0..slots).try_for_each(|slot| start(engine, slot))?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    while more(times.len().saturating_sub(WARM_UP), begun, patience) {
        let (mut ended, mut short) = (Vec::new(), false);
        let frame = Instant::now();
        engine.step(&mut |step| {
            ended.extend(step.end.map(|_| step.slot));
            short |= step.tokens.len() < quantizers;
        })?;
        let took = frame.elapsed().as_secs_f64() * 1e3;
        if !short {
            times.push(took);
        }
        for slot in ended {
            engine.reset(slot);
            start(engine, slot)?;
        }
    }
    (0..slots).for_each(|slot| engine.reset(slot));
    let frame_ms = Spread::of(times.split_off(WARM_UP));
    let per_second = 1e3 / frame_ms.median;
    Ok(Decoding {
        slots,
        positions,
        frame_ms,
        tokens_per_second: per_second * (quantizers * slots) as f64,
        real_time_factor: per_second / engine.info().config.frame_rate_hz,
        weight_bytes_per_second: f64::NAN,
        of_copy_rate: f64::NAN,
        approximate: false,
    })
}

/// Times beginnings in slot 0, which must be free.
///
/// # Errors
/// Those of the engine.
pub fn beginning(engine: &mut dyn Engine, tokens: usize, patience: Duration) -> Result<Beginning> {
    let prompt = prompt(engine, tokens);
    let (mut prefill, mut first) = (Vec::new(), Vec::new());
    let started = Instant::now();
    while more(first.len().saturating_sub(WARM_UP), started, patience) {
        let begun = Instant::now();
        engine.start(0, &request(&prompt, engine.info().positions - tokens, first.len() as u64))?;
        let prefilled = begun.elapsed().as_secs_f64() * 1e3;
        engine.step(&mut |_| {})?;
        prefill.push(prefilled);
        first.push(begun.elapsed().as_secs_f64() * 1e3);
        engine.reset(0);
        std::thread::sleep(SETTLING); // the last pass of the frame is still under way
    }
    let spread = |mut times: Vec<f64>| Spread::of(times.split_off(WARM_UP));
    Ok(Beginning { prompt: tokens, prefill_ms: spread(prefill), first_frame_ms: spread(first) })
}

/// Speaks a clip of about `seconds` in slot 0 from its prompt to its last samples, as often as patience allows.
fn clip(engine: &mut dyn Engine, seconds: f64, patience: Duration) -> Result<Clip> {
    let prompt = prompt(engine, PROMPT_TOKENS);
    let info = engine.info();
    let (quantizers, rate) = (info.config.num_quantizers, info.config.frame_rate_hz);
    let tokens = ((seconds * rate) as usize * quantizers).clamp(quantizers, info.positions - PROMPT_TOKENS);
    let (started, mut factors, mut length) = (Instant::now(), Vec::new(), 0.0);
    while factors.is_empty() || (factors.len() < LEAST_REPEATS && started.elapsed() < patience) {
        let (begun, mut made, mut ended) = (Instant::now(), 0, false);
        engine.start(0, &request(&prompt, tokens, factors.len() as u64))?;
        while !ended && (begun.elapsed() < patience || made == 0) {
            engine.step(&mut |step| {
                made += step.tokens.len();
                ended = step.end.is_some();
            })?;
        }
        engine.reset(0);
        length = (made / quantizers) as f64 / rate;
        factors.push(length / begun.elapsed().as_secs_f64());
    }
    Ok(Clip { seconds: length, real_time_factor: Spread::of(factors) })
}
