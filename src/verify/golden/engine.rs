//! The int4 engine against the golden's results with dequantized weights.

use super::{Golden, Judge, Prompt};
use crate::engine::{End, Engine, Observer, Request, Sampling, Scores};
use crate::error::{Error, Result};
use crate::format::HeadKind;
use crate::verify::{Limit, relative_norm};

/// Largest relative error of states and logits at a position, in the Euclidean norm. Rounding the activations of every
/// product to 16 bits costs a hundredth of it, a swapped nibble or a wrong window a hundred times more.
const INT4_LIMIT: Limit = Limit::AtMost(2e-3);
/// Greedy decoding; `top_k` has no effect at temperature 0.
const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 1 };

/// One of the two heads an export can have, and the golden's names for it.
pub(super) struct Variant {
    /// The head.
    pub head: HeadKind,
    /// Prefix of the comparisons.
    pub name: &'static str,
    /// `prompt.N.{scores}.*`
    pub scores: &'static str,
    /// `{speech}.N.ids`
    pub speech: &'static str,
    /// Why the golden sequence ended.
    pub end: fn(&super::PromptFacts) -> Option<&str>,
}

/// Both, int8 first: the golden's `int4` results have the dequantized embedding as head.
pub(super) const VARIANTS: [Variant; 2] = [
    Variant {
        head: HeadKind::Int8,
        name: "engine_int8_head",
        scores: "int4",
        speech: "gen_int4",
        end: |facts| facts.int4_end.as_deref(),
    },
    Variant {
        head: HeadKind::Bf16,
        name: "engine_bf16_head",
        scores: "int4_bf16head",
        speech: "gen_int4_bf16head",
        end: |facts| facts.int4_bf16head_end.as_deref(),
    },
];

impl Variant {
    /// True when the folder has anything for this head.
    pub(super) fn is_in(&self, golden: &Golden) -> bool {
        let ours = |name: &String| {
            name.starts_with(&format!("{}.", self.speech))
                || name.strip_prefix("prompt.").is_some_and(|rest| rest.contains(&format!(".{}.", self.scores)))
        };
        golden.tensors.tensors().keys().any(ours)
    }
}

/// Compares every prompt and the speech that follows it.
pub(super) fn compare(judge: &mut Judge, variant: &Variant, engine: &mut dyn Engine, prompts: &[Prompt]) -> Result<()> {
    for prompt in prompts {
        compare_scores(judge, variant, engine, prompt)?;
        compare_speech(judge, variant, engine, prompt)?;
    }
    Ok(())
}

/// `prompt.N.{scores}.*`, position by position.
fn compare_scores(judge: &mut Judge, variant: &Variant, engine: &mut dyn Engine, prompt: &Prompt) -> Result<()> {
    let mut seen = Positions::default();
    engine.score(0, &prompt.ids, &mut seen)?;
    let (t, hidden, vocab) = (prompt.ids.len(), engine.info().config.hidden_size, engine.info().config.vocab_size);
    let key = |name: &str| format!("prompt.{}.{}.{name}", prompt.number, variant.scores);
    let last = t - 1..t;
    judge.same(&format!("{}.positions", variant.name), &format!("prompt.{}", prompt.number), seen.hidden.len(), t);
    if seen.hidden.len() != t {
        return Ok(());
    }

    let name = format!("{}.hidden_relative", variant.name);
    let as_is = |row: &[f32]| row.to_vec();
    compare_rows(judge, &name, &key("hidden"), &[t, hidden], &seen.hidden, as_is)?;
    compare_rows(judge, &name, &key("last_hidden"), &[hidden], &seen.hidden[last.clone()], as_is)?;

    let name = format!("{}.logits_relative", variant.name);
    let ids = engine.info().audio_ids.clone();
    let of_vocabulary = |row: &[f32]| ids.iter().map(|&id| row[id as usize]).collect();
    compare_rows(judge, &name, &key("logits"), &[t, vocab], &seen.logits, of_vocabulary)?;
    // The golden's audio head is in the order of the configuration; an export may have another.
    let order = engine.info().config.audio_ids();
    match judge.golden.tensors.find(&key("last_logits")).map(|tensor| tensor.len() == vocab) {
        Some(false) => {
            let of_head = |row: &[f32]| {
                let in_order = |id: &u32| order.iter().position(|other| other == id);
                ids.iter().map(|id| in_order(id).map_or(f32::NAN, |column| row[column])).collect()
            };
            compare_rows(judge, &name, &key("last_logits"), &[order.len()], &seen.logits[last], of_head)
        }
        _ => compare_rows(judge, &name, &key("last_logits"), &[vocab], &seen.logits[last], of_vocabulary),
    }
}

