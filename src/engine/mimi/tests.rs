//! The decoder against what transformers computed, and against itself cut into steps.

use std::path::Path;

use super::testing::{assert_close, noise};
use super::*;

/// Issue 2: golden waveforms are matched to at least this signal-to-noise ratio.
const GOLDEN_SNR_DB: f64 = 80.0;
/// Values of the stages are of size 1; transformers' own paths differ by about 1e-5.
const STAGE_TOLERANCE: f32 = 2e-5;

struct Fixture {
    config: CodecConfig,
    weights: TensorFile,
    golden: TensorFile,
}

fn fixture(name: &str) -> Fixture {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let json = std::fs::read(folder.join("codec/config.json")).unwrap();
    Fixture {
        config: CodecConfig::parse("config.json", &json).unwrap(),
        weights: TensorFile::open(&folder.join("codec/model.safetensors")).unwrap(),
        golden: TensorFile::open(&folder.join("golden.safetensors")).unwrap(),
    }
}

impl Fixture {
    fn decoder(&self) -> Decoder {
        Decoder::load(&self.config, &self.weights, 8).unwrap()
    }

    fn golden(&self, name: &str) -> Vec<f32> {
        self.golden.get(name).unwrap().to_f32().unwrap()
    }

    fn codes(&self, name: &str) -> Vec<u32> {
        self.golden.get(name).unwrap().to_i64().unwrap().iter().map(|&code| code as u32).collect()
    }

    /// `mimi.codes` is `[quantizer, frame]`.
    fn mimi_codes(&self) -> Vec<u32> {
        let (codes, q) = (self.codes("mimi.codes"), 8);
        let frames = codes.len() / q;
        (0..codes.len()).map(|i| codes[i % q * frames + i / q]).collect()
    }
}

fn decode(decoder: &Decoder, codes: &[u32]) -> Vec<f32> {
    let mut wave = Vec::new();
    decoder.step(&mut decoder.state(), codes, &mut wave).unwrap();
    wave
}

fn snr_db(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |v: f64| v * v;
    let signal: f64 = expected.iter().map(|&v| square(v.into())).sum();
    let noise: f64 = found.iter().zip(expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    10.0 * (signal / noise).log10()
}

fn random_codes(seed: u32, frames: usize, codebook_size: usize) -> Vec<u32> {
    noise(seed, frames * 8).iter().map(|v| ((v + 1.0) / 2.0 * codebook_size as f32) as u32).collect()
}

/// Steps whose sizes go round through `sizes`.
fn streamed(decoder: &Decoder, state: &mut State, codes: &[u32], sizes: &[usize]) -> Vec<f32> {
    let (mut wave, mut rest) = (Vec::new(), codes);
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, later) = rest.split_at(rest.len().min(size * 8));
        decoder.step(state, now, &mut wave).unwrap();
        rest = later;
    }
    wave
}

#[test]
fn golden_waveforms_are_matched() {
    for name in ["golden/tiny", "demo"] {
        let fixture = fixture(name);
        let decoder = fixture.decoder();
        let mut compared = 0;
        let waves = fixture.golden.tensors().keys().filter_map(|key| key.strip_suffix(".wave"));
        for wave in waves {
            let codes = if wave == "mimi" { fixture.mimi_codes() } else { fixture.codes(&format!("{wave}.frames")) };
            let snr = snr_db(&decode(&decoder, &codes), &fixture.golden(&format!("{wave}.wave")));
            println!("{name} {wave}: {snr:.1} dB");
            assert!(snr >= GOLDEN_SNR_DB, "{name} {wave}: {snr:.1} dB");
            compared += 1;
        }
        assert!(compared >= 4, "{name}: {compared} waveforms");
    }
}

