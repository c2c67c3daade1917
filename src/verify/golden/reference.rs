//! The reference against the golden's f32 and bf16 results.

use super::{F32_LIMIT, Judge, PROBABILITY_LIMIT, Prompt, at};
use crate::checkpoint::Checkpoint;
use crate::config::{MIN_NEW_TOKENS, STOP_THRESHOLD};
use crate::error::{Error, Result};
use crate::reference::{Cache, Device, End, Precision, Reference, Rule, argmax, to_host, top_k_distribution};
use crate::verify::{Limit, largest_difference, relative_norm};

/// Largest difference of two logits that float noise may swap in a ranking: two of them, each off by 1e-4.
const SWAP_LIMIT: f64 = 2e-4;
/// Largest distance of bf16 results in units of the golden's own distance between bf16 and f32. Two results that are
/// each that far from f32, independently, are 1.41 of it apart.
const BF16_LIMIT: Limit = Limit::AtMost(1.5);

/// Compares all prompts, what follows them, and one prompt layer by layer.
pub(super) fn compare(judge: &mut Judge, checkpoint: &Checkpoint, prompts: &[Prompt], device: &Device) -> Result<()> {
    let get = |name: &str| checkpoint.get(name).cloned();
    let load = |precision| Reference::load(&checkpoint.config, get, precision, device);
    let model = load(Precision::F32)?;
    for prompt in prompts {
        compare_prompt(judge, &model, prompt)?;
        compare_speech(judge, &model, prompt)?;
    }
    compare_layers(judge, &model)?;
    compare_bf16(judge, prompts, load)
}

/// `prompt.N.*`: every position, and the first step's sampling distribution.
fn compare_prompt(judge: &mut Judge, model: &Reference, prompt: &Prompt) -> Result<()> {
    let (n, t, config) = (prompt.number, prompt.ids.len(), model.config());
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let states = model.score(&prompt.ids)?;
    let last = &states.logits[(t - 1) * vocab..];
    judge.close("reference.hidden", F32_LIMIT, &format!("prompt.{n}.hidden"), &[t, hidden], &states.hidden)?;
    judge.close("reference.logits", F32_LIMIT, &format!("prompt.{n}.logits"), &[t, vocab], &states.logits)?;
    judge.close("reference.logits", F32_LIMIT, &format!("prompt.{n}.last_logits"), &[vocab], last)?;
    let stop_key = format!("prompt.{n}.stop_prob");
    judge.close("reference.stop_prob", PROBABILITY_LIMIT, &stop_key, &[t], &states.stop_probability)?;
    compare_distribution(judge, model, n, last)
}

/// `prompt.N.first_topk_*`: the unit ids that take part in the first draw, and their probabilities.
fn compare_distribution(judge: &mut Judge, model: &Reference, n: usize, logits: &[f32]) -> Result<()> {
    let (ids_key, key) = (format!("prompt.{n}.first_topk_ids"), format!("prompt.{n}.first_topk_probs"));
    let sampling = judge.golden.facts.sampling;
    let config = model.config();
    let first = config.first_unit_id;
    let units = &logits[first as usize..=config.last_unit_id as usize]; // `</audio>` is masked at the first step
    let best = top_k_distribution(units, sampling.temperature, sampling.top_k);
    let probabilities: Vec<f32> = best.iter().map(|(_, probability)| *probability).collect();
    judge.close("reference.top_k_probs", PROBABILITY_LIMIT, &key, &[best.len()], &probabilities)?;
    let Some(expected) = judge.golden.ids(&ids_key)? else { return Ok(()) };
    // Equal up to the order of those that float noise may swap: at every rank the two ids have the same logit.
    let logit_of =
        |id: &u32| id.checked_sub(first).and_then(|row| units.get(row as usize)).copied().unwrap_or(f32::NAN);
    let found: Vec<f32> = best.iter().map(|(row, _)| units[*row]).collect();
    let wanted: Vec<f32> = expected.iter().map(logit_of).collect();
    let (lead, rank) = largest_difference(&found, &wanted);
    judge
        .verdict
        .measure("reference.top_k_ids", Limit::AtMost(SWAP_LIMIT), lead, || at(&ids_key, rank, &[expected.len()]));
    Ok(())
}

