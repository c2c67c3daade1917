//! One engine against the CPU engine, on a model of any size: do they compute the same?
//!
//! The engine speaks alone; both engines then look at every position of what it said. Nothing but the model is needed, so this
//! also runs on the full-size random model, where no reference results exist.

use crate::engine::cpu::{self, CpuEngine};
use crate::engine::sampler::{self, Noise, Outlook};
use crate::engine::{Engine, Observer, Request, Sampling, Scores, mimi};
use crate::error::{Error, Result};
use crate::format::Export;
use crate::verify::{Limit, Verdict, differing, largest_difference, relative_norm, snr_db};

/// Largest relative error of logits and states at a position: both round activations to 16 bits, which costs 2.4e-5 a product;
/// sums in another order before a rounding change a last digit now and then, and all layers add up. A wrong kernel is a
/// hundred times further off.
const SCORES_LIMIT: Limit = Limit::AtMost(2e-3);
/// Largest difference of P(stop).
const STOP_LIMIT: Limit = Limit::AtMost(1e-3);
/// Least share of positions where both find the same best row: on a random model the best two are often closer than the error.
const ARGMAX_LIMIT: Limit = Limit::AtLeast(0.98);
/// Least share of steps where the CPU would have chosen the same token with the same noise.
const TOKENS_LIMIT: Limit = Limit::AtLeast(0.98);
/// Least signal-to-noise ratio of the samples against the CPU's codec, in dB: two f32 decoders with sums in other orders.
const SAMPLES_LIMIT: Limit = Limit::AtLeast(90.0);
/// Things that must be the same: the number of those that are not.
const NONE_DIFFERS: Limit = Limit::AtMost(0.0);
/// Seed of the speech.
const SEED: u64 = 1;

/// What to compare.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens to speak.
    pub steps: usize,
    /// Streams that keep the first one company.
    pub slots: usize,
}

/// Opens the engine that is judged, for so many slots.
pub type Open<'a> = dyn FnMut(usize) -> Result<Box<dyn Engine>> + 'a;

/// Compares. `progress` hears what is being done.
///
/// # Errors
/// Those of the engines; [`Error::Input`] for a plan that does not fit the model.
pub fn compare(export: &Export, plan: Plan, open: &mut Open<'_>, progress: &mut dyn FnMut(&str)) -> Result<Verdict> {
    let mut verdict = Verdict::default();
    let prompt = prompt(export, plan.prompt);
    progress("speaking alone");
    let mut engine = open(1)?;
    if plan.prompt + plan.steps > engine.info().positions {
        let found = format!("a prompt of {} and {} steps", plan.prompt, plan.steps);
        let message = format!("expected at most {} positions, found {found}", engine.info().positions);
        return Err(Error::input("--steps", message));
    }
    let alone = speak(&mut *engine, &prompt, plan.steps, 1)?;
    let said = [prompt.as_slice(), &alone.tokens].concat();
    let seen = scores(&mut *engine, &said)?;
    drop(engine);
    progress("speaking in company");
    let company = speak(&mut *open(plan.slots)?, &prompt, plan.steps, plan.slots)?;
    compare_company(&mut verdict, &alone, &company);
    progress("the same on the processor");
    let positions = Some(said.len());
    let mut cpu = CpuEngine::new(export.clone(), cpu::Options { positions, ..Default::default() })?;
    let expected = scores(&mut cpu, &said)?;
    compare_scores(&mut verdict, &seen, &expected);
    compare_choices(&mut verdict, export, plan, &alone.tokens, &seen, &expected)?;
    compare_samples(&mut verdict, export, &alone)?;
    Ok(verdict)
}

/// Ids that any model has, different from each other.
fn prompt(export: &Export, tokens: usize) -> Vec<u32> {
    let vocabulary = export.config.vocab_size as u32;
    (0..tokens as u32).map(|i| (i * 7919 + 17) % vocabulary).collect()
}

/// What a stream made.
#[derive(Default)]
struct Speech {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    pcm: Vec<f32>,
}

/// Speaks in the last of `slots` slots, the others saying something else.
fn speak(engine: &mut dyn Engine, prompt: &[u32], steps: usize, slots: usize) -> Result<Speech> {
    let sampling = Sampling::default();
    for slot in 0..slots {
        let last = slot + 1 == slots;
        let prompt = if last { prompt } else { &prompt[..prompt.len().min(2 + slot)] };
        let seed = if last { SEED } else { 100 + slot as u64 };
        engine.start(slot, &Request { prompt, sampling, max_new_tokens: steps, seed, sequence: 0 })?;
    }
    let (mut speech, mut ended) = (Speech::default(), false);
    while !ended {
        engine.step(&mut |step| {
            if step.slot + 1 == slots {
                speech.tokens.extend(step.tokens);
                speech.codes.extend(step.codes);
                speech.pcm.extend(step.pcm);
                ended = step.end.is_some();
            }
        })?;
    }
    (0..slots).for_each(|slot| engine.reset(slot));
    Ok(speech)
}

