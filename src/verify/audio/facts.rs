//! One take in figures.

use serde::{Deserialize, Serialize};

use super::Take;
use super::level::Sound;
use crate::config::ModelConfig;
use crate::engine::{End, Info};
use crate::verify::number;

/// Longest loop that is looked for, in frames: two seconds, longer than a word.
const LONGEST_PERIOD: usize = 25;
/// Frames from which a codebook that never changes its code is a fault rather than a short word.
const FEWEST_FRAMES: usize = 8;

/// How a model's tokens, codes and samples hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Codes a frame.
    pub num_quantizers: usize,
    /// Id of code 0 of quantizer 0.
    pub first_unit_id: u32,
    /// Id of the last code of the last quantizer.
    pub last_unit_id: u32,
    /// Samples a frame.
    pub samples_per_frame: usize,
    /// Samples a second.
    pub sample_rate_hz: usize,
}

impl Layout {
    /// The layout of what an engine speaks.
    pub fn of(info: &Info) -> Layout {
        let ModelConfig { num_quantizers, first_unit_id, last_unit_id, .. } = info.config;
        let (samples_per_frame, sample_rate_hz) = (info.samples_per_frame, info.sample_rate_hz);
        Layout { num_quantizers, first_unit_id, last_unit_id, samples_per_frame, sample_rate_hz }
    }
}

/// What can be said of a take without hearing it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeFacts {
    /// Tokens chosen.
    pub tokens: usize,
    /// Complete frames.
    pub frames: usize,
    /// Their length in seconds.
    #[serde(with = "number")]
    pub seconds: f64,
    /// Whether the cap ended it.
    pub capped: bool,
    /// Unit tokens that became part of no frame because a codebook, or the end, was out of turn.
    pub lost_tokens: usize,
    /// Frames whose codes are all 0.
    pub zero_frames: usize,
    /// Codebooks that kept one code throughout, in a take of eight frames or more.
    pub constant_codebooks: usize,
    /// Longest loop: frames in a row that repeat what was up to 2 s before, code for code.
    pub longest_loop: usize,
    /// Samples more or less than the frames have.
    pub samples_off: usize,
    /// Samples that are not finite.
    pub not_finite: usize,
    /// Share of the time that is silent.
    #[serde(with = "number")]
    pub silent_share: f64,
    /// Longest silence between two sounds, in seconds.
    #[serde(with = "number")]
    pub longest_pause_s: f64,
    /// Share of samples at full scale.
    #[serde(with = "number")]
    pub clipped_share: f64,
    /// Level of what is not silent.
    #[serde(with = "number")]
    pub level_dbfs: f64,
    /// How much that level varies.
    #[serde(with = "number")]
    pub liveliness_db: f64,
    /// How much of the sound is high.
    #[serde(with = "number")]
    pub brightness_db: f64,
}

impl TakeFacts {
    /// Measures a take.
    pub fn of(take: &Take, layout: &Layout) -> TakeFacts {
        let q = layout.num_quantizers;
        let frames: Vec<&[u32]> = take.codes.chunks_exact(q).collect();
        let sound = Sound::of(&take.pcm, layout.sample_rate_hz);
        let samples = frames.len() * layout.samples_per_frame;
        TakeFacts {
            tokens: take.tokens.len(),
            frames: frames.len(),
            seconds: samples as f64 / layout.sample_rate_hz as f64,
            capped: take.end == End::Length,
            lost_tokens: lost_tokens(&take.tokens, layout),
            zero_frames: frames.iter().filter(|frame| frame.iter().all(|&code| code == 0)).count(),
            constant_codebooks: constant_codebooks(&frames, q),
            longest_loop: longest_loop(&frames),
            samples_off: samples.abs_diff(take.pcm.len()),
            not_finite: sound.not_finite,
            silent_share: sound.silent_share,
            longest_pause_s: sound.longest_pause_s,
            clipped_share: sound.clipped_share,
            level_dbfs: sound.level_dbfs,
            liveliness_db: sound.liveliness_db,
            brightness_db: sound.brightness_db,
        }
    }
}

/// Unit tokens that no frame holds. A frame that the cap cut short is not among them.
fn lost_tokens(tokens: &[u32], layout: &Layout) -> usize {
    let q = layout.num_quantizers;
    let (mut lost, mut partial) = (0, 0);
    for &id in tokens {
        let unit = (layout.first_unit_id..=layout.last_unit_id).contains(&id);
        let quantizer = unit.then(|| (id - layout.first_unit_id) as usize % q);
        if quantizer != Some(partial) {
            lost += partial;
            partial = 0;
        }
        match quantizer {
            Some(quantizer) if quantizer == partial => partial = (partial + 1) % q,
            Some(_) => lost += 1,
            None => {}
        }
    }
    lost
}

