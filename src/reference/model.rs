//! Cohere2 with a stop head, as transformers computes it.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use candle_nn::ops::softmax_last_dim;

use super::device_error;
use super::ops::{Rope, causal_mask, in_f32, layer_norm, linear, linear_in_f32};
use crate::config::{LayerType, ModelConfig};
use crate::error::{Error, Result};
use crate::tensors::{self, Dtype};

/// Epsilon of the stop head's LayerNorm, which `config.json` does not name (torch's default).
const STOP_NORM_EPS: f32 = 1e-5;

/// Type of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Everything in f32.
    F32,
    /// Weights and activations in bf16; norms, rotation, softmax and sums inside, rounded where transformers rounds.
    Bf16,
}

impl Precision {
    fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }
}

/// The source model on a device.
pub struct Reference {
    config: ModelConfig,
    device: Device,
    dtype: DType,
    /// `[v, hidden]`
    embedding: Tensor,
    /// `[v, hidden]`, the same as `embedding` unless replaced.
    head: Tensor,
    layers: Vec<Layer>,
    /// `[hidden]`
    norm: Tensor,
    stop: StopHead,
}

/// Weights of a decoder layer, `[outputs, inputs]` each.
struct Layer {
    kind: LayerType,
    norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

/// LayerNorm, Linear, GELU, Linear.
struct StopHead {
    norm: (Tensor, Tensor),
    up: (Tensor, Tensor),
    down: (Tensor, Tensor),
}

/// Keys and values of the positions seen so far, all of them, for every layer.
#[derive(Default)]
pub struct Cache {
    /// `[kv_heads, s, d]` keys and values of each layer.
    layers: BTreeMap<usize, (Tensor, Tensor)>,
    positions: usize,
}

impl Cache {
    /// Positions seen so far.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Adds `[kv_heads, t, d]` keys and values to a layer and hands out all of them.
    fn append(&mut self, layer: usize, k: Tensor, v: Tensor) -> candle_core::Result<(Tensor, Tensor)> {
        let all = match self.layers.get(&layer) {
            Some((past_k, past_v)) => (Tensor::cat(&[past_k, &k], 1)?, Tensor::cat(&[past_v, &v], 1)?),
            None => (k, v),
        };
        self.layers.insert(layer, all.clone());
        Ok(all)
    }
}

/// What the model makes of every position of a sequence, on the host.
#[derive(Clone, Debug)]
pub struct States {
    /// Output of the last LayerNorm, `[t, hidden]`.
    pub hidden: Vec<f32>,
    /// Scaled logits of the whole vocabulary, `[t, vocab]`.
    pub logits: Vec<f32>,
    /// P(stop), `[t]`.
    pub stop_probability: Vec<f32>,
}

impl Reference {
    /// Loads the model, taking every tensor from `weights` by its name in the source checkpoint.
    ///
    /// BF16, F16 and F32 tensors are converted to the asked precision.
    ///
    /// # Errors
    /// Those of `weights`; [`Error::Invalid`] for a tensor of another type or shape; [`Error::Device`].
    pub fn load(
        config: &ModelConfig,
        weights: impl Fn(&str) -> Result<tensors::Tensor>,
        precision: Precision,
        device: &Device,
    ) -> Result<Reference> {
        let dtype = precision.dtype();
        let get = |name: &str, shape: &[usize]| to_device(&weights(name)?, shape, dtype, device);
        let hidden = config.hidden_size;
        let inner = weights("stop_predictor.1.weight")?.shape.first().copied().unwrap_or(0);
        let embedding = get("model.embed_tokens.weight", &[config.vocab_size, hidden])?;
        let layers = (0..config.num_layers()).map(|i| Layer::load(config, i, get));
        Ok(Reference {
            layers: layers.collect::<Result<_>>()?,
            head: embedding.clone(),
            embedding,
            norm: get("model.norm.weight", &[hidden])?,
            stop: StopHead {
                norm: (get("stop_predictor.0.weight", &[hidden])?, get("stop_predictor.0.bias", &[hidden])?),
                up: (get("stop_predictor.1.weight", &[inner, hidden])?, get("stop_predictor.1.bias", &[inner])?),
                down: (get("stop_predictor.3.weight", &[1, inner])?, get("stop_predictor.3.bias", &[1])?),
            },
            config: config.clone(),
            device: device.clone(),
            dtype,
        })
    }

