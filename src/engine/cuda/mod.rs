//! The CUDA backend: the int4 model, its cache and its codec on one NVIDIA GPU.
//!
//! ```text
//! frame period = 8 × ( scores ─▶ choose_token ─▶ 36 × ( project_in ─▶ attend ─▶ project_out ) )
//!                              └▶ after the 8th choice: tokens and codes to the host, codec beside the next frame
//! ```
//!
//! A frame period is a few CUDA graphs: positions, the last token, the stop rule and the open frame live in device memory, so
//! nothing crosses to the host between tokens. The integer products have the bits of `engine::cpu::plain`; every column's
//! result is independent of its neighbours, so a slot sounds the same alone and in company. `docs/cuda.md` says more.

mod arena;
mod codec;
mod decoder;
mod device;
pub mod kernels;
mod measure;
pub mod pack;
pub(crate) mod probe;
mod prompt;
#[cfg(test)]
mod tests;

use codec::Codec;
use decoder::{Decoder, MAX_COLUMNS, Reach};
use device::{Device, Event, Graph, Memory, Pinned, Queue, Stream};
use kernels::{Column, FrameOut, Sequence};

use super::tuning::{Card, Key, Pin, Tuning};
use super::{Backend, End, Engine, Info, Observer, Request, Scores, Step, phase, sampler};
use crate::error::{Error, Result};
use crate::format::{Export, Int8Matrix};

/// What to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of the GPU.
    pub ordinal: usize,
    /// Sequences that can run at once, 1 to 64.
    pub slots: usize,
    /// Positions a slot can hold, prompt and new tokens together, up to 8192.
    pub positions: usize,
    /// Whether to load the codec, if the export has one.
    pub codec: bool,
    /// Which kernels run; `None`: what `rumik-run tune` kept for this card and build, or the table's choice. The bits are the
    /// same.
    pub tuning: Option<Tuning>,
    /// Restricts the head to the current codebook's rows and `</audio>`: approximate (`engine::phase`).
    pub phase_head: bool,
    /// For measurements: the end is never chosen, only the cap ends a sequence. The work is the same.
    pub endless: bool,
}

impl Default for Options {
    /// GPU 0, one slot of 2304 positions (a prompt of 256 and the default cap of 2048), with the codec.
    fn default() -> Options {
        Options { ordinal: 0, slots: 1, positions: 2304, codec: true, tuning: None, phase_head: false, endless: false }
    }
}

/// The chosen kernels, or a refusal of those that the card cannot run.
fn tuning(device: &Device, options: &Options) -> Result<Tuning> {
    let card = device.card();
    match options.tuning {
        Some(tuning) if tuning.fits(card) => Ok(tuning),
        Some(tuning) => {
            Err(Error::Unsupported { what: device.name.clone(), why: format!("it cannot run this: {tuning}") })
        }
        None => {
            let key = device.key()?;
            let pinned = Pin::path(&key).and_then(|path| Pin::read(&path, &key, card));
            Ok(pinned.unwrap_or_else(|| Tuning::of(card)))
        }
    }
}

/// What GPU number `ordinal` is, and what a measurement on it holds for.
///
/// # Errors
/// As [`CudaEngine::open`] without a usable GPU.
pub fn identify(ordinal: usize) -> Result<(Card, Key)> {
    let device = Device::open(ordinal)?;
    Ok((device.card(), device.key()?))
}

/// True when this machine has GPU number `ordinal` and this program has kernels for it.
pub fn is_usable(ordinal: usize) -> bool {
    Device::open(ordinal).is_ok()
}

/// A slot as the host knows it.
#[derive(Clone, Debug, PartialEq)]
enum Slot {
    Free,
    /// A prompt and how many of its tokens the model has seen.
    Prompt(Vec<u32>, usize),
    /// Position of the newest token in the cache.
    Running(usize),
    /// As `Running`, and not stepped.
    Held(usize),
    Ended,
}

