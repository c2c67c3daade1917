//! A copy of the tiny golden whose files can be changed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use rumik::config::CodecConfig;
use rumik::engine::mimi::Decoder;
use rumik::tensors::{Bytes, Dtype, TensorFile};
use safetensors::View;
use serde_json::Value;
use tempfile::TempDir;

/// Prompts that the short copy keeps: one longer than the window, and one of which the speech is kept too.
const KEPT_PROMPTS: [usize; 2] = [6, 7];
const KEPT_SPEECH: usize = 7;

/// One tensor of a file being changed.
struct Data {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for &Data {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

type Tensors = BTreeMap<String, Data>;

pub struct Folder(TempDir);

impl Folder {
    /// A copy with the prompts [`KEPT_PROMPTS`] alone, which takes a fraction of the time.
    pub fn short_tiny() -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        copy(Path::new(super::TINY), folder.path());
        folder.edit("golden.json", |facts| {
            for (number, prompt) in facts["prompts"].as_array_mut().unwrap().iter_mut().enumerate() {
                match number {
                    KEPT_SPEECH => (),
                    _ if KEPT_PROMPTS.contains(&number) => {
                        drop(prompt.as_object_mut().unwrap().remove("generated_ids"))
                    }
                    _ => *prompt = Value::Object(Default::default()),
                }
            }
        });
        folder.keep_tensors("golden.safetensors", |name| {
            let number = |name: &str| name.split('.').nth(1).and_then(|number| number.parse::<usize>().ok());
            match name.split('.').next().unwrap() {
                "prompt" => KEPT_PROMPTS.contains(&number(name).unwrap()),
                "gen" | "gen_int4" | "gen_int4_bf16head" => number(name) == Some(KEPT_SPEECH),
                _ => true,
            }
        });
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.file(name), content).unwrap();
    }

