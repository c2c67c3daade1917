//! An engine that takes a given time for a frame and makes samples that tell whose they are.

#![allow(dead_code)] // each user takes its own part

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rumik::config::ModelConfig;
use rumik::engine::{Backend, End, Engine, Info, Observer, Request, Step};
use rumik::error::{Error, Result};
use rumik::pass::Standing;
use rumik::serve::Source;
use rumik::speech::Speech;

pub const RATE_HZ: usize = 24_000;
pub const FRAME: usize = 1920;
/// Positions of a prompt read at once.
const PIECE: usize = 32;

/// Sample number `index` of an utterance: a value that no other (seed, sequence) has at many places.
pub fn sample(seed: u64, sequence: u32, index: usize) -> i16 {
    let word = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
    let word = (word ^ u64::from(sequence) << 17).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (word >> 52) as i16 - 2048
}

/// What tests see and change while the engine is the server's.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    /// Steps that made at least one frame.
    pub steps: Arc<AtomicUsize>,
    /// Frames made, all slots together.
    pub frames: Arc<AtomicUsize>,
    /// Utterances admitted, in order: their seeds.
    pub admitted: Arc<std::sync::Mutex<Vec<u64>>>,
    /// The next steps fail.
    pub broken: Arc<AtomicBool>,
    /// The next step does not come back while this is set.
    pub stuck: Arc<AtomicBool>,
    /// Milliseconds that a piece of a prompt takes.
    pub piece_ms: Arc<AtomicUsize>,
    /// Pieces read since the last frame, and the most there were between two frames of somebody.
    pub pieces: Arc<AtomicUsize>,
    pub most_pieces: Arc<AtomicUsize>,
    /// Pieces of the longest prompt.
    pub prompt_pieces: Arc<AtomicUsize>,
}

impl Controls {
    pub fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }

    pub fn frames(&self) -> usize {
        self.frames.load(Ordering::SeqCst)
    }
}

struct Utterance {
    seed: u64,
    sequence: u32,
    prompt: usize,
    read: usize,
    frames: usize,
    made: usize,
    held: bool,
}

/// The engine.
pub struct Stub {
    info: Info,
    slots: Vec<Option<Utterance>>,
    frame_time: Duration,
    /// Frames of an utterance; the cap of the request if absent.
    frames: Option<usize>,
    controls: Controls,
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo").join(name)).unwrap()
}

impl Stub {
    pub fn new(slots: usize, frame_time: Duration, frames: Option<usize>, controls: Controls) -> Stub {
        let info = Info {
            backend: "stub".to_owned(),
            kind: Backend::Cpu,
            config: ModelConfig::parse("config.json", &fixture("config.json")).unwrap(),
            slots,
            positions: 3328,
            samples_per_frame: FRAME,
            sample_rate_hz: RATE_HZ,
            steps_late: 0,
            audio_ids: Vec::new(),
        };
        Stub { info, slots: (0..slots).map(|_| None).collect(), frame_time, frames, controls }
    }

    /// Says that its samples may come a step after their tokens.
    pub fn late(mut self) -> Stub {
        self.info.steps_late = 1;
        self
    }

    /// As a model to serve.
    pub fn source(self) -> Source {
        let speech = Speech::load(&self.info.config, &fixture("tokenizer.json")).unwrap();
        Source {
            name: "stub".to_owned(),
            engine: Box::new(self),
            speech,
            notice: None,
            chunk_seconds: 6.0,
            standing: Standing::BuiltIn,
        }
    }
}

impl Engine for Stub {
    fn info(&self) -> &Info {
        &self.info
    }

    fn admit(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        assert!(self.slots[slot].is_none(), "slot {slot} is not free");
        self.controls.prompt_pieces.fetch_max(request.prompt.len().div_ceil(PIECE), Ordering::SeqCst);
        let cap = request.max_new_tokens / self.info.config.num_quantizers;
        self.controls.admitted.lock().unwrap().push(request.seed);
        self.slots[slot] = Some(Utterance {
            seed: request.seed,
            sequence: request.sequence,
            prompt: request.prompt.len(),
            read: 0,
            frames: self.frames.map_or(cap, |frames| frames.min(cap)),
            made: 0,
            held: false,
        });
        Ok(())
    }

    fn prefill(&mut self, slot: usize) -> Result<bool> {
        let Some(utterance) = &mut self.slots[slot] else { return Ok(true) };
        std::thread::sleep(Duration::from_millis(self.controls.piece_ms.load(Ordering::SeqCst) as u64));
        self.controls.pieces.fetch_add(1, Ordering::SeqCst);
        utterance.read = (utterance.read + PIECE).min(utterance.prompt);
        Ok(utterance.read == utterance.prompt)
    }

    fn hold(&mut self, slot: usize, held: bool) {
        self.slots[slot].iter_mut().for_each(|utterance| utterance.held = held);
    }

    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        while self.controls.stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.controls.broken.load(Ordering::SeqCst) {
            return Err(Error::Device { device: "stub".into(), action: "step", reason: "it was told to fail".into() });
        }
        let pieces = self.controls.pieces.swap(0, Ordering::SeqCst);
        self.controls.most_pieces.fetch_max(pieces, Ordering::SeqCst);
        std::thread::sleep(self.frame_time);
        let mut made = 0;
        for (slot, utterance) in self.slots.iter_mut().enumerate() {
            let Some(utterance) = utterance.as_mut().filter(|u| !u.held && u.read == u.prompt) else { continue };
            if utterance.made == utterance.frames {
                continue;
            }
            let first = utterance.made * FRAME;
            let value = |i| f32::from(sample(utterance.seed, utterance.sequence, first + i)) / 32767.0;
            let pcm: Vec<f32> = (0..FRAME).map(value).collect();
            utterance.made += 1;
            made += 1;
            let over = utterance.made == utterance.frames;
            let end = over.then_some(if self.frames.is_some() { End::StopHead } else { End::Length });
            sink(Step { slot, tokens: &[0; 8], codes: &[0; 8], pcm: &pcm, end });
        }
        self.controls.steps.fetch_add(usize::from(made > 0), Ordering::SeqCst);
        self.controls.frames.fetch_add(made, Ordering::SeqCst);
        Ok(())
    }

    fn reset(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn score(&mut self, _: usize, _: &[u32], _: &mut dyn Observer) -> Result<()> {
        Err(Error::Unsupported { what: "score".into(), why: "a stub".into() })
    }
}
