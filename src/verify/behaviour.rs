//! Question 1, continued: does the engine speak as it scores? Choices, company, and slots that are used again.

use crate::config::{MIN_NEW_TOKENS, STOP_THRESHOLD};
use crate::engine::sampler::Noise;
use crate::engine::{End, Engine, Observer, Request, Sampling, Scores};
use crate::error::Result;

use super::limits::Limits;
use super::{Verdict, differing};

/// P(stop) this close to the threshold may fall on either side of it.
const THRESHOLD_NOISE: f32 = 0.01;
/// Ways of drawing under which choices are checked. With two rows a wrong top-k shows within a few draws, and at a high
/// temperature a temperature that is ignored does.
const SAMPLINGS: [Sampling; 3] = [
    Sampling { temperature: 0.8, top_k: 30 },
    Sampling { temperature: 2.0, top_k: 2 },
    Sampling { temperature: 0.0, top_k: 1 },
];

/// What was spoken.
#[derive(Clone, Debug, Default, PartialEq)]
struct Spoken {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    /// Bits of the samples.
    pcm: Vec<u32>,
    end: Option<End>,
}

impl Spoken {
    /// How many tokens, codes and samples differ.
    fn differences(&self, other: &Spoken) -> f64 {
        let end = f64::from(u8::from(self.end != other.end));
        let lists = [(&self.tokens, &other.tokens), (&self.codes, &other.codes), (&self.pcm, &other.pcm)];
        end + lists.iter().map(|(a, b)| differing(a, b).0).sum::<f64>()
    }
}

/// Speaks requests together, the first in slot 0, each of the others one frame period after the one before it.
fn speak(engine: &mut dyn Engine, first_slot: usize, requests: &[Request<'_>]) -> Result<Vec<Spoken>> {
    let mut all = vec![Spoken::default(); requests.len()];
    let mut started = 0;
    let result = (|| {
        while all.iter().any(|spoken| spoken.end.is_none()) {
            if let Some(request) = requests.get(started) {
                engine.start(first_slot + started, request)?;
                started += 1;
            }
            let mut made = 0;
            engine.step(&mut |step| {
                let Some(spoken) = step.slot.checked_sub(first_slot).and_then(|i| all.get_mut(i)) else { return };
                spoken.tokens.extend(step.tokens);
                spoken.codes.extend(step.codes);
                spoken.pcm.extend(step.pcm.iter().map(|sample| sample.to_bits()));
                spoken.end = spoken.end.or(step.end);
                made += step.tokens.len();
            })?;
            if made == 0 && started == requests.len() {
                break; // an engine that makes nothing never ends: what it made is compared as it is
            }
        }
        Ok(())
    })();
    (0..started).for_each(|slot| engine.reset(first_slot + slot));
    result.map(|()| all)
}

/// Prompts, and how long to speak each.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Prompt ids.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens of each.
    pub tokens: usize,
}

impl Trial {
    fn request<'a>(&self, prompt: &'a [u32], sampling: Sampling, number: usize) -> Request<'a> {
        Request { prompt, sampling, max_new_tokens: self.tokens, seed: 7, sequence: number as u32 }
    }

    /// Whether every token spoken is the one that the engine's own scores of the same sequence choose: decoding agrees
    /// with running all at once, and sampling does what it is asked.
    ///
    /// # Errors
    /// Engine errors.
    pub fn judge_choices(&self, engine: &mut dyn Engine, verdict: &mut Verdict, limits: &Limits) -> Result<()> {
        for (number, prompt) in self.prompts.iter().enumerate() {
            let sampling = SAMPLINGS[number % SAMPLINGS.len()];
            let request = self.request(prompt, sampling, number);
            let spoken = speak(engine, 0, &[request])?.remove(0);
            let mut rows = Rows { from: prompt.len() - 1, logits: Vec::new(), stop: Vec::new() };
            engine.score(0, &[prompt, &spoken.tokens[..spoken.tokens.len().saturating_sub(1)]].concat(), &mut rows)?;
            let end = engine.info().config.audio_end_token_id;
            let ids = engine.info().audio_ids.clone();
            let mut wrong_ends = f64::from(u8::from(spoken.tokens.is_empty()));
            for (step, token) in spoken.tokens.iter().enumerate() {
                let place = || format!("prompt {number}, {sampling:?}, step {step}");
                let (logits, stop) = (&rows.logits[step], rows.stop[step]);
                let forced = step >= MIN_NEW_TOKENS && stop > STOP_THRESHOLD;
                let undecided = step >= MIN_NEW_TOKENS && (stop - STOP_THRESHOLD).abs() < THRESHOLD_NOISE;
                let ended = *token == end && spoken.end == Some(End::StopHead) && step + 1 == spoken.tokens.len();
                wrong_ends += f64::from(u8::from(ended != forced && !undecided));
                if !ended {
                    let noise = Noise { seed: 7, sequence: number as u32, step: step as u32 };
                    let allowed = |row: usize| step >= MIN_NEW_TOKENS || ids[row] != end;
                    let chosen = ids.iter().position(|id| id == token);
                    let lacking = shortfall(logits, &allowed, chosen, sampling, noise);
                    verdict.measure("engine.choice_shortfall", limits.of("engine.choice_shortfall"), lacking, place);
                }
            }
            verdict.measure("engine.choice_ends", limits.of("engine.choice_ends"), wrong_ends, || {
                format!("prompt {number}")
            });
        }
        Ok(())
    }

    /// Whether a sequence is the same alone and in company, and in a slot that was used before.
    ///
    /// # Errors
    /// Engine errors.
    pub fn judge_slots(&self, engine: &mut dyn Engine, verdict: &mut Verdict, limits: &Limits) -> Result<()> {
        let slots = engine.info().slots.min(self.prompts.len());
        if slots < 2 {
            let limit = limits.of("engine.company_differences");
            verdict.measure("engine.company_differences", limit, f64::NAN, || "needs two slots and prompts".to_owned());
            return Ok(());
        }
        let sampling = Sampling::default();
        let requests: Vec<Request<'_>> =
            self.prompts.iter().enumerate().map(|(n, prompt)| self.request(prompt, sampling, n)).collect();
        let mut alone = Vec::new();
        for request in &requests[..slots] {
            alone.extend(speak(engine, 0, &[*request])?);
        }
        let together = speak(engine, 0, &requests[..slots])?;
        for (number, (alone, together)) in alone.iter().zip(&together).enumerate() {
            let place = || format!("prompt {number} of {slots} side by side");
            let limit = limits.of("engine.company_differences");
            verdict.measure("engine.company_differences", limit, alone.differences(together), place);
        }
        // Backwards, so that every sequence follows another one than it did before.
        for (number, request) in requests[..slots].iter().enumerate().rev() {
            let again = speak(engine, slots - 1, &[*request])?.remove(0);
            let place = || format!("prompt {number} in a slot used before");
            let limit = limits.of("engine.reuse_differences");
            verdict.measure("engine.reuse_differences", limit, alone[number].differences(&again), place);
        }
        Ok(())
    }
}

