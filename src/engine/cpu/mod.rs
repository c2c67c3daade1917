//! The CPU backend: the int4 file as it lies in memory, several sequences in one pass over it.

pub mod kernels;
mod model;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod plain;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use kernels::Kernels;
use model::{Column, Model};

use super::frames::Frames;
use super::kv::{KvCache, KvShape};
use super::sampler::{self, Noise, Outlook};
use super::{Backend, End, Engine, Info, Observer, Request, Sampling, Scores, Step, mimi};
use crate::error::{Error, Result};
use crate::format::Export;

/// Positions of a prompt that go through the model at once: enough to read the weights seldom, few enough to keep
/// their activations in the cache.
const PREFILL_COLUMNS: usize = 32;

/// How an engine is set up.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sequences that can run at once.
    pub slots: usize,
    /// Positions a slot can hold; `None`: as many as the model was trained for.
    pub positions: Option<usize>,
    /// Threads; `None`: one per core.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { slots: 1, positions: None, threads: None }
    }
}

/// A sequence that is being spoken.
struct Speech {
    sampling: Sampling,
    max_new_tokens: usize,
    seed: u64,
    sequence: u32,
    /// Tokens made.
    step: usize,
    /// The position that the model sees next.
    position: usize,
    /// The token for it; none before the first choice.
    unseen: Option<u32>,
    /// Final hidden state of the newest position that it has seen.
    hidden: Vec<f32>,
    frames: Frames,
    ended: bool,
}

/// What a slot made in this frame period.
#[derive(Default)]
struct Made {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    end: Option<End>,
}

/// An engine on the CPU.
pub struct CpuEngine {
    info: Info,
    model: Model,
    cache: KvCache,
    end_row: usize,
    slots: Vec<Option<Speech>>,
    codec: Option<(mimi::Decoder, Vec<mimi::State>)>,
}

impl CpuEngine {
    /// Sets up an engine with the best instruction set of the machine, or the one that `RUMIK_CPU_ISA` names.
    ///
    /// # Errors
    /// [`Error::Input`] for options out of range, [`Error::Invalid`] for a damaged codec file.
    pub fn new(export: Export, options: Options) -> Result<CpuEngine> {
        CpuEngine::with_kernels(export, options, Kernels::choose()?)
    }

    /// Sets up an engine with given operations.
    ///
    /// # Errors
    /// As [`CpuEngine::new`].
    pub fn with_kernels(export: Export, options: Options, kernels: &'static Kernels) -> Result<CpuEngine> {
        let config = export.config.clone();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or(cores);
        let positions = options.positions.unwrap_or(config.max_position_embeddings);
        in_range("slots", options.slots, usize::MAX)?;
        in_range("threads", threads, 256)?;
        in_range("positions", positions, config.max_position_embeddings)?;
        let codec = match &export.codec {
            Some(codec) => {
                let decoder = mimi::Decoder::load(&codec.config, &codec.weights, config.num_quantizers)?;
                let states = (0..options.slots).map(|_| decoder.state()).collect();
                Some((decoder, states))
            }
            None => None,
        };
        let info = Info {
            kind: Backend::Cpu,
            backend: format!("cpu ({}, {threads} thread{})", kernels.name(), if threads == 1 { "" } else { "s" }),
            slots: options.slots,
            positions,
            samples_per_frame: codec.as_ref().map_or(0, |(decoder, _)| decoder.samples_per_frame()),
            sample_rate_hz: export.codec.as_ref().map_or(0, |codec| codec.config.sampling_rate),
            audio_ids: export.audio_ids.clone(),
            config,
        };
        let end = info.audio_ids.iter().position(|&id| id == info.config.audio_end_token_id);
        Ok(CpuEngine {
            end_row: end.ok_or_else(|| Error::invalid(&export.name, "head.audio_ids", "</audio>", "no such row"))?,
            cache: KvCache::new(KvShape::new(&info.config, options.slots, positions)),
            model: Model::new(export, kernels, positions, threads)?,
            slots: (0..options.slots).map(|_| None).collect(),
            codec,
            info,
        })
    }

