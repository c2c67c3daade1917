//! The generation rule of the model card, one token at a time.

use super::device_error;
use super::model::{Cache, Reference, to_host};
use crate::config::{DEFAULT_MAX_NEW_TOKENS, MIN_NEW_TOKENS, STOP_THRESHOLD};
use crate::error::Result;

/// When speech may and must end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Steps at which `</audio>` is masked and the stop head is not looked at.
    pub min_new_tokens: usize,
    /// Steps after which speech ends.
    pub max_new_tokens: usize,
    /// P(stop) above which `</audio>` is forced.
    pub stop_threshold: f32,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule { min_new_tokens: MIN_NEW_TOKENS, max_new_tokens: DEFAULT_MAX_NEW_TOKENS, stop_threshold: STOP_THRESHOLD }
    }
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// P(stop) passed the threshold.
    StopHead,
    /// `</audio>` was chosen.
    AudioEnd,
    /// `max_new_tokens` were made.
    Length,
}

/// What was made of a prompt.
#[derive(Clone, Debug)]
pub struct Generated {
    /// New tokens, with the final `</audio>` if there is one.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub end: End,
}

impl Reference {
    /// Continues `prompt` by the generation rule, with a cache.
    ///
    /// `choose` gets the step and the logits of the ids allowed at it (the unit ids in order and, once it is allowed,
    /// `</audio>`) and names a row of them: [`argmax`] for greedy decoding, or one drawn from [`top_k_distribution`].
    ///
    /// # Errors
    /// As [`Reference::embed`].
    pub fn generate(
        &self,
        prompt: &[u32],
        rule: Rule,
        choose: &mut dyn FnMut(usize, &[f32]) -> usize,
    ) -> Result<Generated> {
        let audio_ids = self.config().audio_ids();
        let audio_end = self.config().audio_end_token_id;
        let mut cache = Cache::default();
        let mut ids = Vec::new();
        let mut next = prompt.to_vec();
        for step in 0..rule.max_new_tokens {
            let states = self.hidden(&next, &mut cache, &mut |_, _| ())?;
            let last = states.narrow(0, next.len() - 1, 1).map_err(device_error)?;
            let may_end = step >= rule.min_new_tokens;
            if may_end && to_host(&self.stop_probability(&last)?)?[0] > rule.stop_threshold {
                ids.push(audio_end);
                return Ok(Generated { ids, end: End::StopHead });
            }
            let logits = to_host(&self.audio_logits(&last)?)?;
            let allowed = if may_end { &logits[..] } else { &logits[..logits.len() - 1] };
            let token = audio_ids[choose(step, allowed)];
            ids.push(token);
            if token == audio_end {
                return Ok(Generated { ids, end: End::AudioEnd });
            }
            next = vec![token];
        }
        Ok(Generated { ids, end: End::Length })
    }
}

/// Row of the largest logit, the lowest of equals.
pub fn argmax(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, row| if logits[row] > logits[best] { row } else { best })
}

/// The `top_k` best rows, best first (ties to the lower row), with the softmax of `logit / temperature` over them.
///
/// `temperature` must be positive.
pub fn top_k_distribution(logits: &[f32], temperature: f32, top_k: usize) -> Vec<(usize, f32)> {
    let mut rows: Vec<usize> = (0..logits.len()).collect();
    rows.sort_by(|&a, &b| logits[b].total_cmp(&logits[a])); // stable: equals keep their order
    rows.truncate(top_k);
    let weight = |row: usize| (f64::from(logits[row] - logits[rows[0]]) / f64::from(temperature)).exp();
    let total: f64 = rows.iter().map(|&row| weight(row)).sum();
    rows.iter().map(|&row| (row, (weight(row) / total) as f32)).collect()
}

/// The row that `uniform`, from [0, 1), falls on.
pub fn sample(distribution: &[(usize, f32)], uniform: f64) -> Option<usize> {
    let mut rest = uniform;
    let hit = distribution.iter().find(|(_, probability)| {
        rest -= f64::from(*probability);
        rest < 0.0
    });
    hit.or(distribution.last()).map(|(row, _)| *row) // probabilities that sum to just under 1 leave a sliver at the end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_row() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0]), 1);
        let rows: Vec<usize> = top_k_distribution(&[2.0, 5.0, 2.0, 2.0], 1.0, 3).iter().map(|(row, _)| *row).collect();
        assert_eq!(rows, [1, 0, 2]);
    }

    #[test]
    fn a_draw_falls_on_rows_in_proportion() {
        let distribution = top_k_distribution(&[0.0, 3f32.ln()], 1.0, 2); // 3/4 row 1, 1/4 row 0
        assert_eq!(sample(&distribution, 0.0), Some(1));
        assert_eq!(sample(&distribution, 0.74), Some(1));
        assert_eq!(sample(&distribution, 0.76), Some(0));
        assert_eq!(sample(&distribution, 1.0), Some(0));
        assert_eq!(sample(&[], 0.5), None);
    }
}
