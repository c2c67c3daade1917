//! From the codec's tensors to its launches: weights in the kernels' order, one step a layer.

use super::super::arena::Arena;
use super::super::kernels::Address;
use super::{ADD, ADD_SCALED, Attend, Carry, GELU, Rows, Step, UPSAMPLING, ring_rows};
use crate::config::CodecConfig;
use crate::engine::mimi::ops;
use crate::error::Result;
use crate::tensors::TensorFile;

/// A tensor `[columns][size]` between layers.
#[derive(Clone, Copy)]
pub struct Tensor {
    /// Its address.
    pub at: Address,
    size: usize,
}

/// What an ELU makes of a tensor, and the tensor itself where a later layer adds it.
struct Activated {
    raw: Option<Tensor>,
    elu: Tensor,
}

/// Collects the steps while it walks through the model.
pub struct Builder<'a> {
    pub arena: Arena<'a>,
    pub file: &'a TensorFile,
    pub slots: usize,
    pub steps: Vec<Step>,
    pub carries: Vec<Carry>,
}

impl Activated {
    fn outputs(&self) -> Rows {
        Rows { y: self.raw.map_or(0, |raw| raw.at), elu: self.elu.at, ..Rows::default() }
    }
}

impl Builder<'_> {
    fn zeros(&mut self, floats: usize) -> Result<Address> {
        self.arena.zeros(floats * 4)
    }

    fn tensor(&mut self, size: usize) -> Result<Tensor> {
        Ok(Tensor { at: self.zeros(self.slots * size)?, size })
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<Address> {
        let values = self.file.get_f32(name, &[n])?;
        self.arena.upload(&values)
    }

    /// A linear layer; the caller fills in norm, residual and finish.
    fn linear(&mut self, weights: &[f32], n: usize, k: usize, x: Tensor, more: Rows) -> Result<Tensor> {
        let t = x.size / k;
        let y = self.tensor(t * n)?;
        let w = self.arena.upload(weights)?;
        let sizes = Rows { w, x: x.at, y: y.at, t: t as i32, n: n as i32, k: k as i32, stride: k as i32, ..more };
        self.steps.push(Step::Rows(Box::new(Rows { new_size: x.size as i32, ..sizes })));
        Ok(y)
    }

    /// A causal convolution of `taps` neighbouring rows of `inputs` channels, `w: [n][taps * inputs]`, into `y`, `elu` or both.
    fn conv(&mut self, w: &[f32], bias: &[f32], taps: usize, inputs: usize, x: Tensor, more: Rows) -> Result<()> {
        let (t, n, kept) = (x.size / inputs, bias.len(), (taps - 1) * inputs);
        let past = if kept > 0 { self.zeros(self.slots * kept)? } else { 0 };
        if kept > 0 {
            self.carries.push(Carry { past, x: x.at, kept: kept as i32, new_size: x.size as i32 });
        }
        let (w, bias) = (self.arena.upload(w)?, self.arena.upload(bias)?);
        let sizes = Rows { w, bias, past, x: x.at, t: t as i32, n: n as i32, ..more };
        self.steps.push(Step::Rows(Box::new(Rows {
            k: (taps * inputs) as i32,
            stride: inputs as i32,
            kept: kept as i32,
            new_size: x.size as i32,
            ..sizes
        })));
        Ok(())
    }

    /// Places for what an ELU makes of a layer's output, and for the output.
    fn activated(&mut self, size: usize, with_raw: bool) -> Result<Activated> {
        Ok(Activated { raw: with_raw.then(|| self.tensor(size)).transpose()?, elu: self.tensor(size)? })
    }

    fn plain_conv(&mut self, name: &str, sizes: [usize; 3], x: Tensor, more: Rows) -> Result<()> {
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
    ) -> Result<Activated> {
        let kernel = 2 * stride;
        let weight = self.file.get_f32(&format!("{name}.weight"), &[inputs, outputs, kernel])?;
        let bias = self.file.get_f32(&format!("{name}.bias"), &[outputs])?;
        let taps = (0..stride * outputs * 2 * inputs).map(|i| {
            let (n, k) = (i / (2 * inputs), i % (2 * inputs));
            let (phase, output, age) = (n / outputs, n % outputs, 1 - k / inputs);
            weight[(k % inputs * outputs + output) * kernel + age * stride + phase]
        });
        let bias: Vec<f32> = (0..stride).flat_map(|_| bias.iter().copied()).collect();
        let y = self.activated(x.size / inputs * bias.len(), true)?;
        self.conv(&taps.collect::<Vec<f32>>(), &bias, 2, inputs, x, y.outputs())?;
        Ok(y)
    }

    pub fn quantizer(&mut self, config: &CodecConfig, quantizers: usize) -> Result<Tensor> {
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
        let codebooks = self.arena.upload(&codebooks)?;
        let sums = self.tensor(2 * dim)?;
        self.steps.push(Step::LookUp { codebooks, y: sums.at });
        self.linear(&side_by_side, hidden, 2 * dim, sums, Rows::default())
    }

    pub fn upsample(&mut self, config: &CodecConfig, x: Tensor) -> Result<Tensor> {
        let (channels, kernel) = (config.hidden_size, 2 * UPSAMPLING);
        let weight = self.file.get_f32("upsample.conv.weight", &[channels, 1, kernel])?;
        let filter: Vec<f32> = (0..kernel * channels).map(|i| weight[i % channels * kernel + i / channels]).collect();
        let (filter, past) = (self.arena.upload(&filter)?, self.zeros(self.slots * channels)?);
        let y = self.tensor(UPSAMPLING * channels)?;
        self.carries.push(Carry { past, x: x.at, kept: channels as i32, new_size: channels as i32 });
        self.steps.push(Step::Upsample { filter, past, x: x.at, y: y.at });
        Ok(y)
    }

    pub fn transformer_layer(
        &mut self,
        config: &CodecConfig,
        layer: usize,
        rope: Address,
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
        self.steps.push(Step::Attend(Attend { qkv: qkv.at, keys, values, y: attended.at, rope }));
        let more = add(self, "self_attn_layer_scale.scale", x)?;
        let x = self.linear(&o_weights, hidden, width, attended, more)?;
        let second = Rows { finish: GELU, ..norm(self, "post_attention_layernorm")? };
        let inner = self.linear(&fc1, wide, hidden, x, second)?;
        let more = add(self, "mlp_layer_scale.scale", x)?;
        self.linear(&fc2, hidden, wide, inner, more)
    }

    pub fn seanet(&mut self, config: &CodecConfig, x: Tensor) -> Result<Tensor> {
        let name = |index: usize| format!("decoder.layers.{index}.conv");
        let mut channels = config.num_filters << config.upsampling_ratios.len();
        let sizes = [config.hidden_size, channels, config.kernel_size];
        let mut y = self.activated(x.size / config.hidden_size * channels, false)?;
        self.plain_conv(&name(0), sizes, x, y.outputs())?;
        let mut index = 1;
        for &ratio in &config.upsampling_ratios {
            y = self.transposed_conv(&name(index + 1), channels, channels / 2, ratio, y.elu)?;
            channels /= 2;
            index += 2;
            for _ in 0..config.num_residual_layers {
                let part = |part: usize| format!("decoder.layers.{index}.block.{part}.conv");
                let (size, inner) = (y.elu.size, channels / config.compress);
                let between = self.activated(size / channels * inner, false)?;
                let sizes = [channels, inner, config.residual_kernel_size];
                self.plain_conv(&part(1), sizes, y.elu, between.outputs())?;
                let sum = self.activated(size, true)?;
                let residual = y.raw.map_or(0, |raw| raw.at);
                let add = Rows { finish: ADD, residual, ..sum.outputs() };
                self.plain_conv(&part(3), [inner, channels, 1], between.elu, add)?;
                y = sum;
                index += 1;
            }
        }
        let pcm = self.tensor(y.elu.size / channels)?;
        let sizes = [channels, 1, config.last_kernel_size];
        self.plain_conv(&name(index + 1), sizes, y.elu, Rows { y: pcm.at, ..Rows::default() })?;
        Ok(pcm)
    }
}
