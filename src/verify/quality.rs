//! Question 2: the engine's distributions against the original's, along the original's own speech.
//!
//! Everything is computed in f64 from the engine's full logits. What int4 may cost is set against what the reference
//! leaves open itself: a model that hardly knows the next code loses more, and it matters less.

use crate::config::{MIN_NEW_TOKENS, ModelConfig, STOP_THRESHOLD};
use crate::engine::{Engine, Observer, Sampling, Scores};
use crate::error::Result;
use crate::reference::argmax;

use super::Verdict;
use super::divergence::{log_softmax, percentile};
use super::journal::{Journal, Part};
use super::limits::Limits;
use super::record::{Figures, GroupFigures, PromptFigures, Quality};
use super::reference::{Compact, Item, ReferenceFile};

/// Added to the reference's entropy before a cost is set against it: a model that is sure costs something too. In nats.
pub const FLOOR: f64 = 0.2;
/// Rows of the reference that are looked for among as many of the engine's.
const TOP: usize = 5;

/// What was measured at one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// KL(reference ‖ engine) in nats.
    pub kl: f64,
    /// How much larger it can be, because the reference holds unlikely rows as one.
    pub kl_error: f64,
    /// Entropy of the reference.
    pub entropy: f64,
    /// Whether the best row is the same.
    pub same_top: bool,
    /// How many of the reference's five best rows are among the engine's.
    pub top5: usize,
    /// Total variation distance of the distributions that are drawn from.
    pub draw_distance: f64,
    /// Log probabilities of the token that was drawn, by reference and engine; none where the stop head ended the speech.
    pub drawn: Option<(f64, f64)>,
    /// |P(stop) − P(stop) of the reference|.
    pub stop_difference: f64,
    /// One of the two would have stopped here and the other not.
    pub stop_changed: bool,
    /// The codebook whose turn it is.
    pub codebook: usize,
}

/// What is known of a step besides its distributions.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// Number of the step.
    pub step: usize,
    /// Row of the token that was drawn, unless the stop head ended the speech.
    pub drawn: Option<usize>,
    /// P(stop) by reference and engine.
    pub stop: [f32; 2],
    /// The codebook whose turn it is.
    pub codebook: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
}

impl Step {
    /// Holds the engine's `logits: [audio_rows]`, in the order of the reference's rows, against those of the reference.
    ///
    /// Logits that are not finite make the divergence NaN.
    pub fn compare(reference: &Compact, logits: &[f32], context: Context) -> Step {
        let q = log_softmax(logits);
        let kept: Vec<(usize, f64)> =
            reference.rows.iter().zip(&reference.logits).map(|(r, l)| (usize::from(*r), l.to_f64())).collect();
        let tail = f64::from(reference.tail);
        let largest = kept.iter().map(|(_, l)| *l).fold(f64::NEG_INFINITY, f64::max);
        let sum = kept.iter().map(|(_, l)| l - largest).chain([tail - largest]).map(f64::exp).sum::<f64>();
        let log_total = largest + sum.ln();
        let mut kl: f64 = kept.iter().map(|(row, l)| (l - log_total).exp() * (l - log_total - q[*row])).sum();
        let kl_error = {
            let mut is_kept = vec![false; q.len()];
            kept.iter().for_each(|(row, _)| is_kept[*row] = true);
            let others = || q.iter().zip(&is_kept).filter(|(_, kept)| !**kept).map(|(q, _)| *q);
            let (log_p, p) = (tail - log_total, (tail - log_total).exp());
            let log_q = others().map(f64::exp).sum::<f64>().ln();
            match p > 0.0 {
                true => {
                    kl += p * (log_p - log_q);
                    // KL inside the tail is at most the log of the largest ratio there, and no p there exceeds 1.
                    p * (log_q - others().fold(f64::INFINITY, f64::min))
                }
                false => 0.0,
            }
        };
        let [stop_reference, stop_engine] = context.stop;
        let stops = |p: f32| context.step >= MIN_NEW_TOKENS && p > STOP_THRESHOLD;
        let log_p = |row: usize| kept.iter().find(|(kept, _)| *kept == row).map_or(f64::NAN, |(_, l)| l - log_total);
        let best = best_rows(logits, TOP);
        Step {
            kl,
            kl_error,
            entropy: f64::from(reference.entropy),
            same_top: best_kept(&kept, 1).first() == Some(&argmax(logits)),
            top5: best_kept(&kept, TOP).iter().filter(|row| best.contains(row)).count(),
            draw_distance: draw_distance(&kept, logits, &context),
            drawn: context.drawn.map(|row| (log_p(row), q[row])),
            stop_difference: (f64::from(stop_reference) - f64::from(stop_engine)).abs(),
            stop_changed: stops(stop_reference) != stops(stop_engine),
            codebook: context.codebook,
        }
    }
}

