//! Known answers of the streaming codec: small codecs in which all stages but one pass values through, so that the samples
//! show that stage; and a random one against the plain operations over the whole sequence.
//!
//! The pass-through: each of the eight output phases of the one transposed convolution hands one channel of the latent to
//! the samples. ELU leaves what is positive as it is, so values are made positive first.

use std::collections::BTreeMap;

use safetensors::tensor::TensorView;

use crate::config::CodecConfig;
use crate::error::{Error, Result};
use crate::tensors::{Dtype, TensorFile};

use super::codec_plain::plain_decode;
use super::judge::Judge;
use super::values::{noise, words};
use super::vectors::{FLOAT_TOLERANCE, NO_EPS, balanced};

/// Codebooks in use.
pub(super) const QUANTIZERS: usize = 3;
/// Codes a codebook.
const CODES: usize = 8;
/// Stride of the transposed convolution: channels of the latent that the samples show.
pub(super) const PHASES: usize = 8;
/// Positions of the transformer a frame.
pub(super) const PER_FRAME: usize = 2;
/// Positions the transformer sees.
const WINDOW: usize = 5;
/// f32 sums of a few hundred products through some ten layers, against f64.
const STREAM_TOLERANCE: f64 = 5e-5;

/// Decodes `codes: [frames, QUANTIZERS]` as one stream, in steps of so many frames, going round through the sizes; `twice`:
/// the stream is then reset and decoded again, and the second is the answer.
pub(super) type Decode<'a> = &'a dyn Fn(&Codec, &[u32], &[usize], bool) -> Result<Vec<f32>>;

/// A codec in memory.
pub(super) struct Codec {
    pub(super) config: CodecConfig,
    pub(super) weights: TensorFile,
    pub(super) tensors: Tensors,
}

/// Shape and values by name.
pub(super) type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Sizes: width of the latent and of a head, and channels of the last stage.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    head_dim: usize,
    filters: usize,
}

const SMALL: Sizes = Sizes { hidden: 16, head_dim: 8, filters: 16 };
/// Past 128 inputs an output, where device kernels divide a sum otherwise.
const WIDE: Sizes = Sizes { hidden: 144, head_dim: 16, filters: 48 };

fn config(sizes: Sizes) -> CodecConfig {
    CodecConfig {
        sampling_rate: 200,
        hidden_size: sizes.hidden,
        num_filters: sizes.filters,
        num_hidden_layers: 2,
        num_attention_heads: sizes.hidden / sizes.head_dim,
        head_dim: sizes.head_dim,
        intermediate_size: 2 * sizes.hidden,
        sliding_window: WINDOW,
        rope_theta: 10_000.0,
        norm_eps: NO_EPS,
        num_quantizers: QUANTIZERS + 1,
        num_semantic_quantizers: 1,
        codebook_size: CODES,
        codebook_dim: 8,
        upsampling_ratios: vec![PHASES],
        kernel_size: 3,
        last_kernel_size: 3,
        residual_kernel_size: 3,
        num_residual_layers: 1,
        dilation_growth_rate: 2,
        compress: 2,
    }
}

