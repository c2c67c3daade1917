//! Running the real programs, and making broken checkpoints out of whole ones.
#![allow(dead_code)] // each test file uses its own part

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rumik::checkpoint::Checkpoint;
use rumik::tensors::Dtype;
use rumik::tensors::write::{TensorSpec, TensorWriter};

pub const TINY: &str = "fixtures/golden/tiny";
pub const DEMO: &str = "fixtures/demo";
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_rumik-export");

/// Files of a checkpoint apart from its weights.
const COMPANIONS: [&str; 5] = ["config.json", "tokenizer.json", "tokenizer_config.json", "LICENSE", "NOTICE"];

/// What a program said.
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        Said {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    /// The run ended with exit 2 and one line that holds all of `parts`.
    #[track_caller]
    pub fn refuses(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in: {}", self.stderr);
        }
    }

    #[track_caller]
    pub fn succeeds(&self) -> &Said {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }
}

pub fn export(source: &Path, out: &Path, options: &[&str]) -> Said {
    let mut command = Command::new(PROGRAM);
    command.arg(source).arg("--out").arg(out).args(options);
    command.output().unwrap().into()
}

/// Names of a folder's entries, hidden ones included.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Every file below a folder with its content.
pub fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for name in names(folder) {
        let path = folder.join(name);
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.push((path.clone(), std::fs::read(&path).unwrap()));
        }
    }
    files.iter_mut().for_each(|(path, _)| *path = path.strip_prefix(folder).unwrap_or(path).to_owned());
    files
}

/// A copy of the tiny checkpoint, with shards and codec.
pub fn copy_of_tiny(to: &Path) {
    for entry in std::fs::read_dir(TINY).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_file() && !name.starts_with("golden.") {
            std::fs::write(to.join(name), std::fs::read(&path).unwrap()).unwrap();
        }
    }
    std::fs::create_dir(to.join("codec")).unwrap();
    for name in ["config.json", "model.safetensors", "preprocessor_config.json"] {
        std::fs::write(to.join("codec").join(name), std::fs::read(Path::new(TINY).join("codec").join(name)).unwrap())
            .unwrap();
    }
}

/// The tiny checkpoint in one file and without a codec, after `change` had each tensor's name, type and f32 values.
pub fn rewrite_tiny(to: &Path, mut change: impl FnMut(&str, &mut Dtype, &mut Vec<f32>)) {
    for name in COMPANIONS {
        std::fs::write(to.join(name), std::fs::read(Path::new(TINY).join(name)).unwrap()).unwrap();
    }
    let source = Checkpoint::open(Path::new(TINY)).unwrap();
    let (mut specs, mut data) = (Vec::new(), Vec::new());
    for (name, tensor) in &source.tensors {
        let (mut dtype, mut values) = (tensor.dtype, tensor.to_f32().unwrap());
        change(name, &mut dtype, &mut values);
        specs.push(TensorSpec::new(name, dtype, &tensor.shape));
        data.push(encode(dtype, &values));
    }
    let mut writer = TensorWriter::create(&to.join("model.safetensors"), &[("format", "pt")], &specs).unwrap();
    data.iter().for_each(|bytes| writer.write(bytes).unwrap());
    writer.finish().unwrap();
}

fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
        Dtype::F32 => values.iter().flat_map(|&v| v.to_le_bytes()).collect(),
        other => panic!("no such source type: {other}"),
    }
}
