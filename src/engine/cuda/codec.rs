//! The streaming Mimi decoder on the device: one frame of many streams, as a fixed list of launches.
//!
//! Meaning: `engine::mimi`. The streams' state is what `engine::mimi::State` holds: past rows of every convolution, the ring
//! of keys and values, the position.

#![allow(unsafe_code)]

use std::ffi::c_void;

use super::decoder::pointer;
use super::device::{Device, Kernel, Launch, Memory, Plain, Start, Stream};
use super::kernels::Address;
use crate::config::CodecConfig;
use crate::engine::mimi::ops;
use crate::error::{Error, Result};
use crate::format;
use crate::tensors::TensorFile;

/// Positions of the transformer per frame.
const UPSAMPLING: usize = 2;
/// Outputs of a `rows` block are `WARPS` times the outputs of a warp.
const WARPS: usize = 8;

/// `Streams` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Streams {
    columns: Address,
    out: Address,
    position: Address,
}

/// `Rows` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Rows {
    w: Address,
    bias: Address,
    past: Address,
    x: Address,
    y: Address,
    residual: Address,
    scale: Address,
    norm: Address,
    norm_bias: Address,
    t: i32,
    n: i32,
    k: i32,
    stride: i32,
    kept: i32,
    new_size: i32,
    elu: i32,
    finish: i32,
    eps: f32,
}

/// `Carry` of codec.cu.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Carry {
    past: Address,
    x: Address,
    kept: i32,
    new_size: i32,
}

const _: () = assert!(size_of::<Streams>() == 24 && size_of::<Rows>() == 112 && size_of::<Carry>() == 24);

// SAFETY: a repr(C) struct of integers.
unsafe impl Plain for Carry {}
// SAFETY: any bits are a value.
unsafe impl Plain for f64 {}
// SAFETY: any bits are a value.
unsafe impl Plain for i32 {}

const STORE: i32 = 0;
const ADD: i32 = 1;
const ADD_SCALED: i32 = 2;
const GELU: i32 = 3;

#[derive(Clone, Copy, Debug)]
struct Attend {
    qkv: Address,
    keys: Address,
    values: Address,
    y: Address,
    frequencies: Address,
}

#[derive(Debug)]
enum Step {
    LookUp { codebooks: Address, y: Address },
    Rows(Box<Rows>),
    Upsample { filter: Address, past: Address, x: Address, y: Address },
    Attend(Attend),
}

/// The codec on a device.
#[derive(Debug)]
pub struct Codec {
    config: CodecConfig,
    quantizers: usize,
    steps: Vec<Step>,
    carries: Address,
    carry_count: usize,
    /// State that a reset clears: addresses and bytes a slot.
    past: Vec<(Address, usize)>,
    streams: Streams,
    pcm: Address,
    rows: [Kernel; 4],
    look_up: Kernel,
    upsample: Kernel,
    attend: Kernel,
    carry: Kernel,
    memory: Vec<Memory>,
}

/// A tensor `[columns][size]` between layers.
#[derive(Clone, Copy)]
struct Tensor {
    at: Address,
    size: usize,
}

struct Builder<'a> {
    device: &'a Device,
    stream: &'a Stream,
    file: &'a TensorFile,
    slots: usize,
    steps: Vec<Step>,
    carries: Vec<Carry>,
    memory: Vec<Memory>,
}