    /// Replaces the output head, which is the embedding otherwise: for judging a head that is quantized differently.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `head` is `[vocab, hidden]`; [`Error::Device`].
    pub fn with_head(mut self, head: &tensors::Tensor) -> Result<Reference> {
        let shape = [self.config.vocab_size, self.config.hidden_size];
        self.head = to_device(head, &shape, self.dtype, &self.device)?;
        Ok(self)
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Rows of the embedding, `[t, hidden]` in the model's precision.
    ///
    /// # Errors
    /// [`Error::Input`] for no ids or an id outside the vocabulary; [`Error::Device`].
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        if ids.is_empty() {
            return Err(Error::input("tokens", "none given; a sequence has at least one"));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.config.vocab_size) {
            return Err(Error::input(
                "tokens",
                format!("id {id} is outside the vocabulary of {}", self.config.vocab_size),
            ));
        }
        self.rows(&self.embedding, ids).map_err(device_error)
    }

    /// Runs `ids` after the positions already in `cache`: the output of `model.norm`, `[t, hidden]` in the model's
    /// precision.
    ///
    /// `watch` is shown the residual stream `[t, hidden]` after every layer. After an error the cache is of no more use.
    ///
    /// # Errors
    /// As [`Reference::embed`].
    pub fn hidden(&self, ids: &[u32], cache: &mut Cache, watch: &mut dyn FnMut(usize, &Tensor)) -> Result<Tensor> {
        self.run(self.embed(ids)?, cache, watch).map_err(device_error)
    }

    /// `x: [t, hidden]`, embedded, through all layers and the last norm.
    fn run(
        &self,
        mut x: Tensor,
        cache: &mut Cache,
        watch: &mut dyn FnMut(usize, &Tensor),
    ) -> candle_core::Result<Tensor> {
        let (first, t, c) = (cache.positions, x.dim(0)?, &self.config);
        let rope = Rope::new(first, t, c.head_dim, c.rope_theta, self.dtype, &self.device)?;
        let window = causal_mask(first, t, Some(c.sliding_window), &self.device)?;
        let all = causal_mask(first, t, None, &self.device)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let n = layer_norm(&x, &layer.norm, None, c.layer_norm_eps)?;
            let (q, k, v) = layer.queries_keys_values(&n, c)?;
            let (q, k, mask) = match layer.kind {
                LayerType::Sliding => (rope.rotate(&q)?, rope.rotate(&k)?, &window),
                LayerType::Full => (q, k, &all),
            };
            let (k, v) = cache.append(i, k, v)?;
            let attended = linear(&attend(&q, &k, &v, mask)?, &layer.o)?;
            x = ((x + attended)? + layer.mlp(&n)?)?;
            watch(i, &x);
        }
        cache.positions += t;
        layer_norm(&x, &self.norm, None, c.layer_norm_eps)
    }

    /// All positions of a sequence from its beginning, without a cache.
    ///
    /// # Errors
    /// As [`Reference::embed`].
    pub fn score(&self, ids: &[u32]) -> Result<States> {
        let hidden = self.hidden(ids, &mut Cache::default(), &mut |_, _| ())?;
        Ok(States {
            logits: to_host(&self.logits(&hidden)?)?,
            stop_probability: to_host(&self.stop_probability(&hidden)?)?,
            hidden: to_host(&hidden)?,
        })
    }

    /// Scaled logits of the whole vocabulary, `[t, vocab]` f32, from `hidden: [t, hidden]`.
    ///
    /// In bf16 the product is rounded before the scale and after it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.scaled_logits(hidden, &self.head).map_err(device_error)
    }

    /// Scaled logits of the unit ids in order, then `</audio>`: `[t, audio_rows]` f32, from `hidden: [t, hidden]`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn audio_logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let head = self.rows(&self.head, &self.config.audio_ids()).map_err(device_error)?;
        self.scaled_logits(hidden, &head).map_err(device_error)
    }

    fn scaled_logits(&self, hidden: &Tensor, head: &Tensor) -> candle_core::Result<Tensor> {
        (linear(hidden, head)? * f64::from(self.config.logit_scale))?.to_dtype(DType::F32)
    }

    fn rows(&self, matrix: &Tensor, ids: &[u32]) -> candle_core::Result<Tensor> {
        matrix.index_select(&Tensor::new(ids, &self.device)?, 0)
    }

    /// P(stop) at every position, `[t]` f32, from `hidden: [t, hidden]`. The sigmoid is taken in f32.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn stop_probability(&self, hidden: &Tensor) -> Result<Tensor> {
        self.stop.probability(hidden).map_err(device_error)
    }
}