    /// Checks that a slot is free and that a sequence fits it.
    fn check(&self, slot: usize, prompt: &[u32], new_tokens: usize) -> Result<()> {
        match self.slots.get(slot) {
            Some(None) => {}
            Some(Some(_)) => return Err(Error::input("slot", format!("slot {slot} is not free: reset it first"))),
            None => return Err(Error::input("slot", format!("found {slot}, the engine has {}", self.slots.len()))),
        }
        if prompt.is_empty() {
            return Err(Error::input("prompt", "expected at least one token, found none"));
        }
        let vocabulary = self.info.config.vocab_size;
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
            return Err(Error::input("prompt", format!("expected ids below {vocabulary}, found {id}")));
        }
        if prompt.len().saturating_add(new_tokens) > self.info.positions {
            let message = format!(
                "{} prompt tokens and up to {new_tokens} new ones do not fit the {} positions of a slot",
                prompt.len(),
                self.info.positions
            );
            return Err(Error::input("prompt", message));
        }
        Ok(())
    }

    /// Runs tokens from position 0 in chunks; calls `each(first position, residual streams)` after each chunk.
    fn prefill(
        &mut self,
        slot: usize,
        tokens: &[u32],
        observe: &mut dyn FnMut(usize, usize, &[f32]),
        each: &mut dyn FnMut(&Model, usize, &[f32]),
    ) {
        let hidden = self.info.config.hidden_size;
        for (chunk, tokens) in tokens.chunks(PREFILL_COLUMNS).enumerate() {
            let first = chunk * PREFILL_COLUMNS;
            let column = |(i, &token): (usize, &u32)| Column { slot, position: first + i, token };
            let columns: Vec<Column> = tokens.iter().enumerate().map(column).collect();
            let x = self.model.forward(&columns, &mut self.cache, &mut |layer, x| {
                x.chunks_exact(hidden).zip(first..).for_each(|(x, position)| observe(layer, position, x));
            });
            each(&self.model, first, &x);
        }
    }

    /// Runs the unseen tokens of all running slots in one pass.
    fn advance(&mut self) {
        let mut columns = Vec::new();
        for (slot, speech) in self.slots.iter_mut().enumerate() {
            let Some(speech) = speech.as_mut().filter(|speech| !speech.ended) else { continue };
            let Some(token) = speech.unseen.take() else { continue };
            columns.push(Column { slot, position: speech.position, token });
            speech.position += 1;
        }
        if columns.is_empty() {
            return;
        }
        let x = self.model.forward(&columns, &mut self.cache, &mut |_, _| {});
        let hidden = self.model.hidden(&x);
        for (column, hidden) in columns.iter().zip(hidden.chunks_exact(self.info.config.hidden_size)) {
            if let Some(speech) = &mut self.slots[column.slot] {
                speech.hidden.copy_from_slice(hidden);
            }
        }
    }

    /// Chooses the next token of all running slots.
    fn choose(&mut self, made: &mut [Made]) -> Result<()> {
        let mut running: Vec<_> =
            self.slots.iter_mut().zip(made).filter_map(|(s, made)| Some((s.as_mut()?, made))).collect();
        running.retain(|(speech, _)| !speech.ended);
        if running.is_empty() {
            return Ok(());
        }
        let hidden: Vec<f32> = running.iter().flat_map(|(speech, _)| speech.hidden.iter().copied()).collect();
        let logits = self.model.logits(&hidden);
        for ((speech, made), logits) in running.iter_mut().zip(logits.chunks_exact(self.info.audio_ids.len())) {
            let outlook = Outlook {
                logits,
                stop_probability: self.model.stop_probability(&speech.hidden),
                end_row: self.end_row,
            };
            let noise = Noise { seed: speech.seed, sequence: speech.sequence, step: speech.step as u32 };
            let choice = sampler::next_token(outlook, speech.sampling, noise, speech.max_new_tokens)?;
            let token = self.info.audio_ids[choice.row];
            speech.step += 1;
            speech.unseen = Some(token);
            speech.ended = choice.end.is_some();
            speech.frames.push(token, &mut made.codes);
            made.tokens.push(token);
            made.end = choice.end;
        }
        Ok(())
    }
}

fn in_range(parameter: &'static str, value: usize, largest: usize) -> Result<()> {
    match value {
        0 => Err(Error::input(parameter, "expected at least 1, found 0")),
        _ if value > largest => Err(Error::input(parameter, format!("expected at most {largest}, found {value}"))),
        _ => Ok(()),
    }
}

impl Engine for CpuEngine {
    fn info(&self) -> &Info {
        &self.info
    }

    fn start(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        self.check(slot, request.prompt, request.max_new_tokens)?;
        in_range("max_new_tokens", request.max_new_tokens, self.info.positions)?;
        sampler::check(request.sampling)?;
        let width = self.info.config.hidden_size;
        let mut hidden = vec![0.0; width];
        self.prefill(slot, request.prompt, &mut |_, _, _| {}, &mut |model, _, x| {
            hidden = model.hidden(&x[x.len() - width..]);
        });
        if let Some((_, states)) = &mut self.codec {
            states[slot].reset();
        }
        self.slots[slot] = Some(Speech {
            sampling: request.sampling,
            max_new_tokens: request.max_new_tokens,
            seed: request.seed,
            sequence: request.sequence,
            step: 0,
            position: request.prompt.len(),
            unseen: None,
            hidden,
            frames: Frames::new(&self.info.config),
            ended: false,
        });
        Ok(())
    }

    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        let running = |speech: &Option<Speech>| speech.as_ref().is_some_and(|speech| !speech.ended);
        let running: Vec<bool> = self.slots.iter().map(running).collect();
        let mut made: Vec<Made> = running.iter().map(|_| Made::default()).collect();
        for _ in 0..self.info.config.num_quantizers {
            self.advance();
            self.choose(&mut made)?;
        }
        let mut pcm = Vec::new();
        for (slot, made) in made.iter().enumerate().filter(|(slot, _)| running[*slot]) {
            pcm.clear();
            if let Some((decoder, states)) = self.codec.as_mut().filter(|_| !made.codes.is_empty()) {
                self.model.in_pool(|| decoder.step(&mut states[slot], &made.codes, &mut pcm))?;
            }
            sink(Step { slot, tokens: &made.tokens, codes: &made.codes, pcm: &pcm, end: made.end });
        }
        Ok(())
    }

    fn reset(&mut self, slot: usize) {
        if let Some(speech) = self.slots.get_mut(slot) {
            *speech = None;
        }
    }

    fn score(&mut self, slot: usize, tokens: &[u32], observer: &mut dyn Observer) -> Result<()> {
        self.check(slot, tokens, 0)?;
        let (width, rows) = (self.info.config.hidden_size, self.info.audio_ids.len());
        let observer = std::cell::RefCell::new(observer);
        let mut layer = |layer: usize, position: usize, x: &[f32]| observer.borrow_mut().layer(layer, position, x);
        self.prefill(slot, tokens, &mut layer, &mut |model, first, x| {
            let hidden = model.hidden(x);
            let logits = model.logits(&hidden);
            let positions = hidden.chunks_exact(width).zip(logits.chunks_exact(rows)).zip(first..);
            for ((hidden, logits), position) in positions {
                let stop_probability = model.stop_probability(hidden);
                observer.borrow_mut().position(Scores { position, hidden, logits, stop_probability });
            }
        });
        Ok(())
    }
}
