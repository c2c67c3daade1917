//! The gate on the demonstration model, small enough to run for every planted fault, and the faults' machinery.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use rumik::Result;
use rumik::checkpoint::Checkpoint;
use rumik::engine::cpu::{CpuEngine, Options};
use rumik::engine::mimi::{Decoder, State};
use rumik::engine::{Engine, Info, Observer, Request, Scores, Step};
use rumik::format::layout::{GROUP, PROJECTIONS, projection_name};
use rumik::format::{Export, Files, Report};
use rumik::reference::{Device, Reference};
use rumik::tensors::{Dtype, TensorFile};
use rumik::verify::journal::Journal;
use rumik::verify::limits::Limits;
use rumik::verify::listen;
use rumik::verify::parity;
use rumik::verify::record::Mode;
use rumik::verify::reference::ReferenceFile;
use rumik::verify::{Verdict, check, quality, weights};
use safetensors::tensor::TensorView;

pub const REFERENCE: &str = "fixtures/verify/demo-quick.safetensors";
const SOURCE: &str = "fixtures/demo";
const EXPORT: &str = "fixtures/demo-int4";

/// Everything that is judged and judged against.
pub struct Gate {
    pub tensors: Tensors,
    pub export: Export,
    pub reference: ReferenceFile,
    model: Reference,
    source: Checkpoint,
    limits: Limits,
}