impl Builder<'_> {
    fn upload<T: Plain>(&mut self, values: &[T]) -> Result<Address> {
        let memory = self.device.upload(self.stream, values)?;
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    fn zeros(&mut self, floats: usize) -> Result<Address> {
        let memory = self.device.zeros(self.stream, floats * 4)?;
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    fn tensor(&mut self, size: usize) -> Result<Tensor> {
        Ok(Tensor { at: self.zeros(self.slots * size)?, size })
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<Address> {
        let values = self.file.get_f32(name, &[n])?;
        self.upload(&values)
    }

    /// A linear layer; the caller fills in norm, residual and finish.
    fn linear(&mut self, weights: &[f32], n: usize, k: usize, x: Tensor, more: Rows) -> Result<Tensor> {
        let t = x.size / k;
        let y = self.tensor(t * n)?;
        let w = self.upload(weights)?;
        let sizes = Rows { w, x: x.at, y: y.at, t: t as i32, n: n as i32, k: k as i32, stride: k as i32, ..more };
        self.steps.push(Step::Rows(Box::new(Rows { new_size: x.size as i32, ..sizes })));
        Ok(y)
    }

    /// A causal convolution of `taps` neighbouring rows of `inputs` channels; `w: [n][taps * inputs]`.
    fn conv(&mut self, w: &[f32], bias: &[f32], taps: usize, inputs: usize, x: Tensor, more: Rows) -> Result<Tensor> {
        let (t, n, kept) = (x.size / inputs, bias.len(), (taps - 1) * inputs);
        let y = self.tensor(t * n)?;
        let past = if kept > 0 { self.zeros(self.slots * kept)? } else { 0 };
        if kept > 0 {
            self.carries.push(Carry { past, x: x.at, kept: kept as i32, new_size: x.size as i32 });
        }
        let (w, bias) = (self.upload(w)?, self.upload(bias)?);
        let sizes = Rows { w, bias, past, x: x.at, y: y.at, t: t as i32, n: n as i32, ..more };
        self.steps.push(Step::Rows(Box::new(Rows {
            k: (taps * inputs) as i32,
            stride: inputs as i32,
            kept: kept as i32,
            new_size: x.size as i32,
            ..sizes
        })));
        Ok(y)
    }

    fn plain_conv(&mut self, name: &str, sizes: [usize; 3], x: Tensor, more: Rows) -> Result<Tensor> {
        let [inputs, outputs, kernel] = sizes;
        let weight = self.file.get_f32(&format!("{name}.weight"), &[outputs, inputs, kernel])?;
        let bias = self.file.get_f32(&format!("{name}.bias"), &[outputs])?;
        let taps = (0..outputs * kernel * inputs).map(|i| {
            let (n, k) = (i / (kernel * inputs), i % (kernel * inputs));
            weight[(n * inputs + k % inputs) * kernel + k / inputs]
        });
        self.conv(&taps.collect::<Vec<f32>>(), &bias, kernel, inputs, x, more)
    }

    /// Two taps: the kernel is twice the stride, as everywhere in Mimi's SEANet.
    fn transposed_conv(
        &mut self,
        name: &str,
        inputs: usize,
        outputs: usize,
        stride: usize,
        x: Tensor,
    ) -> Result<Tensor> {
        let kernel = 2 * stride;
        let weight = self.file.get_f32(&format!("{name}.weight"), &[inputs, outputs, kernel])?;
        let bias = self.file.get_f32(&format!("{name}.bias"), &[outputs])?;
        let taps = (0..stride * outputs * 2 * inputs).map(|i| {
            let (n, k) = (i / (2 * inputs), i % (2 * inputs));
            let (phase, output, age) = (n / outputs, n % outputs, 1 - k / inputs);
            weight[(k % inputs * outputs + output) * kernel + age * stride + phase]
        });
        let bias: Vec<f32> = (0..stride).flat_map(|_| bias.iter().copied()).collect();
        let elu = Rows { elu: 1, ..Rows::default() };
        self.conv(&taps.collect::<Vec<f32>>(), &bias, 2, inputs, x, elu)
    }

    fn quantizer(&mut self, config: &CodecConfig, quantizers: usize) -> Result<Tensor> {
        let (codes, dim, hidden) = (config.codebook_size, config.codebook_dim, config.hidden_size);
        let part = |name: &str| format!("quantizer.{name}_residual_vector_quantizer");
        let mut codebooks = Vec::with_capacity(quantizers * codes * dim);
        for index in 0..quantizers {
            let semantic = config.num_semantic_quantizers;
            let (part, layer) =
                if index < semantic { (part("semantic"), index) } else { (part("acoustic"), index - semantic) };
            let name = format!("{part}.layers.{layer}.codebook");
            let sums = self.file.get_f32(&format!("{name}.embed_sum"), &[codes, dim])?;
            let usage = self.file.get_f32(&format!("{name}.cluster_usage"), &[codes])?;
            codebooks.extend(ops::codebook(&sums, &usage));
        }
        let weight = |name: &str| self.file.get_f32(&format!("{}.output_proj.weight", part(name)), &[hidden, dim, 1]);
        let (semantic, acoustic) = (weight("semantic")?, weight("acoustic")?);
        let side_by_side: Vec<f32> =
            semantic.chunks(dim).zip(acoustic.chunks(dim)).flat_map(|(a, b)| a.iter().chain(b)).copied().collect();
        let codebooks = self.upload(&codebooks)?;
        let sums = self.tensor(2 * dim)?;
        self.steps.push(Step::LookUp { codebooks, y: sums.at });
        self.linear(&side_by_side, hidden, 2 * dim, sums, Rows::default())
    }

    fn upsample(&mut self, config: &CodecConfig, x: Tensor) -> Result<Tensor> {
        let (channels, kernel) = (config.hidden_size, 2 * UPSAMPLING);
        let weight = self.file.get_f32("upsample.conv.weight", &[channels, 1, kernel])?;
        let filter: Vec<f32> = (0..kernel * channels).map(|i| weight[i % channels * kernel + i / channels]).collect();
        let (filter, past) = (self.upload(&filter)?, self.zeros(self.slots * channels)?);
        let y = self.tensor(UPSAMPLING * channels)?;
        self.carries.push(Carry { past, x: x.at, kept: channels as i32, new_size: channels as i32 });
        self.steps.push(Step::Upsample { filter, past, x: x.at, y: y.at });
        Ok(y)
    }

    fn transformer_layer(
        &mut self,
        config: &CodecConfig,
        layer: usize,
        frequencies: Address,
        x: Tensor,
    ) -> Result<Tensor> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let width = config.num_attention_heads * config.head_dim;
        let name = |part: &str| format!("decoder_transformer.layers.{layer}.{part}");
        let weight = |part: &str, n: usize, k: usize| self.file.get_f32(&name(part), &[n, k]);
        let qkv = ["q", "k", "v"].map(|p| weight(&format!("self_attn.{p}_proj.weight"), width, hidden));
        let [q, k, v] = qkv;
        let qkv_weights = [q?, k?, v?].concat();
        let o_weights = weight("self_attn.o_proj.weight", hidden, width)?;
        let fc1 = weight("mlp.fc1.weight", wide, hidden)?;
        let fc2 = weight("mlp.fc2.weight", hidden, wide)?;
        let norm = |this: &mut Self, part: &str| {
            Ok(Rows {
                norm: this.vector(&name(&format!("{part}.weight")), hidden)?,
                norm_bias: this.vector(&name(&format!("{part}.bias")), hidden)?,
                eps: config.norm_eps,
                ..Rows::default()
            })
        };
        let add = |this: &mut Self, part: &str, x: Tensor| {
            let scale = this.vector(&name(part), hidden)?;
            Ok(Rows { finish: ADD_SCALED, residual: x.at, scale, ..Rows::default() })
        };
        let first = norm(self, "input_layernorm")?;
        let qkv = self.linear(&qkv_weights, 3 * width, hidden, x, first)?;
        let ring = self.slots * ring_rows(config) * width;
        let attended = self.tensor(UPSAMPLING * width)?;
        let (keys, values) = (self.zeros(ring)?, self.zeros(ring)?);
        self.steps.push(Step::Attend(Attend { qkv: qkv.at, keys, values, y: attended.at, frequencies }));
        let more = add(self, "self_attn_layer_scale.scale", x)?;
        let x = self.linear(&o_weights, hidden, width, attended, more)?;
        let second = Rows { finish: GELU, ..norm(self, "post_attention_layernorm")? };
        let inner = self.linear(&fc1, wide, hidden, x, second)?;
        let more = add(self, "mlp_layer_scale.scale", x)?;
        self.linear(&fc2, hidden, wide, inner, more)
    }

    fn seanet(&mut self, config: &CodecConfig, x: Tensor) -> Result<Tensor> {
        let name = |index: usize| format!("decoder.layers.{index}.conv");
        let mut channels = config.num_filters << config.upsampling_ratios.len();
        let elu = Rows { elu: 1, ..Rows::default() };
        let sizes = [config.hidden_size, channels, config.kernel_size];
        let mut x = self.plain_conv(&name(0), sizes, x, Rows::default())?;
        let mut index = 1;
        for &ratio in &config.upsampling_ratios {
            x = self.transposed_conv(&name(index + 1), channels, channels / 2, ratio, x)?;
            channels /= 2;
            index += 2;
            for _ in 0..config.num_residual_layers {
                let part = |part: usize| format!("decoder.layers.{index}.block.{part}.conv");
                let inner = channels / config.compress;
                let wide = self.plain_conv(&part(1), [channels, inner, config.residual_kernel_size], x, elu)?;
                let add = Rows { finish: ADD, residual: x.at, ..elu };
                x = self.plain_conv(&part(3), [inner, channels, 1], wide, add)?;
                index += 1;
            }
        }
        self.plain_conv(&name(index + 1), [channels, 1, config.last_kernel_size], x, elu)
    }
}

/// Positions the ring of keys and values holds: all that the newest of a frame's positions and the oldest one see.
fn ring_rows(config: &CodecConfig) -> usize {
    (config.sliding_window + UPSAMPLING - 1).next_multiple_of(4)
}

/// Checks that the kernels cover a codec.
fn check(codec: &format::Codec, model: &crate::config::ModelConfig) -> Result<()> {
    let config = &codec.config;
    let refuse =
        |why: String| Err(Error::Unsupported { what: format!("{}: this codec on a GPU", codec.weights.place()), why });
    if config.num_residual_layers > 1 && config.dilation_growth_rate > 1 {
        return refuse("dilated convolutions are not implemented".into());
    }
    if !config.head_dim.is_multiple_of(4) || 128 % config.head_dim != 0 {
        return refuse(format!("head_dim {}; a divisor of 128 from 4 up is supported", config.head_dim));
    }
    let narrowest = config.num_filters / config.compress;
    if !narrowest.is_multiple_of(4) || !config.codebook_dim.is_multiple_of(2) {
        return refuse(format!("{narrowest} channels in the narrowest convolution; multiples of 4 are supported"));
    }
    if model.codebook_size > config.codebook_size || model.num_quantizers > config.num_quantizers {
        let found = format!("{} codebooks of {}", config.num_quantizers, config.codebook_size);
        return refuse(format!("{found}; the model makes {} of {}", model.num_quantizers, model.codebook_size));
    }
    Ok(())
}

impl Codec {
    /// Copies the decoder half to the device and reserves the state of `slots` streams.
    ///
    /// `columns` and `out` are the addresses of the decoder's columns and outputs.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a codec the kernels do not cover; [`Error::Invalid`] naming a tensor; [`Error::Device`].
    pub fn load(
        device: &Device,
        stream: &Stream,
        codec: &format::Codec,
        model: &crate::config::ModelConfig,
        slots: usize,
        (columns, out): (Address, Address),
    ) -> Result<Codec> {
        check(codec, model)?;
        let config = codec.config.clone();
        let mut build = Builder {
            device,
            stream,
            file: &codec.weights,
            slots,
            steps: Vec::new(),
            carries: Vec::new(),
            memory: Vec::new(),
        };
        let frequency = |j: usize| config.rope_theta.powf(-2.0 * j as f64 / config.head_dim as f64);
        let frequencies: Vec<f64> = (0..config.head_dim / 2).map(frequency).collect();
        let frequencies = build.upload(&frequencies)?;
        let mut x = build.quantizer(&config, model.num_quantizers)?;
        x = build.upsample(&config, x)?;
        for layer in 0..config.num_hidden_layers {
            x = build.transformer_layer(&config, layer, frequencies, x)?;
        }
        let pcm = build.seanet(&config, x)?;
        let position = build.upload(&vec![0i32; slots])?;
        let carries = build.carries.clone();
        let carry_address = build.upload(&carries)?;
        let [r0, r1, r2, r3, look_up, upsample, attend, carry] = device.kernels([
            "rows_2_8",
            "rows_2_32",
            "rows_16_8",
            "rows_16_32",
            "look_up",
            "upsample",
            "attend_ring",
            "carry",
        ])?;
        Ok(Codec {
            quantizers: model.num_quantizers,
            carry_count: carries.len(),
            past: carries.iter().map(|carry| (carry.past, carry.kept as usize * 4)).collect(),
            steps: build.steps,
            carries: carry_address,
            streams: Streams { columns, out, position },
            pcm: pcm.at,
            rows: [r0, r1, r2, r3],
            look_up,
            upsample,
            attend,
            carry,
            memory: build.memory,
            config,
        })
    }

    /// Bytes reserved on the device.
    pub fn bytes(&self) -> usize {
        self.memory.iter().map(Memory::bytes).sum()
    }

    /// Samples a frame.
    pub fn samples_per_frame(&self) -> usize {
        self.config.samples_per_frame()
    }

    /// Address of the samples, `[columns, samples_per_frame]` f32; a column without a frame keeps older ones.
    pub fn pcm(&self) -> Address {
        self.pcm
    }

    /// Makes a slot's stream new.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn reset(&self, device: &Device, stream: &Stream, slot: usize) -> Result<()> {
        for &(past, bytes) in &self.past {
            device.fill(stream, past + (slot * bytes) as u64, 0, bytes)?;
        }
        device.fill(stream, self.streams.position + slot as u64 * 4, 0, 4)
    }

    /// Decodes the frame that each of `columns` columns completed, if it did.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn frame(&self, device: &Device, stream: &Stream, columns: usize) -> Result<()> {
        for (index, step) in self.steps.iter().enumerate() {
            let start = if index == 0 { Start::InOrder } else { Start::Early };
            self.run(device, stream, step, columns, start)?;
        }
        let (count, t) = (self.carry_count as i32, UPSAMPLING as i32);
        let most = self.past.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let arguments = [pointer(&self.streams), pointer(&self.carries), pointer(&count), pointer(&t)];
        self.launch(
            device,
            stream,
            &self.carry,
            [self.carry_count + 1, columns, 1],
            256,
            most,
            &arguments,
            Start::Early,
        )
    }

    #[allow(clippy::too_many_arguments)] // a launch's own parameters
    fn launch(
        &self,
        device: &Device,
        stream: &Stream,
        kernel: &Kernel,
        grid: [usize; 3],
        block: usize,
        shared: usize,
        arguments: &[*mut c_void],
        start: Start,
    ) -> Result<()> {
        // SAFETY: callers pass what the kernels of codec.cu take; the builder sized every buffer for `slots` columns.
        unsafe { device.launch(stream, kernel, Launch { grid, block, shared, start }, &mut arguments.to_vec()) }
    }

    fn run(&self, device: &Device, stream: &Stream, step: &Step, columns: usize, start: Start) -> Result<()> {
        let config = &self.config;
        let (channels, stride) = (config.hidden_size as i32, UPSAMPLING as i32);
        match step {
            Step::LookUp { codebooks, y } => {
                let sizes =
                    [self.quantizers, config.num_semantic_quantizers, config.codebook_size, config.codebook_dim];
                let [q, semantic, codes, dim] = sizes.map(|n| n as i32);
                let arguments = [
                    pointer(&self.streams),
                    pointer(codebooks),
                    pointer(y),
                    pointer(&q),
                    pointer(&semantic),
                    pointer(&codes),
                    pointer(&dim),
                ];
                self.launch(device, stream, &self.look_up, [columns, 1, 1], 256, 0, &arguments, start)
            }
            Step::Upsample { filter, past, x, y } => {
                let arguments = [
                    pointer(&self.streams),
                    pointer(filter),
                    pointer(past),
                    pointer(x),
                    pointer(y),
                    pointer(&channels),
                    pointer(&stride),
                ];
                self.launch(device, stream, &self.upsample, [columns, 1, 1], 256, 0, &arguments, start)
            }
            Step::Attend(Attend { qkv, keys, values, y, frequencies }) => {
                let (heads, dim, window) = (config.num_attention_heads, config.head_dim, config.sliding_window);
                let rows = ring_rows(config);
                let [heads_arg, dim_arg, ring, window_arg] = [heads, dim, rows, window].map(|n| n as i32);
                let arguments = [
                    pointer(&self.streams),
                    pointer(qkv),
                    pointer(keys),
                    pointer(values),
                    pointer(y),
                    pointer(frequencies),
                    pointer(&heads_arg),
                    pointer(&dim_arg),
                    pointer(&ring),
                    pointer(&window_arg),
                ];
                let shared = UPSAMPLING * (rows + dim) * 4;
                self.launch(device, stream, &self.attend, [heads, columns, 1], 256, shared, &arguments, start)
            }
            Step::Rows(rows) => {
                let (t, n, k) = (rows.t as usize, rows.n as usize, rows.k as usize);
                let (many, long) = (t > 2, k > 128 && n > 1);
                let (r, lanes) = (if many { 16 } else { 2 }, if long { 32 } else { 8 });
                let kernel = &self.rows[usize::from(many) * 2 + usize::from(long)];
                let grid = [n.div_ceil(WARPS * (32 / lanes)), t.div_ceil(r), columns];
                let shared = ((r - 1) * rows.stride as usize + k) * 4;
                let arguments = [pointer(&self.streams), pointer(&**rows)];
                self.launch(device, stream, kernel, grid, 256, shared, &arguments, start)
            }
        }
    }
}

// STORE is what `Rows::default()` asks for.
const _: () = assert!(STORE == 0);
