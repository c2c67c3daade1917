//! The codec against candle-transformers' Mimi, an implementation of other hands, on random codes.
//!
//! What candle does otherwise, from its source (0.11.1): its position counts up to 8192 for the life of an object, whatever
//! is reset, so every comparison uses a new one and stays below 327 s. Its window is `context` for a whole sequence
//! plus the position itself; streamed two positions a frame, the first of a pair has already lost its oldest neighbour.
//! So streams are compared below the window, and beyond it whole sequences with a context shorter by one.

mod codec;

use std::path::Path;

use candle_core::{DType, Device, StreamTensor, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::mimi;
use rumik::config::CodecConfig;
use rumik::engine::mimi::Decoder;
use rumik::tensors::TensorFile;

/// Both compute in f32, in other orders: samples of size 1 differ by about 1e-6, angles from candle's f32 table by more.
const SAMPLE_TOLERANCE: f32 = 1e-5;
/// Frames below the attention window of 250 positions.
const YOUNG_FRAMES: usize = 120;
/// Frames well past it.
const OLD_FRAMES: usize = 400;

struct Pair {
    config: CodecConfig,
    ours: Decoder,
    theirs: mimi::Model,
}

fn pair(fixture: &str, context: usize) -> Pair {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture).join("codec");
    let json = std::fs::read(folder.join("config.json")).unwrap();
    let config = CodecConfig::parse("config.json", &json).unwrap();
    let path = folder.join("model.safetensors");
    let ours = Decoder::load(&config, &TensorFile::open(&path).unwrap(), codec::NUM_QUANTIZERS).unwrap();
    let tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let builder = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let theirs = mimi::Model::new(candle_config(&config, context), builder).unwrap();
    Pair { config, ours, theirs }
}

fn candle_config(config: &CodecConfig, context: usize) -> mimi::encodec::Config {
    let mut theirs = mimi::Config::v0_1(Some(codec::NUM_QUANTIZERS));
    theirs.seanet.dimension = config.hidden_size;
    theirs.seanet.n_filters = config.num_filters;
    theirs.transformer.d_model = config.hidden_size;
    theirs.transformer.num_heads = config.num_attention_heads;
    theirs.transformer.num_layers = config.num_hidden_layers;
    theirs.transformer.dim_feedforward = config.intermediate_size;
    theirs.transformer.context = context;
    theirs.quantizer_bins = config.codebook_size;
    theirs.quantizer_dim = config.codebook_dim;
    theirs
}

impl Pair {
    fn ours(&self, codes: &[u32]) -> Vec<f32> {
        let mut wave = Vec::new();
        self.ours.step(&mut self.ours.state(), codes, &mut wave).unwrap();
        wave
    }
}

/// `[frames, quantizers]` as candle wants it: `[1, quantizers, frames]`.
fn tensor(codes: &[u32]) -> Tensor {
    let frames = codes.len() / codec::NUM_QUANTIZERS;
    let codes = Tensor::from_slice(codes, (1, frames, codec::NUM_QUANTIZERS), &Device::Cpu).unwrap();
    codes.transpose(1, 2).unwrap().contiguous().unwrap()
}

fn samples(wave: &Tensor) -> Vec<f32> {
    wave.flatten_all().unwrap().to_vec1().unwrap()
}

#[track_caller]
fn assert_same(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = differences.fold(0.0, |worst, d| if d.is_nan() { f32::INFINITY } else { d.max(worst) });
    println!("{name}: at most {worst:.1e} apart");
    assert!(worst <= SAMPLE_TOLERANCE, "{name}: {worst}");
}

#[test]
fn streams_agree_with_candle_below_the_window() {
    for fixture in ["golden/tiny", "demo"] {
        let mut pair = pair(fixture, 250);
        let codes = codec::random_codes(&pair.config, 7, YOUNG_FRAMES);
        let mut theirs = Vec::new();
        for frame in codes.chunks(codec::NUM_QUANTIZERS) {
            let step = pair.theirs.decode_step(&StreamTensor::from_tensor(tensor(frame))).unwrap();
            theirs.extend(samples(step.as_option().expect("a frame in, a frame out")));
        }
        assert_same(fixture, &pair.ours(&codes), &theirs);
    }
}

#[test]
fn whole_sequences_agree_with_candle_past_the_window() {
    for fixture in ["golden/tiny", "demo"] {
        let mut pair = pair(fixture, 249);
        assert_eq!(pair.config.sliding_window, 250);
        let codes = codec::random_codes(&pair.config, 8, OLD_FRAMES);
        let theirs = samples(&pair.theirs.decode(&tensor(&codes)).unwrap());
        assert_same(fixture, &pair.ours(&codes), &theirs);
    }
}
