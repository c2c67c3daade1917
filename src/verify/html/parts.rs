//! The sections of the page.

use super::charts::{Bar, bars, curves, figure, percent};
use super::sound::{column_seconds, outline, spectrogram, wav};
use super::{Heard, LARGEST_SOUND_BYTES, SHOWN_PROMPTS, Speed, escape};
use crate::verify::asr::ErrorRates;
use crate::verify::audio::Rates;
use crate::verify::listen::SpeechFigures;
use crate::verify::record::{Figures, Mode, Outcome, Parity, PromptFigures, Quality, Record};
use crate::verify::{Comparison, Limit};

/// A section with a heading and a line of explanation.
pub(super) fn section(id: &str, heading: &str, about: &str, body: &str) -> String {
    format!("<section id=\"{id}\"><h2>{heading}</h2><p class=\"about\">{about}</p>{body}</section>")
}

/// A table whose first column is text and whose others are figures.
fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |tag: &str, row: &[String]| row.iter().map(|cell| format!("<{tag}>{cell}</{tag}>")).collect::<String>();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let body: String = rows.iter().map(|row| format!("<tr>{}</tr>", cells("td", row))).collect();
    format!(
        "<div class=\"scroll\"><table><thead><tr>{}</tr></thead><tbody>{body}</tbody></table></div>",
        cells("th", &head)
    )
}

/// `Pass` or `Fail`.
pub(super) fn verdict_word(record: &Record) -> &'static str {
    match record.verdict {
        Outcome::Pass => "Pass",
        Outcome::Fail => "Fail",
    }
}

/// The comparisons of the run and those of its kernels.
fn every(record: &Record) -> impl Iterator<Item = &Comparison> {
    record.comparisons.iter().chain(&record.kernels)
}

/// The verdict and what it is about.
pub(super) fn header(record: &Record) -> String {
    let all = every(record).count();
    let held = every(record).filter(|c| c.passed).count();
    let (class, says) = match record.verdict {
        Outcome::Pass => ("pass", "This export speaks like the original."),
        Outcome::Fail => ("fail", "This export must not be released as it is."),
    };
    let mode = if record.mode == Mode::Quick { "quick run" } else { "full run" };
    let limits =
        if record.limits == crate::verify::record::LimitKind::Custom { "limits set by hand" } else { "default limits" };
    let chips = [
        &record.engine.description,
        &record.engine.device,
        mode,
        limits,
        &format!("prompts: {}", record.reference.prompts),
    ];
    let chips: String = chips.iter().map(|chip| format!("<li>{}</li>", escape(chip))).collect();
    format!(
        "<header class=\"{class}\"><p class=\"kicker\">rumik-verify {}</p><h1>{}</h1><p class=\"says\">{says} \
         {held} of {all} comparisons hold.</p><ul class=\"chips\">{chips}</ul></header>",
        escape(&record.engine.version),
        verdict_word(record),
    )
}

/// The few numbers that say most.
pub(super) fn figures(record: &Record) -> String {
    let mut tiles = vec![
        (
            "Engine against the same weights in candle",
            figure(record.parity.mean_kl),
            "mean KL in nats: is the engine right?".to_owned(),
        ),
        (
            "First codebook against the original",
            percent(record.quality.codebooks.first().map_or(f64::NAN, |f| f.top1)),
            "same best code; this codebook carries the words".to_owned(),
        ),
        (
            "All codebooks against the original",
            figure(record.quality.overall.mean_kl),
            format!(
                "mean KL in nats, where the original itself leaves {} open",
                figure(record.quality.overall.entropy)
            ),
        ),
    ];
    if let Some(SpeechFigures { reference, engine, .. }) = &record.speech {
        let original = format!("of the prompts ran to the cap; original {}", percent(reference.runaway));
        tiles.push(("Runaway speech", percent(engine.runaway), original));
    }
    let errors = record.speech.iter().flat_map(|speech| &speech.errors);
    for rates in errors.filter(|rates| rates.judged) {
        let original =
            format!("characters misheard in {}; original {}", rates.language, percent(rates.reference_characters));
        tiles.push(("Error rate of a recogniser", percent(rates.engine_characters), original));
    }
    let tile = |(label, value, note): (&str, String, String)| {
        format!(
            "<div class=\"tile\"><p>{label}</p><strong>{}</strong><small>{}</small></div>",
            escape(&value),
            escape(&note)
        )
    };
    format!("<section class=\"tiles\">{}</section>", tiles.into_iter().map(tile).collect::<String>())
}