/// Names and shapes of all tensors of the decoder half.
fn shapes(config: &CodecConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, dim, wide) = (config.hidden_size, config.codebook_dim, config.intermediate_size);
    let channels = config.num_filters;
    let inner = channels / config.compress;
    let mut shapes = Vec::new();
    let mut add = |name: String, shape: &[usize]| shapes.push((name, shape.to_vec()));
    for index in 0..QUANTIZERS + 1 {
        let part = if index == 0 { "semantic" } else { "acoustic" };
        let name = format!("quantizer.{part}_residual_vector_quantizer");
        let layer = index.saturating_sub(1);
        add(format!("{name}.layers.{layer}.codebook.embed_sum"), &[CODES, dim]);
        add(format!("{name}.layers.{layer}.codebook.cluster_usage"), &[CODES]);
        if index < 2 {
            add(format!("{name}.output_proj.weight"), &[hidden, dim, 1]);
        }
    }
    add("upsample.conv.weight".into(), &[hidden, 1, 2 * PER_FRAME]);
    for layer in 0..config.num_hidden_layers {
        let mut add = |part: &str, shape: &[usize]| add(format!("decoder_transformer.layers.{layer}.{part}"), shape);
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            add(&format!("{norm}.weight"), &[hidden]);
            add(&format!("{norm}.bias"), &[hidden]);
        }
        ["q", "k", "v", "o"].iter().for_each(|p| add(&format!("self_attn.{p}_proj.weight"), &[hidden, hidden]));
        add("self_attn_layer_scale.scale", &[hidden]);
        add("mlp.fc1.weight", &[wide, hidden]);
        add("mlp.fc2.weight", &[hidden, wide]);
        add("mlp_layer_scale.scale", &[hidden]);
    }
    let mut conv = |name: &str, shape: [usize; 3], outputs: usize| {
        add(format!("decoder.layers.{name}.conv.weight"), &shape);
        add(format!("decoder.layers.{name}.conv.bias"), &[outputs]);
    };
    conv("0", [2 * channels, hidden, 3], 2 * channels);
    conv("2", [2 * channels, channels, 2 * PHASES], channels);
    conv("3.block.1", [inner, channels, 3], inner);
    conv("3.block.3", [channels, inner, 1], channels);
    conv("5", [1, channels, 3], 1);
    shapes
}

fn write(tensors: &Tensors) -> Result<TensorFile> {
    let damaged = |e: safetensors::SafeTensorError| Error::invalid("known answers", "codec", "a tensor file", e);
    let data: Vec<Vec<u8>> =
        tensors.values().map(|(_, values)| values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&data).map(|((name, (shape, _)), data)| {
        Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), data).map_err(damaged)?))
    });
    let bytes = safetensors::serialize(views.collect::<Result<Vec<_>>>()?, None).map_err(damaged)?;
    TensorFile::from_bytes("known answers", bytes.into())
}

/// Values of `[a, b, c]` by formula.
fn fill([a, b, c]: [usize; 3], value: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
    (0..a * b * c).map(|i| value(i / (b * c), i / c % b, i % c)).collect()
}

fn one_if(condition: bool) -> f32 {
    f32::from(u8::from(condition))
}

/// A codec through which values pass, and what a test changes of it.
fn pass_through(change: impl FnOnce(&mut dyn FnMut(&str, Vec<f32>))) -> Result<Codec> {
    let config = config(SMALL);
    let (hidden, channels) = (SMALL.hidden, SMALL.filters);
    let mut tensors: Tensors = shapes(&config)
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let value = one_if(name.ends_with("cluster_usage") || name.ends_with("layernorm.weight"));
            (name, (shape, vec![value; count]))
        })
        .collect();
    let mut set = |name: &str, values: Vec<f32>| {
        if let Some((_, old)) = tensors.get_mut(name).filter(|(_, old)| old.len() == values.len()) {
            *old = values;
        }
    };
    // Vector c of codebook q: small integers told apart by both and by the column.
    for index in 0..QUANTIZERS {
        set(&codebook(index, "embed_sum"), fill([CODES, 8, 1], |code, d, _| mark(index, code, d)));
    }
    set(
        "quantizer.semantic_residual_vector_quantizer.output_proj.weight",
        fill([hidden, 8, 1], |n, d, _| one_if(n == d)),
    );
    set("quantizer.acoustic_residual_vector_quantizer.output_proj.weight", vec![0.0; hidden * 8]);
    set("upsample.conv.weight", fill([hidden, 1, 4], |_, _, k| one_if(k < PER_FRAME)));
    set("decoder.layers.0.conv.weight", fill([2 * channels, hidden, 3], |n, c, k| one_if(n == c && k == 2)));
    let phase = |c: usize, n: usize, k: usize| one_if(c == k && n == 0);
    set("decoder.layers.2.conv.weight", fill([2 * channels, channels, 2 * PHASES], phase));
    set("decoder.layers.5.conv.weight", fill([1, channels, 3], |_, c, k| one_if(c == 0 && k == 2)));
    change(&mut set);
    Ok(Codec { weights: write(&tensors)?, config, tensors })
}

