//! The CPU backend: the int4 file as it lies in memory, several sequences in one pass over it.

pub mod kernels;
mod metered;
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
use super::{Backend, End, Engine, Info, Observer, Request, Sampling, Scores, Step, mimi, phase};
use crate::error::{Error, Result};
use crate::format::{Export, Head};

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
    /// Restricts the head to the current codebook's rows and `</audio>`: approximate (`engine::phase`).
    pub phase_head: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { slots: 1, positions: None, threads: None, phase_head: false }
    }
}

/// A sequence that is being spoken.
struct Speech {
    prompt: Vec<u32>,
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
    held: bool,
}

impl Speech {
    /// The model has not seen all of the prompt yet.
    fn in_prompt(&self) -> bool {
        self.position < self.prompt.len()
    }

    /// Makes tokens in this frame period.
    fn runs(&self) -> bool {
        !self.in_prompt() && !self.ended && !self.held
    }
}

/// What a slot made in this frame period.
#[derive(Default)]
struct Made {
    tokens: Vec<u32>,
    codes: Vec<u32>,
    end: Option<End>,
}

/// Most sequences that can run at once.
const MOST_SLOTS: usize = 1024;

/// An engine on the CPU.
pub struct CpuEngine {
    info: Info,
    model: Model,
    cache: KvCache,
    end_row: usize,
    slots: Vec<Option<Speech>>,
    codec: Option<(mimi::Decoder, Vec<mimi::State>)>,
    /// For each codebook the rows that may be chosen in its place, and the head of these rows; empty: all rows, always.
    phases: Vec<(Vec<u32>, Head)>,
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
        in_range("slots", options.slots, MOST_SLOTS)?;
        in_range("threads", threads, 256)?;
        in_range("positions", positions, config.max_position_embeddings)?;
        let shape = KvShape::new(&config, options.slots, positions);
        let bytes = 2 * shape.elements() * size_of::<u16>();
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            let found = format!("{} slots of {positions} positions, {:.1} GB", options.slots, bytes as f64 / 1e9);
            return Err(Error::input(
                "slots",
                format!("expected a cache that fits the memory, found {found}; take fewer"),
            ));
        }
        let codec = match &export.codec {
            Some(codec) => {
                let decoder = mimi::Decoder::load(&codec.config, &codec.weights, config.num_quantizers)?;
                let states = (0..options.slots).map(|_| decoder.state()).collect();
                Some((decoder, states))
            }
            None => None,
        };
        let note = if options.phase_head { format!(", {}", phase::NOTE) } else { String::new() };
        let plural = if threads == 1 { "" } else { "s" };
        let info = Info {
            kind: Backend::Cpu,
            backend: format!("cpu ({}, {threads} thread{plural}{note})", kernels.name()),
            slots: options.slots,
            positions,
            samples_per_frame: codec.as_ref().map_or(0, |(decoder, _)| decoder.samples_per_frame()),
            sample_rate_hz: export.codec.as_ref().map_or(0, |codec| codec.config.sampling_rate),
            steps_late: 0,
            audio_ids: export.audio_ids.clone(),
            config,
        };
        let end = info.audio_ids.iter().position(|&id| id == info.config.audio_end_token_id);
        let end_row = end.ok_or_else(|| Error::invalid(&export.name, "head.audio_ids", "</audio>", "no such row"))?;
        let phases = match options.phase_head {
            true => phases(&export, end_row),
            false => Vec::new(),
        };
        Ok(CpuEngine {
            end_row,
            phases,
            cache: KvCache::new(shape),
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

    /// Runs tokens of one slot from position `first` on; the residual streams after the last layer, `[tokens, hidden]`.
    /// `observe(layer, position, residual)` sees those after every layer.
    fn pass(
        &mut self,
        slot: usize,
        tokens: &[u32],
        first: usize,
        observe: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<f32> {
        let hidden = self.info.config.hidden_size;
        let column = |(i, &token): (usize, &u32)| Column { slot, position: first + i, token };
        let columns: Vec<Column> = tokens.iter().enumerate().map(column).collect();
        self.model.forward(&columns, &mut self.cache, &mut |layer, x| {
            x.chunks_exact(hidden).zip(first..).for_each(|(x, position)| observe(layer, position, x));
        })
    }

    /// Runs the unseen tokens of all running slots in one pass.
    fn advance(&mut self) {
        let mut columns = Vec::new();
        for (slot, speech) in self.slots.iter_mut().enumerate() {
            let Some(speech) = speech.as_mut().filter(|speech| speech.runs()) else { continue };
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

    /// Chooses the next token of all running slots, which are all at codebook `codebook` unless the model broke a frame.
    fn choose(&mut self, codebook: usize, made: &mut [Made]) -> Result<()> {
        let mut running: Vec<_> =
            self.slots.iter_mut().zip(made).filter_map(|(s, made)| Some((s.as_mut()?, made))).collect();
        running.retain(|(speech, _)| speech.runs());
        if running.is_empty() {
            return Ok(());
        }
        let hidden: Vec<f32> = running.iter().flat_map(|(speech, _)| speech.hidden.iter().copied()).collect();
        let phase = self.phases.get(codebook);
        let rows = phase.map(|(rows, _)| rows.as_slice());
        let logits = match phase {
            Some((_, head)) => self.model.logits_of(head, &hidden),
            None => self.model.logits(&hidden),
        };
        for ((speech, made), logits) in
            running.iter_mut().zip(logits.chunks_exact(rows.map_or(self.info.audio_ids.len(), <[u32]>::len)))
        {
            let outlook = Outlook {
                logits,
                stop_probability: self.model.stop_probability(&speech.hidden),
                end_row: self.end_row,
            };
            let noise = Noise { seed: speech.seed, sequence: speech.sequence, step: speech.step as u32 };
            let choice = sampler::next_token_among(rows, outlook, speech.sampling, noise, speech.max_new_tokens)?;
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

/// The codebooks' rows with that of `</audio>`, ascending, and the head of each.
fn phases(export: &Export, end_row: usize) -> Vec<(Vec<u32>, Head)> {
    let with_head = |mut rows: Vec<u32>| {
        rows.push(end_row as u32);
        rows.sort_unstable();
        let head = export.head.gather(&rows);
        (rows, head)
    };
    phase::rows_by_codebook(&export.config, &export.audio_ids).into_iter().map(with_head).collect()
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

    fn admit(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        self.check(slot, request.prompt, request.max_new_tokens)?;
        in_range("max_new_tokens", request.max_new_tokens, self.info.positions)?;
        sampler::check(request.sampling)?;
        if let Some((_, states)) = &mut self.codec {
            states[slot].reset();
        }
        self.slots[slot] = Some(Speech {
            prompt: request.prompt.to_vec(),
            sampling: request.sampling,
            max_new_tokens: request.max_new_tokens,
            seed: request.seed,
            sequence: request.sequence,
            step: 0,
            position: 0,
            unseen: None,
            hidden: vec![0.0; self.info.config.hidden_size],
            frames: Frames::new(&self.info.config),
            ended: false,
            held: false,
        });
        Ok(())
    }

    fn prefill(&mut self, slot: usize) -> Result<bool> {
        let speech = self.slots.get(slot).and_then(Option::as_ref).filter(|speech| speech.in_prompt());
        let Some((prompt, first)) = speech.map(|speech| (&speech.prompt, speech.position)) else { return Ok(true) };
        let piece: Vec<u32> = prompt[first..].iter().take(PREFILL_COLUMNS).copied().collect();
        let x = self.pass(slot, &piece, first, &mut |_, _, _| {});
        let hidden = self.model.hidden(&x[x.len() - self.info.config.hidden_size..]);
        let Some(speech) = &mut self.slots[slot] else { return Ok(true) };
        speech.position += piece.len();
        speech.hidden = hidden;
        Ok(!speech.in_prompt())
    }

    fn hold(&mut self, slot: usize, held: bool) {
        if let Some(Some(speech)) = self.slots.get_mut(slot) {
            speech.held = held;
        }
    }

    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        let running = |speech: &Option<Speech>| speech.as_ref().is_some_and(Speech::runs);
        let running: Vec<bool> = self.slots.iter().map(running).collect();
        let mut made: Vec<Made> = running.iter().map(|_| Made::default()).collect();
        for codebook in 0..self.info.config.num_quantizers {
            self.advance();
            self.choose(codebook, &mut made)?;
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
        for (chunk, tokens) in tokens.chunks(PREFILL_COLUMNS).enumerate() {
            let first = chunk * PREFILL_COLUMNS;
            let x = self.pass(slot, tokens, first, &mut |layer, position, x| observer.layer(layer, position, x));
            let hidden = self.model.hidden(&x);
            let logits = self.model.logits(&hidden);
            let positions = hidden.chunks_exact(width).zip(logits.chunks_exact(rows)).zip(first..);
            for ((hidden, logits), position) in positions {
                let stop_probability = self.model.stop_probability(hidden);
                observer.position(Scores { position, hidden, logits, stop_probability });
            }
        }
        Ok(())
    }
}