/// What a slot sounds like so far.
#[derive(Clone, Debug, Default)]
struct Voice {
    /// A frame's samples have been made.
    has_begun: bool,
    /// Samples that have not been handed out; those of a held slot wait here, or in the codec, until it is let go.
    unheard: Vec<f32>,
}

/// A frame in the codec.
#[derive(Debug)]
struct Sounding {
    /// Its samples are in `CudaEngine::pcm`.
    done: Event,
    /// The slot of each column that completed it.
    slots: Vec<Option<usize>>,
}

/// Graphs for one number of columns.
struct Graphs {
    /// 8 tokens; the columns move on with them.
    tokens: Graph,
    /// The pass of the eighth token.
    tail: Graph,
    /// The codec, of what it has taken, and its samples to the host.
    codec: Option<Graph>,
}

/// The CUDA engine.
///
/// Every slot's output is bit-identical to running alone. One thread owns it.
pub struct CudaEngine {
    info: Info,
    device: Device,
    main: Stream,
    side: Stream,
    decoder: Decoder,
    codec: Option<Codec>,
    /// Of one column, of two, ...
    graphs: Vec<Graphs>,
    /// The first pieces of prompts, of four columns, of eight, ...
    prompts: Vec<Graph>,
    slots: Vec<Slot>,
    voices: Vec<Voice>,
    sounding: Option<Sounding>,
    /// The slots whose columns are on the device, each where its last frame ended.
    placed: Vec<usize>,
    embedding: Int8Matrix,
    normed: Memory,
    columns: Pinned<Column>,
    prompt: Pinned<f32>,
    sequence: Pinned<Sequence>,
    out: Pinned<FrameOut>,
    pcm: Pinned<f32>,
    stop_bias: f32,
}