/// `prompt.N.*_bf16`: the same in bf16, all prompts together.
///
/// Two implementations that round at the same places still differ by about as much as bf16 differs from f32: one product
/// that falls on the other side of a rounding changes everything after it. So the yardstick is the golden's own
/// distance between its bf16 and f32 results.
fn compare_bf16(judge: &mut Judge, prompts: &[Prompt], load: impl Fn(Precision) -> Result<Reference>) -> Result<()> {
    let has =
        |key: &str| prompts.iter().any(|p| judge.golden.tensors.find(&format!("prompt.{}.{key}", p.number)).is_some());
    if !has("logits_bf16") && !has("stop_prob_bf16") {
        return Ok(());
    }
    let model = load(Precision::Bf16)?;
    let (mut logits, mut stops) = (Noise::default(), Noise::default());
    for prompt in prompts {
        let (t, vocab) = (prompt.ids.len(), model.config().vocab_size);
        let states = model.score(&prompt.ids)?;
        logits.add(judge, prompt.number, "logits", &[t, vocab], &states.logits)?;
        stops.add(judge, prompt.number, "stop_prob", &[t], &states.stop_probability)?;
    }
    logits.measure(judge, "reference_bf16.logits_over_noise", "prompt.N.logits_bf16");
    stops.measure(judge, "reference_bf16.stop_prob_over_noise", "prompt.N.stop_prob_bf16");
    Ok(())
}

/// Bf16 results found, and the golden's in bf16 and, where it has them, in f32.
#[derive(Default)]
struct Noise {
    found: Vec<f32>,
    bf16: Vec<f32>,
    f32: Vec<f32>,
}

impl Noise {
    fn add(&mut self, judge: &Judge, n: usize, name: &str, shape: &[usize], found: &[f32]) -> Result<()> {
        let exact = judge.golden.values(&format!("prompt.{n}.{name}"), shape)?;
        if let (Some(bf16), Some(exact)) = (judge.golden.values(&format!("prompt.{n}.{name}_bf16"), shape)?, exact) {
            self.found.extend(found);
            self.bf16.extend(bf16);
            self.f32.extend(exact);
        }
        Ok(())
    }

    fn measure(self, judge: &mut Judge, name: &str, place: &str) {
        if !self.found.is_empty() {
            let ratio = relative_norm(&self.found, &self.bf16) / relative_norm(&self.f32, &self.bf16);
            judge.verdict.measure(name, BF16_LIMIT, ratio, || place.to_owned());
        }
    }
}

/// `gen.N.*`: the greedy sequence, and every step of the golden one.
fn compare_speech(judge: &mut Judge, model: &Reference, prompt: &Prompt) -> Result<()> {
    let n = prompt.number;
    let (key, listed) = (format!("gen.{n}.ids"), prompt.generated_ids());
    let lists: Vec<Vec<u32>> =
        judge.golden.ids(&key)?.into_iter().chain(listed).filter(|ids| !ids.is_empty()).collect();
    let Some(expected) = lists.first() else { return Ok(()) };
    let stated = &judge.golden.facts.rule;
    if let Some(steps) = stated.min_new_tokens {
        judge.same("rule", "rule.min_new_tokens", MIN_NEW_TOKENS, steps);
    }
    if let Some(threshold) = stated.stop_threshold {
        judge.same("rule", "rule.stop_threshold", STOP_THRESHOLD, threshold);
    }
    let rule = Rule { max_new_tokens: stated.max_new_tokens.unwrap_or(expected.len()), ..Rule::default() };
    let found = model.generate(&prompt.ids, rule, &mut |_, logits| argmax(logits))?;
    for expected in &lists {
        judge.same_ids("reference.greedy_ids", &key, &found.ids, expected);
    }
    if let Some(end) = prompt.facts.and_then(|facts| facts.end.as_deref()) {
        judge.same("reference.greedy_end", &format!("prompts[{n}].end"), end_name(found.end), end);
    }
    compare_steps(judge, model, prompt, expected)
}

