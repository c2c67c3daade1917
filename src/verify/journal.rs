//! What a run has measured so far, so that one that was stopped goes on where it was.
//!
//! A run is a folder named by everything that its figures depend on; a part of it (a sequence, a prompt) is a file of numbers
//! behind their digest, there whole or not at all. Numbers are kept to the bit: going on gives the same record as never
//! having stopped. A part that cannot be read or kept is measured again.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::tensors::write::hex;

/// Beginning of the folders' names.
const PREFIX: &str = "verify-";
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Runs that nobody came back to for this long are removed.
const FORGOTTEN: Duration = Duration::from_secs(7 * 86_400);

/// Something measured that can be kept as numbers.
pub trait Part: Sized {
    /// All of it.
    fn numbers(&self) -> Vec<f64>;
    /// The part that gives these `numbers`; none for numbers that no part gives.
    fn of(numbers: &[f64]) -> Option<Self>;
}

/// The parts of one run.
#[derive(Debug)]
pub struct Journal {
    folder: Option<PathBuf>,
    taken: Cell<usize>,
}

impl Journal {
    /// Keeps nothing.
    pub fn none() -> Journal {
        Journal { folder: None, taken: Cell::new(0) }
    }

    /// The run that is described by `about`, in a folder below `cache`.
    ///
    /// # Errors
    /// [`Error::Io`] when the folder cannot be made.
    pub fn open(cache: &Path, about: &Value) -> Result<Journal> {
        forget(cache);
        let key = hex(&Sha256::digest(about.to_string()));
        let folder = cache.join(format!("{PREFIX}{}", &key[..16]));
        std::fs::create_dir_all(&folder).map_err(Error::io("create the folder", &folder))?;
        Ok(Journal { folder: Some(folder), taken: Cell::new(0) })
    }

    /// A part as it was kept, or measured now and kept.
    ///
    /// # Errors
    /// Those of `measure`.
    pub fn part<P: Part>(&self, name: &str, measure: impl FnOnce() -> Result<P>) -> Result<P> {
        if let Some(part) = self.known(name) {
            self.count(1);
            return Ok(part);
        }
        let part = measure()?;
        self.add(name, &part);
        Ok(part)
    }

    /// A part that was kept. Who uses it calls [`Journal::count`].
    pub fn known<P: Part>(&self, name: &str) -> Option<P> {
        P::of(&read(&self.folder.as_ref()?.join(name))?)
    }

    /// Counts parts that did not have to be measured.
    pub fn count(&self, parts: usize) {
        self.taken.set(self.taken.get() + parts);
    }

    /// Keeps a part. A full disk costs the chance to go on, not the run.
    pub fn add<P: Part>(&self, name: &str, part: &P) {
        if let Some(folder) = &self.folder {
            keep(&folder.join(name), &part.numbers());
        }
    }

    /// Parts that were not measured by this run.
    pub fn taken(&self) -> usize {
        self.taken.get()
    }

    /// Removes what was kept: the run is over.
    pub fn finish(self) {
        if let Some(folder) = self.folder {
            let _ = std::fs::remove_dir_all(folder); // it is forgotten after a week
        }
    }
}

fn read(file: &Path) -> Option<Vec<f64>> {
    let bytes = std::fs::read(file).ok()?;
    let (digest, data) = bytes.split_at_checked(DIGEST)?;
    let (numbers, rest) = data.as_chunks();
    let whole = rest.is_empty() && Sha256::digest(data)[..] == *digest;
    whole.then(|| numbers.iter().map(|number| f64::from_le_bytes(*number)).collect())
}

fn keep(file: &Path, numbers: &[f64]) {
    let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let bytes = [&Sha256::digest(&data)[..], &data].concat();
    let temporary = file.with_extension(format!("tmp{}", std::process::id()));
    let kept = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, file));
    if kept.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
}

/// Removes runs that were never finished.
fn forget(cache: &Path) {
    let Ok(entries) = std::fs::read_dir(cache) else { return };
    let old = |entry: &std::fs::DirEntry| {
        let age = || SystemTime::now().duration_since(entry.metadata().ok()?.modified().ok()?).ok();
        entry.file_name().to_string_lossy().starts_with(PREFIX) && age().is_some_and(|age| age > FORGOTTEN)
    };
    entries.flatten().filter(old).for_each(|entry| _ = std::fs::remove_dir_all(entry.path()));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Two(f64, f64);

    impl Part for Two {
        fn numbers(&self) -> Vec<f64> {
            vec![self.0, self.1]
        }

        fn of(numbers: &[f64]) -> Option<Two> {
            let &[a, b] = numbers else { return None };
            Some(Two(a, b))
        }
    }

    #[test]
    fn a_part_is_measured_once_and_kept_to_the_bit() {
        let cache = tempfile::tempdir().unwrap();
        let open = || Journal::open(cache.path(), &json!({"seed": 1})).unwrap();
        let part = Two(0.1 + 0.2, f64::NEG_INFINITY);
        assert_eq!(open().part("a", || Ok(part.clone())).unwrap(), part);
        let again = open();
        assert_eq!(again.part::<Two>("a", || unreachable!()).unwrap(), part);
        assert_eq!(again.taken(), 1);
        assert!(again.part("b", || Err::<Two, _>(Error::input("b", "broken"))).is_err());
        assert_eq!(again.part("b", || Ok(part.clone())).unwrap(), part, "a failure was kept");
        let nan = again.part("c", || Ok(Two(f64::NAN, 0.0))).unwrap();
        assert!(nan.0.is_nan() && again.part::<Two>("c", || unreachable!()).unwrap().0.is_nan());
        again.finish();
        assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn another_run_and_a_damaged_part_are_not_taken() {
        let cache = tempfile::tempdir().unwrap();
        let open = |seed: u32| Journal::open(cache.path(), &json!({ "seed": seed })).unwrap();
        open(1).part("a", || Ok(Two(1.0, 2.0))).unwrap();
        assert_eq!(open(2).part("a", || Ok(Two(3.0, 4.0))).unwrap(), Two(3.0, 4.0));
        let file = open(1).folder.unwrap().join("a");
        let whole = std::fs::read(&file).unwrap();
        let flipped: Vec<u8> = whole.iter().enumerate().map(|(i, b)| if i == 40 { b ^ 1 } else { *b }).collect();
        for damaged in [&whole[..whole.len() - 1], &whole[..10], &[], &flipped] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(open(1).part("a", || Ok(Two(5.0, 6.0))).unwrap(), Two(5.0, 6.0));
        }
        let short = [&Sha256::digest([0; 8])[..], &[0; 8]].concat(); // whole, but no `Two`
        std::fs::write(&file, short).unwrap();
        assert_eq!(open(1).part("a", || Ok(Two(7.0, 8.0))).unwrap(), Two(7.0, 8.0));
        assert_eq!(Journal::none().part("a", || Ok(Two(9.0, 9.0))).unwrap(), Two(9.0, 9.0));
    }
}