fn failures(verdict: &Verdict) -> String {
    assert!(!verdict.comparisons.is_empty());
    verdict.failures().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn engine(export: &Export, slots: usize) -> CpuEngine {
    CpuEngine::new(export.clone(), Options { slots, ..Options::default() }).unwrap()
}

impl Gate {
    pub fn new() -> Gate {
        let tensors = Tensors::sound();
        let (export, files) = (tensors.export(), tensors.files());
        let reference = ReferenceFile::open(Path::new(REFERENCE)).unwrap();
        let model = parity::dequantized_model(&export, &files.weights, &Device::Cpu).unwrap();
        let source = Checkpoint::open(Path::new(SOURCE)).unwrap();
        Gate { tensors, export, reference, model, source, limits: Limits::default() }
    }

    /// Question 1 for an engine on `export`: the checks that failed.
    pub fn parity(&self, export: &Export) -> String {
        let silent = Export { codec: None, ..export.clone() };
        let (mut verdict, mut engine) = (Verdict::default(), engine(&silent, 1));
        let items: Vec<_> = self.reference.items.iter().collect();
        let sequences = check::sequences(&items, Mode::Quick, &self.export.config);
        let journal = Journal::none();
        let judged = (&mut verdict, &self.limits);
        parity::judge(&mut engine, &self.model, &sequences, &journal, judged, &mut |_| ()).unwrap();
        failures(&verdict)
    }

    /// The file against report and source, and question 2: the checks that failed.
    pub fn quality(&self, tensors: &Tensors) -> String {
        let files = tensors.files();
        let report = Report::parse("export.json", files.report.as_ref().unwrap()).unwrap();
        let mut verdict = Verdict::default();
        let digest = tensors.digest();
        check::judge_report(&digest, &report, &mut verdict, &self.limits);
        let export = Export::from_files(files.clone()).unwrap();
        weights::judge(&export, &files.weights, &self.source, &mut verdict, &self.limits).unwrap();
        let mut engine = engine(&Export { codec: None, ..export }, 1);
        self.judge_quality(&mut engine, &mut verdict);
        failures(&verdict)
    }

    /// Question 2 for a faulty engine on the sound export.
    pub fn quality_of(&self, fault: Faulty) -> String {
        let mut verdict = Verdict::default();
        self.judge_quality(&mut FaultyEngine::new(&self.export, fault), &mut verdict);
        failures(&verdict)
    }

    fn judge_quality(&self, engine: &mut dyn Engine, verdict: &mut Verdict) {
        let items: Vec<_> = self.reference.items.iter().collect();
        let (all, judged) = ((&self.reference, &items[..]), (verdict, &self.limits));
        quality::judge(engine, all, &Journal::none(), judged, &mut |_| ()).unwrap();
    }

    /// The speech of a faulty engine on the sound export.
    pub fn audio(&self, fault: Faulty) -> String {
        self.judge_audio(&mut FaultyEngine::new(&self.export, fault), &self.export)
    }

    /// The speech of an engine on `export`: the checks that failed.
    pub fn audio_of(&self, export: &Export) -> String {
        self.judge_audio(&mut engine(export, 1), export)
    }

    fn judge_audio(&self, engine: &mut dyn Engine, export: &Export) -> String {
        let mut verdict = Verdict::default();
        let items: Vec<_> = self.reference.items.iter().collect();
        let judged = (&mut verdict, &self.limits);
        listen::judge((engine, export), (&self.reference, &items), None, &Journal::none(), judged, &mut |_, _| ())
            .unwrap();
        failures(&verdict)
    }

    /// Choices and slots of a faulty engine on the sound export.
    pub fn behaviour(&self, fault: Faulty) -> String {
        let mut verdict = Verdict::default();
        let mut engine = FaultyEngine::new(&self.export, fault);
        let items: Vec<_> = self.reference.items.iter().collect();
        let trial = check::trial(&items, Mode::Quick);
        trial.judge_choices(&mut engine, &mut verdict, &self.limits).unwrap();
        trial.judge_slots(&mut engine, &mut verdict, &self.limits).unwrap();
        failures(&verdict)
    }
}

/// The tensors of an export, to be edited.
#[derive(Clone, PartialEq)]
pub struct Tensors(BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn sound() -> Tensors {
        let file = TensorFile::open(&Path::new(EXPORT).join("model.safetensors")).unwrap();
        let tensors = file.tensors().iter();
        Tensors(tensors.map(|(name, t)| (name.clone(), (t.dtype, t.shape.clone(), t.data.to_vec()))).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self
            .0
            .iter()
            .map(|(name, (dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    fn files(&self) -> Files {
        let files = Files::in_folders(Path::new(EXPORT), Path::new(SOURCE)).unwrap();
        Files { weights: TensorFile::from_bytes("faulty.safetensors", self.bytes().into()).unwrap(), ..files }
    }

    pub fn export(&self) -> Export {
        Export::from_files(self.files()).unwrap()
    }

    /// The digest of the file that these tensors make: that of the export when nothing was edited.
    fn digest(&self) -> rumik::tensors::write::Digested {
        let sound = *self == Tensors::sound();
        let bytes =
            if sound { std::fs::read(Path::new(EXPORT).join("model.safetensors")).unwrap() } else { self.bytes() };
        let sha256 = rumik::tensors::write::hex(&<sha2::Sha256 as sha2::Digest>::digest(&bytes));
        rumik::tensors::write::Digested { bytes: bytes.len() as u64, sha256 }
    }

    fn data(&mut self, name: &str) -> &mut Vec<u8> {
        &mut self.0.get_mut(name).unwrap_or_else(|| panic!("{name}")).2
    }

    pub fn each_int4(&mut self, mut edit: impl FnMut(&str, &mut Tensors)) {
        for layer in 0..8 {
            PROJECTIONS.iter().for_each(|projection| edit(&projection_name(layer, projection), self));
        }
    }

    pub fn edit_bytes(&mut self, name: &str, edit: impl Fn(u8) -> u8) {
        self.data(name).iter_mut().for_each(|byte| *byte = edit(*byte));
    }

    pub fn edit_one_byte(&mut self, name: &str, index: usize, edit: impl Fn(u8) -> u8) {
        let byte = &mut self.data(name)[index];
        *byte = edit(*byte);
    }

    /// Moves all data `bytes` further, the end to the beginning.
    pub fn rotate(&mut self, name: &str, bytes: usize) {
        self.data(name).rotate_right(bytes);
    }

    pub fn scale_f16(&mut self, name: &str, factor: f32) {
        for value in self.data(name).as_chunks_mut::<2>().0 {
            *value = f16::from_f32(f16::from_le_bytes(*value).to_f32() * factor).to_le_bytes();
        }
    }

    pub fn copy_row(&mut self, to: &str, from: &str, row: usize) {
        let (width, other) = (2 * self.0[to].1[1], self.0[from].2.clone());
        self.data(to)[row * width..(row + 1) * width].copy_from_slice(&other[row * width..(row + 1) * width]);
    }

    /// Sets all values of a BF16 or F32 tensor.
    pub fn set_f(&mut self, name: &str, value: f32) {
        match self.0[name].0 {
            Dtype::BF16 => {
                self.data(name).as_chunks_mut::<2>().0.iter_mut().for_each(|b| *b = bf16::from_f32(value).to_le_bytes())
            }
            _ => self.data(name).as_chunks_mut::<4>().0.iter_mut().for_each(|b| *b = value.to_le_bytes()),
        }
    }

    /// No end by the stop head, and hardly one by a token: the row of the end has no say.
    pub fn never_ends(&mut self) {
        self.set_f("stop_predictor.3.bias", -100.0);
        let width = 2 * self.0["head.audio_weight"].1[1];
        let end = self.data("head.audio_weight").len() - width;
        self.data("head.audio_weight")[end..].fill(0);
    }

    /// Rows of queries and keys in the order that makes rotation of neighbours one of halves.
    pub fn rope_on_halves(&mut self) {
        const HEAD: usize = 64;
        for layer in 0..8 {
            for projection in ["self_attn.q_proj", "self_attn.k_proj"] {
                for part in ["qweight", "scale", "min"] {
                    let name = format!("{}.{part}", projection_name(layer, projection));
                    let rows = self.0[&name].1[0];
                    let (old, width) = (self.0[&name].2.clone(), self.0[&name].2.len() / rows);
                    for row in 0..rows {
                        let (head, d) = (row / HEAD * HEAD, row % HEAD);
                        let from = head + if d % 2 == 0 { d / 2 } else { HEAD / 2 + d / 2 };
                        self.data(&name)[row * width..(row + 1) * width]
                            .copy_from_slice(&old[from * width..(from + 1) * width]);
                    }
                }
            }
        }
    }

    /// The head rounded to 16 levels in groups of 128.
    pub fn int4_head(&mut self) {
        for group in self.data("head.audio_weight").chunks_exact_mut(2 * GROUP) {
            let group = group.as_chunks_mut::<2>().0;
            let values: Vec<f32> = group.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect();
            let (low, high) = values.iter().fold((f32::MAX, f32::MIN), |(l, h), w| (l.min(*w), h.max(*w)));
            let scale = (high - low) / 15.0;
            for (bytes, w) in group.iter_mut().zip(values) {
                *bytes = bf16::from_f32(low + ((w - low) / scale).round() * scale).to_le_bytes();
            }
        }
    }
}

/// Faults of state and sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Faulty {
    None,
    /// A slot that was used before still shows the last position of the sequence before.
    StaleSlot,
    TopKOffByOne,
    TemperatureIgnored,
    SeedIgnored,
    /// `</audio>` of the stop head is never forced: the sequence goes on to its cap.
    StopIgnored,
    /// The codec of a slot goes on where the sequence before it ended.
    CodecNotReset,
    /// With more than one slot running, the first draws with another seed.
    CompanyHeard,
    /// Scores leave the last position out.
    LastPositionMissing,
    /// The codec forgets its state every tenth frame.
    CodecForgets,
    /// Every frame from the tenth on is that one again.
    FrameRepeats,
    /// The samples of every tenth frame are lost.
    SamplesLost,
    /// Samples are four times as large.
    Loud,
    /// Samples are kept within a tenth of full scale.
    Clipped,
}

impl Faulty {
    /// Whether the engine's codes pass through a codec of the fault's own.
    fn decodes(self) -> bool {
        matches!(self, Faulty::CodecNotReset | Faulty::CodecForgets | Faulty::FrameRepeats)
    }
}

/// A sound engine behind a fault.
pub struct FaultyEngine {
    engine: CpuEngine,
    fault: Faulty,
    before: Vec<Option<u32>>,
    running: Vec<bool>,
    codec: (Decoder, Vec<State>),
    /// Frames of a slot so far, and its tenth.
    frames: Vec<(usize, Vec<u32>)>,
}

impl FaultyEngine {
    pub fn new(export: &Export, fault: Faulty) -> FaultyEngine {
        let codec = export.codec.as_ref().unwrap();
        let decoder = Decoder::load(&codec.config, &codec.weights, export.config.num_quantizers).unwrap();
        let states = (0..check::SLOTS).map(|_| decoder.state()).collect();
        FaultyEngine {
            engine: engine(export, check::SLOTS),
            fault,
            before: vec![None; check::SLOTS],
            running: vec![false; check::SLOTS],
            codec: (decoder, states),
            frames: vec![(0, Vec::new()); check::SLOTS],
        }
    }
}

impl Engine for FaultyEngine {
    fn info(&self) -> &Info {
        self.engine.info()
    }

    fn admit(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        let (mut request, mut prompt) = (*request, request.prompt.to_vec());
        match (self.fault, self.before[slot]) {
            (Faulty::StaleSlot, Some(token)) => prompt.insert(0, token),
            (Faulty::TopKOffByOne, _) => request.sampling.top_k += 1,
            (Faulty::TemperatureIgnored, _) if request.sampling.temperature > 0.0 => request.sampling.temperature = 1.0,
            (Faulty::SeedIgnored, _) => request.seed = 0,
            (Faulty::CompanyHeard, _) if self.running.iter().any(|running| *running) => request.seed += 1,
            _ => {}
        }
        self.before[slot] = request.prompt.get(request.prompt.len() / 2).copied(); // a token of the text
        self.running[slot] = true;
        self.frames[slot] = (0, Vec::new());
        if self.fault != Faulty::CodecNotReset {
            self.codec.1[slot].reset();
        }
        request.prompt = &prompt;
        self.engine.admit(slot, &request)
    }

    fn prefill(&mut self, slot: usize) -> Result<bool> {
        self.engine.prefill(slot)
    }

    fn hold(&mut self, slot: usize, held: bool) {
        self.engine.hold(slot, held);
    }

    fn step(&mut self, sink: &mut dyn FnMut(Step<'_>)) -> Result<()> {
        let (fault, (decoder, states), frames) = (self.fault, &mut self.codec, &mut self.frames);
        let (mut pcm, end) = (Vec::new(), self.engine.info().config.audio_end_token_id);
        self.engine.step(&mut |step| match fault {
            fault if fault.decodes() => {
                let (count, tenth) = &mut frames[step.slot];
                *count += 1;
                if *count == 10 {
                    *tenth = step.codes.to_vec();
                }
                let repeats = fault == Faulty::FrameRepeats && *count > 10 && !step.codes.is_empty();
                let codes = if repeats { &tenth[..] } else { step.codes };
                if fault == Faulty::CodecForgets && count.is_multiple_of(10) {
                    states[step.slot].reset();
                }
                pcm.clear();
                if !codes.is_empty() {
                    decoder.step(&mut states[step.slot], codes, &mut pcm).unwrap();
                }
                sink(Step { codes, pcm: &pcm, ..step });
            }
            Faulty::SamplesLost => {
                frames[step.slot].0 += 1;
                let lost = frames[step.slot].0.is_multiple_of(10);
                sink(Step { pcm: if lost { &[] } else { step.pcm }, ..step });
            }
            Faulty::Loud | Faulty::Clipped => {
                let change = |sample: &f32| if fault == Faulty::Loud { 4.0 * sample } else { sample.clamp(-0.1, 0.1) };
                pcm = step.pcm.iter().map(change).collect();
                sink(Step { pcm: &pcm, ..step });
            }
            // The token of the end is shown as any other.
            Faulty::StopIgnored => {
                let tokens: Vec<u32> = step.tokens.iter().map(|t| if *t == end { end - 2 } else { *t }).collect();
                sink(Step { tokens: &tokens, ..step });
            }
            _ => sink(step),
        })
    }

    fn reset(&mut self, slot: usize) {
        self.running[slot] = false;
        self.engine.reset(slot);
    }

    fn score(&mut self, slot: usize, tokens: &[u32], observer: &mut dyn Observer) -> Result<()> {
        struct Short<'a>(&'a mut dyn Observer, usize);
        impl Observer for Short<'_> {
            fn position(&mut self, scores: Scores<'_>) {
                if scores.position < self.1 {
                    self.0.position(scores);
                }
            }
        }
        match self.fault {
            Faulty::LastPositionMissing => self.engine.score(slot, tokens, &mut Short(observer, tokens.len() - 1)),
            _ => self.engine.score(slot, tokens, observer),
        }
    }
}
