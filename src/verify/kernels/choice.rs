//! Known answers of the choice of a token and of the assembly of frames.
//!
//! The expected token follows from the generation rule of `docs/architecture.md`, written here a second time: a full sort, then
//! the largest of `logit / temperature + noise` in f64.

use std::cmp::Ordering;

use crate::config::{MIN_NEW_TOKENS, STOP_THRESHOLD};
use crate::engine::sampler::{self, Choice, Noise, Outlook};
use crate::engine::{End, Sampling};

use super::judge::Judge;
use super::values::{noise, words};

/// One choice.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) test: &'static str,
    /// One a row; the last row is `</audio>`.
    pub(super) logits: Vec<f32>,
    /// Logit of P(stop).
    pub(super) stop: f32,
    pub(super) sampling: Sampling,
    pub(super) noise: Noise,
    pub(super) max_new_tokens: usize,
    /// What must come out; an error when not everything is finite.
    pub(super) expected: Option<Choice>,
}

impl Case {
    /// P(stop).
    pub(super) fn stop_probability(&self) -> f32 {
        (1.0 / (1.0 + f64::from(-self.stop).exp())) as f32
    }
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 1 };
const FREE: u32 = MIN_NEW_TOKENS as u32;

/// Greedy, at a step where the end is allowed and nothing stops: the base of the cases known by hand.
fn base(test: &'static str, logits: Vec<f32>, row: usize) -> Case {
    let noise = Noise { seed: 7, sequence: 0, step: FREE };
    let end = (row + 1 == logits.len()).then_some(End::AudioEnd);
    let expected = Some(Choice { row, end });
    Case { test, logits, stop: -3.0, sampling: GREEDY, noise, max_new_tokens: 1000, expected }
}

/// Cases whose answer can be read off, for an audio head of `rows` rows, at least 200.
fn by_hand(rows: usize) -> Vec<Case> {
    let end = rows - 1;
    let flat = |value: f32, peaks: &[(usize, f32)]| {
        let mut logits = vec![value; rows];
        peaks.iter().for_each(|&(row, value)| logits[row] = value);
        logits
    };
    let ends = |case: Case, end: Option<End>, row: usize| Case { expected: Some(Choice { row, end }), ..case };
    let at = |case: Case, step: u32| Case { noise: Noise { step, ..case.noise }, ..case };
    let sampled = |top_k: usize| Sampling { temperature: 0.8, top_k };
    let last_masked = FREE - 1;
    let mut cases = vec![
        base("greedy", flat(-1.0, &[(77, 2.0)]), 77),
        base("greedy", flat(-5.0, &[(0, -4.0)]), 0),
        base("greedy", flat(0.0, &[(end, 1.0)]), end),
        base("tie", flat(0.5, &[]), 0), // everything equal: the lowest row
        base("tie", flat(-2.0, &[(190, 3.0), (61, 3.0), (62, 3.0)]), 61),
        base("tie", flat(-1.0, &[(5, 0.0), (3, -0.0), (9, 0.0)]), 3), // zeros of either sign are equal
        Case { sampling: sampled(1), ..base("top_1", flat(0.0, &[(44, 1e-3)]), 44) },
        Case { sampling: sampled(1), ..base("top_1", flat(0.0, &[]), 0) },
        // Far ahead: no noise of a few units reaches it, whatever k is. Divided by a large temperature it would be reached.
        Case { sampling: sampled(30), ..base("far_ahead", flat(0.0, &[(8, 300.0)]), 8) },
        Case { sampling: sampled(rows + 5), ..base("far_ahead", flat(0.0, &[(8, 300.0)]), 8) },
        at(ends(base("end_masked", flat(0.0, &[(end, 9.0), (12, 1.0)]), 12), None, 12), last_masked),
        at(ends(base("end_masked", flat(0.0, &[(end, 9.0)]), 0), None, 0), 0),
        Case { stop: 3.0, ..at(ends(base("stop_not_asked", flat(0.0, &[(7, 1.0)]), 7), None, 7), last_masked) },
        Case { stop: 3.0, ..ends(base("stop_forced", flat(0.0, &[(7, 1.0)]), 7), Some(End::StopHead), end) },
        Case { stop: 1e-3, ..ends(base("stop_forced", flat(0.0, &[]), 0), Some(End::StopHead), end) },
        Case { stop: 0.0, ..base("stop_at_threshold", flat(0.0, &[(7, 1.0)]), 7) }, // exactly 0.5 is not above it
        Case {
            max_new_tokens: FREE as usize + 1,
            ..ends(base("cap", flat(0.0, &[(7, 1.0)]), 7), Some(End::Length), 7)
        },
        Case { max_new_tokens: FREE as usize + 2, ..base("cap", flat(0.0, &[(7, 1.0)]), 7) },
        Case { max_new_tokens: FREE as usize + 1, ..base("cap", flat(0.0, &[(end, 1.0)]), end) },
    ];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for row in [0, 100, end] {
            cases.push(Case { expected: None, ..base("not_finite", flat(0.0, &[(row, bad)]), 0) });
        }
    }
    cases.push(Case { stop: f32::NAN, expected: None, ..base("not_finite", flat(0.0, &[]), 0) });
    cases
}

