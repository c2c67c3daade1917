//! The streaming codec against the golden's waveforms.

use super::{Judge, NONE_DIFFERS, Prompt};
use crate::checkpoint::Checkpoint;
use crate::engine::mimi::{Decoder, State};
use crate::error::{Error, Result};
use crate::verify::{Limit, largest_difference, snr_db};

/// Least signal-to-noise ratio of a decoded waveform, in dB: well above the 66 dB that peers report for a right
/// decoder, well below the 110 dB and more of one that sums in f32.
const SNR_LIMIT: Limit = Limit::AtLeast(80.0);
/// Largest difference between streamed and one-shot samples, of full scale 1.
const STREAM_LIMIT: Limit = Limit::AtMost(1e-4);
/// Frames a step in the streams compared with the one-shot decode, repeated to the end.
const CHUNKINGS: [&[usize]; 3] = [&[1], &[3, 1, 7, 2], &[64]];

/// Compares `mimi.*` and the speech of the prompts.
pub(super) fn compare(judge: &mut Judge, checkpoint: &Checkpoint, prompts: &[Prompt]) -> Result<()> {
    let pairs = waves(judge, prompts)?;
    if pairs.is_empty() {
        return Ok(());
    }
    let decoder = load(judge, checkpoint)?;
    for (key, codes, frames) in pairs {
        let samples = frames * decoder.samples_per_frame();
        let Some(expected) = judge.golden.values(&key, &[samples])?.filter(|wave| !wave.is_empty()) else { continue };
        let once = decode(&decoder, &mut decoder.state(), &codes, &[frames])?;
        let ratio = snr_db(&once, &expected);
        judge.verdict.measure("codec.snr_db", SNR_LIMIT, ratio, || key.clone());
        compare_streams(judge, &decoder, &key, &codes, &once)?;
    }
    Ok(())
}

/// Streamed in pieces, one slot used again and again, equals decoded at once.
fn compare_streams(judge: &mut Judge, decoder: &Decoder, key: &str, codes: &[u32], once: &[f32]) -> Result<()> {
    let mut state = decoder.state();
    for chunking in CHUNKINGS {
        let streamed = decode(decoder, &mut state, codes, chunking)?;
        state.reset();
        let (difference, index) = largest_difference(&streamed, once);
        let place = || format!("{key}[{index}] in steps of {chunking:?} frames");
        judge.verdict.measure("codec.streamed", STREAM_LIMIT, difference, place);
    }
    Ok(())
}

/// Every waveform of the folder: its key, its codes `[frames, q]` and the number of frames.
fn waves(judge: &Judge, prompts: &[Prompt]) -> Result<Vec<(String, Vec<u32>, usize)>> {
    let (golden, q) = (judge.golden, judge.golden.config.num_quantizers);
    let has = |key: &str| golden.tensors.find(key).is_some();
    let mut pairs = Vec::new();
    if has("mimi.wave")
        && let Some((shape, codes)) = golden.integers("mimi.codes", &[Some(q), None])?
    {
        let frames = shape[1]; // stored [q, frames]
        let by_frame = (0..frames).flat_map(|frame| codes[frame..].iter().step_by(frames).copied());
        pairs.push(("mimi.wave".to_owned(), by_frame.collect(), frames));
    }
    for n in prompts.iter().map(|prompt| prompt.number) {
        let key = format!("gen.{n}.wave");
        if has(&key)
            && let Some((shape, codes)) = golden.integers(&format!("gen.{n}.frames"), &[None, Some(q)])?
        {
            pairs.push((key, codes, shape[0]));
        }
    }
    Ok(pairs)
}

/// The checkpoint's codec, for the model's codebooks.
fn load(judge: &mut Judge, checkpoint: &Checkpoint) -> Result<Decoder> {
    let Some(codec) = &checkpoint.codec else {
        return Err(Error::invalid(&checkpoint.place, "codec", "a codec, since there are waveforms", "none"));
    };
    let difference = (codec.config.frame_rate_hz() - checkpoint.config.frame_rate_hz).abs();
    judge.verdict.measure("codec.frame_rate", NONE_DIFFERS, difference, || "codec/config.json and config.json".into());
    Decoder::load(&codec.config, &codec.weights, checkpoint.config.num_quantizers)
}

/// Decodes `codes: [frames, q]` in steps of so many frames.
fn decode(decoder: &Decoder, state: &mut State, codes: &[u32], chunking: &[usize]) -> Result<Vec<f32>> {
    let q = decoder.num_quantizers();
    let (mut samples, mut rest) = (Vec::new(), codes);
    for frames in chunking.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (next, later) = rest.split_at((frames * q).min(rest.len()));
        decoder.step(state, next, &mut samples)?;
        rest = later;
    }
    Ok(samples)
}