/// The `k` best rows, best first; of equals the lower rows.
fn best_rows(logits: &[f32], k: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..logits.len()).collect();
    let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    if k < rows.len() {
        rows.select_nth_unstable_by(k, order);
        rows.truncate(k);
    }
    rows.sort_unstable_by(order);
    rows
}

/// As [`best_rows`] of rows in ascending order with their logits.
fn best_kept(kept: &[(usize, f64)], k: usize) -> Vec<usize> {
    let mut order: Vec<&(usize, f64)> = kept.iter().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable
    order.iter().take(k).map(|(row, _)| *row).collect()
}

/// Half the sum of |p − q| over the rows that either of the two draws from.
///
/// A KL divergence would be infinite as soon as the thirtieth row and the next change places.
fn draw_distance(kept: &[(usize, f64)], logits: &[f32], context: &Context) -> f64 {
    let Sampling { temperature, top_k } = context.sampling;
    let end_row = logits.len() - 1;
    let allowed = if context.step < MIN_NEW_TOKENS { end_row } else { logits.len() }; // before that no end is drawn
    let softmax = |rows: Vec<(usize, f64)>| {
        let largest = rows.iter().map(|(_, l)| *l).fold(f64::NEG_INFINITY, f64::max);
        let weight = |l: f64| ((l - largest) / f64::from(temperature)).exp();
        let total: f64 = rows.iter().map(|(_, l)| weight(*l)).sum();
        rows.into_iter().map(|(row, l)| (row, weight(l) / total)).collect::<Vec<_>>()
    };
    let reference: Vec<(usize, f64)> = kept.iter().copied().filter(|(row, _)| *row < allowed).collect();
    let logit = |row: &usize| reference.iter().find(|(kept, _)| kept == row).map_or(f64::NAN, |(_, l)| *l);
    let p = softmax(best_kept(&reference, top_k).into_iter().map(|row| (row, logit(&row))).collect());
    let q = best_rows(&logits[..allowed], top_k).into_iter().map(|row| (row, f64::from(logits[row]))).collect();
    let q = softmax(q);
    let of = |rows: &[(usize, f64)], row: usize| rows.iter().find(|(r, _)| *r == row).map_or(0.0, |(_, p)| *p);
    let common: f64 = p.iter().map(|(row, p)| (p - of(&q, *row)).abs()).sum();
    let only_q: f64 = q.iter().filter(|(row, _)| !p.iter().any(|(r, _)| r == row)).map(|(_, q)| q).sum();
    (common + only_q) / 2.0
}

impl<'a> FromIterator<&'a Step> for Figures {
    fn from_iter<I: IntoIterator<Item = &'a Step>>(steps: I) -> Figures {
        let steps: Vec<&Step> = steps.into_iter().collect();
        let mean = |value: &dyn Fn(&Step) -> f64| steps.iter().map(|s| value(s)).sum::<f64>() / steps.len() as f64;
        let drawn: Vec<(f64, f64)> = steps.iter().filter_map(|s| s.drawn).collect();
        let perplexity =
            |log_p: fn(&(f64, f64)) -> f64| (-drawn.iter().map(log_p).sum::<f64>() / drawn.len() as f64).exp();
        Figures {
            steps: steps.len(),
            mean_kl: mean(&|s| s.kl),
            p99_kl: percentile(steps.iter().map(|s| s.kl).collect(), 99),
            entropy: mean(&|s| s.entropy),
            top1: mean(&|s| f64::from(u8::from(s.same_top))),
            top5: mean(&|s| s.top5 as f64 / TOP as f64),
            draw_distance: mean(&|s| s.draw_distance),
            perplexity_reference: perplexity(|(p, _)| *p),
            perplexity_engine: perplexity(|(_, q)| *q),
            stop_difference: mean(&|s| s.stop_difference),
            worst_stop_difference: percentile(steps.iter().map(|s| s.stop_difference).collect(), 100),
            stop_decisions_changed: steps.iter().filter(|s| s.stop_changed).count(),
        }
    }
}

impl Figures {
    /// A cost set against what the reference leaves open: `cost / (entropy + 0.2 nats)`.
    pub fn relative(&self, cost: f64) -> f64 {
        cost / (self.entropy + FLOOR)
    }
}