/// Every comparison, by the part of the gate that made it.
pub(super) fn comparisons(record: &Record) -> String {
    let part = |c: &Comparison| c.name.split('.').next().unwrap_or_default().to_owned();
    let mut parts: Vec<String> = Vec::new();
    for comparison in every(record) {
        if !parts.contains(&part(comparison)) {
            parts.push(part(comparison));
        }
    }
    let group = |name: &String| {
        let own: Vec<&Comparison> = every(record).filter(|c| part(c) == *name).collect();
        let failed = own.iter().filter(|c| !c.passed).count();
        let (class, says) = match failed {
            0 => ("pass", format!("all {} hold", own.len())),
            failed => ("fail", format!("{failed} of {} fail", own.len())),
        };
        let rows: String = own.iter().map(|c| comparison_row(c)).collect();
        let open = if failed > 0 { " open" } else { "" };
        format!(
            "<details class=\"{class}\"{open}><summary><b>{}</b> <small>{}</small> <span>{says}</span></summary>\
             <div class=\"scroll\"><table class=\"limits\">\
             <thead><tr><th>comparison</th><th>measured</th><th>limit</th><th>used</th><th>worst at</th></tr></thead><tbody>{rows}</tbody></table></div></details>",
            escape(name),
            meaning(name)
        )
    };
    let body: String = parts.iter().map(group).collect();
    section("comparisons", "Every comparison", "Measured values and what they are held to.", &body)
}

/// What a part of the gate asks.
fn meaning(part: &str) -> &'static str {
    match part {
        "files" => "are the files those of the report",
        "weights" => "every weight against the original's",
        "kernels" => "known answers, all together",
        "engine" => "is the engine right: against candle on the same weights",
        "quality" => "is int4 good enough: against the original in bf16",
        "reference" => "what the reference file could hide",
        "audio" => "the speech itself",
        "asr" => "what a recogniser understands",
        _ => "known answers of every kernel",
    }
}

fn comparison_row(c: &Comparison) -> String {
    let short = c.name.split_once('.').map_or(c.name.as_str(), |(_, rest)| rest).replace('_', " ");
    let used = match c.limit {
        Limit::AtMost(limit) if limit > 0.0 => c.measured / limit,
        Limit::AtLeast(limit) if c.measured > 0.0 => limit / c.measured,
        _ => f64::from(u8::from(!c.passed)),
    };
    let width = if used.is_finite() { (100.0 * used).clamp(0.0, 100.0) } else { 100.0 };
    format!(
        "<tr class=\"{}\"><td>{}</td><td>{}</td><td>{}</td><td><i class=\"meter\"><i style=\"width:{width:.0}%\"></i></i></td><td class=\"note\">{}</td></tr>",
        if c.passed { "pass" } else { "fail" },
        escape(&short),
        figure(c.measured),
        escape(&c.limit.to_string()),
        if c.measured == 0.0 { String::new() } else { escape(&c.note) }, // nothing was bad anywhere
    )
}

/// Question 2 by codebook and by group of prompts.
pub(super) fn distributions(quality: &Quality) -> String {
    let bar = |(q, f): (usize, &Figures), value: f64| Bar {
        label: q.to_string(),
        value,
        title: format!(
            "codebook {q}: mean KL {}, 99 % below {}, entropy {}, top-1 {}",
            figure(f.mean_kl),
            figure(f.p99_kl),
            figure(f.entropy),
            percent(f.top1)
        ),
    };
    let chart = |value: fn(&Figures) -> f64, what: &str| {
        let all: Vec<Bar> = quality.codebooks.iter().enumerate().map(|(q, f)| bar((q, f), value(f))).collect();
        format!("<figure><figcaption>{what}</figcaption>{}</figure>", bars(&all, what))
    };
    let rows: Vec<Vec<String>> = quality
        .groups
        .iter()
        .map(|group| {
            let (all, first) = (&group.all, &group.first_codebook);
            let kl = [figure(first.mean_kl), percent(first.top1), figure(all.mean_kl), percent(all.top1)];
            [escape(&group.name), all.steps.to_string()].into_iter().chain(kl).collect()
        })
        .collect();
    let head = ["group", "steps", "KL, first codebook", "top-1, first", "KL, all", "top-1, all"];
    let charts = chart(|f| f.mean_kl, "mean KL in nats, by codebook")
        + &chart(|f| 100.0 * f.top1, "same best code in %, by codebook");
    let body = format!("<div class=\"pair\">{charts}</div>{}", table(&head, &rows));
    let about = "The engine's distributions against the bf16 original's, step by step along the original's own speech. The first codebook \
                 carries the words; the late ones are nearly noise to the original too, so they may differ more.";
    section("distributions", "How far from the original", about, &body)
}

