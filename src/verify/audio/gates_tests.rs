//! Sound takes pass; each planted fault fails the gates it should and, planted in both models, none.

use super::*;
use crate::engine::End;
use crate::verify::audio::Take;
use crate::verify::audio::testing::{LAYOUT, noise, pair, take, tone};

const PROMPTS: u32 = 40;
/// The prompt that faults of one take are planted in.
const VICTIM: usize = 17;

fn set() -> Vec<PairFacts> {
    (0..PROMPTS).map(pair).collect()
}

fn verdict(pairs: &[PairFacts]) -> Verdict {
    let expected: Vec<String> = (0..PROMPTS).map(|number| format!("p-{number}")).collect();
    let mut verdict = Verdict::default();
    judge(&mut verdict, &expected, pairs, &Limits::default());
    verdict
}

fn failures(verdict: &Verdict) -> Vec<String> {
    verdict.failures().map(|c| c.name.trim_start_matches("audio.").to_owned()).collect()
}

/// What fails when `plant` spoils the engine's take of the victim.
fn spoiled(plant: impl Fn(&mut Take)) -> Vec<String> {
    let mut pairs = set();
    let mut faulty = take(2 * VICTIM as u32 + 2, pairs[VICTIM].engine.frames);
    plant(&mut faulty);
    pairs[VICTIM].engine = TakeFacts::of(&faulty, &LAYOUT);
    let verdict = verdict(&pairs);
    for failure in verdict.failures().filter(|c| c.measurements > 1) {
        assert_eq!(failure.note, format!("p-{VICTIM}"), "{failure:?}");
    }
    failures(&verdict)
}

/// What fails when `change` is done to the figures of every take of the engine.
fn shifted(change: impl Fn(&mut TakeFacts)) -> Vec<String> {
    let mut pairs = set();
    pairs.iter_mut().for_each(|pair| change(&mut pair.engine));
    failures(&verdict(&pairs))
}

#[test]
fn sound_takes_pass_every_gate() {
    let verdict = verdict(&set());
    assert!(verdict.passed(), "{verdict}");
    assert_eq!(verdict.comparisons.len(), 22);
}

#[test]
fn rambling_to_the_cap_is_caught() {
    let ramble = |take: &mut Take| {
        *take = super::super::testing::take(99, 256);
        take.tokens.pop();
        take.end = End::Length;
    };
    assert_eq!(spoiled(ramble), ["length_factor", "runaway_rise", "length_drift"]);
}

#[test]
fn silence_with_a_garbled_tail_is_caught() {
    let fade = |take: &mut Take| {
        let speech = take.pcm.len() / 3;
        take.pcm[speech..].fill(0.0);
        let tail = take.pcm.len() - 2 * 1920;
        let garble: Vec<f32> = take.pcm[..2 * 1920].to_vec();
        take.pcm[tail..].copy_from_slice(&garble);
    };
    assert_eq!(spoiled(fade), ["silence_rise", "pause_rise_s"]);
    let mute = |take: &mut Take| take.pcm.fill(0.0);
    let found = spoiled(mute);
    assert!(found.contains(&"silence_rise".into()) && found.contains(&"level_db".into()), "{found:?}");
}

#[test]
fn a_buzz_and_a_hiss_are_caught() {
    let buzz = |take: &mut Take| {
        let frame = take.codes[..8].to_vec();
        take.codes = frame.repeat(take.codes.len() / 8);
        take.pcm = tone(120.0, 0.1, take.pcm.len() as f64 / 24_000.0);
    };
    assert_eq!(spoiled(buzz), ["constant_codebooks", "loop_frames", "liveliness_loss_db"]);
    let hiss = |take: &mut Take| {
        let power = take.pcm.iter().map(|sample| sample * sample).sum::<f32>() / take.pcm.len() as f32;
        let size = (3.0 * power).sqrt(); // of the same level
        take.pcm = noise(4).take(take.pcm.len()).map(|v| size * v).collect();
    };
    assert_eq!(spoiled(hiss), ["liveliness_loss_db"]);
    assert_eq!(shifted(|take| take.brightness_db += 3.0), ["median_brightness_db"]);
}

#[test]
fn a_frame_that_repeats_and_zero_codes_are_caught() {
    let stutter = |take: &mut Take| {
        let frame = take.codes[8 * 10..8 * 11].to_vec();
        take.codes[8 * 10..8 * 24].copy_from_slice(&frame.repeat(14));
    };
    assert_eq!(spoiled(stutter), ["loop_frames"]);
    let zeros = |take: &mut Take| take.codes[8 * 10..8 * 15].fill(0);
    assert_eq!(spoiled(zeros), ["zero_frames"]);
    let stuck = |take: &mut Take| (0..take.codes.len() / 8).for_each(|t| take.codes[8 * t + 3] = 5);
    assert_eq!(spoiled(stuck), ["constant_codebooks"]);
}

