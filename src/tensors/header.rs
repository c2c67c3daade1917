//! The header of a safetensors file, checked without its data: what a dry run fetches by range, and what opening a file
//! checks first.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::error::{Error, Result};

/// Largest header accepted, in bytes. A header of the real model has about 60 KB; the length is a number in the file
/// and must not decide how much memory is taken.
pub const LARGEST_HEADER: u64 = 16 << 20;

/// What a header says of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: Dtype,
    /// Sizes, slowest first.
    pub shape: Vec<usize>,
    /// Where its bytes are in the file.
    pub range: Range<u64>,
}

/// A validated header.
#[derive(Clone, Debug)]
pub struct Header {
    /// All tensors by name.
    pub entries: BTreeMap<String, Entry>,
    /// The `__metadata__` entries.
    pub metadata: BTreeMap<String, String>,
}

impl Header {
    /// Length in bytes of the part of a file that [`Header::parse`] needs, from the file's first eight bytes.
    ///
    /// `file_bytes` is the size of the whole file, `place` its name in messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the file is too short, or the header longer than the file or than [`LARGEST_HEADER`].
    pub fn length(place: &str, start: &[u8], file_bytes: u64) -> Result<u64> {
        let Some(length) = start.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Err(damaged(place, "8 bytes of header length", format!("a file of {file_bytes} bytes")));
        };
        let room = LARGEST_HEADER.min(file_bytes.saturating_sub(8));
        if length > room {
            let expected = format!("a header of at most {room} bytes (the file has {file_bytes} bytes)");
            return Err(damaged(place, expected, format!("a header of {length} bytes")));
        }
        Ok(8 + length)
    }

    /// Checks a header against the size of its file: every tensor's size equals shape times element size, and the tensors
    /// fill the file without gap, overlap or rest.
    ///
    /// `start` holds at least the first [`Header::length`] bytes of the file.
    ///
    /// # Errors
    /// [`Error::Invalid`] naming the file and, when the file is cut, the first tensor that is not whole.
    pub fn parse(place: &str, start: &[u8], file_bytes: u64) -> Result<Header> {
        let data_start = Header::length(place, start, file_bytes)?;
        let well_formed = "a well-formed safetensors file";
        let json = start
            .get(8..data_start as usize)
            .ok_or_else(|| damaged(place, format!("{data_start} bytes of header"), format!("{} bytes", start.len())))?;
        let parsed: Metadata = serde_json::from_slice(json).map_err(|e| damaged(place, well_formed, e))?;
        if let Some(name) = repeated_name(json).map_err(|e| damaged(place, well_formed, e))? {
            return Err(damaged(place, well_formed, format!("the name {name} twice")));
        }
        let entries = parsed.tensors().into_iter().map(|(name, info)| {
            let (from, to) = info.data_offsets;
            let range = data_start + from as u64..data_start + to as u64;
            (name, Entry { dtype: info.dtype, shape: info.shape.clone(), range })
        });
        let header = Header {
            entries: entries.collect(),
            metadata: parsed.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect(),
        };
        header.check_size(place, data_start + parsed.data_len() as u64, file_bytes)?;
        Ok(header)
    }

    fn check_size(&self, place: &str, expected: u64, found: u64) -> Result<()> {
        if expected == found {
            return Ok(());
        }
        let cut = self.entries.iter().filter(|(_, entry)| entry.range.end > found).min_by_key(|(_, e)| e.range.start);
        let item = cut.map_or("end of the file".to_owned(), |(name, _)| format!("{name} (cut)"));
        let error = Error::invalid(place, item, format!("a file of {expected} bytes"), format!("{found} bytes"));
        Err(error.with_hint(ADVICE))
    }
}

const ADVICE: &str = "the file is cut or damaged: fetch or make it again";

fn damaged(place: &str, expected: impl ToString, found: impl ToString) -> Error {
    Error::invalid(place, "safetensors header", expected, found).with_hint(ADVICE)
}

/// The first top-level key that occurs twice in a JSON object. `safetensors` 0.8 accepts such a header when both entries
/// point at the same bytes.
fn repeated_name(header: &[u8]) -> serde_json::Result<Option<String>> {
    use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
    struct Names;
    impl<'de> Visitor<'de> for Names {
        type Value = Option<String>;

        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a JSON object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
            let mut seen = HashSet::new();
            let mut repeated = None;
            while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                if !seen.insert(name.clone()) {
                    repeated.get_or_insert(name);
                }
            }
            Ok(repeated)
        }
    }
    serde_json::Deserializer::from_slice(header).deserialize_map(Names)
}