/// Cases of all kinds of logits, top-k on both sides of every boundary of an algorithm, all steps and caps.
fn random(rows: usize) -> impl Iterator<Item = Case> {
    const TOP_K: [usize; 9] = [30, 1, 2, 31, 127, 128, 129, 1000, 1 << 20];
    (0..180usize).map(move |i| {
        let seed = i as u32;
        let mut logits: Vec<f32> = noise(seed, rows).iter().map(|l| 6.0 * l).collect();
        match i % 4 {
            1 => logits.iter_mut().for_each(|l| *l = (*l * 2.0).round() / 2.0), // many ties
            2 => logits.fill(0.25),                                             // nothing but ties
            3 => logits[rows - 1] = 7.0,
            _ => {}
        }
        let sampling = Sampling { temperature: [0.8, 0.0, 2.5, 0.05][i / 4 % 4], top_k: TOP_K[i % TOP_K.len()] };
        let step = [0, FREE - 1, FREE, 40][i / 5 % 4];
        let wide = words(seed, 2).fold(0, |seed, word| seed << 32 | u64::from(word));
        let case = Case {
            test: "random",
            logits,
            stop: [-3.0, -0.5, 3.0][i / 3 % 3],
            sampling,
            noise: Noise { seed: wide, sequence: seed % 3, step },
            max_new_tokens: if i % 7 == 0 { step as usize + 1 } else { 1000 },
            expected: None,
        };
        Case { expected: Some(by_definition(&case)), ..case }
    })
}

/// The generation rule, by sorting.
fn by_definition(case: &Case) -> Choice {
    let (step, end_row) = (case.noise.step as usize, case.logits.len() - 1);
    let early = step < MIN_NEW_TOKENS;
    if !early && case.stop_probability() > STOP_THRESHOLD {
        return Choice { row: end_row, end: Some(End::StopHead) };
    }
    let mut rows: Vec<usize> = (0..case.logits.len()).filter(|&row| !early || row != end_row).collect();
    // Not `total_cmp`: zeros of either sign are equal.
    let descending = |a: f64, b: f64| b.partial_cmp(&a).unwrap_or(Ordering::Equal);
    rows.sort_by(|&a, &b| descending(case.logits[a].into(), case.logits[b].into()).then(a.cmp(&b)));
    let greedy = case.sampling.temperature == 0.0;
    rows.truncate(if greedy { 1 } else { case.sampling.top_k });
    let score = |row: usize| match greedy {
        true => f64::from(case.logits[row]),
        false => f64::from(case.logits[row]) / f64::from(case.sampling.temperature) + gumbel(case.noise, row as u32),
    };
    rows.sort_by(|&a, &b| descending(score(a), score(b)).then(a.cmp(&b)));
    let end = match rows[0] {
        row if row == end_row => Some(End::AudioEnd),
        _ if step + 1 >= case.max_new_tokens => Some(End::Length),
        _ => None,
    };
    Choice { row: rows[0], end }
}