impl std::fmt::Debug for CudaEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaEngine").field("info", &self.info).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl CudaEngine {
    /// Opens a GPU and copies a model to it. All memory is reserved here.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a usable GPU, for a card too small (with the sizes) or a model whose sizes the kernels
    /// do not cover; [`Error::Input`] for options out of range; [`Error::Device`].
    pub fn open(export: &Export, options: &Options) -> Result<CudaEngine> {
        CudaEngine::open_on(Device::open(options.ordinal)?, export, options)
    }

    fn open_on(device: Device, export: &Export, options: &Options) -> Result<CudaEngine> {
        let (main, side) = (device.stream(true)?, device.stream(false)?);
        let config = &export.config;
        let slots = options.slots;
        let tuning = tuning(&device, options)?;
        let mut decoder = Decoder::load(Queue { device: &device, stream: &main }, export, options, tuning)?;
        if options.endless {
            decoder.never_end();
        }
        let codec = match export.codec.as_ref().filter(|_| options.codec) {
            Some(codec) => {
                let frames = options.positions / config.num_quantizers + 1;
                Some(Codec::load(Queue { device: &device, stream: &main }, codec, config, slots, frames)?)
            }
            None => None,
        };
        let samples = codec.as_ref().map_or(0, Codec::samples_per_frame);
        let info = Info {
            kind: Backend::Cuda,
            backend: match options.phase_head {
                true => format!("{}, {}", device.name, phase::NOTE),
                false => device.name.clone(),
            },
            config: config.clone(),
            slots,
            positions: options.positions,
            samples_per_frame: samples,
            sample_rate_hz: export.codec.as_ref().filter(|_| codec.is_some()).map_or(0, |c| c.config.sampling_rate),
            steps_late: usize::from(codec.is_some()),
            audio_ids: export.audio_ids.clone(),
        };
        let mut engine = CudaEngine {
            normed: device.zeros(&main, MAX_COLUMNS * config.hidden_size * 4)?,
            columns: device.pinned(MAX_COLUMNS)?,
            prompt: device.pinned(MAX_COLUMNS * config.hidden_size)?,
            sequence: device.pinned(1)?,
            out: device.pinned(MAX_COLUMNS)?,
            pcm: device.pinned(slots * samples)?,
            graphs: Vec::new(),
            prompts: Vec::new(),
            slots: vec![Slot::Free; slots],
            voices: vec![Voice::default(); slots],
            sounding: None,
            placed: Vec::new(),
            embedding: export.embedding.clone(),
            stop_bias: export.stop.down_bias,
            info,
            main,
            side,
            decoder,
            codec,
            device,
        };
        engine.graphs = (1..=slots).map(|columns| engine.capture(columns)).collect::<Result<_>>()?;
        engine.prompts = engine.capture_prompts()?;
        engine.device.synchronize(&engine.main)?;
        Ok(engine)
    }

    fn main(&self) -> Queue<'_> {
        Queue { device: &self.device, stream: &self.main }
    }

    fn side(&self) -> Queue<'_> {
        Queue { device: &self.device, stream: &self.side }
    }

    fn capture(&self, columns: usize) -> Result<Graphs> {
        let reach = Reach::decoding(self.decoder.positions());
        let (device, decoder, quantizers) = (&self.device, &self.decoder, self.info.config.num_quantizers);
        let out_bytes = columns * size_of::<FrameOut>();
        let tokens = device.capture(&self.main, || {
            device.fill(&self.main, decoder.out(), 0, out_bytes)?;
            if decoder.persists_choice(columns) {
                decoder.choices(self.main(), quantizers)?;
            } else {
                for token in 0..quantizers {
                    decoder.scores(self.main(), columns, 0, Some(token))?;
                    decoder.choose(self.main(), columns, Some(token))?;
                    if token + 1 < quantizers {
                        decoder.forward(self.main(), columns, reach)?;
                    }
                }
            }
            Ok(())
        })?;
        let tail = device.capture(&self.main, || decoder.forward(self.main(), columns, reach))?;
        let codec = match &self.codec {
            Some(codec) => Some(device.capture(&self.side, || {
                codec.frame(self.side(), columns)?;
                device.read_into(&self.side, codec.pcm(), &self.pcm, columns * codec.samples_per_frame())
            })?),
            None => None,
        };
        Ok(Graphs { tokens, tail, codec })
    }

    fn free_slot(&self, slot: usize) -> Result<()> {
        match self.slots.get(slot) {
            Some(Slot::Free) => Ok(()),
            Some(_) => Err(Error::input("slot", format!("slot {slot} is in use"))),
            None => Err(Error::input("slot", format!("expected 0 to {}, found {slot}", self.slots.len() - 1))),
        }
    }

    fn check_tokens(&self, tokens: &[u32], more: usize) -> Result<()> {
        if tokens.is_empty() {
            return Err(Error::input("prompt", "expected at least one id, found none"));
        }
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= self.embedding.n) {
            return Err(Error::input("prompt", format!("expected ids below {}, found {id}", self.embedding.n)));
        }
        let positions = self.info.positions;
        if tokens.len() + more > positions {
            let found = format!("{} ids and {more} new tokens", tokens.len());
            return Err(Error::input("prompt", format!("expected at most {positions} positions, found {found}")));
        }
        Ok(())
    }

    /// Puts the columns of `running` onto the device, unless the frame before left them there.
    fn place(&mut self, running: &[usize]) -> Result<()> {
        if self.placed == running {
            return Ok(());
        }
        // Nothing under way reads the pinned columns any more: a prompt's pieces and the tokens of a frame are waited for.
        for (column, &slot) in self.columns.iter_mut().zip(running) {
            let Slot::Running(position) = self.slots[slot] else { continue };
            *column = Column { slot: slot as i32, position: position as i32, live: 1, row: slot as i32 };
        }
        self.device.write(&self.main, self.decoder.columns(), &self.columns[..running.len()])?;
        self.placed = running.to_vec();
        Ok(())
    }

    /// When `tokens` are chosen, what the columns of `running` made goes to the host, which is the event returned, and to the codec, by graph
    /// number `index`. `main` overwrites it only after that.
    fn hand_over(&mut self, running: &[usize], index: usize, tokens: &Event) -> Result<Event> {
        let (device, side) = (&self.device, &self.side);
        device.stream_wait(side, tokens)?;
        device.read_into(side, self.decoder.out(), &self.out, running.len())?;
        let told = device.event(side, false)?;
        if let Some(codec) = &self.codec {
            codec.take(self.side(), running.len(), &self.decoder)?;
        }
        device.stream_wait(&self.main, &device.event(side, false)?)?;
        if let Some(graph) = &self.graphs[index].codec {
            device.replay(graph)?;
            let slots = running.iter().copied().map(Some).collect();
            self.sounding = Some(Sounding { done: device.event(side, false)?, slots });
        }
        Ok(told)
    }

    /// Waits for the codec and gives its samples to their slots.
    fn hear(&mut self) -> Result<()> {
        let Some(sounding) = self.sounding.take() else { return Ok(()) };
        self.device.wait(&sounding.done)?;
        let frames = self.pcm.chunks(self.info.samples_per_frame);
        for (slot, frame) in sounding.slots.into_iter().zip(frames) {
            if let Some(slot) = slot {
                self.voices[slot].has_begun = true;
                self.voices[slot].unheard.extend(frame);
            }
        }
        Ok(())
    }

    /// Hands out what the columns made and the samples that are there, and updates the slots.
    fn deliver(&mut self, running: &[usize], sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        let quantizers = self.info.config.num_quantizers;
        for (column, &slot) in running.iter().enumerate() {
            let out = &self.out[column];
            let end = match out.end {
                0 => None,
                kernels::END_STOP_HEAD => Some(End::StopHead),
                kernels::END_AUDIO => Some(End::AudioEnd),
                kernels::END_LENGTH => Some(End::Length),
                _ => {
                    let item = format!("scores of slot {slot}");
                    return Err(Error::invalid("the model", item, "finite numbers", "one that is not"));
                }
            };
            self.slots[slot] = match (end, &self.slots[slot]) {
                (None, Slot::Running(position)) => Slot::Running(position + quantizers),
                _ => Slot::Ended,
            };
            let voice = &mut self.voices[slot];
            sink(Step {
                slot,
                tokens: &out.token[..out.tokens as usize],
                codes: &out.code[..out.frames as usize * quantizers],
                pcm: &voice.unheard,
                end,
            });
            voice.unheard.clear();
        }
        Ok(())
    }
}