pub(super) fn codebook(index: usize, tensor: &str) -> String {
    let (part, layer) = if index == 0 { ("semantic", 0) } else { ("acoustic", index - 1) };
    format!("quantizer.{part}_residual_vector_quantizer.layers.{layer}.codebook.{tensor}")
}

/// Value `d` of vector `code` of codebook `index`.
fn mark(index: usize, code: usize, d: usize) -> f32 {
    (1 + (index * 53 + code * 17 + d * 5) % 101) as f32
}

/// Codes of so many frames.
fn codes(seed: u32, frames: usize) -> Vec<u32> {
    words(seed, frames * QUANTIZERS).map(|word| word % CODES as u32).collect()
}

/// The samples that channels `value(position, channel)` of the latent become, if all else passes through.
fn samples(frames: usize, value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..frames * PER_FRAME * PHASES).map(|i| value(i / PHASES, i % PHASES)).collect()
}

/// Holds a codec against known answers.
pub(super) fn judge(judge: &mut Judge<'_>, kernel: &str, decode: Decode<'_>) -> Result<()> {
    let codes = codes(1, 9);
    // Semantic vectors pass: position p of frame p / 2, or 0 before the first.
    let latent = |p: usize, back: usize, c: usize| {
        let code = |p: usize| codes[p / PER_FRAME * QUANTIZERS] as usize;
        p.checked_sub(back).map_or(0.0, |p| mark(0, code(p), c))
    };
    let mut exact = |test: &str, codec: Codec, value: &dyn Fn(usize, usize) -> f32| -> Result<()> {
        judge.exact(kernel, test, &decode(&codec, &codes, &[1, 2, 3], false)?, &samples(9, value));
        Ok(())
    };
    exact("pass_through", pass_through(|_| {})?, &|p, c| latent(p, 0, c))?;
    exact("lookup", lookup()?, &|p, c| {
        let code = |q: usize| codes[p / PER_FRAME * QUANTIZERS + q] as usize;
        mark(0, code(0), c) / 2.0 + 3.0 * (mark(1, code(1), c) + mark(2, code(2), c) / 4.0)
    })?;
    let filter = |c: usize, k: usize| [1.0, 2.0, 4.0, 8.0][k] + c as f32;
    let upsample = fill([SMALL.hidden, 1, 4], |c, _, k| filter(c, k));
    exact("upsample", pass_through(|set| set("upsample.conv.weight", upsample))?, &|p, c| {
        filter(c, p % 2) * latent(p, 0, c) + filter(c, 2 + p % 2) * latent(p, 2, c)
    })?;
    let taps = fill([2 * SMALL.filters, SMALL.hidden, 3], |n, c, k| one_if(n == c) * [4.0, 2.0, 1.0][k]);
    let bias: Vec<f32> = (0..2 * SMALL.filters).map(|n| n as f32).collect();
    let conv = pass_through(|set| {
        set("decoder.layers.0.conv.weight", taps);
        set("decoder.layers.0.conv.bias", bias);
    })?;
    exact("conv_state", conv, &|p, c| latent(p, 0, c) + 2.0 * latent(p, 1, c) + 4.0 * latent(p, 2, c) + c as f32)?;
    // The second half of the kernel reaches the position after: channel c at phase c with weight 2, and its bias once.
    let overlap = |c: usize, n: usize, k: usize| one_if(n == 0 && c == k % PHASES) * if k < PHASES { 1.0 } else { 2.0 };
    let transposed = pass_through(|set| {
        set("decoder.layers.2.conv.weight", fill([2 * SMALL.filters, SMALL.filters, 2 * PHASES], overlap));
        set("decoder.layers.2.conv.bias", vec![0.5; SMALL.filters]);
    })?;
    exact("transposed_state", transposed, &|p, c| latent(p, 0, c) + 2.0 * latent(p, 1, c) + 0.5)?;
    // x + 3 * (x two samples ago), then the newest of three taps of the last convolution and 5 times the oldest.
    let sample = |i: usize, back: usize| i.checked_sub(back).map_or(0.0, |i| latent(i / PHASES, 0, i % PHASES));
    let unit = |i: usize, back: usize| sample(i, back) + 3.0 * sample(i, back + 2);
    exact("residual_unit_state", residual_unit()?, &|p, c| unit(p * PHASES + c, 0) + 5.0 * unit(p * PHASES + c, 2))?;
    judge_activations(judge, kernel, decode)?;
    judge_attention(judge, kernel, decode)?;
    judge_random(judge, kernel, decode)
}