/// Holds rows against the rows of the tensor `key`, where the folder has it; `pick` takes the columns found here.
fn compare_rows(
    judge: &mut Judge,
    name: &str,
    key: &str,
    shape: &[usize],
    found: &[Vec<f32>],
    pick: impl Fn(&[f32]) -> Vec<f32>,
) -> Result<()> {
    let Some(expected) = judge.golden.values(key, shape)? else { return Ok(()) };
    let columns = shape[shape.len() - 1];
    for (row, (found, expected)) in found.iter().zip(expected.chunks(columns)).enumerate() {
        let error = relative_norm(found, &pick(expected));
        judge.verdict.measure(name, INT4_LIMIT, error, || format!("{key}[{row}]"));
    }
    Ok(())
}

/// `{speech}.N.ids`: the greedy tokens, as far as the golden has them.
fn compare_speech(judge: &mut Judge, variant: &Variant, engine: &mut dyn Engine, prompt: &Prompt) -> Result<()> {
    let (n, key) = (prompt.number, format!("{}.{}.ids", variant.speech, prompt.number));
    let Some(expected) = judge.golden.ids(&key)?.filter(|ids| !ids.is_empty()) else { return Ok(()) };
    let (found, end) = speak(engine, &prompt.ids, expected.len())?;
    judge.same_ids(&format!("{}.greedy_ids", variant.name), &key, &found, &expected);
    // A sequence that was cut or reached a cap says nothing about how the model would end it.
    if let Some(wanted @ ("stop_predictor" | "audio_end")) = prompt.facts.and_then(variant.end) {
        let found = match end {
            End::StopHead => "stop_predictor",
            End::AudioEnd => "audio_end",
            End::Length => "length",
        };
        judge.same(&format!("{}.greedy_end", variant.name), &format!("prompts[{n}]"), found, wanted);
    }
    Ok(())
}

/// Greedy tokens after a prompt, `</audio>` included, and why they end.
fn speak(engine: &mut dyn Engine, prompt: &[u32], max_new_tokens: usize) -> Result<(Vec<u32>, End)> {
    let audio_end = engine.info().config.audio_end_token_id;
    engine.start(0, &Request { prompt, sampling: GREEDY, max_new_tokens, seed: 0, sequence: 0 })?;
    let (mut ids, mut end) = (Vec::new(), None);
    while end.is_none() {
        let before = ids.len();
        engine.step(&mut |step| {
            ids.extend_from_slice(step.tokens);
            end = step.end;
        })?;
        if end.is_none() && ids.len() == before {
            return Err(Error::Unsupported {
                what: "engine".into(),
                why: "a step made neither tokens nor an end".into(),
            });
        }
    }
    engine.reset(0);
    if end != Some(End::Length) && ids.last() != Some(&audio_end) {
        ids.push(audio_end);
    }
    Ok((ids, end.unwrap_or(End::Length)))
}

/// States and logits of every position.
#[derive(Default)]
struct Positions {
    hidden: Vec<Vec<f32>>,
    logits: Vec<Vec<f32>>,
}

impl Observer for Positions {
    fn position(&mut self, scores: Scores<'_>) {
        self.hidden.push(scores.hidden.to_vec());
        self.logits.push(scores.logits.to_vec());
    }
}
