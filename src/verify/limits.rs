//! The limits of the gate: one for each comparison, by name. `docs/verification.md` justifies each of them.

use std::collections::BTreeMap;

use super::record::LimitKind;
use super::{Comparison, Limit, asr, audio};
use crate::error::{Error, Result};

use Limit::{AtLeast, AtMost};

/// The built-in limits.
const DEFAULTS: &[(&str, Limit)] = &[
    // The export against its own report, the reference's prompts and the source's weights.
    ("files.report_mismatches", AtMost(0.0)),
    ("files.prompt_ids", AtMost(0.0)),
    ("weights.int4_steps", AtMost(1.001)),
    ("weights.int8_steps", AtMost(1.001)),
    ("weights.changed", AtMost(0.0)),
    ("kernels.failed", AtMost(0.0)),
    // Question 1: the engine against candle on the same weights.
    ("engine.mean_kl", AtMost(0.01)),
    ("engine.worst_kl", AtMost(0.01)),
    ("engine.top1", AtLeast(0.975)),
    ("engine.layer_error", AtMost(0.01)),
    ("engine.hidden_error", AtMost(0.01)),
    ("engine.stop_difference", AtMost(0.01)),
    ("engine.choice_shortfall", AtMost(0.01)),
    ("engine.choice_ends", AtMost(0.0)),
    ("engine.company_differences", AtMost(0.0)),
    ("engine.reuse_differences", AtMost(0.0)),
    // Question 2: the engine against the original.
    ("reference.kl_error", AtMost(1e-4)),
    ("quality.missing_steps", AtMost(0.0)),
    ("quality.relative_kl", AtMost(0.15)),
    ("quality.codebook_relative_kl", AtMost(0.15)),
    ("quality.group_relative_kl", AtMost(0.18)),
    ("quality.words_relative_kl", AtMost(0.3)),
    ("quality.prompt_relative_kl", AtMost(0.3)),
    ("quality.tail_relative_kl", AtMost(4.0)),
    ("quality.relative_flips", AtMost(0.2)),
    ("quality.relative_top5_misses", AtMost(0.45)),
    ("quality.relative_draw_distance", AtMost(0.2)),
    ("quality.relative_perplexity", AtMost(0.15)),
    ("quality.stop_difference", AtMost(0.002)),
    ("quality.stop_decisions_changed", AtMost(0.1)),
];

/// Comparisons without which no record is a pass, whatever else it holds.
pub const REQUIRED: &[&str] = &[
    "files.prompt_ids",
    "kernels.failed",
    "engine.mean_kl",
    "engine.worst_kl",
    "engine.top1",
    "engine.layer_error",
    "engine.hidden_error",
    "engine.stop_difference",
    "engine.choice_shortfall",
    "engine.choice_ends",
    "engine.company_differences",
    "engine.reuse_differences",
    "reference.kl_error",
    "quality.missing_steps",
    "quality.relative_kl",
    "quality.codebook_relative_kl",
    "quality.group_relative_kl",
    "quality.words_relative_kl",
    "quality.prompt_relative_kl",
    "quality.tail_relative_kl",
    "quality.relative_flips",
    "quality.relative_top5_misses",
    "quality.relative_draw_distance",
    "quality.relative_perplexity",
    "quality.stop_difference",
    "quality.stop_decisions_changed",
    "audio.prompts",
    "audio.prompts_missing",
    "audio.empty",
    "audio.not_finite",
    "audio.samples_off",
    "audio.constant_codebooks",
    "audio.zero_frames",
    "audio.loop_frames",
    "audio.length_factor",
    "audio.silence_rise",
    "audio.pause_rise_s",
    "audio.clipping_rise",
    "audio.level_db",
    "audio.liveliness_loss_db",
    "audio.streaming_snr_db",
    "audio.runaway_rise",
    "audio.lost_tokens_rise",
    "audio.derailed_rise",
    "audio.length_drift",
    "audio.mean_silence_rise",
    "audio.median_level_db",
    "audio.median_brightness_db",
];

/// The limits of a run.
#[derive(Clone, Debug)]
pub struct Limits(BTreeMap<&'static str, Limit>);

impl Default for Limits {
    fn default() -> Limits {
        Limits(DEFAULTS.iter().chain(audio::LIMITS).chain(asr::LIMITS).copied().collect())
    }
}

impl Limits {
    /// Replaces a limit, given as `name=value`; which side it bounds stays.
    ///
    /// # Errors
    /// [`Error::Input`] for an unknown name or a value that is no finite number.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let (name, value) = assignment.split_once('=').unwrap_or((assignment, ""));
        let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(|| {
            Error::input("--limit", format!("found {assignment:?}, expected NAME=NUMBER, such as engine.mean_kl=0.005"))
        })?;
        let Some(limit) = self.0.get_mut(name) else {
            let known: Vec<&str> = self.0.keys().copied().collect();
            return Err(Error::input("--limit", format!("no comparison {name:?}; there are {}", known.join(", "))));
        };
        match limit {
            AtMost(bound) | AtLeast(bound) => *bound = value,
        }
        Ok(())
    }

    /// The limit of a comparison. A name without one is a mistake of this program and passes nothing.
    pub fn of(&self, name: &str) -> Limit {
        self.0.get(name).copied().unwrap_or(AtMost(f64::NAN))
    }
}

/// Whose limits these comparisons were held to; the name of the first that this program does not know.
pub fn kind_of(comparisons: &[Comparison]) -> std::result::Result<LimitKind, String> {
    let defaults = Limits::default();
    let mut kind = LimitKind::Default;
    for comparison in comparisons {
        match defaults.0.get(comparison.name.as_str()) {
            None => return Err(comparison.name.clone()),
            Some(limit) if *limit != comparison.limit => kind = LimitKind::Custom,
            Some(_) => {}
        }
    }
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_set_and_is_then_custom() {
        let mut limits = Limits::default();
        limits.set("engine.top1=0.99").unwrap();
        assert_eq!(limits.of("engine.top1"), AtLeast(0.99));
        let comparison = |limit| Comparison {
            name: "engine.top1".into(),
            measured: 1.0,
            limit,
            passed: true,
            measurements: 1,
            note: String::new(),
        };
        assert_eq!(kind_of(&[comparison(limits.of("engine.top1"))]), Ok(LimitKind::Custom));
        assert_eq!(kind_of(&[comparison(Limits::default().of("engine.top1"))]), Ok(LimitKind::Default));
        for wrong in ["engine.top1", "engine.top1=", "engine.top1=NaN", "engine.top1=inf", "engine.nothing=1"] {
            assert!(limits.set(wrong).unwrap_err().to_string().starts_with("--limit"), "{wrong}");
        }
    }

    #[test]
    fn every_comparison_that_a_pass_needs_has_a_limit() {
        let limits = Limits::default();
        assert!(REQUIRED.iter().all(|name| !limits.of(name).bound().is_nan()));
        assert!(!limits.of("unknown").holds(0.0));
    }
}