/// Numbers of a [`Step`].
const STEP_NUMBERS: usize = 12;

/// The steps of an item.
impl Part for Vec<Step> {
    fn numbers(&self) -> Vec<f64> {
        let flag = |flag: bool| f64::from(u8::from(flag));
        let numbers = |s: &Step| -> [f64; STEP_NUMBERS] {
            let (p, q) = s.drawn.unwrap_or_default();
            let distributions = [s.kl, s.kl_error, s.entropy, flag(s.same_top), s.top5 as f64, s.draw_distance];
            let [a, b, c, d, e, f] = distributions;
            let stop = [flag(s.drawn.is_some()), p, q, s.stop_difference, flag(s.stop_changed), s.codebook as f64];
            let [g, h, i, j, k, l] = stop;
            [a, b, c, d, e, f, g, h, i, j, k, l]
        };
        self.iter().flat_map(numbers).collect()
    }

    fn of(numbers: &[f64]) -> Option<Vec<Step>> {
        let (steps, rest) = numbers.as_chunks::<STEP_NUMBERS>();
        let step = |&[kl, kl_error, entropy, top, top5, draw_distance, drawn, p, q, stop, changed, codebook]: &[f64;
                         _]| {
            Step {
                kl,
                kl_error,
                entropy,
                same_top: top != 0.0,
                top5: top5 as usize,
                draw_distance,
                drawn: (drawn != 0.0).then_some((p, q)),
                stop_difference: stop,
                stop_changed: changed != 0.0,
                codebook: codebook as usize,
            }
        };
        rest.is_empty().then(|| steps.iter().map(step).collect())
    }
}

/// Runs the engine along every item of the reference and judges it. Items that `journal` holds are not run again.
///
/// # Errors
/// Engine errors.
pub fn judge(
    engine: &mut dyn Engine,
    (reference, items): (&ReferenceFile, &[&Item]),
    journal: &Journal,
    (verdict, limits): (&mut Verdict, &Limits),
    progress: &mut dyn FnMut(usize),
) -> Result<Quality> {
    let mut steps: Vec<Vec<Step>> = Vec::with_capacity(items.len());
    for (number, item) in items.iter().enumerate() {
        let own = journal.part(&format!("quality-{number}"), || along(engine, reference, item))?;
        let missing = item.tokens.len().abs_diff(own.len()) as f64;
        verdict
            .measure("quality.missing_steps", limits.of("quality.missing_steps"), missing, || item.prompt.id.clone());
        steps.push(own);
        progress(item.tokens.len());
    }
    let all = || steps.iter().flatten();
    let overall: Figures = all().collect();
    let q = engine.info().config.num_quantizers;
    let codebooks: Vec<Figures> = (0..q).map(|q| all().filter(|s| s.codebook == q).collect()).collect();
    let of = |item: &Item, steps: &Vec<Step>| PromptFigures {
        id: item.prompt.id.clone(),
        group: item.prompt.group.to_string(),
        text: item.prompt.text.clone(),
        all: steps.iter().collect(),
    };
    let prompts: Vec<PromptFigures> = items.iter().zip(&steps).map(|(item, steps)| of(item, steps)).collect();
    let mut names: Vec<&String> = prompts.iter().map(|prompt| &prompt.group).collect();
    names.sort_unstable();
    names.dedup();
    let group = |name: &String| {
        let own = || prompts.iter().zip(&steps).filter(|(p, _)| p.group == *name).flat_map(|(_, steps)| steps);
        let first_codebook = own().filter(|s| s.codebook == 0).collect();
        GroupFigures { name: name.clone(), all: own().collect(), first_codebook }
    };
    let groups: Vec<GroupFigures> = names.into_iter().map(group).collect();
    let quality = Quality { overall, codebooks, groups, prompts };
    let kl_error = all().map(|s| s.kl_error).sum::<f64>() / overall.steps as f64;
    verdict.measure("reference.kl_error", limits.of("reference.kl_error"), kl_error, String::new);
    hold(&quality, verdict, limits);
    Ok(quality)
}

