//! Prompts: what goes to the device for them, their passes, and what an observer sees of one.

use super::decoder::{MAX_COLUMNS, Reach};
use super::device::Graph;
use super::kernels::Column;
use super::{CudaEngine, Observer, Scores};
use crate::error::Result;

/// Columns of an n-tile, whose products take as long as those of one: a prompt is filled up to a multiple of them, so there are few graphs.
const PROMPT_STEP: usize = 4;

impl CudaEngine {
    /// The passes of first pieces, of [`PROMPT_STEP`] columns, of twice as many, ...
    pub(super) fn capture_prompts(&self) -> Result<Vec<Graph>> {
        let pass = |columns: usize| {
            let forward = || self.decoder.forward(self.main(), columns, Reach::prompt(columns));
            self.device.capture(&self.main, forward)
        };
        (PROMPT_STEP..=MAX_COLUMNS).step_by(PROMPT_STEP).map(pass).collect()
    }

    /// Runs one piece of a prompt, its positions from `first` on.
    pub(super) fn run_piece(&mut self, slot: usize, piece: &[u32], first: usize) -> Result<()> {
        let steps = piece.len().div_ceil(PROMPT_STEP);
        let columns = if first == 0 { steps * PROMPT_STEP } else { piece.len() };
        self.stage(slot, piece, first, columns)?;
        match first {
            0 => self.device.replay(&self.prompts[steps - 1]),
            _ => self.decoder.forward(self.main(), columns, Reach::prompt(first + columns)),
        }
    }

    /// Uploads one chunk of a prompt: its embedding rows and its columns, and dead ones up to `columns`. Waits for what used the staging memory before.
    pub(super) fn stage(&mut self, slot: usize, tokens: &[u32], first: usize, columns: usize) -> Result<()> {
        self.device.synchronize(&self.main)?;
        self.placed.clear();
        let hidden = self.info.config.hidden_size;
        for (i, &id) in tokens.iter().enumerate() {
            let scale = self.embedding.scale[id as usize].to_f32();
            let row = self.embedding.row(id as usize).map(|code| f32::from(code) * scale);
            self.prompt[i * hidden..][..hidden].iter_mut().zip(row).for_each(|(x, value)| *x = value);
            let row = (self.slots.len() + i) as i32;
            self.columns[i] = Column { slot: slot as i32, position: (first + i) as i32, live: 1, row };
        }
        for i in tokens.len()..columns {
            self.columns[i] = Column { live: 0, ..self.columns[0] };
        }
        let rows = self.decoder.residual(self.slots.len());
        self.device.write(&self.main, rows, &self.prompt[..tokens.len() * hidden])?;
        self.device.write(&self.main, self.decoder.columns(), &self.columns[..columns])
    }

    /// Shows an observer the layers and the scores of the positions staged.
    pub(super) fn observe(&mut self, tokens: &[u32], first: usize, observer: &mut dyn Observer) -> Result<()> {
        let (hidden, rows) = (self.info.config.hidden_size, self.info.audio_ids.len());
        let (count, seen) = (tokens.len(), first + tokens.len());
        let mut residual = vec![0f32; count * hidden];
        for layer in 0..self.info.config.num_layers() {
            self.decoder.layer(self.main(), layer, count, Reach::prompt(seen))?;
            self.device.read(&self.main, self.decoder.residual(self.slots.len()), &mut residual)?;
            self.device.synchronize(&self.main)?;
            for (i, residual) in residual.chunks(hidden).enumerate() {
                observer.layer(layer, first + i, residual);
            }
        }
        self.decoder.scores(self.main(), count, self.normed.address(), None)?;
        let (mut normed, mut logits) = (vec![0f32; count * hidden], vec![0f32; count * rows]);
        let mut stop = vec![0f32; count * self.decoder.stop_inner()];
        self.device.read(&self.main, self.normed.address(), &mut normed)?;
        self.device.read(&self.main, self.decoder.logits(0), &mut logits)?;
        self.device.read(&self.main, self.decoder.stop_terms(0), &mut stop)?;
        self.device.synchronize(&self.main)?;
        let stop = stop.chunks(self.decoder.stop_inner());
        for (i, ((hidden, logits), stop)) in normed.chunks(hidden).zip(logits.chunks(rows)).zip(stop).enumerate() {
            let z = stop.iter().sum::<f32>() + self.stop_bias;
            let stop_probability = 1.0 / (1.0 + (-z).exp());
            observer.position(Scores { position: first + i, hidden, logits, stop_probability });
        }
        Ok(())
    }
}
