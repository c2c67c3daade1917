//! What is measured, and how it is printed.

use anyhow::{Result, ensure};
use rumik::config::{MIN_NEW_TOKENS, ModelConfig, STOP_THRESHOLD};
use rumik::engine::frames::Frames;
use rumik::format::{Encoding, Report};
use rumik::verify::{Divergence, DivergenceSummary, edit_distance};
use serde::Serialize;

use crate::models::Steps;

/// Relative errors `‖W − Wq‖ / ‖W‖` of the export.
#[derive(Serialize)]
pub struct Weights {
    int4_matrices: usize,
    int4_mean: f64,
    int4_worst: (String, f64),
    /// Mean over the layers, by projection.
    int4_by_projection: Vec<(String, f64)>,
    int8_embedding: f64,
}

impl Weights {
    pub fn of(report: &Report) -> Weights {
        let errors = |encoding| report.matrices.iter().filter(move |m| m.encoding == encoding);
        let mut by_projection: Vec<(String, Vec<f64>)> = Vec::new();
        for matrix in errors(Encoding::Int4) {
            let projection = matrix.name.rsplit('.').nth(1).unwrap_or(&matrix.name);
            let known = by_projection.iter().position(|(name, _)| name == projection).unwrap_or_else(|| {
                by_projection.push((projection.to_owned(), Vec::new()));
                by_projection.len() - 1
            });
            by_projection[known].1.push(matrix.error.relative_error);
        }
        let mean = |errors: Vec<f64>| errors.iter().sum::<f64>() / errors.len() as f64;
        let worst = errors(Encoding::Int4).find(|m| m.name == report.worst_matrix);
        Weights {
            int4_matrices: errors(Encoding::Int4).count(),
            int4_mean: report.mean_relative_error,
            int4_worst: (report.worst_matrix.clone(), worst.map_or(f64::NAN, |m| m.error.relative_error)),
            int4_by_projection: by_projection.into_iter().map(|(name, errors)| (name, mean(errors))).collect(),
            int8_embedding: errors(Encoding::Int8).next().map_or(f64::NAN, |m| m.error.relative_error),
        }
    }

    pub fn print(&self) {
        println!("relative errors of the weights");
        println!("  int4, mean of {} matrices: {:.2} %", self.int4_matrices, 100.0 * self.int4_mean);
        println!("  worst: {} {:.2} %", self.int4_worst.0, 100.0 * self.int4_worst.1);
        for (projection, error) in &self.int4_by_projection {
            println!("  {projection}: {:.2} %", 100.0 * error);
        }
        println!("  int8 embedding: {:.2} %\n", 100.0 * self.int8_embedding);
    }
}

/// A candidate against a reference, step by step along the reference's greedy speech.
#[derive(Serialize)]
pub struct Distributions {
    reference: &'static str,
    candidate: &'static str,
    overall: DivergenceSummary,
    by_codebook: Vec<DivergenceSummary>,
    by_group: Vec<Group>,
    stop: StopDifference,
}

/// A group of prompts.
#[derive(Serialize)]
struct Group {
    group: String,
    all_codebooks: DivergenceSummary,
    first_codebook: DivergenceSummary,
}

/// Differences of P(stop) at the steps where it is looked at.
#[derive(Default, Serialize)]
struct StopDifference {
    steps: usize,
    mean: f64,
    largest: f64,
    /// Steps at which one of the two would stop and the other not.
    decisions_changed: usize,
    /// Sequences with such a step.
    sequences_changed: usize,
}

/// Collects [`Distributions`].
#[derive(Default)]
pub struct Collected {
    positions: Vec<Position>,
    /// Its mean is a sum until the end.
    stop: StopDifference,
}

/// A compared step.
struct Position {
    group: String,
    codebook: usize,
    divergence: Divergence,
}

impl Collected {
    /// Adds the steps that made `new`.
    pub fn add(
        &mut self,
        config: &ModelConfig,
        group: &str,
        new: &[u32],
        reference: &Steps,
        candidate: &Steps,
    ) -> Result<()> {
        ensure!(reference.logits.len() == new.len() && candidate.logits.len() == new.len(), "a step was not scored");
        let quantizers = config.num_quantizers;
        for (step, (a, b)) in reference.logits.iter().zip(&candidate.logits).enumerate() {
            let codebook = match step {
                0 => 0,
                _ => ((new[step - 1] - config.first_unit_id) as usize + 1) % quantizers, // the one in turn
            };
            // `</audio>`, the last row, is masked at first
            let allowed = if step < MIN_NEW_TOKENS { a.len() - 1 } else { a.len() };
            let divergence = Divergence::between(&a[..allowed], &b[..allowed]);
            self.positions.push(Position { group: group.to_owned(), codebook, divergence });
        }
        self.stop.add(&reference.stop, &candidate.stop);
        Ok(())
    }

