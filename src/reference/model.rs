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
/// Name of the embedding, which is the output head too.
const EMBEDDING: &str = "model.embed_tokens.weight";
/// Types of tensors that are taken.
const FLOATS: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];

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

/// The source model on a device, all of it or layer by layer.
pub struct Reference {
    config: ModelConfig,
    device: Device,
    dtype: DType,
    embedding: Embedding,
    /// `[v, hidden]`, the same as the embedding unless replaced; none when the model is streamed.
    head: Option<Tensor>,
    /// `[audio_rows, hidden]`: the unit ids in order, then `</audio>`.
    audio_head: Tensor,
    layers: Layers,
    /// `[hidden]`
    norm: Tensor,
    stop: StopHead,
}

/// `[v, hidden]`
enum Embedding {
    OnDevice(Tensor),
    OnHost(tensors::Tensor),
}

/// Where a tensor of the model comes from, by its name in the source checkpoint.
type Weights = Box<dyn Fn(&str) -> Result<tensors::Tensor> + Send + Sync>;

enum Layers {
    /// All of them on the device.
    Resident(Vec<Layer>),
    /// One at a time, fetched again for every pass.
    Streamed(Weights),
}

/// Weights of a decoder layer, `[outputs, inputs]` each.
#[derive(Clone)]
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
        let place = Place { config, dtype: precision.dtype(), device };
        let embedding = place.get(&weights, EMBEDDING, &[config.vocab_size, config.hidden_size])?;
        let audio_head = rows(&embedding, &config.audio_ids(), device).map_err(device_error)?;
        let layers = (0..config.num_layers()).map(|i| Layer::load(place, i, &weights));
        let layers = Layers::Resident(layers.collect::<Result<_>>()?);
        place.reference(&weights, Embedding::OnDevice(embedding.clone()), Some(embedding), audio_head, layers)
    }

    /// As [`Reference::load`], with one layer on the device at a time: for devices that hold no whole model.
    ///
    /// `weights` is asked for every layer again at every pass, so sequences should go through it together. The embedding
    /// stays on the host, and [`Reference::logits`] cannot be had.
    ///
    /// # Errors
    /// As [`Reference::load`].
    pub fn streamed(
        config: &ModelConfig,
        weights: impl Fn(&str) -> Result<tensors::Tensor> + Send + Sync + 'static,
        precision: Precision,
        device: &Device,
    ) -> Result<Reference> {
        let place = Place { config, dtype: precision.dtype(), device };
        let embedding = weights(EMBEDDING)?;
        embedding.expect(&FLOATS, &[config.vocab_size, config.hidden_size])?;
        let audio_head = place.to_device(&host_rows(&embedding, &config.audio_ids()))?;
        let embedding = Embedding::OnHost(embedding);
        let mut reference = place.reference(&weights, embedding, None, audio_head, Layers::Resident(Vec::new()))?;
        reference.layers = Layers::Streamed(Box::new(weights));
        Ok(reference)
    }

    /// Replaces the output head, which is the embedding otherwise: for judging a head that is quantized differently.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `head` is `[vocab, hidden]`; [`Error::Device`].
    pub fn with_head(mut self, head: &tensors::Tensor) -> Result<Reference> {
        head.expect(&FLOATS, &[self.config.vocab_size, self.config.hidden_size])?;
        let head = self.place().to_device(head)?;
        self.audio_head = rows(&head, &self.config.audio_ids(), &self.device).map_err(device_error)?;
        self.head = Some(head);
        Ok(self)
    }

    /// Replaces the rows of the output head that speech uses: the unit ids in order, then `</audio>`.
    ///
    /// # Errors
    /// [`Error::Invalid`] unless `head` is `[audio_rows, hidden]`; [`Error::Device`].
    pub fn with_audio_head(mut self, head: &tensors::Tensor) -> Result<Reference> {
        head.expect(&FLOATS, &[self.config.audio_rows(), self.config.hidden_size])?;
        self.audio_head = self.place().to_device(head)?;
        self.head = None;
        Ok(self)
    }

    fn place(&self) -> Place<'_> {
        Place { config: &self.config, dtype: self.dtype, device: &self.device }
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
        match &self.embedding {
            Embedding::OnDevice(embedding) => rows(embedding, ids, &self.device).map_err(device_error),
            Embedding::OnHost(embedding) => self.place().to_device(&host_rows(embedding, ids)),
        }
    }

    /// Runs `ids` after the positions already in `cache`: the output of `model.norm`, `[t, hidden]` in the model's
    /// precision.
    ///
    /// `watch` is shown the residual stream `[t, hidden]` after every layer. After an error the cache is of no more use.
    ///
    /// # Errors
    /// As [`Reference::embed`].
    pub fn hidden(&self, ids: &[u32], cache: &mut Cache, watch: &mut dyn FnMut(usize, &Tensor)) -> Result<Tensor> {
        self.hidden_of_all(&[ids], &mut [cache], watch)
    }

    /// Several sequences in one pass, each with its own cache: the output of `model.norm` for the ids of the first, then
    /// those of the second and so on, `[sum of t, hidden]`. `watch` is shown all rows together.
    ///
    /// # Errors
    /// As [`Reference::embed`]; those of the weights when they are streamed.
    ///
    /// # Panics
    /// When there are not as many caches as sequences.
    pub fn hidden_of_all(
        &self,
        ids: &[&[u32]],
        caches: &mut [&mut Cache],
        watch: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        assert_eq!(ids.len(), caches.len(), "one cache for each sequence");
        let mut x = self.embed(&ids.concat())?;
        let mut turns = Vec::with_capacity(ids.len());
        let mut row = 0;
        for (ids, cache) in ids.iter().zip(caches.iter()) {
            turns.push(Turn::new(row, ids.len(), cache.positions, self.place()).map_err(device_error)?);
            row += ids.len();
        }
        for i in 0..self.config.num_layers() {
            let layer = match &self.layers {
                Layers::Resident(layers) => layers[i].clone(),
                Layers::Streamed(weights) => Layer::load(self.place(), i, weights)?,
            };
            x = layer.run(i, &x, &turns, caches, &self.config).map_err(device_error)?;
            watch(i, &x);
        }
        caches.iter_mut().zip(&turns).for_each(|(cache, turn)| cache.positions += turn.rows);
        layer_norm(&x, &self.norm, None, self.config.layer_norm_eps).map_err(device_error)
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
    /// [`Error::Unsupported`] without a head for the whole vocabulary; [`Error::Device`].
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let Some(head) = &self.head else {
            let why = "the reference holds only the rows that speech uses".to_owned();
            return Err(Error::Unsupported { what: "logits of the whole vocabulary".to_owned(), why });
        };
        self.scaled_logits(hidden, head).map_err(device_error)
    }

    /// Scaled logits of the unit ids in order, then `</audio>`: `[t, audio_rows]` f32, from `hidden: [t, hidden]`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn audio_logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.scaled_logits(hidden, &self.audio_head).map_err(device_error)
    }

    fn scaled_logits(&self, hidden: &Tensor, head: &Tensor) -> candle_core::Result<Tensor> {
        (linear(hidden, head)? * f64::from(self.config.logit_scale))?.to_dtype(DType::F32)
    }

    /// Some rows of `hidden: [t, hidden]`.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn pick(&self, hidden: &Tensor, positions: &[u32]) -> Result<Tensor> {
        rows(hidden, positions, &self.device).map_err(device_error)
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

