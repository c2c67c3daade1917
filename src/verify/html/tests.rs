//! The page is whole, fetches nothing, holds every figure, and nothing in a record can break out of its place.

use super::*;
use crate::engine::Backend;
use crate::format::{FileDigest, SourceReport};
use crate::tensors::write::Digested;
use crate::verify::asr::ErrorRates;
use crate::verify::audio::{Rates, TakeFacts};
use crate::verify::limits::Limits;
use crate::verify::listen::SpeechFigures;
use crate::verify::record::*;
use crate::verify::{Limit, Verdict};

const RATE_HZ: usize = 24_000;

fn figures(kl: f64) -> Figures {
    Figures { steps: 400, mean_kl: kl, p99_kl: 4.0 * kl, entropy: 6.0 * kl, top1: 1.0 - kl, ..Figures::default() }
}

fn prompt(number: usize) -> PromptFigures {
    let text = format!("Prompt number {number}, <b>नमस्ते</b> & \"more\".");
    PromptFigures { id: format!("en-{number:02}"), group: "english".into(), text, all: figures(0.02 * number as f64) }
}

/// A record as a run would make it, with a failed comparison if wanted.
fn record(failing: bool) -> Record {
    let mut verdict = Verdict::default();
    let limits = Limits::default();
    for (name, measured) in
        [("engine.mean_kl", 1e-6), ("engine.top1", 0.999), ("audio.level_db", 1.5), ("audio.loop_frames", 3.0)]
    {
        verdict.measure(name, limits.of(name), measured, || "en-02".into());
    }
    let runaway = if failing { f64::NAN } else { 0.0 };
    verdict.measure("audio.runaway_rise", Limit::AtMost(0.02), runaway, || "<script>alert(1)</script>".into());
    let matrix = |i: usize| MatrixFigure {
        name: format!("model.layers.{}.{}.weight", i / 2, ["self_attn.q_proj", "mlp.down_proj"][i % 2]),
        relative_error: 0.1 + 0.001 * i as f64,
    };
    let group = |name: &str| GroupFigures { name: name.into(), all: figures(0.2), first_codebook: figures(0.03) };
    let content = Digested { bytes: 5, sha256: "ab".repeat(32) };
    let file = FileDigest { name: "model.safetensors".into(), content };
    let layer = |i: usize| LayerFigure { relative_error: 1e-4 * (i + 1) as f64, worst: 3e-4 * (i + 1) as f64 };
    Record {
        verdict: if failing { Outcome::Fail } else { Outcome::Pass },
        mode: Mode::Full,
        limits: LimitKind::Default,
        export: ExportFacts { files: vec![file.clone()], matrices: (0..16).map(matrix).collect() },
        engine: EngineFacts {
            version: "0.1.0".into(),
            sources: "cd".repeat(32),
            backend: Backend::Cpu,
            description: "cpu (avx512-vnni, 2 threads)".into(),
            device: "Some <Processor>".into(),
            driver: None,
        },
        reference: ReferenceFacts {
            source: SourceReport { name: "demo".into(), revision: None, files: vec![file] },
            prompts: "demo".into(),
            sha256: "ef".repeat(32),
            sampling: SamplingFacts { temperature: 0.8, top_k: 30 },
            kl_error: 1e-5,
        },
        comparisons: verdict.comparisons,
        kernels: Vec::new(),
        parity: Parity {
            sequences: 3,
            positions: 300,
            mean_kl: 1e-6,
            worst_kl: 1e-5,
            top1: 1.0,
            layers: (0..8).map(layer).collect(),
        },
        quality: Quality {
            overall: figures(0.205),
            codebooks: (0..8).map(|q| figures(0.03 + 0.05 * q as f64)).collect(),
            groups: ["english", "hindi", "mixed"].map(group).to_vec(),
            prompts: (1..=9).map(prompt).collect(),
        },
        speech: Some(speech()),
        digest: "01".repeat(32),
    }
}

/// Rates of both models, and of a recogniser.
fn speech() -> SpeechFigures {
    let rates = Rates::of(std::iter::empty::<&TakeFacts>());
    let errors = vec![ErrorRates {
        language: "english".into(),
        prompts: 30,
        judged: true,
        reference_characters: 0.111,
        engine_characters: 0.104,
        reference_words: 0.2,
        engine_words: 0.21,
        rise_low: -0.031,
        rise_high: 0.015,
    }];
    SpeechFigures { reference: rates, engine: rates, errors }
}

/// A second and a half of a sweep.
fn sweep(from_hz: f32) -> Vec<f32> {
    let sample = |i: usize| {
        let t = i as f32 / RATE_HZ as f32;
        0.4 * (std::f32::consts::TAU * (from_hz * t + 900.0 * t * t)).sin()
    };
    (0..3 * RATE_HZ / 2).map(sample).collect()
}