impl Drop for CudaEngine {
    /// What is under way uses the memory that is about to be freed. A fault of it has been reported or concerns nobody any more.
    fn drop(&mut self) {
        let _ = self.device.synchronize(&self.main);
        let _ = self.device.synchronize(&self.side);
    }
}

impl Engine for CudaEngine {
    fn info(&self) -> &Info {
        &self.info
    }

    fn admit(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        self.free_slot(slot)?;
        sampler::check(request.sampling)?;
        self.check_tokens(request.prompt, request.max_new_tokens)?;
        if request.max_new_tokens == 0 {
            return Err(Error::input("max_new_tokens", "expected at least 1, found 0"));
        }
        if let Some(codec) = &self.codec {
            codec.reset(self.side(), slot)?;
        }
        self.sequence[0] = Sequence {
            temperature: request.sampling.temperature,
            top_k: i32::try_from(request.sampling.top_k).unwrap_or(i32::MAX),
            max_new: request.max_new_tokens as i32,
            seed_low: request.seed as u32,
            seed_high: (request.seed >> 32) as u32,
            sequence: request.sequence,
            ..Sequence::default()
        };
        self.device.write(&self.main, self.decoder.sequence(slot), &self.sequence)?;
        self.device.synchronize(&self.main)?;
        self.slots[slot] = Slot::Prompt(request.prompt.to_vec(), 0);
        Ok(())
    }