/// Where tensors go, and what the model looks like.
#[derive(Clone, Copy)]
struct Place<'a> {
    config: &'a ModelConfig,
    dtype: DType,
    device: &'a Device,
}

impl Place<'_> {
    fn get(&self, weights: &dyn Fn(&str) -> Result<tensors::Tensor>, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = weights(name)?;
        tensor.expect(&FLOATS, shape)?;
        self.to_device(&tensor)
    }

    fn to_device(self, tensor: &tensors::Tensor) -> Result<Tensor> {
        let shape = &tensor.shape[..];
        // Half the bytes to move where nothing is to be converted.
        if tensor.dtype == Dtype::BF16 && self.dtype == DType::BF16 {
            return Tensor::from_raw_buffer(&tensor.data, DType::BF16, shape, self.device).map_err(device_error);
        }
        let moved = Tensor::from_vec(tensor.to_f32()?, shape, self.device);
        moved.and_then(|tensor| tensor.to_dtype(self.dtype)).map_err(device_error)
    }

    /// The whole model, with its small tensors from `weights`.
    fn reference(
        self,
        weights: &dyn Fn(&str) -> Result<tensors::Tensor>,
        embedding: Embedding,
        head: Option<Tensor>,
        audio_head: Tensor,
        layers: Layers,
    ) -> Result<Reference> {
        let hidden = self.config.hidden_size;
        let inner = weights("stop_predictor.1.weight")?.shape.first().copied().unwrap_or(0);
        let get = |name: &str, shape: &[usize]| self.get(weights, name, shape);
        Ok(Reference {
            norm: get("model.norm.weight", &[hidden])?,
            stop: StopHead {
                norm: (get("stop_predictor.0.weight", &[hidden])?, get("stop_predictor.0.bias", &[hidden])?),
                up: (get("stop_predictor.1.weight", &[inner, hidden])?, get("stop_predictor.1.bias", &[inner])?),
                down: (get("stop_predictor.3.weight", &[1, inner])?, get("stop_predictor.3.bias", &[1])?),
            },
            config: self.config.clone(),
            device: self.device.clone(),
            dtype: self.dtype,
            embedding,
            head,
            audio_head,
            layers,
        })
    }
}