#[test]
fn golden_stages_are_matched() {
    let fixture = fixture("golden/tiny");
    let decoder = fixture.decoder();
    let state = decoder.state();
    let transposed = |name: &str| {
        let tensor = fixture.golden.get(name).unwrap();
        let (channels, values) = (tensor.shape[0], tensor.to_f32().unwrap());
        let t = values.len() / channels;
        (0..values.len()).map(|i| values[i % channels * t + i / channels]).collect::<Vec<_>>()
    };
    let [mut x, mut y, mut z] = [Vec::new(), Vec::new(), Vec::new()];

    let codes = &fixture.mimi_codes()[..2 * 8];
    decoder.quantizer.step(codes, &mut z, &mut y);
    let parts = transposed("mimi.stage.semantic_proj").into_iter().zip(transposed("mimi.stage.acoustic_proj"));
    assert_close(&y, &parts.map(|(a, b)| a + b).collect::<Vec<_>>(), STAGE_TOLERANCE);
    decoder.upsample.step(&mut state.upsample.clone(), &y, &mut x);
    assert_close(&x, &transposed("mimi.stage.upsample"), STAGE_TOLERANCE);
    decoder.transformer.step(&mut state.transformer.clone(), &mut x);
    assert_close(&x, &fixture.golden("mimi.stage.transformer.1"), STAGE_TOLERANCE);

    // Layers of the file that have weights, in the order they run; the golden has no output of the wider ones.
    let numbers = [0, 2, 3, 5, 6, 8, 9, 11, 12, 14];
    let mut compared = 0;
    for ((layer, state), number) in decoder.seanet.layers.iter().zip(&mut state.seanet.clone()).zip(numbers) {
        layer.step(state, &mut x, &mut y, &mut z);
        let name = format!("mimi.stage.seanet.{number}");
        if fixture.golden.find(&name).is_some() {
            assert_close(&x, &transposed(&name), STAGE_TOLERANCE);
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn any_chunking_gives_the_same_bits_past_the_window_and_after_reset() {
    let fixture = fixture("golden/tiny");
    let decoder = fixture.decoder();
    let codes = random_codes(1, 300, fixture.config.codebook_size); // 600 positions, a window of 250
    let whole = decode(&decoder, &codes);
    assert_eq!(whole.len(), 300 * 1920);
    let mut state = decoder.state();
    for sizes in [&[1][..], &[2], &[3], &[7], &[5, 1, 13, 2, 64]] {
        assert!(streamed(&decoder, &mut state, &codes, sizes) == whole, "steps of {sizes:?}");
        state.reset();
    }
}

#[test]
fn streams_of_different_ages_do_not_touch_each_other() {
    let fixture = fixture("golden/tiny");
    let decoder = fixture.decoder();
    let size = fixture.config.codebook_size;
    let streams: Vec<Vec<u32>> = (0..3).map(|i| random_codes(10 + i, 140, size)).collect();
    let mut states = [decoder.state(), decoder.state(), decoder.state()];
    let mut waves = [Vec::new(), Vec::new(), Vec::new()];
    for turn in 0..3 * 140 {
        for stream in 0..3 {
            // The second starts after the first is past the window, the third in between.
            let Some(frame) = (turn as usize).checked_sub([0, 130, 61][stream]).filter(|&frame| frame < 140) else {
                continue;
            };
            let codes = &streams[stream][frame * 8..(frame + 1) * 8];
            decoder.step(&mut states[stream], codes, &mut waves[stream]).unwrap();
        }
    }
    for (wave, codes) in waves.iter().zip(&streams) {
        assert!(*wave == decode(&decoder, codes));
    }
}

#[test]
fn bad_codes_are_named_and_leave_the_stream_unchanged() {
    let fixture = fixture("golden/tiny");
    let decoder = fixture.decoder();
    let codes = random_codes(3, 4, fixture.config.codebook_size);
    let (mut state, mut wave) = (decoder.state(), Vec::new());
    decoder.step(&mut state, &codes[..16], &mut wave).unwrap();
    let mut bad = codes[..16].to_vec();
    bad[11] = 64;
    let error = decoder.step(&mut state, &bad, &mut wave).unwrap_err().to_string();
    assert_eq!(error, "codes: code 64 of quantizer 3 in frame 1 is out of range: this codec has 64 codes a codebook");
    for partial in [&codes[..0], &codes[..7]] {
        let error = decoder.step(&mut state, partial, &mut wave).unwrap_err().to_string();
        assert!(error.contains("expected one or more frames of 8 codes"), "{error}");
    }
    decoder.step(&mut state, &codes[16..], &mut wave).unwrap();
    assert!(wave == decode(&decoder, &codes));
}

#[test]
fn a_file_that_is_no_such_codec_is_refused_by_name() {
    let fixture = fixture("golden/tiny");
    let load = |change: fn(&mut CodecConfig), quantizers| {
        let mut config = fixture.config.clone();
        change(&mut config);
        Decoder::load(&config, &fixture.weights, quantizers).unwrap_err().to_string()
    };
    let cases = [
        (load(|c| c.num_hidden_layers = 3, 8), "decoder_transformer.layers.2.", "nothing of that name"),
        (load(|c| c.kernel_size = 5, 8), "decoder.layers.0.conv.weight", "[128, 64, 7]"),
        (load(|c| c.codebook_dim = 32, 8), "output_proj.weight", "[64, 16, 1]"),
        (load(|c| c.num_residual_layers = 2, 8), "decoder.layers.4.block.1.conv.weight", "nothing of that name"),
        (load(|_| (), 9), "num_quantizers", "9 asked for"),
        (load(|_| (), 0), "num_quantizers", "0 asked for"),
    ];
    for (error, item, found) in cases {
        assert!(error.contains(item) && error.contains(found), "{error}");
    }
}
