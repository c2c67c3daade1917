//! The generation rule of the model card, one token at a time.

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

/// What the model thinks of the next token of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Outlook<'a> {
    /// The sequence, by its place among those given.
    pub sequence: usize,
    /// Number of the token, from 0.
    pub step: usize,
    /// Logits of the unit ids in order, then `</audio>`.
    pub logits: &'a [f32],
    /// P(stop).
    pub stop_probability: f32,
    /// The stop head ends the sequence here; nothing is chosen.
    pub stopped: bool,
    /// Rows of `logits` that may be chosen: all, or all but the last while `</audio>` is masked.
    pub allowed: usize,
}

/// A sequence on its way.
struct Running {
    cache: Cache,
    /// Ids that the model sees next.
    next: Vec<u32>,
    ids: Vec<u32>,
    end: Option<End>,
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
        let mut row = |outlook: Outlook<'_>| match outlook.stopped {
            true => 0,
            false => choose(outlook.step, &outlook.logits[..outlook.allowed]),
        };
        let mut all = self.generate_all(&[prompt], rule, &mut row)?;
        Ok(all.remove(0)) // one for each prompt
    }

    /// Continues several prompts side by side, in passes that all of those still running share.
    ///
    /// `choose` is shown every step of every sequence and names a row; at a step where the stop head ends the sequence
    /// what it names counts for nothing.
    ///
    /// # Errors
    /// As [`Reference::hidden_of_all`].
    pub fn generate_all(
        &self,
        prompts: &[&[u32]],
        rule: Rule,
        choose: &mut dyn FnMut(Outlook<'_>) -> usize,
    ) -> Result<Vec<Generated>> {
        let start = |prompt: &&[u32]| Running {
            cache: Cache::default(),
            next: prompt.to_vec(),
            ids: Vec::new(),
            end: (rule.max_new_tokens == 0).then_some(End::Length),
        };
        let mut sequences: Vec<Running> = prompts.iter().map(start).collect();
        for step in 0..rule.max_new_tokens {
            if sequences.iter().all(|sequence| sequence.end.is_some()) {
                break;
            }
            self.step(step, rule, &mut sequences, choose)?;
        }
        let finish = |running: Running| Generated { ids: running.ids, end: running.end.unwrap_or(End::Length) };
        Ok(sequences.into_iter().map(finish).collect())
    }

    /// One token for every sequence that runs.
    fn step(
        &self,
        step: usize,
        rule: Rule,
        sequences: &mut [Running],
        choose: &mut dyn FnMut(Outlook<'_>) -> usize,
    ) -> Result<()> {
        let running = || sequences.iter().enumerate().filter(|(_, s)| s.end.is_none());
        let numbers: Vec<usize> = running().map(|(number, _)| number).collect();
        let rows_so_far = |rows: &mut usize, (_, s): (usize, &Running)| {
            *rows += s.next.len();
            Some(*rows as u32)
        };
        let last_rows: Vec<u32> = running().scan(0, rows_so_far).map(|end| end - 1).collect();
        let (ids, mut caches): (Vec<&[u32]>, Vec<&mut Cache>) =
            sequences.iter_mut().filter(|s| s.end.is_none()).map(|s| (&s.next[..], &mut s.cache)).unzip();
        let states = self.hidden_of_all(&ids, &mut caches, &mut |_, _| ())?;
        let last = self.pick(&states, &last_rows)?;
        let (stops, logits) = (to_host(&self.stop_probability(&last)?)?, to_host(&self.audio_logits(&last)?)?);

        let (audio_ids, may_end) = (self.config().audio_ids(), step >= rule.min_new_tokens);
        let rows = audio_ids.len();
        for (i, sequence) in numbers.into_iter().enumerate() {
            let stopped = may_end && stops[i] > rule.stop_threshold;
            let chosen = choose(Outlook {
                sequence,
                step,
                logits: &logits[i * rows..(i + 1) * rows],
                stop_probability: stops[i],
                stopped,
                allowed: if may_end { rows } else { rows - 1 },
            });
            let running = &mut sequences[sequence];
            let token = if stopped { self.config().audio_end_token_id } else { audio_ids[chosen] };
            running.ids.push(token);
            running.end = match token == self.config().audio_end_token_id {
                _ if stopped => Some(End::StopHead),
                true => Some(End::AudioEnd),
                false => (step + 1 == rule.max_new_tokens).then_some(End::Length),
            };
            running.next = vec![token];
        }
        Ok(())
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
