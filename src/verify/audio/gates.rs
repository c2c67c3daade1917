//! The gates: a take against the reference's take of the same prompt, and the set against the set.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{PairFacts, TakeFacts};
use crate::verify::Limit::{self, AtLeast, AtMost};
use crate::verify::limits::Limits;
use crate::verify::{Verdict, number, percentile};

/// Share of a take's tokens that may be lost before it counts as derailed; no take counts for more in the mean, so that
/// one that derails by chance does not speak for the set.
const DERAILED: f64 = 0.05;

/// What the engine's speech must hold to, by name of the comparison.
///
/// Limits on one prompt are wide, because two draws of one model differ as much; they stop what no speech does. Limits on
/// the set are narrow, because chance cancels in it. `docs/verification.md`, "Audio gates", has the measured figures.
pub const LIMITS: &[(&str, Limit)] = &[
    // The set is there.
    ("audio.prompts", AtLeast(1.0)),
    ("audio.prompts_missing", AtMost(0.0)),
    // What no speech does, in the engine's take of a prompt.
    ("audio.empty", AtMost(0.0)),
    ("audio.not_finite", AtMost(0.0)),
    ("audio.samples_off", AtMost(0.0)),
    // The engine's take of a prompt against the reference's: what is more in it, or differs.
    ("audio.constant_codebooks", AtMost(0.0)),
    ("audio.zero_frames", AtMost(1.0)),
    ("audio.loop_frames", AtMost(8.0)),
    ("audio.length_factor", AtMost(2.0)),
    ("audio.silence_rise", AtMost(0.4)),
    ("audio.pause_rise_s", AtMost(0.5)),
    ("audio.clipping_rise", AtMost(0.001)),
    ("audio.level_db", AtMost(3.0)),
    ("audio.liveliness_loss_db", AtMost(3.0)),
    // Streamed samples against the same codes decoded at once.
    ("audio.streaming_snr_db", AtLeast(66.0)),
    // The engine's set against the reference's.
    ("audio.runaway_rise", AtMost(0.02)),
    ("audio.lost_tokens_rise", AtMost(0.005)),
    ("audio.derailed_rise", AtMost(0.03)),
    ("audio.length_drift", AtMost(0.05)),
    ("audio.mean_silence_rise", AtMost(0.02)),
    ("audio.median_level_db", AtMost(0.5)),
    ("audio.median_brightness_db", AtMost(0.5)),
];

/// A model's speech over the whole set. Of no takes, every rate is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Prompts spoken.
    pub takes: usize,
    /// Length of all of it in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Share of takes that the cap ended.
    #[serde(with = "number")]
    pub runaway: f64,
    /// Share of the tokens that no frame holds.
    #[serde(with = "number")]
    pub lost_tokens: f64,
    /// Share of takes that lose more than a twentieth of their tokens.
    #[serde(with = "number")]
    pub derailed: f64,
    /// Mean silent share of a take.
    #[serde(with = "number")]
    pub silence: f64,
}

impl Rates {
    /// The rates of some takes.
    pub fn of<'a>(takes: impl Iterator<Item = &'a TakeFacts>) -> Rates {
        let takes: Vec<&TakeFacts> = takes.collect();
        let sum = |value: fn(&TakeFacts) -> f64| takes.iter().map(|take| value(take)).sum::<f64>();
        let count = takes.len() as f64;
        Rates {
            takes: takes.len(),
            seconds: sum(|take| take.seconds),
            runaway: sum(|take| f64::from(u8::from(take.capped))) / count,
            lost_tokens: sum(|take| take.lost_tokens as f64) / sum(|take| take.tokens as f64),
            derailed: sum(|take| f64::from(u8::from(lost_share(take) > DERAILED))) / count,
            silence: sum(|take| take.silent_share) / count,
        }
    }
}

/// Share of a take's tokens that no frame holds.
fn lost_share(take: &TakeFacts) -> f64 {
    take.lost_tokens as f64 / take.tokens as f64
}