fn page_of(record: &Record) -> String {
    let (a, b) = (sweep(200.0), sweep(500.0));
    let ids = ["en-05", "en-08", "en-01", "en-09", "en-07"];
    let takes: Vec<Heard> =
        ids.iter().map(|id| Heard { id, reference: &a, engine: &b, sample_rate_hz: RATE_HZ }).collect();
    let speeds = [Speed { what: "engine, speaking".into(), speech_s: 80.0, wall_s: 40.0 }];
    page(&Report { record, takes: &takes, speeds: &speeds })
}

#[test]
fn the_page_is_whole_and_fetches_nothing() {
    let page = page_of(&record(false));
    for place in ["src=\"http", "href=", "url(", "@import", "//cdn"] {
        assert!(!page.contains(place), "{place}");
    }
    for tag in ["section", "details", "article", "table", "svg", "figure", "header", "main", "div", "g", "text", "td"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(page.contains("<h1>Pass</h1>") && page.contains("5 of 5 comparisons hold"));
    assert!(page.contains("2.00 × real time") && page.contains("10.4 %"));
}

#[test]
fn the_four_worst_prompts_can_be_heard_worst_first() {
    let page = page_of(&record(false));
    assert_eq!(page.matches("<audio").count(), 2 * SHOWN_PROMPTS);
    let order: Vec<usize> = ["en-09,", "en-08,", "en-07,", "en-05,"].iter().map(|id| page.find(id).unwrap()).collect();
    assert!(order.is_sorted() && !page.contains("<p class=\"about\">en-01,"));
}

#[test]
fn sound_is_a_wave_file_of_what_was_spoken_and_bounded() {
    use base64::Engine;
    let pcm = sweep(300.0);
    let address = sound::wav(&pcm, RATE_HZ, pcm.len());
    let file =
        base64::engine::general_purpose::STANDARD.decode(address.strip_prefix("data:audio/wav;base64,").unwrap());
    let file = file.unwrap();
    let mut reader = hound::WavReader::new(&file[..]).unwrap();
    assert_eq!((reader.spec().sample_rate, reader.duration() as usize), (24_000, pcm.len()));
    let found: Vec<f32> = reader.samples::<i16>().map(|sample| f32::from(sample.unwrap()) / 32767.0).collect();
    assert!(found.iter().zip(&pcm).all(|(a, b)| (a - b).abs() < 1e-4));

    let hour = vec![0.1; 3600 * RATE_HZ / 10];
    let takes = [Heard { id: "en-09", reference: &hour, engine: &hour, sample_rate_hz: RATE_HZ }];
    let record = record(false);
    let page = page(&Report { record: &record, takes: &takes, speeds: &[] });
    assert!(page.len() < LARGEST_SOUND_BYTES && page.contains("10.9 of 360.0 s"), "{}", page.len());
}

#[test]
fn a_failed_run_says_so_where_it_failed() {
    let page = page_of(&record(true));
    assert!(page.contains("<h1>Fail</h1>") && page.contains("4 of 5 comparisons hold"));
    assert!(
        page.contains("<details class=\"fail\" open>") && page.contains("1 of 3 fail") && page.contains("<td>NaN</td>")
    );
}

#[test]
fn nothing_in_a_record_becomes_markup() {
    let page = page_of(&record(true));
    assert!(!page.contains("<script>alert") && !page.contains("<b>नमस्ते") && !page.contains("<Processor>"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert_eq!(escape("<a b='c'>&\""), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;");
}

#[test]
fn an_export_without_figures_still_has_a_page() {
    let mut bare = record(true);
    bare.export.matrices.clear();
    bare.quality = Quality::default();
    bare.parity = Parity::default();
    bare.comparisons.clear();
    let page = page(&Report { record: &bare, takes: &[], speeds: &[] });
    assert!(page.contains("no report of its matrices") && page.contains("No speech was kept"));
}

#[test]
fn a_tone_is_a_line_in_its_spectrogram() {
    use base64::Engine;
    let tone: Vec<f32> = (0..RATE_HZ).map(|i| 0.5 * (std::f32::consts::TAU * 1000.0 * i as f32 / 24e3).sin()).collect();
    let picture = sound::spectrogram(&tone, RATE_HZ, RATE_HZ).unwrap();
    assert_eq!((picture.columns, picture.bands), (50, 64));
    let levels = base64::engine::general_purpose::STANDARD.decode(picture.levels).unwrap();
    let column = &levels[25 * 64..26 * 64];
    let loudest = (0..64).max_by_key(|&band| column[band]).unwrap();
    assert!((18..26).contains(&loudest) && column[loudest] > 200 && column[60] < 60, "{loudest} {column:?}");
    assert!(sound::spectrogram(&[], RATE_HZ, 10).is_none());
}
