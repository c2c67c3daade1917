//! What the audio gates measure on the demonstration model, and what chance alone makes of it.
//!
//! ```text
//! cargo run --release --example audio_limits -- reference.safetensors fixtures/demo-int4 [OUT]
//! ```
//!
//! Prints every comparison for the int4 engine against the original, and for the engine against itself with other seeds
//! (two good models that differ by chance). With OUT, WAV files of all takes. `docs/verification.md` has the result.

use std::path::Path;

use anyhow::{Context, Result};
use rumik::audio::{append_i16, wav_header};
use rumik::engine::Engine;
use rumik::engine::cpu::{CpuEngine, Options};
use rumik::format::Export;
use rumik::verify::Verdict;
use rumik::verify::audio::{Layout, OneShot, Pair, PairFacts, Rates, judge, pair, speak};
use rumik::verify::limits::Limits;
use rumik::verify::reference::ReferenceFile;

/// Added to every seed for the second take.
const OTHER_SEEDS: u64 = 100_000;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [reference, export, out @ ..] = &arguments[..] else {
        anyhow::bail!("expected a reference file and an export folder")
    };
    let file = ReferenceFile::open(Path::new(reference))?;
    let export = Export::open(Path::new(export))?;
    let codec = export.codec.as_ref().context("the export has no codec")?;
    let codec = OneShot::load(&codec.config, &codec.weights, export.config.num_quantizers)?;
    let mut engine = CpuEngine::new(export.clone(), Options::default())?;
    let layout = Layout::of(engine.info());

    let mut others = file.clone();
    others.items.iter_mut().for_each(|item| item.prompt.seed += OTHER_SEEDS);
    let pairs = all(&mut engine, &file, &codec)?;
    let again = all(&mut engine, &others, &codec)?;
    let facts: Vec<PairFacts> = pairs.iter().map(|pair| pair.facts(&layout)).collect();
    show("int4 against the original", &facts);
    let chance = pairs
        .iter()
        .zip(&again)
        .map(|(pair, again)| PairFacts { reference: pair.facts(&layout).engine, ..again.facts(&layout) });
    show("int4 against itself with other seeds", &chance.collect::<Vec<_>>());
    if let [out] = out {
        pairs.iter().try_for_each(|pair| keep(Path::new(out), pair, layout.sample_rate_hz))?;
    }
    Ok(())
}

fn all(engine: &mut dyn Engine, file: &ReferenceFile, codec: &OneShot) -> Result<Vec<Pair>> {
    let config = engine.info().config.clone();
    file.items.iter().map(|item| Ok(pair(speak(engine, file, item)?, item, &config, codec)?)).collect()
}

fn show(title: &str, facts: &[PairFacts]) {
    let ids: Vec<String> = facts.iter().map(|pair| pair.id.clone()).collect();
    let mut verdict = Verdict::default();
    judge(&mut verdict, &ids, facts, &Limits::default());
    println!("{title}\n{verdict}");
    println!("{:?}", Rates::of(facts.iter().map(|pair| &pair.reference)));
    println!("{:?}\n", Rates::of(facts.iter().map(|pair| &pair.engine)));
    for pair in facts {
        println!("{}\n  {:?}\n  {:?}", pair.id, pair.reference, pair.engine);
    }
}

fn keep(out: &Path, pair: &Pair, sample_rate_hz: usize) -> Result<()> {
    for (model, take) in [("original", &pair.reference), ("int4", &pair.engine)] {
        let mut data = Vec::new();
        append_i16(&take.pcm, &mut data);
        let mut wav = wav_header(sample_rate_hz as u32, data.len() as u32).to_vec();
        wav.append(&mut data);
        let folder = out.join(model);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(format!("{}.wav", pair.id)), wav)?;
    }
    Ok(())
}