/// Holds the engine's speech against the reference's; `expected` are the ids of all prompts that both were asked to speak.
///
/// Comparisons are named `audio.…`. A prompt that is missing, spoken twice or not expected fails `audio.prompts_missing`; an
/// empty set fails; what is not a number fails.
pub fn judge(verdict: &mut Verdict, expected: &[String], pairs: &[PairFacts], limits: &Limits) {
    let mut judged = Judged { verdict, limits };
    complete(&mut judged, expected, pairs);
    pairs.iter().for_each(|pair| judge_take(&mut judged, pair));
    judge_set(&mut judged, pairs);
}

/// Every expected prompt was spoken once, and nothing else.
fn complete(judged: &mut Judged, expected: &[String], pairs: &[PairFacts]) {
    let mut spoken: HashMap<&str, usize> = HashMap::new();
    pairs.iter().for_each(|pair| *spoken.entry(&pair.id).or_default() += 1);
    let missing: Vec<&str> = expected.iter().map(String::as_str).filter(|id| spoken.get(id) != Some(&1)).collect();
    let strange = pairs.len().saturating_sub(expected.len() - missing.len());
    judged.hold("prompts", expected.len() as f64, "");
    judged.hold("prompts_missing", (missing.len() + strange) as f64, &missing.join(" "));
}

fn judge_take(judged: &mut Judged, pair: &PairFacts) {
    let (a, b) = (&pair.reference, &pair.engine);
    let more = |value: fn(&TakeFacts) -> usize| value(b).saturating_sub(value(a)) as f64;
    let mut hold = |name: &str, measured: f64| judged.hold(name, measured, &pair.id);
    hold("empty", f64::from(u8::from(b.frames == 0)));
    hold("not_finite", b.not_finite as f64);
    hold("samples_off", b.samples_off as f64);
    hold("constant_codebooks", more(|take| take.constant_codebooks));
    hold("zero_frames", more(|take| take.zero_frames));
    hold("loop_frames", more(|take| take.longest_loop));
    hold("length_factor", factor(b.seconds, a.seconds));
    hold("silence_rise", b.silent_share - a.silent_share);
    hold("pause_rise_s", b.longest_pause_s - a.longest_pause_s);
    hold("clipping_rise", b.clipped_share - a.clipped_share);
    hold("level_db", (b.level_dbfs - a.level_dbfs).abs());
    hold("liveliness_loss_db", a.liveliness_db - b.liveliness_db);
    hold("streaming_snr_db", pair.streaming_snr_db);
}

/// How many times longer the longer one is; NaN for two of no length.
fn factor(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) / a.min(b) }
}

fn judge_set(judged: &mut Judged, pairs: &[PairFacts]) {
    let reference = Rates::of(pairs.iter().map(|pair| &pair.reference));
    let engine = Rates::of(pairs.iter().map(|pair| &pair.engine));
    let median = |difference: fn(&PairFacts) -> f64| percentile(pairs.iter().map(difference).collect(), 50).abs();
    let place = format!("{} takes", pairs.len());
    let mut hold = |name: &str, measured: f64| judged.hold(name, measured, &place);
    hold("runaway_rise", engine.runaway - reference.runaway);
    let lost = pairs.iter().map(|pair| [&pair.engine, &pair.reference].map(|take| lost_share(take).min(DERAILED)));
    hold("lost_tokens_rise", lost.map(|[engine, reference]| engine - reference).sum::<f64>() / pairs.len() as f64);
    // One take more is chance: so many does one model differ by from itself.
    let derailed = engine.derailed - reference.derailed - 1.0 / pairs.len() as f64;
    hold("derailed_rise", if derailed < 0.0 { 0.0 } else { derailed }); // NaN stays
    hold("length_drift", (engine.seconds / reference.seconds - 1.0).abs());
    hold("mean_silence_rise", engine.silence - reference.silence);
    hold("median_level_db", median(|pair| pair.engine.level_dbfs - pair.reference.level_dbfs));
    hold("median_brightness_db", median(|pair| pair.engine.brightness_db - pair.reference.brightness_db));
}

/// A verdict with the limits at hand.
struct Judged<'a> {
    verdict: &'a mut Verdict,
    limits: &'a Limits,
}

impl Judged<'_> {
    fn hold(&mut self, name: &str, measured: f64, place: &str) {
        let name = format!("audio.{name}");
        self.verdict.measure(&name, self.limits.of(&name), measured, || place.to_owned());
    }
}

#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;