/// Question 1 by layer.
pub(super) fn layers(parity: &Parity) -> String {
    let main: Vec<f64> = parity.layers.iter().map(|layer| layer.relative_error).collect();
    let worst: Vec<f64> = parity.layers.iter().map(|layer| layer.worst).collect();
    let what = "relative error of the residual stream after each layer; lighter: the worst position";
    let body = format!("<figure><figcaption>{what}</figcaption>{}</figure>", curves(&main, &worst, "layer", what));
    let about = format!(
        "The engine against candle on the very same int4 weights, over {} positions of {} sequences. What is left is rounding.",
        parity.positions, parity.sequences
    );
    section("layers", "Is the engine right", &about, &body)
}

/// The prompts that differ most, to listen to.
pub(super) fn prompts(quality: &Quality, takes: &[Heard]) -> String {
    let mut worst: Vec<(&PromptFigures, &Heard)> = quality
        .prompts
        .iter()
        .filter_map(|prompt| takes.iter().find(|take| take.id == prompt.id).map(|take| (prompt, take)))
        .collect();
    worst.sort_by(|a, b| b.0.all.mean_kl.total_cmp(&a.0.all.mean_kl));
    worst.truncate(SHOWN_PROMPTS);
    // Two takes a prompt, two bytes a sample.
    let most = LARGEST_SOUND_BYTES / (2 * 2 * SHOWN_PROMPTS);
    let card = |(prompt, take): &(&PromptFigures, &Heard)| {
        let longest = take.reference.len().max(take.engine.len()).min(most);
        let samples = take.reference.iter().chain(take.engine);
        let loudest = samples.fold(0f32, |most, sample| most.max(sample.abs()));
        let scale = Scale { sample_rate_hz: take.sample_rate_hz, most, longest, loudest };
        let player = |who: &str, pcm: &[f32]| player(who, pcm, &scale);
        format!(
            "<article><h3>{}</h3><p class=\"about\">{}, {} · mean KL {}, top-1 {}</p>{}{}</article>",
            escape(&prompt.text),
            escape(&prompt.id),
            escape(&prompt.group),
            figure(prompt.all.mean_kl),
            percent(prompt.all.top1),
            player("original", take.reference),
            player("int4", take.engine),
        )
    };
    let body: String = worst.iter().map(card).collect();
    let about = match worst.is_empty() {
        true => "No speech was kept for this page.",
        false => {
            "The prompts whose distributions differ most. Both models draw with the same noise, so they part where they disagree."
        }
    };
    section("prompts", "Listen to the worst", about, &format!("<div class=\"cards\">{body}</div>"))
}

/// What two takes share, so that their pictures can be compared.
struct Scale {
    sample_rate_hz: usize,
    /// Samples that a page has room for.
    most: usize,
    /// Samples that are as wide as the page allows.
    longest: usize,
    /// The largest sample.
    loudest: f32,
}

/// A take with its outline and spectrogram.
fn player(who: &str, pcm: &[f32], scale: &Scale) -> String {
    let Scale { sample_rate_hz, most, longest, loudest } = *scale;
    let seconds = |samples: usize| samples as f64 / sample_rate_hz as f64;
    let shown = pcm.len().min(most);
    let cut = if pcm.len() > most { format!(" of {:.1}", seconds(pcm.len())) } else { String::new() };
    let picture = spectrogram(pcm, sample_rate_hz, most).map_or(String::new(), |s| {
        format!(
            "<canvas width=\"{}\" data-bands=\"{}\" style=\"width:{:.1}%\" data-levels=\"{}\" data-outline=\"{}\" \
             data-seconds=\"{:.3}\" aria-hidden=\"true\"></canvas><i class=\"head\"></i>",
            s.columns,
            s.bands,
            100.0 * shown as f64 / longest as f64,
            s.levels,
            outline(&pcm[..shown], s.columns, sample_rate_hz, loudest),
            s.columns as f64 * column_seconds()
        )
    });
    format!(
        "<div class=\"take\"><div class=\"bar\"><b>{who}</b><span>{:.1}{cut} s</span>\
         <audio controls preload=\"metadata\" src=\"{}\"></audio></div><div class=\"picture\">{picture}</div></div>",
        seconds(shown),
        wav(pcm, sample_rate_hz, most)
    )
}