/// `gen.N.*` at the steps of the golden sequence, from one pass over it.
fn compare_steps(judge: &mut Judge, model: &Reference, prompt: &Prompt, ids: &[u32]) -> Result<()> {
    let (n, steps, config) = (prompt.number, ids.len(), model.config());
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let all = model.score(&[&prompt.ids, &ids[..steps - 1]].concat())?;
    let from = prompt.ids.len() - 1; // the position that chooses the first token
    let states: Vec<&[f32]> = all.hidden.chunks(hidden).skip(from).collect();
    let logits: Vec<&[f32]> = all.logits.chunks(vocab).skip(from).collect();
    let key = |name: &str| format!("gen.{n}.{name}");

    let leads: Vec<(f32, f32)> =
        logits.iter().enumerate().map(|(step, row)| best_and_margin(model, step, row)).collect();
    let (best, margins): (Vec<f32>, Vec<f32>) = leads.into_iter().unzip();
    judge.close("reference.top_logit", F32_LIMIT, &key("top_logit"), &[steps], &best)?;
    judge.close("reference.margin", F32_LIMIT, &key("margin"), &[steps], &margins)?;
    let stop = &all.stop_probability[from..];
    judge.close("reference.stop_prob", PROBABILITY_LIMIT, &key("stop_prob"), &[steps], stop)?;
    judge.close("reference.hidden", F32_LIMIT, &key("final_hidden"), &[hidden], states[steps - 1])?;
    judge.close("reference.logits", F32_LIMIT, &key("final_logits"), &[vocab], logits[steps - 1])?;

    let Some(chosen) = judge.golden.ids(&key("steps"))? else { return Ok(()) };
    if let Some(step) = chosen.iter().find(|step| **step as usize >= steps) {
        return Err(Error::invalid(judge.golden.tensors.place(), key("steps"), format!("steps below {steps}"), step));
    }
    let at_steps = |rows: &[&[f32]]| chosen.iter().flat_map(|&step| rows[step as usize].to_vec()).collect::<Vec<f32>>();
    judge.close("reference.hidden", F32_LIMIT, &key("hidden"), &[chosen.len(), hidden], &at_steps(&states))?;
    judge.close("reference.logits", F32_LIMIT, &key("logits"), &[chosen.len(), vocab], &at_steps(&logits))
}

/// The best logit among the ids allowed at a step, and its lead over the second.
fn best_and_margin(model: &Reference, step: usize, logits: &[f32]) -> (f32, f32) {
    let config = model.config();
    let units = config.first_unit_id..=config.last_unit_id;
    let end = (step >= Rule::default().min_new_tokens).then_some(config.audio_end_token_id);
    let mut allowed: Vec<f32> = units.chain(end).map(|id| logits[id as usize]).collect();
    allowed.sort_by(|a, b| b.total_cmp(a));
    (allowed[0], allowed.get(1).map_or(f32::INFINITY, |second| allowed[0] - second))
}

/// `layers.*`: the residual stream of one sequence after every layer.
fn compare_layers(judge: &mut Judge, model: &Reference) -> Result<()> {
    let Some(ids) = judge.golden.ids("layers.ids")? else { return Ok(()) };
    let shape = [ids.len(), model.config().hidden_size];
    judge.close("reference.embedding", 0.0, "layers.embedding", &shape, &to_host(&model.embed(&ids)?)?)?;
    let mut residuals = Vec::new();
    model.hidden(&ids, &mut Cache::default(), &mut |_, residual| residuals.push(residual.clone()))?;
    for (layer, residual) in residuals.iter().enumerate() {
        judge.close("reference.layers", F32_LIMIT, &format!("layers.{layer}"), &shape, &to_host(residual)?)?;
    }
    Ok(())
}

/// The name of an end in `golden.json`.
fn end_name(end: End) -> &'static str {
    match end {
        End::StopHead => "stop_predictor",
        End::AudioEnd => "audio_end",
        End::Length => "length",
    }
}
