//! The two kinds of model behind one trait: the reference in candle and the int4 engine.

use std::panic::resume_unwind;
use std::thread;

use rumik::Result;
use rumik::engine::cpu::CpuEngine;
use rumik::engine::sampler::{Noise, choose};
use rumik::engine::{Engine, Observer, Request, Sampling, Scores};
use rumik::reference::{Reference, Rule};

use crate::{Line, Spoken};

/// As the checkpoint's own evaluation, `fixtures/demo/recipe/evaluate.py`, has it.
const MAX_NEW_TOKENS: usize = 1400;

/// What a model makes of the steps of a sequence.
#[derive(Default)]
pub struct Steps {
    /// Position of the first step; those before it belong to the prompt.
    from: usize,
    /// Scaled logits of the audio rows, one vector a step.
    pub logits: Vec<Vec<f32>>,
    /// P(stop) at every step.
    pub stop: Vec<f32>,
}

/// What is compared.
pub trait Model {
    /// Teacher forcing: the steps that made `new` after `prompt`.
    fn steps(&mut self, prompt: &[u32], new: &[u32]) -> Result<Steps>;

    /// Speaks every line: the new tokens of each. The noise of a draw depends on seed, line, step and row only, so models
    /// that are compared draw with the same noise.
    fn speak(&mut self, lines: &[Line], sampling: Sampling, seed: u64) -> Result<Spoken>;
}

impl Model for Reference {
    fn steps(&mut self, prompt: &[u32], new: &[u32]) -> Result<Steps> {
        let states = self.score(&[prompt, &new[..new.len() - 1]].concat())?;
        let from = prompt.len() - 1;
        let audio_ids = self.config().audio_ids();
        let audio_rows = |row: &[f32]| audio_ids.iter().map(|&id| row[id as usize]).collect();
        let logits = states.logits.chunks(self.config().vocab_size).skip(from).map(audio_rows).collect();
        Ok(Steps { from, logits, stop: states.stop_probability[from..].to_vec() })
    }

    /// Lines are independent: the first core takes the first of them, the second the second, and so on.
    fn speak(&mut self, lines: &[Line], sampling: Sampling, seed: u64) -> Result<Spoken> {
        let (model, cores) = (&*self, thread::available_parallelism().map_or(1, |cores| cores.get()));
        let mut spoken: Spoken = vec![Vec::new(); lines.len()];
        thread::scope(|scope| {
            let share = |core: usize| {
                let own = lines.iter().skip(core).step_by(cores);
                own.map(|line| speak_line(model, line, sampling, seed)).collect::<Result<Spoken>>()
            };
            let shares: Vec<_> = (0..cores).map(|core| scope.spawn(move || share(core))).collect();
            for (core, share) in shares.into_iter().enumerate() {
                let share = share.join().unwrap_or_else(|panic| resume_unwind(panic))?;
                spoken.iter_mut().skip(core).step_by(cores).zip(share).for_each(|(place, new)| *place = new);
            }
            Ok(spoken)
        })
    }
}

fn speak_line(model: &Reference, line: &Line, sampling: Sampling, seed: u64) -> Result<Vec<u32>> {
    let rule = Rule { max_new_tokens: MAX_NEW_TOKENS, ..Rule::default() };
    let noise = |step: usize| Noise { seed, sequence: line.id, step: step as u32 };
    let mut row = |step: usize, logits: &[f32]| choose(logits, sampling, noise(step)).unwrap_or(0); // never empty
    Ok(model.generate(&line.ids, rule, &mut row)?.ids)
}

impl Model for CpuEngine {
    fn steps(&mut self, prompt: &[u32], new: &[u32]) -> Result<Steps> {
        let mut steps = Steps { from: prompt.len() - 1, ..Steps::default() };
        self.score(0, &[prompt, &new[..new.len() - 1]].concat(), &mut steps)?;
        Ok(steps)
    }

    fn speak(&mut self, lines: &[Line], sampling: Sampling, seed: u64) -> Result<Spoken> {
        lines.iter().map(|line| drive(self, line, sampling, seed)).collect()
    }
}

/// Runs a line in slot 0 to its end.
fn drive(engine: &mut dyn Engine, line: &Line, sampling: Sampling, seed: u64) -> Result<Vec<u32>> {
    let (prompt, sequence) = (&line.ids[..], line.id);
    engine.start(0, &Request { prompt, sampling, max_new_tokens: MAX_NEW_TOKENS, seed, sequence })?;
    let (mut tokens, mut ended) = (Vec::new(), false);
    while !ended {
        engine.step(&mut |step| {
            tokens.extend(step.tokens);
            ended = step.end.is_some();
        })?;
    }
    engine.reset(0);
    Ok(tokens)
}

impl Observer for Steps {
    fn position(&mut self, scores: Scores<'_>) {
        if scores.position >= self.from {
            self.logits.push(scores.logits.to_vec());
            self.stop.push(scores.stop_probability);
        }
    }
}
