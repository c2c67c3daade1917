//! A safetensors file: mapped, validated as a whole, then handed out tensor by tensor.
//!
//! The header is never trusted. The `safetensors` crate checks order, gaps, overlaps and that each size equals
//! shape times element size; lengths and what it lets through (the same name twice) are checked in `header`. Tensors are cheap handles
//! that keep the mapping alive, so weights are read from the page cache and never copied for their own sake.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::Mmap;
pub use safetensors::Dtype;

use crate::error::{Error, Result};

mod header;
pub mod write;

pub use header::{Entry, Header, LARGEST_HEADER};

/// Where the bytes of a file are.
#[derive(Debug)]
enum Backing {
    Mapped(Mmap),
    Embedded(&'static [u8]),
    Owned(Vec<u8>),
}

/// Bytes of a file or of a part of it; cloning shares them.
#[derive(Clone, Debug)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    /// Maps a file into memory.
    ///
    /// The file must not be changed or truncated while the mapping lives; files are replaced by rename, never rewritten in
    /// place, by this program and by the Hub cache.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be opened or mapped.
    #[allow(unsafe_code)]
    pub fn map(path: &Path) -> Result<Bytes> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let length = file.metadata().map_err(Error::io("read the size of", path))?.len();
        if length == 0 {
            return Ok(Bytes::from(Vec::new())); // an empty mapping is an error on some systems
        }
        // SAFETY: the mapping is read-only and private to this handle. A concurrent truncation by another process would
        // raise SIGBUS; nothing in user space can rule that out, see the contract above.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
        Ok(Bytes::new(Backing::Mapped(map)))
    }

    /// Bytes compiled into the program.
    pub fn embedded(bytes: &'static [u8]) -> Bytes {
        Bytes::new(Backing::Embedded(bytes))
    }

    fn new(backing: Backing) -> Bytes {
        let mut bytes = Bytes { backing: Arc::new(backing), range: 0..0 };
        bytes.range = 0..bytes.whole().len();
        bytes
    }

    fn whole(&self) -> &[u8] {
        match &*self.backing {
            Backing::Mapped(map) => map,
            Backing::Embedded(bytes) => bytes,
            Backing::Owned(bytes) => bytes,
        }
    }

    /// A part, sharing the backing.
    ///
    /// # Panics
    /// When `range` does not lie inside.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        let range = self.range.start + range.start..self.range.start + range.end;
        assert!(range.end <= self.range.end, "part of {range:?} outside {:?}", self.range);
        Bytes { backing: self.backing.clone(), range }
    }

    /// Tells the system that these bytes will not be needed soon, so that they stop counting as resident memory.
    ///
    /// Reading them again works and fetches them from the file. A hint: failure is ignored.
    #[allow(unsafe_code)]
    pub fn release(&self) {
        #[cfg(unix)]
        if let Backing::Mapped(map) = &*self.backing {
            // SAFETY: the mapping is file-backed, shared and never written, so dropping its pages loses nothing.
            let advice = memmap2::UncheckedAdvice::DontNeed;
            let _ = unsafe { map.unchecked_advise_range(advice, self.range.start, self.range.len()) };
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes::new(Backing::Owned(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.whole()[self.range.clone()]
    }
}

/// One tensor: row-major, little-endian, contiguous.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, slowest first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Its bytes.
    pub data: Bytes,
    /// The file, for messages.
    pub place: Arc<str>,
}

impl Tensor {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True when a dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks element type and shape.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the tensor.
    pub fn expect(&self, dtypes: &[Dtype], shape: &[usize]) -> Result<()> {
        if !dtypes.contains(&self.dtype) || self.shape != shape {
            let dtypes = dtypes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
            let expected = format!("{dtypes} {shape:?}");
            return Err(self.invalid(expected, format!("{} {:?}", self.dtype, self.shape)));
        }
        Ok(())
    }

    /// All elements in f32, from BF16, F16 or F32. The conversion is exact.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another element type.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.len()];
        self.read_f32(0, &mut out)?;
        Ok(out)
    }

    /// Elements `first..first + out.len()` in f32, from BF16, F16 or F32.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another element type.
    pub fn read_f32(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let width = match self.dtype {
            Dtype::BF16 | Dtype::F16 => 2,
            Dtype::F32 => 4,
            other => return Err(self.invalid("BF16, F16 or F32", other)),
        };
        let bytes = &self.data[first * width..(first + out.len()) * width];
        match self.dtype {
            Dtype::BF16 => convert(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
            Dtype::F16 => convert(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
            _ => convert(bytes, out, f32::from_le_bytes),
        }
        Ok(())
    }

    /// All elements of an F16 tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another element type.
    pub fn to_f16(&self) -> Result<Vec<f16>> {
        if self.dtype != Dtype::F16 {
            return Err(self.invalid("F16", self.dtype));
        }
        let mut out = vec![f16::ZERO; self.len()];
        convert(&self.data, &mut out, f16::from_le_bytes);
        Ok(out)
    }

    /// All elements of an I32 or I64 tensor.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another element type.
    pub fn to_i64(&self) -> Result<Vec<i64>> {
        let mut out = vec![0; self.len()];
        match self.dtype {
            Dtype::I32 => convert(&self.data, &mut out, |b| i32::from_le_bytes(b).into()),
            Dtype::I64 => convert(&self.data, &mut out, i64::from_le_bytes),
            other => return Err(self.invalid("I32 or I64", other)),
        }
        Ok(out)
    }

    /// A complaint about this tensor.
    pub fn invalid(&self, expected: impl ToString, found: impl ToString) -> Error {
        Error::invalid(&self.place, &self.name, expected, found)
    }
}

fn convert<const WIDTH: usize, T>(bytes: &[u8], out: &mut [T], from: impl Fn([u8; WIDTH]) -> T) {
    for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *value = from(*bytes);
    }
}

/// A validated safetensors file.
#[derive(Clone, Debug)]
pub struct TensorFile {
    place: Arc<str>,
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Maps and validates a file.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read; [`Error::Invalid`] when the header or the size is wrong.
    pub fn open(path: &Path) -> Result<TensorFile> {
        TensorFile::from_bytes(&path.display().to_string(), Bytes::map(path)?)
    }

    /// Validates a file that is already in memory. `place` names it in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the header or the size is wrong.
    pub fn from_bytes(place: &str, bytes: Bytes) -> Result<TensorFile> {
        let file: Arc<str> = Arc::from(place);
        let Header { entries, metadata } = Header::parse(place, &bytes, bytes.len() as u64)?;
        let tensors = entries.into_iter().map(|(name, entry)| {
            let Entry { dtype, shape, range } = entry;
            let data = bytes.slice(range.start as usize..range.end as usize);
            (name.clone(), Tensor { name, dtype, shape, data, place: file.clone() })
        });
        Ok(TensorFile { tensors: tensors.collect(), metadata, place: file })
    }

    /// The file's name in messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The `__metadata__` entries of the header.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, Tensor> {
        &self.tensors
    }

    /// A tensor that may be absent.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// A tensor that must be there.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file and tensor.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.find(name).ok_or_else(|| Error::invalid(&self.place, name, "the tensor", "nothing of that name"))
    }

    /// A tensor of known type and shape that must be there.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming file and tensor.
    pub fn get_as(&self, name: &str, dtypes: &[Dtype], shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.get(name)?;
        tensor.expect(dtypes, shape)?;
        Ok(tensor)
    }

    /// A floating-point tensor of known shape, in f32.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is missing, of another shape or type, or holds a value that is not finite.
    pub fn get_f32(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.get_as(name, &[Dtype::BF16, Dtype::F16, Dtype::F32], shape)?;
        let values = tensor.to_f32()?;
        match values.iter().position(|v| !v.is_finite()) {
            Some(index) => Err(tensor.invalid("finite values", format!("{} at index {index}", values[index]))),
            None => Ok(values),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Result<TensorFile> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        TensorFile::from_bytes("test.safetensors", bytes.into())
    }

    #[test]
    fn reads_every_float_type_exactly() {
        let header = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
            "b":{"dtype":"F16","shape":[1],"data_offsets":[4,6]},"c":{"dtype":"F32","shape":[1],"data_offsets":[6,10]}}"#;
        let mut data = [0x80, 0x3f, 0x00, 0xc0].to_vec(); // bf16 1.0, -2.0
        data.extend(f16::from_f32(0.5).to_le_bytes());
        data.extend(3.25f32.to_le_bytes());
        let file = file(header, &data).unwrap();
        assert_eq!(file.get_f32("a", &[2]).unwrap(), [1.0, -2.0]);
        assert_eq!(file.get_f32("b", &[1]).unwrap(), [0.5]);
        assert_eq!(file.get_f32("c", &[1]).unwrap(), [3.25]);
    }

    #[test]
    fn refuses_a_name_that_occurs_twice() {
        let entry = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        let error = file(&format!("{{{entry},{entry}}}"), &[7]).unwrap_err().to_string();
        assert!(error.contains("the name a twice"), "{error}");
    }

    #[test]
    fn refuses_a_header_that_lies_about_its_length() {
        for length in [u64::MAX, 1 << 63, 1 << 40, 100] {
            let bytes = length.to_le_bytes().to_vec();
            let error = TensorFile::from_bytes("x.safetensors", bytes.into()).unwrap_err().to_string();
            assert!(error.starts_with("x.safetensors: safetensors header: expected"), "{error}");
        }
    }

    #[test]
    fn names_the_value_that_is_not_finite() {
        let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let data = [1f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
        let error = file(header, &data).unwrap().get_f32("w", &[2]).unwrap_err().to_string();
        assert!(error.contains("NaN at index 1"), "{error}");
    }
}
