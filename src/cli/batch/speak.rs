//! All slots of the engine kept busy: whenever a line ends, the next takes its place at the same frame.

use super::folder::{Facts, Folder, Spoken};
use super::line::{Batch, Job};
use crate::cli::model::Model;
use crate::cli::output::AudioOutput;
use crate::engine::{End, Engine};
use crate::error::{Error, Result};
use crate::pipeline::Plan;

/// Told of every line as it ends: its file, or why it could not be spoken.
pub(super) type Report<'a> = dyn FnMut(&Job, std::result::Result<&Facts, String>) + 'a;

/// What speaks, what is spoken, and where it goes.
pub(super) struct Studio<'a> {
    pub(super) model: &'a mut Model,
    pub(super) batch: &'a Batch,
    pub(super) folder: &'a mut Folder,
}

/// A line that is being spoken.
struct Talk<'j> {
    job: &'j Job,
    plan: Plan,
    output: AudioOutput,
    samples: usize,
    /// Tokens of the pieces that are finished.
    tokens: usize,
    /// Tokens of the piece that is being spoken.
    piece_tokens: usize,
    truncated: bool,
    ended: bool,
}

impl Studio<'_> {
    /// Speaks jobs in order. A mistake of a line ends that line alone. How many slots the engine has decides how fast it goes
    /// and nothing else.
    ///
    /// # Errors
    /// Whatever would fail for every line: the device, the disk.
    pub(super) fn speak(&mut self, jobs: &[&Job], report: &mut Report) -> Result<()> {
        let mut waiting = jobs.iter().copied();
        let mut slots: Vec<Option<Talk>> = (0..self.model.engine.info().slots).map(|_| None).collect();
        loop {
            for (slot, place) in slots.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
                *place = self.next_talk(slot, &mut waiting, report)?;
            }
            if slots.iter().all(Option::is_none) {
                return Ok(());
            }
            step(&mut *self.model.engine, &mut slots)?;
            for (slot, place) in slots.iter_mut().enumerate() {
                let Some(mut talk) = place.take_if(|talk| talk.ended) else { continue };
                self.model.engine.reset(slot);
                match talk.next_piece(&mut *self.model.engine, slot)? {
                    true => *place = Some(talk),
                    false => self.finish(talk, report)?,
                }
            }
        }
    }

    /// Begins the next line that can be begun; `None` when there is none left.
    fn next_talk<'j>(
        &mut self,
        slot: usize,
        waiting: &mut dyn Iterator<Item = &'j Job>,
        report: &mut Report,
    ) -> Result<Option<Talk<'j>>> {
        for job in waiting {
            match self.begin(slot, job) {
                Ok(talk) => return Ok(Some(talk)),
                Err(error @ Error::Input { .. }) => report(job, Err(error.to_string())),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn begin<'j>(&mut self, slot: usize, job: &'j Job) -> Result<Talk<'j>> {
        let plan = self.batch.plan(job, self.model)?;
        let rate = self.model.engine.info().sample_rate_hz;
        if let Some(request) = plan.request() {
            self.model.engine.start(slot, &request)?;
        }
        let output = self.folder.output(&job.file, rate)?;
        Ok(Talk { job, plan, output, samples: 0, tokens: 0, piece_tokens: 0, truncated: false, ended: false })
    }

    fn finish(&mut self, talk: Talk, report: &mut Report) -> Result<()> {
        let Talk { job, output, samples, tokens, truncated, .. } = talk;
        if samples == 0 {
            report(job, Err(format!("input: the model made no speech of it in {tokens} tokens; try another seed")));
            return Ok(());
        }
        output.finish()?;
        let seconds = samples as f64 / self.model.engine.info().sample_rate_hz as f64;
        report(job, Ok(self.folder.keep(&job.file, Spoken { seconds, tokens, truncated })?));
        Ok(())
    }
}

/// Advances every slot by a frame.
fn step(engine: &mut dyn Engine, slots: &mut [Option<Talk>]) -> Result<()> {
    let mut written = Ok(());
    engine.step(&mut |step| {
        let Some(talk) = &mut slots[step.slot] else { return };
        talk.piece_tokens += step.tokens.len();
        talk.samples += step.pcm.len();
        talk.truncated |= step.end == Some(End::Length);
        talk.ended = step.end.is_some();
        if written.is_ok() {
            written = talk.output.write(step.pcm);
        }
    })?;
    written
}

impl Talk<'_> {
    /// Goes on with the next piece of the line; `false` when there is none.
    fn next_piece(&mut self, engine: &mut dyn Engine, slot: usize) -> Result<bool> {
        self.plan.advance(self.piece_tokens);
        self.tokens += std::mem::take(&mut self.piece_tokens);
        self.ended = false;
        let Some(request) = self.plan.request() else { return Ok(false) };
        engine.start(slot, &request)?;
        Ok(true)
    }
}