#[test]
fn codebooks_out_of_turn_are_caught_in_the_set() {
    let skip = |take: &mut Take| (0..20).for_each(|_| _ = take.tokens.remove(4)); // frames of the tokens only
    assert_eq!(spoiled(skip), [""; 0]); // a take or two of a sampled model have some
    assert_eq!(shifted(|take| take.lost_tokens += take.tokens / 100), ["lost_tokens_rise"]);
    let derailed = |takes: usize| {
        let mut pairs = set();
        pairs.iter_mut().take(takes).for_each(|pair| pair.engine.lost_tokens = pair.engine.tokens / 2);
        failures(&verdict(&pairs))
    };
    assert_eq!(derailed(1), [""; 0]);
    assert_eq!(derailed(3), ["derailed_rise"]);
    assert_eq!(derailed(10), ["lost_tokens_rise", "derailed_rise"]);
    assert_eq!(shifted(|take| take.lost_tokens = usize::MAX), ["lost_tokens_rise", "derailed_rise"]);
}

#[test]
fn clipping_and_a_level_12_db_down_are_caught() {
    let scaled = |factor: f32| move |take: &mut Take| take.pcm.iter_mut().for_each(|sample| *sample *= factor);
    assert_eq!(spoiled(scaled(0.25)), ["level_db"]);
    assert_eq!(shifted(|take| take.level_dbfs -= 1.5), ["median_level_db"]);
    let clip = |take: &mut Take| take.pcm.iter_mut().for_each(|sample| *sample = (*sample * 8.0).clamp(-1.0, 1.0));
    assert!(spoiled(clip).contains(&"clipping_rise".into()));
}

#[test]
fn lengths_and_silence_that_drift_over_the_set_are_caught() {
    assert_eq!(shifted(|take| take.seconds *= 1.1), ["length_drift"]);
    assert_eq!(shifted(|take| take.silent_share += 0.1), ["mean_silence_rise"]);
    assert_eq!(spoiled(|take| take.end = End::Length), ["runaway_rise"]);
}

#[test]
fn samples_that_are_broken_or_not_there_are_caught() {
    assert_eq!(spoiled(|take| take.pcm.truncate(take.pcm.len() - 1920)), ["samples_off"]);
    let found = spoiled(|take| take.pcm[500] = f32::NAN);
    assert!(found.contains(&"not_finite".into()) && found.contains(&"median_level_db".into()), "{found:?}");
    let found = spoiled(|take| *take = Take { tokens: vec![9000], codes: vec![], pcm: vec![], end: End::AudioEnd });
    assert!(found.contains(&"empty".into()) && found.contains(&"length_factor".into()), "{found:?}");
}

#[test]
fn a_stream_that_is_not_the_whole_is_caught() {
    for snr in [65.0, f64::NAN, f64::NEG_INFINITY] {
        let mut pairs = set();
        pairs[3].streaming_snr_db = snr;
        assert_eq!(failures(&verdict(&pairs)), ["streaming_snr_db"], "{snr}");
    }
}

#[test]
fn what_the_reference_does_itself_is_no_fault_of_the_export() {
    let mut pairs = set();
    let mut ramble = take(99, 256);
    ramble.end = End::Length;
    let facts = TakeFacts::of(&ramble, &LAYOUT);
    pairs[VICTIM] = PairFacts { reference: facts.clone(), engine: facts, ..pairs[VICTIM].clone() };
    assert!(verdict(&pairs).passed());
}

#[test]
fn an_empty_set_and_prompts_missing_twice_or_unknown_never_pass() {
    let mut nothing = Verdict::default();
    judge(&mut nothing, &[], &[], &Limits::default());
    let failed = failures(&nothing);
    let all = ["prompts", "runaway_rise", "lost_tokens_rise", "derailed_rise", "length_drift", "median_level_db"];
    assert!(all.iter().all(|name| failed.contains(&(*name).into())), "{failed:?}");

    let mut missing = set();
    missing.remove(5);
    let mut twice = set();
    twice[5] = twice[6].clone();
    let mut strange = set();
    strange.push(PairFacts { id: "other".into(), ..strange[0].clone() });
    for pairs in [missing, twice, strange] {
        assert_eq!(failures(&verdict(&pairs)), ["prompts_missing"]);
    }
}
