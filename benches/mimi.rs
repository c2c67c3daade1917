//! How fast the codec decodes a stream frame by frame, with the shapes of the published Mimi and random weights, beside
//! candle-transformers' Mimi in the same run. `cargo bench --bench mimi`

#[path = "../tests/codec/mod.rs"]
mod codec;

use std::time::{Duration, Instant};

use candle_core::{DType, Device, Shape, StreamTensor, Tensor};
use candle_nn::{Init, VarBuilder, var_builder::SimpleBackend};
use candle_transformers::models::mimi;
use rumik::engine::mimi::Decoder;
use rumik::tensors::TensorFile;

/// Frames before the clock starts: the attention window (125 frames) is full and memory is warm.
const WARM_UP_FRAMES: usize = 130;
/// Frames measured, one by one.
const FRAMES: usize = 200;
/// The peer is slower; fewer frames are as exact.
const PEER_FRAMES: usize = 40;

fn main() {
    let config = codec::published_config();
    let weights = codec::random_weights(&config);
    let decoder = Decoder::load(&config, &weights, codec::NUM_QUANTIZERS).expect("weights of the published shapes");
    let frame_ms = 1e3 / config.frame_rate_hz();
    println!(
        "real-size Mimi decoder, 1 frame ({frame_ms} ms of audio) a step, {} threads",
        rayon::current_num_threads()
    );

    let codes = codec::random_codes(&config, 1, WARM_UP_FRAMES + FRAMES);
    let frames: Vec<&[u32]> = codes.chunks(codec::NUM_QUANTIZERS).collect();
    let (mut state, mut wave) = (decoder.state(), Vec::new());
    let times = time(&frames, |frame| {
        wave.clear();
        decoder.step(&mut state, frame, &mut wave).expect("codes in range");
    });
    report("rumik", &times, frame_ms);

    let mut peer = candle_mimi(weights);
    let times = time(&frames[..WARM_UP_FRAMES + PEER_FRAMES], |frame| {
        let codes = Tensor::new(frame, &Device::Cpu).and_then(|codes| codes.reshape((1, frame.len(), 1)));
        let step = codes.and_then(|codes| peer.decode_step(&StreamTensor::from_tensor(codes)));
        step.expect("a step of the peer");
    });
    report("candle-transformers", &times, frame_ms);
}

fn time(frames: &[&[u32]], mut step: impl FnMut(&[u32])) -> Vec<Duration> {
    let mut measure = |frame: &&[u32]| {
        let start = Instant::now();
        step(frame);
        start.elapsed()
    };
    frames.iter().map(&mut measure).skip(WARM_UP_FRAMES).collect()
}

fn report(name: &str, times: &[Duration], frame_ms: f64) {
    let mut ms: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
    let mean = ms.iter().sum::<f64>() / ms.len() as f64;
    ms.sort_by(f64::total_cmp);
    let (median, p99) = (ms[ms.len() / 2], ms[ms.len() * 99 / 100]);
    println!(
        "{name:20} {mean:7.2} ms a frame (median {median:.2}, p99 {p99:.2})   {:6.2} x real time",
        frame_ms / mean
    );
}

/// candle's model on the same decoder weights; its encoder, which it cannot leave out, gets zeros.
fn candle_mimi(weights: TensorFile) -> mimi::Model {
    let builder = VarBuilder::from_backend(Box::new(DecoderWeights(weights)), DType::F32, Device::Cpu);
    mimi::Model::new(mimi::Config::v0_1(Some(codec::NUM_QUANTIZERS)), builder).expect("candle's Mimi")
}

struct DecoderWeights(TensorFile);

impl SimpleBackend for DecoderWeights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        match self.0.find(name) {
            Some(tensor) => Tensor::from_vec(tensor.to_f32().expect("F32"), shape, device),
            None => Tensor::zeros(shape, dtype, device),
        }
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        candle_core::bail!("{name}: asked for without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.ends_with("weight_g") && !name.ends_with("weight_v")
    }
}