/// Vectors divided by their usage, summed by part, projected by part, added.
fn lookup() -> Result<Codec> {
    pass_through(|set| {
        set(&codebook(0, "cluster_usage"), vec![2.0; CODES]);
        set(&codebook(2, "cluster_usage"), vec![4.0; CODES]);
        let times = fill([SMALL.hidden, 8, 1], |n, d, _| 3.0 * one_if(n == d));
        set("quantizer.acoustic_residual_vector_quantizer.output_proj.weight", times);
    })
}

/// A residual unit that adds three times the sample two before, and a last convolution with two taps.
fn residual_unit() -> Result<Codec> {
    let (channels, inner) = (SMALL.filters, SMALL.filters / 2);
    pass_through(|set| {
        set("decoder.layers.3.block.1.conv.weight", fill([inner, channels, 3], |n, c, k| one_if(n + c + k == 0)));
        set("decoder.layers.3.block.3.conv.weight", fill([channels, inner, 1], |n, c, _| 3.0 * one_if(n + c == 0)));
        set("decoder.layers.5.conv.weight", fill([1, channels, 3], |_, c, k| one_if(c == 0) * [5.0, 0.0, 1.0][k]));
    })
}

/// ELU of negative values before the last convolution; GELU inside the transformer's MLP.
fn judge_activations(judge: &mut Judge<'_>, kernel: &str, decode: Decode<'_>) -> Result<()> {
    let codes = codes(2, 5);
    let code = |p: usize| codes[p / PER_FRAME * QUANTIZERS] as usize;
    // The samples before the last ELU: mark / 64 - 1, from -1 to 0.6. Once and only there: the first ELU sees what is positive.
    let elu = pass_through(|set| {
        set(&codebook(0, "cluster_usage"), vec![64.0; CODES]);
        set("decoder.layers.2.conv.bias", vec![-1.0; SMALL.filters]);
    })?;
    let value = |x: f64| if x > 0.0 { x } else { x.exp_m1() };
    let expected = samples(5, |p, c| value(f64::from(mark(0, code(p), c)) / 64.0 - 1.0) as f32);
    judge.close(kernel, "elu", &decode(&elu, &codes, &[2], false)?, &expected, FLOAT_TOLERANCE);
    // x + gelu(x) of balanced signs, lifted above zero for the ELUs: gelu(1) = 0.8413447, gelu(-1) = gelu(1) - 1.
    let gelu = signs(|set| {
        set("decoder_transformer.layers.1.mlp.fc1.weight", fill([32, 16, 1], |n, c, _| one_if(n == c)));
        set("decoder_transformer.layers.1.mlp.fc2.weight", fill([16, 32, 1], |n, c, _| one_if(n == c)));
        set("decoder_transformer.layers.1.mlp_layer_scale.scale", vec![1.0; 16]);
    })?;
    let sum = |x: f32| LIFT + if x > 0.0 { 1.841_344_7 } else { -1.158_655_2 };
    let expected = samples(5, |p, c| sum(sign(code(p), p, c)));
    judge.close(kernel, "gelu", &decode(&gelu, &codes, &[1], false)?, &expected, FLOAT_TOLERANCE);
    Ok(())
}