/// What an engine makes of every position.
#[derive(Default)]
struct Seen {
    hidden: Vec<Vec<f32>>,
    logits: Vec<Vec<f32>>,
    stop: Vec<f32>,
}

impl Observer for Seen {
    fn position(&mut self, scores: Scores<'_>) {
        self.hidden.push(scores.hidden.to_vec());
        self.logits.push(scores.logits.to_vec());
        self.stop.push(scores.stop_probability);
    }
}

fn scores(engine: &mut dyn Engine, tokens: &[u32]) -> Result<Seen> {
    let mut seen = Seen::default();
    engine.score(0, tokens, &mut seen)?;
    Ok(seen)
}

fn compare_company(verdict: &mut Verdict, alone: &Speech, company: &Speech) {
    let (count, first) = differing(&company.tokens, &alone.tokens);
    verdict.measure("company.tokens", NONE_DIFFERS, count, || format!("token {first}"));
    let bits = |pcm: &[f32]| pcm.iter().map(|sample| sample.to_bits()).collect::<Vec<u32>>();
    let (count, first) = differing(&bits(&company.pcm), &bits(&alone.pcm));
    verdict.measure("company.samples", NONE_DIFFERS, count, || format!("sample {first}"));
}

fn best(logits: &[f32]) -> usize {
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    (1..logits.len()).fold(0, better)
}

fn compare_scores(verdict: &mut Verdict, seen: &Seen, expected: &Seen) {
    verdict.measure("positions", NONE_DIFFERS, seen.logits.len().abs_diff(expected.logits.len()) as f64, String::new);
    let (mut same, mut beyond) = (0, 0);
    for (at, (found, wanted)) in seen.logits.iter().zip(&expected.logits).enumerate() {
        let place = || format!("position {at}");
        verdict.measure("logits_relative", SCORES_LIMIT, relative_norm(found, wanted), place);
        verdict.measure("hidden_relative", SCORES_LIMIT, relative_norm(&seen.hidden[at], &expected.hidden[at]), place);
        verdict.measure("stop_probability", STOP_LIMIT, f64::from((seen.stop[at] - expected.stop[at]).abs()), place);
        let (a, b) = (best(found), best(wanted));
        same += usize::from(a == b);
        // Another best row is in order when the error of one logit is at least half the lead that it had to make up for.
        let (error, _) = largest_difference(found, wanted);
        beyond += usize::from(f64::from(wanted[b] - wanted[a]) > 2.0 * error);
    }
    let all = expected.logits.len();
    verdict
        .measure("argmax_agreement", ARGMAX_LIMIT, same as f64 / all as f64, || format!("{same} of {all} positions"));
    verdict.measure("argmax_beyond_error", NONE_DIFFERS, f64::from(beyond as u32), || format!("of {all} positions"));
}

/// The tokens chosen while decoding against the choice from the scores of the same positions seen at once: by the same engine,
/// all of them; by the CPU, nearly all.
fn compare_choices(
    verdict: &mut Verdict,
    export: &Export,
    plan: Plan,
    tokens: &[u32],
    seen: &Seen,
    expected: &Seen,
) -> Result<()> {
    let end_row = export.audio_ids.iter().position(|&id| id == export.config.audio_end_token_id).unwrap_or(usize::MAX);
    let choices = |of: &Seen| -> Result<Vec<u32>> {
        let choose = |step: usize| {
            let at = plan.prompt - 1 + step;
            let outlook = Outlook { logits: &of.logits[at], stop_probability: of.stop[at], end_row };
            let noise = Noise { seed: SEED, sequence: 0, step: step as u32 };
            let choice = sampler::next_token(outlook, Sampling::default(), noise, plan.steps)?;
            Ok(export.audio_ids[choice.row])
        };
        (0..tokens.len()).map(choose).collect()
    };
    let (count, first) = differing(&choices(seen)?, tokens);
    verdict.measure("decode_and_prefill.tokens", NONE_DIFFERS, count, || format!("token {first}"));
    let (count, first) = differing(&choices(expected)?, tokens);
    let same = 1.0 - count / tokens.len() as f64;
    verdict.measure("tokens_agreement", TOKENS_LIMIT, same, || format!("first other token {first}"));
    Ok(())
}

/// The samples against those that the CPU's codec makes of the same codes.
fn compare_samples(verdict: &mut Verdict, export: &Export, speech: &Speech) -> Result<()> {
    let Some(codec) = export.codec.as_ref().filter(|_| !speech.pcm.is_empty()) else { return Ok(()) };
    let decoder = mimi::Decoder::load(&codec.config, &codec.weights, export.config.num_quantizers)?;
    let (mut state, mut pcm) = (decoder.state(), Vec::new());
    for codes in speech.codes.chunks(export.config.num_quantizers) {
        decoder.step(&mut state, codes, &mut pcm)?;
    }
    let lengths = format!("{} samples, the processor {}", speech.pcm.len(), pcm.len());
    let ratio = if pcm.len() == speech.pcm.len() { snr_db(&speech.pcm, &pcm) } else { f64::NAN };
    verdict.measure("samples_snr_db", SAMPLES_LIMIT, ratio, || lengths);
    Ok(())
}