/// The noise of `docs/architecture.md`: the first word for the counter (row, step, sequence, 0).
fn gumbel(noise: Noise, row: u32) -> f64 {
    let key = [noise.seed as u32, (noise.seed >> 32) as u32];
    let word = sampler::philox([row, noise.step, noise.sequence, 0], key)[0];
    -(-((f64::from(word) + 0.5) / 4_294_967_296.0).ln()).ln()
}

/// All cases for an audio head of `rows` rows.
pub(super) fn cases(rows: usize) -> Vec<Case> {
    by_hand(rows).into_iter().chain(random(rows)).collect()
}

/// Chooses a token; `None` is an error.
pub(super) type Choose<'a> = &'a dyn Fn(&Case) -> Option<Choice>;

/// Holds the choice against known answers.
pub(super) fn judge(judge: &mut Judge<'_>, kernel: &str, rows: usize, choose: Choose<'_>) {
    for case in cases(rows) {
        judge.same(kernel, case.test, &[choose(&case)], &[case.expected]);
    }
}

/// The sampler that all backends share.
pub(super) fn plain(case: &Case) -> Option<Choice> {
    let end_row = case.logits.len() - 1;
    let outlook = Outlook { logits: &case.logits, stop_probability: case.stop_probability(), end_row };
    sampler::next_token(outlook, case.sampling, case.noise, case.max_new_tokens).ok()
}

/// Holds the generator of the noise against the published answers of Random123 (`kat_vectors`, philox4x32 10).
pub(super) fn judge_noise(judge: &mut Judge<'_>, kernel: &str) {
    let published = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in published {
        judge.same(kernel, "published", &sampler::philox(counter, key), &expected);
    }
    let noise = Noise { seed: 0x0123_4567_89ab_cdef, sequence: 3, step: 9 };
    let found: Vec<f64> = (0..50).map(|row| noise.gumbel(row)).collect();
    judge.same(kernel, "gumbel", &found, &(0..50).map(|row| gumbel(noise, row)).collect::<Vec<f64>>());
}

/// Token ids as (code, quantizer) of three codebooks, and the frames that they make.
pub(super) struct Sequence {
    pub(super) test: &'static str,
    /// `None` is `</audio>`.
    pub(super) units: &'static [Option<(u32, u32)>],
    pub(super) frames: &'static [[u32; 3]],
}

/// Sequences in and out of turn.
pub(super) const SEQUENCES: [Sequence; 6] = [
    Sequence {
        test: "in_turn",
        units: &[Some((4, 0)), Some((0, 1)), Some((7, 2)), Some((1, 0)), Some((2, 1)), Some((3, 2))],
        frames: &[[4, 0, 7], [1, 2, 3]],
    },
    Sequence {
        test: "trailing_part_dropped",
        units: &[Some((4, 0)), Some((0, 1)), Some((7, 2)), Some((1, 0)), Some((2, 1))],
        frames: &[[4, 0, 7]],
    },
    Sequence {
        test: "out_of_turn_restarts",
        units: &[Some((4, 0)), Some((5, 1)), Some((6, 0)), Some((1, 1)), Some((2, 2))],
        frames: &[[6, 1, 2]],
    },
    Sequence {
        test: "out_of_turn_dropped",
        units: &[Some((4, 0)), Some((5, 2)), Some((6, 1)), Some((1, 2)), Some((3, 0)), Some((2, 1)), Some((1, 2))],
        frames: &[[3, 2, 1]],
    },
    Sequence {
        test: "repeated_dropped",
        units: &[Some((4, 0)), Some((5, 1)), Some((5, 1)), Some((6, 2))],
        frames: &[],
    },
    Sequence { test: "ends", units: &[Some((4, 0)), Some((5, 1)), None, Some((6, 2))], frames: &[] },
];
