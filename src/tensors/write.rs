//! Writing a safetensors file as a stream: the header is computed from the shapes, the data follows in the same order.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The data starts at a multiple of this many bytes; the header is padded with spaces.
pub const DATA_ALIGNMENT: usize = 64;

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of this name, type and shape.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: &[usize]) -> TensorSpec {
        TensorSpec { name: name.into(), dtype, shape: shape.to_vec() }
    }

    /// Size of its data.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }
}

/// The bytes before the data: header length, header, padding. Entries keep the order given.
pub fn header_bytes(metadata: &[(&str, &str)], tensors: &[TensorSpec]) -> Vec<u8> {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let metadata: Vec<String> = metadata.iter().map(|(k, v)| format!("{}:{}", quote(k), quote(v))).collect();
    let mut json = format!("{{\"__metadata__\":{{{}}}", metadata.join(","));
    let mut start = 0;
    for tensor in tensors {
        let sizes: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let (name, dtype, shape, end) = (quote(&tensor.name), tensor.dtype, sizes.join(","), start + tensor.bytes());
        json += &format!(",{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}");
        start = end;
    }
    json.push('}');
    let padded = (8 + json.len()).next_multiple_of(DATA_ALIGNMENT) - 8;
    json.extend(std::iter::repeat_n(' ', padded - json.len()));
    [&(padded as u64).to_le_bytes(), json.as_bytes()].concat()
}

/// Size and digest of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Digested {
    /// Bytes in the file.
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

/// A file being written, hashed on the way.
#[derive(Debug)]
pub struct TensorWriter {
    file: File,
    path: PathBuf,
    digest: Sha256,
    written: u64,
    expected: u64,
}

impl TensorWriter {
    /// Creates the file and writes its header.
    ///
    /// # Errors
    /// [`Error::Io`] when the file exists or cannot be written.
    pub fn create(path: &Path, metadata: &[(&str, &str)], tensors: &[TensorSpec]) -> Result<TensorWriter> {
        let header = header_bytes(metadata, tensors);
        let expected = header.len() as u64 + tensors.iter().map(TensorSpec::bytes).sum::<u64>();
        let file = File::create_new(path).map_err(Error::io("create", path))?;
        let mut writer = TensorWriter { file, path: path.to_owned(), digest: Sha256::new(), written: 0, expected };
        writer.write(&header)?;
        Ok(writer)
    }

    /// Appends data, in the order of the tensors; a call may end anywhere.
    ///
    /// # Errors
    /// [`Error::Io`], for instance when the disk is full.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.file.write_all(data).map_err(Error::io("write", &self.path))?;
        self.digest.update(data);
        self.written += data.len() as u64;
        Ok(())
    }

    /// Forces the file to the disk and returns its size and digest.
    ///
    /// # Errors
    /// [`Error::Io`] when the disk refuses; [`Error::Shape`] when the data written is not what the header promised.
    pub fn finish(self) -> Result<Digested> {
        if self.written != self.expected {
            let (expected, found) = (self.expected.to_string(), self.written.to_string());
            return Err(Error::Shape { operation: "write tensors", operand: "bytes", expected, found });
        }
        self.file.sync_all().map_err(Error::io("sync", &self.path))?;
        Ok(Digested { bytes: self.written, sha256: hex(&self.digest.finalize()) })
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The exact bytes of a small header: a change here is a change of the format.
    #[test]
    fn header_bytes_are_fixed() {
        let tensors = [TensorSpec::new("a", Dtype::U8, &[2, 3]), TensorSpec::new("b", Dtype::F16, &[1])];
        let json = r#"{"__metadata__":{"format":"x"},"a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"b":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}}"#;
        let mut expected = 184u64.to_le_bytes().to_vec();
        expected.extend_from_slice(json.as_bytes());
        expected.resize(192, b' ');
        assert_eq!(header_bytes(&[("format", "x")], &tensors), expected);
    }

    #[test]
    fn what_is_written_opens_and_has_the_digest_of_its_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let mut writer = TensorWriter::create(&path, &[], &[TensorSpec::new("a", Dtype::U8, &[5])]).unwrap();
        writer.write(&[1, 2]).unwrap();
        writer.write(&[3, 4, 5]).unwrap();
        let digested = writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(digested, Digested { bytes: bytes.len() as u64, sha256: hex(&Sha256::digest(&bytes)) });
        let file = crate::tensors::TensorFile::open(&path).unwrap();
        assert_eq!(&file.get("a").unwrap().data[..], [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_short_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.safetensors");
        let writer = TensorWriter::create(&path, &[], &[TensorSpec::new("a", Dtype::U8, &[5])]).unwrap();
        assert!(matches!(writer.finish(), Err(Error::Shape { .. })));
    }
}
