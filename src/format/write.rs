//! Writing the files of an export beside its weights, and reading everything back before it gets its name.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::layout::{REPORT_FILE, WEIGHTS_FILE};
use super::read::Export;
use super::report::Report;
use crate::error::{Error, Result};
use crate::tensors::write::{Digested, TensorSpec, hex};
use crate::tensors::{Dtype, Tensor, TensorFile};

/// Files copied from the source; those marked `true` must be there.
const COPIED: [(&str, bool); 6] = [
    ("config.json", true),
    ("tokenizer.json", true),
    ("LICENSE", true),
    ("tokenizer_config.json", false),
    ("generation_config.json", false),
    ("special_tokens_map.json", false),
];
/// Files of the codec.
const CODEC: [(&str, bool); 3] =
    [("codec/config.json", true), ("codec/model.safetensors", true), ("codec/preprocessor_config.json", false)];

/// Writes everything but the weights: report, configuration, tokenizer, licence, notice, card and, where the report says
/// so, the codec.
///
/// # Errors
/// [`Error::Io`] naming the file.
pub fn write_companions(source: &Path, folder: &Path, report: &Report) -> Result<()> {
    copy_all(source, folder, &COPIED)?;
    if report.options.codec {
        let codec = folder.join("codec");
        std::fs::create_dir(&codec).map_err(Error::io("create the folder", &codec))?;
        copy_all(source, folder, &CODEC)?;
    }
    write_file(&folder.join(REPORT_FILE), &report.to_json()?)?;
    let notice = report.notice(&read_text(&source.join("NOTICE"))?);
    write_file(&folder.join("NOTICE"), notice.as_bytes())?;
    let heading = licence_heading(&read_text(&source.join("LICENSE"))?);
    write_file(&folder.join("README.md"), report.card(&heading).as_bytes())
}

/// The first line of a licence that says anything.
pub fn licence_heading(licence: &str) -> String {
    licence.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no text").to_owned()
}

/// Creates a file, writes it and forces it to the disk.
///
/// # Errors
/// [`Error::Io`] naming the file.
pub fn write_file(path: &Path, content: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(Error::io("create", path))?;
    file.write_all(content).map_err(Error::io("write", path))?;
    file.sync_all().map_err(Error::io("sync", path))
}

fn copy_all(source: &Path, folder: &Path, names: &[(&str, bool)]) -> Result<()> {
    for (name, required) in names {
        let (from, to) = (source.join(name), folder.join(name));
        if !required && !from.exists() {
            continue;
        }
        let mut input = File::open(&from).map_err(Error::io("open", &from))?;
        let mut output = File::create_new(&to).map_err(Error::io("create", &to))?;
        std::io::copy(&mut input, &mut output).map_err(Error::io("write", &to))?;
        output.sync_all().map_err(Error::io("sync", &to))?;
    }
    Ok(())
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).map_err(Error::io("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a finished folder back and checks it: the digest of the weights, exactly the tensors of the plan, every float
/// finite, and that the folder opens as an export.
///
/// # Errors
/// [`Error::Invalid`] naming what differs, as from a failing disk; [`Error::Io`] when a file cannot be read.
pub fn verify(folder: &Path, plan: &[TensorSpec], written: &Digested) -> Result<()> {
    let path = folder.join(WEIGHTS_FILE);
    let found = digest(&path, || true)?;
    if found != *written {
        let (expected, found) = (format!("{written:?}"), format!("{found:?}"));
        return Err(Error::invalid(path.display(), "content read back", expected, found));
    }
    let file = TensorFile::open(&path)?;
    for spec in plan {
        check_finite(file.get_as(&spec.name, &[spec.dtype], &spec.shape)?)?;
    }
    if file.tensors().len() != plan.len() {
        let (expected, found) = (format!("{} tensors", plan.len()), format!("{}", file.tensors().len()));
        return Err(Error::invalid(path.display(), "tensors read back", expected, found));
    }
    Export::open(folder).map(drop)
}

/// Checks that a tensor of floats holds finite values only; other types pass. Its pages are released.
///
/// # Errors
/// [`Error::Invalid`] naming tensor and index.
pub fn check_finite(tensor: &Tensor) -> Result<()> {
    /// Elements looked at together.
    const BLOCK: usize = 1 << 20;
    if !matches!(tensor.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32) {
        return Ok(());
    }
    let mut values = vec![0.0; BLOCK.min(tensor.len())];
    for first in (0..tensor.len()).step_by(BLOCK) {
        let values = &mut values[..BLOCK.min(tensor.len() - first)];
        tensor.read_f32(first, values)?;
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let found = format!("{} at index {}", values[index], first + index);
            return Err(tensor.invalid("finite values", found));
        }
    }
    tensor.data.release();
    Ok(())
}

/// Size and digest of a file, read in blocks while `go_on` says so.
///
/// # Errors
/// [`Error::Io`] when it cannot be read.
pub fn digest(path: &Path, go_on: impl Fn() -> bool) -> Result<Digested> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let (mut digest, mut bytes, mut block) = (Sha256::new(), 0, vec![0; 1 << 20]);
    while go_on() {
        match file.read(&mut block).map_err(Error::io("read", path))? {
            0 => break,
            count => {
                digest.update(&block[..count]);
                bytes += count as u64;
            }
        }
    }
    Ok(Digested { bytes, sha256: hex(&digest.finalize()) })
}