/// The rows of one sequence in a pass, and what they see.
struct Turn {
    first: usize,
    rows: usize,
    rope: Rope,
    window: Tensor,
    all: Tensor,
}

impl Turn {
    fn new(first: usize, rows: usize, position: usize, place: Place) -> candle_core::Result<Turn> {
        let (c, device) = (place.config, place.device);
        Ok(Turn {
            first,
            rows,
            rope: Rope::new(position, rows, c.head_dim, c.rope_theta, place.dtype, device)?,
            window: causal_mask(position, rows, Some(c.sliding_window), device)?,
            all: causal_mask(position, rows, None, device)?,
        })
    }
}

impl Layer {
    fn load(place: Place, i: usize, weights: &dyn Fn(&str) -> Result<tensors::Tensor>) -> Result<Layer> {
        let config = place.config;
        let (hidden, wide) = (config.hidden_size, config.intermediate_size);
        let (queries, keys) = (config.query_size(), config.key_value_size());
        let get = |name: &str, shape: &[usize]| place.get(weights, &format!("model.layers.{i}.{name}.weight"), shape);
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

    /// `x: [rows, hidden]` of all sequences through layer number `i`.
    fn run(
        &self,
        i: usize,
        x: &Tensor,
        turns: &[Turn],
        caches: &mut [&mut Cache],
        config: &ModelConfig,
    ) -> candle_core::Result<Tensor> {
        let n = layer_norm(x, &self.norm, None, config.layer_norm_eps)?;
        let (q, k, v) = (linear(&n, &self.q)?, linear(&n, &self.k)?, linear(&n, &self.v)?);
        let mut mixed = Vec::with_capacity(turns.len());
        for (turn, cache) in turns.iter().zip(caches) {
            let heads = |x: &Tensor, count: usize| {
                let rows = x.narrow(0, turn.first, turn.rows)?.reshape((turn.rows, count, config.head_dim))?;
                rows.transpose(0, 1)?.contiguous()
            };
            let (heads_q, heads_kv) = (config.num_attention_heads, config.num_key_value_heads);
            let (q, k, v) = (heads(&q, heads_q)?, heads(&k, heads_kv)?, heads(&v, heads_kv)?);
            let (q, k, mask) = match self.kind {
                LayerType::Sliding => (turn.rope.rotate(&q)?, turn.rope.rotate(&k)?, &turn.window),
                LayerType::Full => (q, k, &turn.all),
            };
            let (k, v) = cache.append(i, k, v)?;
            mixed.push(attend(&q, &k, &v, mask)?);
        }
        let attended = linear(&Tensor::cat(&mixed, 0)?, &self.o)?;
        (x + attended)? + self.mlp(&n)?
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

/// Rows of a matrix on the device.
fn rows(matrix: &Tensor, ids: &[u32], device: &Device) -> candle_core::Result<Tensor> {
    matrix.index_select(&Tensor::new(ids, device)?, 0)
}

/// Rows of a matrix on the host, as a matrix of the same type.
fn host_rows(matrix: &tensors::Tensor, ids: &[u32]) -> tensors::Tensor {
    let bytes = matrix.data.len() / matrix.shape[0];
    let row = |id: &u32| &matrix.data[*id as usize * bytes..(*id as usize + 1) * bytes];
    let data: Vec<u8> = ids.iter().flat_map(row).copied().collect();
    tensors::Tensor { shape: vec![ids.len(), matrix.shape[1]], data: data.into(), ..matrix.clone() }
}

/// All elements in f32, row-major, on the host.
///
/// # Errors
/// [`Error::Device`].
pub fn to_host(tensor: &Tensor) -> Result<Vec<f32>> {
    let flat = || tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1();
    flat().map_err(device_error)
}