/// By how much a choice is worse than the best, in nats: 0 for the best row itself.
///
/// A row outside the best `top_k` lacks what its logit is below the last of them, over the temperature.
fn shortfall(
    logits: &[f32],
    allowed: &dyn Fn(usize) -> bool,
    chosen: Option<usize>,
    sampling: Sampling,
    noise: Noise,
) -> f64 {
    let Some(chosen) = chosen.filter(|row| allowed(*row)) else { return f64::INFINITY };
    if logits.iter().any(|logit| !logit.is_finite()) {
        return f64::NAN;
    }
    let mut rows: Vec<usize> = (0..logits.len()).filter(|row| allowed(*row)).collect();
    rows.sort_by(|a, b| logits[*b].total_cmp(&logits[*a])); // stable: of equals the lower row
    let logit = |row: usize| f64::from(logits[row]);
    if sampling.temperature == 0.0 {
        return logit(rows[0]) - logit(chosen);
    }
    let temperature = f64::from(sampling.temperature);
    rows.truncate(sampling.top_k);
    let score = |row: usize| logit(row) / temperature + noise.gumbel(row as u32);
    let best = rows.iter().map(|row| score(*row)).fold(f64::NEG_INFINITY, f64::max);
    let outside = (logit(rows[rows.len() - 1]) - logit(chosen)) / temperature;
    (best - score(chosen)).abs().max(outside)
}

/// Scores of the steps of a sequence.
struct Rows {
    from: usize,
    logits: Vec<Vec<f32>>,
    stop: Vec<f32>,
}

impl Observer for Rows {
    fn position(&mut self, scores: Scores<'_>) {
        if scores.position >= self.from {
            self.logits.push(scores.logits.to_vec());
            self.stop.push(scores.stop_probability);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_lacks_nothing_only_when_it_is_the_right_one() {
        let logits = [2.0, 1.0, 1.0, -3.0];
        let noise = Noise { seed: 1, sequence: 2, step: 3 };
        let sampling = Sampling { temperature: 1.0, top_k: 2 };
        let lacking = |chosen, sampling| shortfall(&logits, &|_| true, chosen, sampling, noise);
        let score = |row: usize| f64::from(logits[row]) + noise.gumbel(row as u32);
        let best = if score(0) > score(1) { 0 } else { 1 };
        assert_eq!(lacking(Some(best), sampling), 0.0);
        assert!(lacking(Some(1 - best), sampling) > 0.0);
        assert!(lacking(Some(2), sampling) > 0.0, "of equal logits the lower row belongs to the best two");
        assert!(lacking(Some(3), sampling) >= 4.0);
        assert_eq!(lacking(Some(0), Sampling { temperature: 0.0, top_k: 1 }), 0.0);
        assert_eq!(lacking(Some(3), Sampling { temperature: 0.0, top_k: 1 }), 5.0);
        assert_eq!(lacking(None, sampling), f64::INFINITY);
        assert_eq!(shortfall(&logits, &|row| row != 0, Some(0), sampling, noise), f64::INFINITY);
        assert!(shortfall(&[0.0, f32::NAN], &|_| true, Some(0), sampling, noise).is_nan());
    }
}