fn constant_codebooks(frames: &[&[u32]], q: usize) -> usize {
    let constant = |q: &usize| frames.windows(2).all(|pair| pair[0][*q] == pair[1][*q]);
    if frames.len() < FEWEST_FRAMES { 0 } else { (0..q).filter(constant).count() }
}

/// Frames in a row that equal the frame one period before, for the period with the most of them.
fn longest_loop(frames: &[&[u32]]) -> usize {
    let run = |period: usize| {
        let repeats = (period..frames.len()).map(|t| frames[t] == frames[t - period]);
        let (_, longest) = repeats.fold((0, 0), |(run, longest), repeats| {
            let run = if repeats { run + 1 } else { 0 };
            (run, longest.max(run))
        });
        longest
    };
    (1..=LONGEST_PERIOD).map(run).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::audio::testing::{LAYOUT, take};

    fn facts(take: &Take) -> TakeFacts {
        TakeFacts::of(take, &LAYOUT)
    }

    #[test]
    fn a_sound_take_has_no_fault() {
        let facts = facts(&take(1, 40));
        assert_eq!((facts.tokens, facts.frames, facts.seconds), (321, 40, 3.2));
        assert!(!facts.capped && facts.level_dbfs.is_finite());
        let counts = [facts.lost_tokens, facts.zero_frames, facts.constant_codebooks, facts.samples_off];
        assert_eq!((counts, facts.longest_loop, facts.not_finite), ([0; 4], 0, 0));
    }

    #[test]
    fn tokens_out_of_turn_are_lost_with_their_frame() {
        let unit = |q: u32| 1000 + q; // code 0 of quantizer q
        let lost = |ids: &[u32]| lost_tokens(ids, &LAYOUT);
        let frame: Vec<u32> = (0..8).map(unit).collect();
        assert_eq!(lost(&frame.repeat(3)), 0);
        assert_eq!(lost(&[&frame[..], &frame[..5]].concat()), 0); // the cap
        assert_eq!(lost(&[&frame[..5], &[9000]].concat()), 5); // the end in the middle of a frame
        assert_eq!(lost(&[&frame[..3], &frame].concat()), 3); // a frame begun anew
        assert_eq!(lost(&[&frame[..3], &frame[5..], &frame].concat()), 6); // a codebook skipped
        assert_eq!(lost(&[frame[0], frame[1], frame[1]]), 3); // a codebook twice
    }

    #[test]
    fn loops_are_found_at_every_period_up_to_two_seconds() {
        for (period, copies) in [(1, 10), (3, 4), (LONGEST_PERIOD, 2)] {
            let mut take = take(5, 60);
            let phrase = take.codes[..8 * period].to_vec();
            take.codes.splice(8 * 10..8 * (10 + period * copies), phrase.repeat(copies));
            assert_eq!(facts(&take).longest_loop, period * (copies - 1), "{period}");
        }
        let mut long = take(5, 80);
        let phrase = long.codes[..8 * 30].to_vec();
        long.codes = phrase.repeat(2); // longer than a word: not this measure's business
        assert_eq!(facts(&long).longest_loop, 0);
    }

    #[test]
    fn zero_and_constant_codes_are_counted() {
        let mut silent = take(7, 20);
        silent.codes[8 * 4..8 * 7].fill(0);
        assert_eq!(facts(&silent).zero_frames, 3);
        let mut stuck = take(7, 20);
        (0..20).for_each(|t| stuck.codes[8 * t + 2] = 11);
        assert_eq!(facts(&stuck).constant_codebooks, 1);
        let mut short = take(7, FEWEST_FRAMES - 1);
        short.codes.fill(3);
        assert_eq!(facts(&short).constant_codebooks, 0);
    }

    #[test]
    fn samples_must_belong_to_frames() {
        let mut cut = take(9, 20);
        cut.pcm.truncate(19 * 1920);
        assert_eq!(facts(&cut).samples_off, 1920);
        cut.pcm.clear();
        cut.codes.clear();
        let none = facts(&cut);
        assert!(none.frames == 0 && none.samples_off == 0 && none.level_dbfs.is_nan(), "{none:?}");
    }
}