    fn prefill(&mut self, slot: usize) -> Result<bool> {
        let Some(Slot::Prompt(prompt, first)) = self.slots.get(slot) else { return Ok(true) };
        let (first, length) = (*first, prompt.len());
        let piece: Vec<u32> = prompt[first..].iter().take(MAX_COLUMNS).copied().collect();
        let seen = first + piece.len();
        self.run_piece(slot, &piece, first)?;
        if seen == length {
            let last = self.slots.len() + piece.len() - 1;
            let (to, from) = (self.decoder.residual(slot), self.decoder.residual(last));
            self.device.copy(&self.main, to, from, self.info.config.hidden_size * 4)?;
            self.slots[slot] = Slot::Running(length - 1);
        } else if let Slot::Prompt(_, first) = &mut self.slots[slot] {
            *first = seen;
        }
        self.device.synchronize(&self.main)?;
        Ok(seen == length)
    }

    fn hold(&mut self, slot: usize, held: bool) {
        let Some(state) = self.slots.get_mut(slot) else { return };
        match *state {
            Slot::Running(position) if held => *state = Slot::Held(position),
            Slot::Held(position) if !held => *state = Slot::Running(position),
            _ => {}
        }
    }

    fn device_bytes(&self) -> usize {
        self.decoder.bytes() + self.codec.as_ref().map_or(0, Codec::bytes)
    }

    /// Samples come a step later than their tokens, because the codec works beside the next frame; a slot's first frame and its last
    /// are waited for. So its second frame follows the first by two periods: they must be short against a frame of sound.
    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        let slots = self.slots.iter().enumerate();
        let running: Vec<usize> =
            slots.filter(|(_, state)| matches!(state, Slot::Running(_))).map(|(slot, _)| slot).collect();
        let Some(index) = running.len().checked_sub(1) else { return Ok(()) };
        self.place(&running)?;
        let hurries = self.codec.is_some() && running.iter().any(|&slot| !self.voices[slot].has_begun);
        self.device.replay(&self.graphs[index].tokens)?;
        let tokens = self.device.event(&self.main, false)?;
        if !hurries {
            self.device.replay(&self.graphs[index].tail)?;
        }
        self.hear()?;
        let told = self.hand_over(&running, index, &tokens)?;
        if hurries {
            // The codec would be slow beside the persistent kernel.
            if let Some(sounding) = self.sounding.as_ref().filter(|_| self.decoder.persists(running.len())) {
                self.device.stream_wait(&self.main, &sounding.done)?;
            }
            self.device.replay(&self.graphs[index].tail)?;
        }
        self.device.wait(&told)?;
        let out = &self.out[..running.len()];
        if let Some(sounding) = &mut self.sounding {
            let columns = sounding.slots.iter_mut().zip(out);
            columns.filter(|(_, out)| out.frames == 0).for_each(|(slot, _)| *slot = None);
        }
        if hurries || out.iter().any(|out| out.end != 0) {
            self.hear()?;
        }
        self.deliver(&running, sink)
    }

    fn reset(&mut self, slot: usize) {
        if let Some(state) = self.slots.get_mut(slot) {
            *state = Slot::Free;
            self.voices[slot] = Voice::default();
            let sounding = self.sounding.iter_mut().flat_map(|sounding| &mut sounding.slots);
            sounding.filter(|of| **of == Some(slot)).for_each(|of| *of = None);
        }
    }

    fn score(&mut self, slot: usize, tokens: &[u32], observer: &mut dyn Observer) -> Result<()> {
        self.free_slot(slot)?;
        self.check_tokens(tokens, 0)?;
        for (chunk, tokens) in tokens.chunks(MAX_COLUMNS).enumerate() {
            let first = chunk * MAX_COLUMNS;
            self.stage(slot, tokens, first, tokens.len())?;
            self.observe(tokens, first, observer)?;
        }
        Ok(())
    }
}
