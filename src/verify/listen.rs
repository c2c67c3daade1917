//! The part of the gate that listens: both models speak, the takes are measured, and a recogniser may write them down.

use serde::{Deserialize, Serialize};

use super::Verdict;
use super::asr::{self, ErrorRates, Language, Whisper};
use super::audio::{self, Layout, OneShot, Pair, PairFacts, Rates};
use super::journal::Journal;
use super::limits::Limits;
use super::reference::{Item, ReferenceFile};
use crate::engine::Engine;
use crate::error::Result;
use crate::format::Export;

/// Speech in figures, for the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeechFigures {
    /// The original's speech over the set.
    pub reference: Rates,
    /// The engine's.
    pub engine: Rates,
    /// What a recogniser understood, by language; empty without one.
    pub errors: Vec<ErrorRates>,
}

/// Speaks every item with the engine, holds the takes against the original's, and lets `whisper` write both down.
///
/// An export without a codec has no speech and fails `audio.prompts`. Comparisons are named `audio.…` and `asr.…`; the
/// pairs come back for whoever wants to hear them. Takes that `journal` holds are not spoken again. `progress` is told of every prompt that is done.
///
/// # Errors
/// Errors of engine, codec and recogniser.
pub fn judge(
    (engine, export): (&mut dyn Engine, &Export),
    (reference, items): (&ReferenceFile, &[&Item]),
    whisper: Option<&mut Whisper>,
    journal: &Journal,
    (verdict, limits): (&mut Verdict, &Limits),
    progress: &mut dyn FnMut(&'static str, usize),
) -> Result<(SpeechFigures, Vec<Pair>)> {
    let layout = Layout::of(engine.info());
    let pairs = match &export.codec {
        Some(codec) => {
            let codec = OneShot::load(&codec.config, &codec.weights, layout.num_quantizers)?;
            let mut pairs = Vec::with_capacity(items.len());
            for (number, item) in items.iter().enumerate() {
                let spoken = journal.part(&format!("speech-{number}"), || audio::speak(engine, reference, item))?;
                pairs.push(audio::pair(spoken, item, &export.config, &codec)?);
                progress("speaking", pairs.len());
            }
            pairs
        }
        None => Vec::new(),
    };
    let facts: Vec<PairFacts> = pairs.iter().map(|pair| pair.facts(&layout)).collect();
    let expected: Vec<String> = match &export.codec {
        Some(_) => items.iter().map(|item| item.prompt.id.clone()).collect(),
        None => Vec::new(), // nothing that could be spoken: `audio.prompts` fails
    };
    audio::judge(verdict, &expected, &facts, limits);
    let errors = match whisper {
        Some(whisper) => judge_words(items, &pairs, layout.sample_rate_hz, whisper, (verdict, limits), progress)?,
        None => Vec::new(),
    };
    let reference = Rates::of(facts.iter().map(|pair| &pair.reference));
    let engine = Rates::of(facts.iter().map(|pair| &pair.engine));
    Ok((SpeechFigures { reference, engine, errors }, pairs))
}

fn judge_words(
    items: &[&Item],
    pairs: &[Pair],
    sample_rate_hz: usize,
    whisper: &mut Whisper,
    (verdict, limits): (&mut Verdict, &Limits),
    progress: &mut dyn FnMut(&'static str, usize),
) -> Result<Vec<ErrorRates>> {
    let (mut expected, mut heard) = (Vec::new(), Vec::new());
    for item in items {
        let (prompt, Some(language)) = (&item.prompt, Language::of(item.prompt.group)) else { continue };
        expected.push(prompt.id.clone());
        let Some(pair) = pairs.iter().find(|pair| pair.id == prompt.id) else { continue };
        let mut hear = |pcm: &[f32]| whisper.hear(pcm, sample_rate_hz, language);
        let (reference, engine) = (hear(&pair.reference.pcm)?, hear(&pair.engine.pcm)?);
        heard.push(asr::Heard { id: prompt.id.clone(), language, text: prompt.text.clone(), reference, engine });
        progress("listening", expected.len());
    }
    Ok(asr::judge(verdict, &expected, &heard, limits))
}