/// Added before the first ELU, so that nothing is negative.
const LIFT: f32 = 4.0;

/// A codec whose positions are patterns of balanced signs, the second of a frame with the signs turned round.
fn signs(change: impl FnOnce(&mut dyn FnMut(&str, Vec<f32>))) -> Result<Codec> {
    pass_through(|set| {
        // Eight balanced columns, and the same once more in the eight channels that the samples do not show.
        set(&codebook(0, "embed_sum"), (0..CODES).flat_map(|code| balanced(code as u32, 8)).collect());
        let twice = fill([16, 8, 1], |n, d, _| one_if(n % 8 == d));
        set("quantizer.semantic_residual_vector_quantizer.output_proj.weight", twice);
        set("upsample.conv.weight", fill([16, 1, 4], |_, _, k| [1.0, -1.0, 0.0, 0.0][k]));
        set("decoder.layers.0.conv.bias", vec![LIFT; 2 * SMALL.filters]);
        change(set);
    })
}

/// Channel `c` of position `p`, whose frame has this semantic code.
fn sign(code: usize, p: usize, c: usize) -> f32 {
    balanced(code as u32, 8)[c] * if p.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// Queries of zero see the window alike, once the ring has gone round several times and after a reset.
fn judge_attention(judge: &mut Judge<'_>, kernel: &str, decode: Decode<'_>) -> Result<()> {
    let codes = codes(3, 17);
    let codec = signs(|set| {
        let identity = fill([16, 16, 1], |n, c, _| one_if(n == c));
        set("decoder_transformer.layers.0.self_attn.v_proj.weight", identity.clone());
        set("decoder_transformer.layers.0.self_attn.o_proj.weight", identity);
        set("decoder_transformer.layers.0.self_attn_layer_scale.scale", vec![1.0; 16]);
    })?;
    let at = |p: usize, c: usize| sign(codes[p / PER_FRAME * QUANTIZERS] as usize, p, c);
    let expected = samples(17, |p, c| {
        let window = (p + 1).saturating_sub(WINDOW)..=p;
        let count = window.clone().count() as f32;
        LIFT + at(p, c) + window.map(|p| at(p, c)).sum::<f32>() / count
    });
    judge.close(kernel, "window", &decode(&codec, &codes, &[1], false)?, &expected, FLOAT_TOLERANCE);
    judge.close(kernel, "window_after_reset", &decode(&codec, &codes, &[3, 1], true)?, &expected, FLOAT_TOLERANCE);
    Ok(())
}

/// Random codecs of both sizes against the plain operations; cuts and resets change no bit.
fn judge_random(judge: &mut Judge<'_>, kernel: &str, decode: Decode<'_>) -> Result<()> {
    for (seed, sizes) in [(1, SMALL), (2, WIDE)] {
        let config = CodecConfig { norm_eps: 1e-5, ..config(sizes) };
        let mut tensors = Tensors::new();
        for (number, (name, shape)) in (100 * seed..).zip(shapes(&config)) {
            let fan_in: usize = shape[1..].iter().product();
            let scale = (2.0 / fan_in.max(1) as f32).sqrt().min(0.5);
            let bias = one_if(name.ends_with("norm.weight") || name.ends_with("cluster_usage"));
            let values = noise(number, shape.iter().product()).iter().map(|v| bias + scale * v).collect();
            tensors.insert(name, (shape, values));
        }
        let codec = Codec { weights: write(&tensors)?, config, tensors };
        let codes = codes(4, 19);
        let whole = decode(&codec, &codes, &[1], false)?;
        judge.close(kernel, "random", &whole, &plain_decode(&codec, &codes), STREAM_TOLERANCE);
        judge.exact(kernel, "cuts", &decode(&codec, &codes, &[2, 3, 5], false)?, &whole);
        judge.exact(kernel, "reset", &decode(&codec, &codes, &[4], true)?, &whole);
    }
    Ok(())
}