    pub fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    /// Takes bytes off the end of a file.
    pub fn cut(&self, name: &str, bytes: usize) {
        let content = fs::read(self.file(name)).unwrap();
        self.write(name, &content[..content.len() - bytes]);
    }

    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap();
        change(&mut value);
        self.write(name, &serde_json::to_vec(&value).unwrap());
    }

    /// Sets a top-level field that the file has.
    pub fn set(&self, name: &str, field: &str, value: Value) {
        self.edit(name, |fields| *fields.get_mut(field).unwrap() = value);
    }

    fn edit_tensors(&self, name: &str, change: impl FnOnce(&mut Tensors)) {
        let file = TensorFile::open(&self.file(name)).unwrap();
        let owned = file
            .tensors()
            .values()
            .map(|t| (t.name.clone(), Data { dtype: t.dtype, shape: t.shape.clone(), bytes: t.data.to_vec() }));
        let mut tensors: Tensors = owned.collect();
        drop(file);
        change(&mut tensors);
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        self.write(name, &safetensors::serialize(tensors.iter(), metadata).unwrap());
    }

    pub fn keep_tensors(&self, name: &str, keep: impl Fn(&str) -> bool) {
        self.edit_tensors(name, |tensors| tensors.retain(|name, _| keep(name)));
    }

    /// Changes every tensor of the model whose name ends so.
    fn edit_weights(&self, suffix: &str, change: impl Fn(&mut Data)) {
        let mut changed = 0;
        for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
            self.edit_tensors(shard, |tensors| {
                for (_, data) in tensors.iter_mut().filter(|(name, _)| name.ends_with(suffix)) {
                    change(data);
                    changed += 1;
                }
            });
        }
        assert!(changed > 0, "no weight named {suffix}");
    }

    /// Sets all elements of weights.
    pub fn fill(&self, suffix: &str, value: f32) {
        let bytes = bf16::from_f32(value).to_le_bytes();
        self.edit_weights(suffix, |data| data.bytes.as_chunks_mut().0.fill(bytes));
    }

    /// Row r of each block of rows becomes row `from(r)` of that block.
    pub fn permute_rows(&self, suffix: &str, block: usize, from: impl Fn(usize) -> usize) {
        self.edit_weights(suffix, |data| {
            let row_bytes = data.bytes.len() / data.shape[0];
            let old = data.bytes.clone();
            for (row, new) in data.bytes.chunks_mut(row_bytes).enumerate() {
                let source = row / block * block + from(row % block);
                new.copy_from_slice(&old[source * row_bytes..][..row_bytes]);
            }
        });
    }

    /// Column c becomes column `from(c)`.
    pub fn permute_columns(&self, suffix: &str, from: impl Fn(usize) -> usize) {
        self.edit_weights(suffix, |data| {
            for row in data.bytes.chunks_mut(2 * data.shape[1]) {
                let old = row.to_vec();
                for (column, new) in row.chunks_mut(2).enumerate() {
                    new.copy_from_slice(&old[2 * from(column)..][..2]);
                }
            }
        });
    }

    /// Exchanges the weights of two projections of every layer.
    pub fn swap_names(&self, a: &str, b: &str) {
        for shard in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] {
            self.edit_tensors(shard, |tensors| {
                let named = |name: &String| name.replace(a, "\0").replace(b, a).replace('\0', b);
                let renamed = std::mem::take(tensors).into_iter().map(|(name, data)| (named(&name), data));
                tensors.extend(renamed);
            });
        }
        self.edit("model.safetensors.index.json", |index| {
            let map = index["weight_map"].as_object_mut().unwrap();
            let named = |name: &String| name.replace(a, "\0").replace(b, a).replace('\0', b);
            *map = std::mem::take(map).into_iter().map(|(name, shard)| (named(&name), shard)).collect();
        });
    }

    pub fn map_bytes(&self, file: &str, tensor: &str, map: impl Fn(u8) -> u8) {
        self.edit_tensors(file, |tensors| {
            tensors.get_mut(tensor).unwrap().bytes.iter_mut().for_each(|byte| *byte = map(*byte));
        });
    }

    fn edit_golden(&self, tensor: &str, change: impl FnOnce(&mut Data)) {
        self.edit_tensors("golden.safetensors", |tensors| change(tensors.get_mut(tensor).unwrap()));
    }

    /// Puts NaN in the middle of an F32 tensor of the golden.
    pub fn poison(&self, tensor: &str) {
        self.edit_golden(tensor, |data| {
            let middle = data.bytes.len() / 8 * 4;
            data.bytes[middle..middle + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        });
    }

    pub fn reshape(&self, tensor: &str, shape: &[usize]) {
        self.edit_golden(tensor, |data| data.shape = shape.to_vec());
    }

    pub fn set_ids(&self, tensor: &str, ids: &[i32]) {
        self.edit_golden(tensor, |data| {
            data.shape = vec![ids.len()];
            data.bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        });
    }

    /// Makes the golden's greedy tokens `{speech}.7.ids` those of a program that ends at `step`.
    pub fn cut_speech(&self, speech: &str, step: usize) {
        const AUDIO_END: i32 = 1114;
        let key = format!("{speech}.{KEPT_SPEECH}.ids");
        let file = TensorFile::open(&self.file("golden.safetensors")).unwrap();
        let ids = file.get(&key).unwrap().to_i64().unwrap();
        let mut ids: Vec<i32> = ids[..step].iter().map(|id| *id as i32).collect();
        ids.push(AUDIO_END);
        self.set_ids(&key, &ids);
        // What else is known of the steps would no longer fit.
        self.keep_tensors("golden.safetensors", |name| !name.starts_with("gen.") || name.ends_with(".ids"));
        self.edit("golden.json", |facts| facts["prompts"][KEPT_SPEECH]["generated_ids"] = Value::Null);
    }

    /// Makes the golden's waveform that of a codec which forgets everything between frames.
    pub fn decode_without_state(&self) {
        let config = Bytes::map(&self.file("codec/config.json")).unwrap();
        let config = CodecConfig::parse("codec/config.json", &config).unwrap();
        let weights = TensorFile::open(&self.file("codec/model.safetensors")).unwrap();
        let golden = TensorFile::open(&self.file("golden.safetensors")).unwrap();
        let codes = golden.get("mimi.codes").unwrap();
        let ([q, frames], values) = ([codes.shape[0], codes.shape[1]], codes.to_i64().unwrap());
        let decoder = Decoder::load(&config, &weights, q).unwrap();
        let mut wave = Vec::new();
        for frame in 0..frames {
            let codes: Vec<u32> = (0..q).map(|q| values[q * frames + frame] as u32).collect();
            decoder.step(&mut decoder.state(), &codes, &mut wave).unwrap();
        }
        self.edit_golden("mimi.wave", |data| {
            data.bytes = wave.iter().flat_map(|sample| sample.to_le_bytes()).collect()
        });
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match path.is_dir() {
            true => copy(&path, &target),
            false => fs::write(target, fs::read(path).unwrap()).unwrap(), // the original may be read-only
        }
    }
}
