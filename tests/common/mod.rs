//! Exports made from the fixtures' source checkpoints, in memory, by a quantizer in plain lines.

#![allow(dead_code)] // each test file uses some of it

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use rumik::config::ModelConfig;
use rumik::format::layout::{GROUP, PROJECTIONS, projection_name};
use rumik::format::{Export, Files};
use rumik::tensors::{Bytes, Dtype, Tensor, TensorFile};
use safetensors::tensor::TensorView;

/// A folder of the repository.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A tensor to be written.
pub struct Data(pub Dtype, pub Vec<usize>, pub Vec<u8>);

/// The tensors of an export by name.
pub type Tensors = BTreeMap<String, Data>;

/// Which output head an export has.
#[derive(Clone, Copy, PartialEq)]
pub enum HeadKind {
    Bf16,
    Int8,
}

/// The tensors of the export of a source folder.
pub fn quantized(folder: &Path, head: HeadKind) -> Tensors {
    let config = ModelConfig::parse("config.json", &std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let shards = shards.map(|shard| TensorFile::open(&folder.join(shard)).unwrap());
    let source = |name: &str| shards.iter().find_map(|shard| shard.find(name)).unwrap_or_else(|| panic!("{name}"));
    let mut out = Tensors::new();
    for layer in 0..config.num_layers() {
        for projection in PROJECTIONS {
            let name = projection_name(layer, projection);
            int4(&mut out, &name, source(&format!("{name}.weight")));
        }
        copy(&mut out, source(&projection_name(layer, "input_layernorm.weight")));
    }
    copy(&mut out, source("model.norm.weight"));
    for name in ["0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"] {
        copy(&mut out, source(&format!("stop_predictor.{name}")));
    }
    let embedding = source("model.embed_tokens.weight");
    let (rows, hidden, ids) = (config.audio_rows(), config.hidden_size, config.audio_ids());
    int8(&mut out, "model.embed_tokens.qweight", "model.embed_tokens.scale", embedding);
    let row = |id: &u32| &embedding.data[*id as usize * 2 * hidden..(*id as usize + 1) * 2 * hidden];
    let bytes: Vec<u8> = ids.iter().flat_map(row).copied().collect();
    match head {
        HeadKind::Bf16 => _ = out.insert("head.audio_weight".into(), Data(Dtype::BF16, vec![rows, hidden], bytes)),
        HeadKind::Int8 => {
            let part = Tensor { shape: vec![rows, hidden], data: bytes.into(), ..embedding.clone() };
            int8(&mut out, "head.audio_qweight", "head.audio_scale", &part);
        }
    }
    let ids = ids.iter().flat_map(|id| (*id as i32).to_le_bytes()).collect();
    out.insert("head.audio_ids".into(), Data(Dtype::I32, vec![rows], ids));
    out
}

fn copy(out: &mut Tensors, tensor: &Tensor) {
    out.insert(tensor.name.clone(), Data(tensor.dtype, tensor.shape.clone(), tensor.data.to_vec()));
}

/// min/max quantization as the golden's README describes it.
fn int4(out: &mut Tensors, name: &str, weight: &Tensor) {
    let [n, k] = weight.shape[..] else { panic!("{name}: not a matrix") };
    let (mut codes, mut scales, mut mins) = (Vec::new(), Vec::new(), Vec::new());
    for group in weight.to_f32().unwrap().chunks_exact(GROUP) {
        let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(l, h), &w| (l.min(w), h.max(w)));
        let (scale, min) = (f16::from_f32((high - low) / 15.0), f16::from_f32(low));
        let code = |w: f32| match scale.to_f32() {
            0.0 => 0,
            scale => ((w - min.to_f32()) / scale).round_ties_even().clamp(0.0, 15.0) as u8,
        };
        codes.extend(group.as_chunks::<2>().0.iter().map(|[even, odd]| code(*even) | code(*odd) << 4));
        scales.extend(scale.to_le_bytes());
        mins.extend(min.to_le_bytes());
    }
    out.insert(format!("{name}.qweight"), Data(Dtype::U8, vec![n, k / 2], codes));
    out.insert(format!("{name}.scale"), Data(Dtype::F16, vec![n, k / GROUP], scales));
    out.insert(format!("{name}.min"), Data(Dtype::F16, vec![n, k / GROUP], mins));
}

fn int8(out: &mut Tensors, name: &str, scale_name: &str, weight: &Tensor) {
    let [n, k] = weight.shape[..] else { panic!("{name}: not a matrix") };
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for row in weight.to_f32().unwrap().chunks_exact(k) {
        let largest = row.iter().fold(0f32, |largest, w| largest.max(w.abs()));
        let scale = f16::from_f32(largest / 127.0);
        let divisor = if scale == f16::ZERO { 1.0 } else { scale.to_f32() };
        codes.extend(row.iter().map(|w| (w / divisor).round_ties_even().clamp(-127.0, 127.0) as i8 as u8));
        scales.extend(scale.to_le_bytes());
    }
    out.insert(name.into(), Data(Dtype::I8, vec![n, k], codes));
    out.insert(scale_name.into(), Data(Dtype::F16, vec![n], scales));
}

/// The files of an export with these tensors and a source folder's configuration, tokenizer and codec.
pub fn files(folder: &Path, tensors: &Tensors) -> Files {
    let views = tensors
        .iter()
        .map(|(name, Data(dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let bytes = safetensors::serialize(views, None).unwrap();
    let read = |name: &str| Bytes::from(std::fs::read(folder.join(name)).unwrap());
    let codec = TensorFile::open(&folder.join("codec/model.safetensors")).unwrap();
    Files {
        name: "test export".into(),
        weights: TensorFile::from_bytes("test.safetensors", bytes.into()).unwrap(),
        config: read("config.json"),
        tokenizer: read("tokenizer.json"),
        codec: Some((read("codec/config.json"), codec)),
        report: None,
    }
}

/// The export of a source folder.
pub fn export(folder: &Path, head: HeadKind) -> Export {
    Export::from_files(files(folder, &quantized(folder, head))).unwrap()
}

/// The export of a source folder without its codec, which most tests need not run.
pub fn silent_export(folder: &Path, head: HeadKind) -> Export {
    Export { codec: None, ..export(folder, head) }
}

/// Expected results of a fixture.
pub struct Golden(pub TensorFile);

impl Golden {
    pub fn of(folder: &Path) -> Golden {
        Golden(TensorFile::open(&folder.join("golden.safetensors")).unwrap())
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0.get(name).unwrap().to_f32().unwrap()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.0.get(name).unwrap().to_i64().unwrap().iter().map(|&id| id as u32).collect()
    }

    /// Names `0..` for which a tensor exists.
    pub fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..).take_while(|&i| self.0.find(&name(i)).is_some()).count()
    }
}

/// `‖a - b‖ / ‖b‖`; NaN if anything is.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |v: f32| f64::from(v).powi(2);
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (difference / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

/// Exact bf16 bytes.
pub fn bf16_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}