impl StopHead {
    fn probability(&self, hidden: &Tensor) -> candle_core::Result<Tensor> {
        let normed = layer_norm(hidden, &self.norm.0, Some(&self.norm.1), STOP_NORM_EPS)?;
        let inner = in_f32(&linear_in_f32(&normed, &self.up.0, Some(&self.up.1))?, Tensor::gelu_erf)?;
        let logit = linear_in_f32(&inner, &self.down.0, Some(&self.down.1))?;
        candle_nn::ops::sigmoid(&logit.to_dtype(DType::F32)?)?.squeeze(1)
    }
}

impl Layer {
    fn load(config: &ModelConfig, i: usize, get: impl Fn(&str, &[usize]) -> Result<Tensor>) -> Result<Layer> {
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let (queries, keys) = (config.query_size(), config.key_value_size());
        let get = |name: &str, shape: &[usize]| get(&format!("model.layers.{i}.{name}.weight"), shape);
        Ok(Layer {
            kind: config.layer_types[i],
            norm: get("input_layernorm", &[hidden])?,
            q: get("self_attn.q_proj", &[queries, hidden])?,
            k: get("self_attn.k_proj", &[keys, hidden])?,
            v: get("self_attn.v_proj", &[keys, hidden])?,
            o: get("self_attn.o_proj", &[hidden, queries])?,
            gate: get("mlp.gate_proj", &[wide, hidden])?,
            up: get("mlp.up_proj", &[wide, hidden])?,
            down: get("mlp.down_proj", &[hidden, wide])?,
        })
    }

    /// `n: [t, hidden]` to queries `[heads, t, d]`, keys and values `[kv_heads, t, d]`.
    fn queries_keys_values(&self, n: &Tensor, config: &ModelConfig) -> candle_core::Result<(Tensor, Tensor, Tensor)> {
        let t = n.dim(0)?;
        let heads = |weight: &Tensor, count: usize| {
            linear(n, weight)?.reshape((t, count, config.head_dim))?.transpose(0, 1)?.contiguous()
        };
        let (heads_q, heads_kv) = (config.num_attention_heads, config.num_key_value_heads);
        Ok((heads(&self.q, heads_q)?, heads(&self.k, heads_kv)?, heads(&self.v, heads_kv)?))
    }

    /// `down(silu(gate n) * up n)`
    fn mlp(&self, n: &Tensor) -> candle_core::Result<Tensor> {
        let gate = in_f32(&linear(n, &self.gate)?, Tensor::silu)?;
        linear(&(gate * linear(n, &self.up)?)?, &self.down)
    }
}

/// Attention of `q: [heads, t, d]` over `k, v: [kv_heads, s, d]`: `[t, heads * d]`. Query head `h` uses key/value head
/// `h / (heads / kv_heads)`. Scores, softmax and the weighted sum in f32, rounded once to the type of `q`.
fn attend(q: &Tensor, k: &Tensor, v: &Tensor, mask: &Tensor) -> candle_core::Result<Tensor> {
    let ((h, t, d), (h_kv, s, _)) = (q.dims3()?, k.dims3()?);
    let for_each_query_head =
        |x: &Tensor| x.to_dtype(DType::F32)?.unsqueeze(1)?.expand((h_kv, h / h_kv, s, d))?.reshape((h, s, d));
    let (k, v) = (for_each_query_head(k)?, for_each_query_head(v)?);
    let scores = (q.to_dtype(DType::F32)?.matmul(&k.t()?)? * (d as f64).powf(-0.5))?;
    let weights = softmax_last_dim(&scores.broadcast_add(mask)?)?;
    let mixed = weights.matmul(&v)?.to_dtype(q.dtype())?;
    mixed.transpose(0, 1)?.reshape((t, h * d))
}

fn to_device(tensor: &tensors::Tensor, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    tensor.expect(&[Dtype::BF16, Dtype::F16, Dtype::F32], shape)?;
    let values = tensor.to_f32()?;
    Tensor::from_vec(values, shape, device).and_then(|tensor| tensor.to_dtype(dtype)).map_err(device_error)
}

/// All elements in f32, row-major, on the host.
///
/// # Errors
/// [`Error::Device`].
pub fn to_host(tensor: &Tensor) -> Result<Vec<f32>> {
    let flat = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1();
    flat().map_err(device_error)
}