/// Rates of the speech over the set, and of what a recogniser made of it.
pub(super) fn speech(speech: Option<&SpeechFigures>) -> String {
    let mut body = String::new();
    let asr = speech.map_or(&[][..], |speech| &speech.errors);
    if let Some(SpeechFigures { reference, engine, .. }) = speech {
        let row = |name: &str, r: &Rates| {
            let shares = [percent(r.runaway), percent(r.lost_tokens), percent(r.derailed), percent(r.silence)];
            [name.to_owned(), r.takes.to_string(), format!("{:.1}", r.seconds)].into_iter().chain(shares).collect()
        };
        body += &table(
            &["model", "prompts", "seconds", "ran to the cap", "tokens lost", "derailed", "silence"],
            &[row("original", reference), row("int4", engine)],
        );
    }
    let rates = |r: &ErrorRates| {
        let note = if r.judged { "" } else { " (not followed, not judged)" };
        vec![
            format!("{}{note}", escape(&r.language)),
            r.prompts.to_string(),
            percent(r.reference_characters),
            percent(r.engine_characters),
            format!("{:+.1} to {:+.1}", 100.0 * r.rise_low, 100.0 * r.rise_high),
            percent(r.reference_words),
            percent(r.engine_words),
        ]
    };
    if !asr.is_empty() {
        let rows: Vec<Vec<String>> = asr.iter().map(rates).collect();
        let head =
            ["language", "prompts", "CER original", "CER int4", "rise, 95 % interval", "WER original", "WER int4"];
        body += &table(&head, &rows);
    }
    let about =
        if body.is_empty() { "No speech was made in this run." } else { "Over all prompts, from the same seeds." };
    section("speech", "The speech itself", about, &body)
}

/// How fast things went.
pub(super) fn speeds(speeds: &[Speed]) -> String {
    if speeds.is_empty() {
        return String::new();
    }
    let row = |speed: &Speed| {
        let rate = if speed.speech_s > 0.0 {
            format!("{:.2} × real time", speed.speech_s / speed.wall_s)
        } else {
            String::new()
        };
        vec![escape(&speed.what), format!("{:.1} s", speed.wall_s), rate]
    };
    let rows: Vec<Vec<String>> = speeds.iter().map(row).collect();
    section(
        "speed",
        "Speed",
        "Where the time of this run went, on its machine, whatever else that did.",
        &table(&["work", "took", "speech"], &rows),
    )
}

/// Who was judged against whom, to the byte.
pub(super) fn facts(record: &Record) -> String {
    let mut rows: Vec<Vec<String>> = record
        .export
        .files
        .iter()
        .map(|file| vec![escape(&file.name), format!("{} bytes", file.content.bytes), hash(&file.content.sha256)])
        .collect();
    rows.push(vec!["engine and kernel sources".into(), String::new(), hash(&record.engine.sources)]);
    rows.push(vec!["reference".into(), escape(&record.reference.source.name), hash(&record.reference.sha256)]);
    rows.push(vec!["this record".into(), String::new(), hash(&record.digest)]);
    let driver = record.engine.driver.as_deref().map_or(String::new(), |driver| format!(", driver {}", escape(driver)));
    let about = format!(
        "Engine {} on {}{driver}. Sampling: temperature {}, top-k {}. The same files, seeds and device give the same figures.",
        escape(&record.engine.description),
        escape(&record.engine.device),
        figure(record.reference.sampling.temperature),
        record.reference.sampling.top_k,
    );
    section("facts", "What was verified", &about, &table(&["what", "", "SHA-256"], &rows))
}

fn hash(sha256: &str) -> String {
    format!("<code>{}</code>", escape(sha256))
}