    pub fn finish(mut self, reference: &'static str, candidate: &'static str, quantizers: usize) -> Distributions {
        self.stop.mean /= self.stop.steps as f64;
        let of = |chosen: &dyn Fn(&Position) -> bool| -> DivergenceSummary {
            self.positions.iter().filter(|p| chosen(p)).map(|p| p.divergence).collect()
        };
        let mut groups: Vec<&str> = self.positions.iter().map(|p| p.group.as_str()).collect();
        groups.dedup();
        let group = |group: &&str| Group {
            group: (*group).to_owned(),
            all_codebooks: of(&|p| p.group == *group),
            first_codebook: of(&|p| p.group == *group && p.codebook == 0),
        };
        Distributions {
            reference,
            candidate,
            overall: of(&|_| true),
            by_codebook: (0..quantizers).map(|codebook| of(&|p| p.codebook == codebook)).collect(),
            by_group: groups.iter().map(group).collect(),
            stop: self.stop,
        }
    }
}

impl StopDifference {
    fn add(&mut self, reference: &[f32], candidate: &[f32]) {
        let before = self.decisions_changed;
        for (a, b) in reference.iter().zip(candidate).skip(MIN_NEW_TOKENS) {
            let difference = (f64::from(*a) - f64::from(*b)).abs();
            self.steps += 1;
            self.mean += difference;
            self.largest = self.largest.max(difference);
            self.decisions_changed += usize::from((*a > STOP_THRESHOLD) != (*b > STOP_THRESHOLD));
        }
        self.sequences_changed += usize::from(self.decisions_changed > before);
    }
}

impl Distributions {
    pub fn print(&self) {
        println!("{} against {}, along the greedy speech of {}", self.candidate, self.reference, self.reference);
        println!("  {:26}{:>9}{:>9}{:>9}{:>8}{:>9}", "", "steps", "mean KL", "p99 KL", "top-1", "entropy");
        let row = |name: &str, s: &DivergenceSummary| {
            let (top1, entropy) = (100.0 * s.top1, s.mean_entropy);
            println!("  {name:26}{:>9}{:>9.4}{:>9.4}{top1:>7.1}%{entropy:>9.3}", s.positions, s.mean_kl, s.p99_kl);
        };
        row("all", &self.overall);
        for (codebook, summary) in self.by_codebook.iter().enumerate() {
            row(&format!("codebook {codebook}"), summary);
        }
        for group in &self.by_group {
            row(&group.group, &group.all_codebooks);
            row(&format!("{}, codebook 0", group.group), &group.first_codebook);
        }
        let stop = &self.stop;
        println!("  P(stop): mean difference {:.2e}, largest {:.3}", stop.mean, stop.largest);
        let (steps, sequences) = (stop.decisions_changed, stop.sequences_changed);
        println!("  stop decisions changed: {steps} of {} steps, in {sequences} sequences\n", stop.steps);
    }
}

/// What was spoken in one way.
#[derive(Serialize)]
pub struct SpeechFacts {
    /// Model and decoding; the name of the folder of WAV files.
    pub set: String,
    lines: usize,
    /// Lines that ended by themselves, not by the cap on tokens.
    ended: usize,
    tokens: usize,
    frames: usize,
    /// Tokens that are in no frame and do not end the speech.
    tokens_lost: usize,
    /// Changes of the first codebook's codes to make them those of bf16, greedy, over the number of those.
    first_codebook_edits: f64,
}

impl SpeechFacts {
    pub fn of(config: &ModelConfig, set: &str, spoken: &[Vec<u32>], expected: &[Vec<u32>]) -> SpeechFacts {
        let quantizers = config.num_quantizers;
        let count = |value: &dyn Fn(&Vec<u32>) -> usize| spoken.iter().map(value).sum::<usize>();
        let first = |new: &Vec<u32>| codes(config, new).into_iter().step_by(quantizers).collect::<Vec<u32>>();
        let ended = count(&|new| usize::from(new.last() == Some(&config.audio_end_token_id)));
        let frames = count(&|new| codes(config, new).len() / quantizers);
        let tokens = count(&Vec::len);
        let edits: usize = spoken.iter().zip(expected).map(|(a, b)| edit_distance(&first(a), &first(b))).sum();
        let wanted: usize = expected.iter().map(|new| first(new).len()).sum();
        SpeechFacts {
            set: set.to_owned(),
            lines: spoken.len(),
            ended,
            tokens,
            frames,
            tokens_lost: tokens - ended - frames * quantizers,
            first_codebook_edits: edits as f64 / wanted as f64,
        }
    }
}

/// Codes of the complete frames, `[frames, num_quantizers]`.
pub fn codes(config: &ModelConfig, new: &[u32]) -> Vec<u32> {
    let (mut frames, mut codes) = (Frames::new(config), Vec::new());
    new.iter().for_each(|&id| frames.push(id, &mut codes));
    codes
}

pub fn print_speech(facts: &[SpeechFacts]) {
    println!(
        "speech{:26}{:>7}{:>7}{:>8}{:>8}{:>6}{:>16}",
        "", "lines", "ended", "tokens", "frames", "lost", "codebook 0"
    );
    for f in facts {
        let edits = 100.0 * f.first_codebook_edits;
        let counts = format!("{:>7}{:>7}{:>8}{:>8}{:>6}", f.lines, f.ended, f.tokens, f.frames, f.tokens_lost);
        println!("  {:30}{counts}{edits:>8.1}% edited", f.set);
    }
}