/// Holds the figures to their limits.
fn hold(quality: &Quality, verdict: &mut Verdict, limits: &Limits) {
    let mut measure = |name: &str, value: f64, place: &str| {
        verdict.measure(name, limits.of(name), value, || place.to_owned());
    };
    let Quality { overall, codebooks, groups, prompts } = quality;
    measure("quality.relative_kl", overall.relative(overall.mean_kl), "");
    for (q, figures) in codebooks.iter().enumerate() {
        let place = format!("codebook {q}");
        let mut relative = |name: &str, cost: f64| measure(name, figures.relative(cost), &place);
        relative("quality.codebook_relative_kl", figures.mean_kl);
        relative("quality.tail_relative_kl", figures.p99_kl);
        relative("quality.relative_flips", 1.0 - figures.top1);
        relative("quality.relative_top5_misses", 1.0 - figures.top5);
        relative("quality.relative_draw_distance", figures.draw_distance);
    }
    for group in groups {
        measure("quality.group_relative_kl", group.all.relative(group.all.mean_kl), &group.name);
        let first = &group.first_codebook;
        measure("quality.words_relative_kl", first.relative(first.mean_kl), &format!("codebook 0, {}", group.name));
    }
    for prompt in prompts {
        measure("quality.prompt_relative_kl", prompt.all.relative(prompt.all.mean_kl), &prompt.id);
    }
    let log_ratio = (overall.perplexity_engine / overall.perplexity_reference).ln();
    measure("quality.relative_perplexity", overall.relative(log_ratio), "");
    measure("quality.stop_difference", overall.stop_difference, "");
    let changed = overall.stop_decisions_changed as f64 / prompts.len() as f64;
    measure("quality.stop_decisions_changed", changed, "changed decisions a prompt");
}

/// Teacher forcing: every step of one item.
fn along(engine: &mut dyn Engine, reference: &ReferenceFile, item: &Item) -> Result<Vec<Step>> {
    let config = engine.info().config.clone();
    let order = rows_in_order(&engine.info().audio_ids, &config);
    let row_of = |id: u32| match id == config.audio_end_token_id {
        true => Some(config.unit_count()),
        false => id.checked_sub(config.first_unit_id).map(|row| row as usize).filter(|row| *row < config.unit_count()),
    };
    let mut codebook = Turns::new(config.first_unit_id, config.num_quantizers);
    let contexts = item.tokens.iter().enumerate().map(|(step, token)| Context {
        step,
        drawn: row_of(*token).filter(|_| !(item.stopped && step + 1 == item.tokens.len())),
        stop: [item.stop[step], f32::NAN],
        codebook: codebook.next(*token),
        sampling: reference.facts.sampling(),
    });
    let mut walk = Walk {
        from: item.ids.len() - 1,
        contexts: contexts.collect(),
        expected: &item.steps,
        order,
        steps: Vec::new(),
        logits: Vec::new(),
    };
    let forced = &item.tokens[..item.tokens.len() - 1];
    engine.score(0, &[&item.ids[..], forced].concat(), &mut walk)?;
    Ok(walk.steps)
}

/// The rows of a head with these `audio_ids` in the reference's order: unit ids, then `</audio>`.
pub(super) fn rows_in_order(audio_ids: &[u32], config: &ModelConfig) -> Vec<usize> {
    let mut rows: Vec<(u32, usize)> = audio_ids.iter().copied().zip(0..).collect();
    rows.sort_unstable();
    let row = |id: &u32| rows.binary_search_by_key(id, |(id, _)| *id).map_or(usize::MAX, |place| rows[place].1);
    config.audio_ids().iter().map(row).collect()
}

/// Whose turn it is in a frame.
struct Turns {
    first_unit_id: u32,
    q: usize,
    due: usize,
}

impl Turns {
    fn new(first_unit_id: u32, q: usize) -> Turns {
        Turns { first_unit_id, q, due: 0 }
    }

    /// The codebook that was due when `token` was drawn.
    fn next(&mut self, token: u32) -> usize {
        let due = self.due;
        let unit = token.wrapping_sub(self.first_unit_id) as usize;
        self.due = (unit % self.q + 1) % self.q;
        due
    }
}

/// Compares position by position, so that no more than one row of logits is held.
struct Walk<'a> {
    /// Position that chooses the first token.
    from: usize,
    contexts: Vec<Context>,
    expected: &'a [Compact],
    order: Vec<usize>,
    steps: Vec<Step>,
    logits: Vec<f32>,
}

impl Observer for Walk<'_> {
    fn position(&mut self, scores: Scores<'_>) {
        let Some(step) = scores.position.checked_sub(self.from) else { return };
        let (Some(context), Some(expected)) = (self.contexts.get(step), self.expected.get(step)) else { return };
        self.logits.clear();
        self.logits.extend(self.order.iter().map(|row| scores.logits[*row]));
        let context = Context { stop: [context.stop[0], scores.stop_probability], ..*context };
        self.steps.push(Step::compare(expected, &self.logits, context));
    }
}

#[cfg(test)]
#[path = "quality_tests.rs"]
mod tests;
