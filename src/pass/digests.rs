//! SHA-256 of files, remembered for as long as a file is the same one.
//!
//! A file counts as unchanged while its device, inode, size, modification and change times are what they were. The change
//! time is the system's own: a tool that sets the modification time back does not set that one back.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::tensors::write::{Digested, hex};

/// Bytes read and hashed at a time.
const BUFFER: usize = 1 << 20;

/// What tells one state of a file from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Mark {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Option<Mark> {
        use std::os::unix::fs::MetadataExt;
        Some(Mark {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Nothing here tells a file from its replacement: every file is hashed every time.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Mark> {
        None
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    mark: Mark,
    sha256: String,
}

/// Digests by absolute path, kept in a file of the user's cache folder.
#[derive(Debug, Default)]
pub struct Digests {
    known: BTreeMap<PathBuf, Known>,
    file: Option<PathBuf>,
}

impl Digests {
    /// The user's own: `$XDG_CACHE_HOME/rumik/digests.json`, or `~/.cache/rumik/digests.json`. Without either, or when
    /// the file cannot be read, nothing is remembered and every file is hashed.
    pub fn of_user() -> Digests {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        folder.map(|folder| Digests::in_file(folder.join("rumik/digests.json"))).unwrap_or_default()
    }

    /// Kept in a given file.
    pub fn in_file(file: PathBuf) -> Digests {
        let read = || serde_json::from_slice(&std::fs::read(&file).ok()?).ok();
        Digests { known: read().unwrap_or_default(), file: Some(file) }
    }

    /// Size and SHA-256 of a file: remembered, or taken now and remembered.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be read.
    pub fn of(&mut self, path: &Path) -> Result<Digested> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let look = || file.metadata().map_err(Error::io("look at", path));
        let before = Mark::of(&look()?);
        let key = path.canonicalize().map_err(Error::io("resolve", path))?;
        if let (Some(mark), Some(known)) = (&before, self.known.get(&key))
            && known.mark == *mark
        {
            return Ok(Digested { bytes: mark.bytes, sha256: known.sha256.clone() });
        }
        let digested = hash(&file, path)?;
        // A file that changed while it was read is not remembered.
        if let Some(mark) = Mark::of(&look()?).filter(|mark| before.as_ref() == Some(mark)) {
            self.known.insert(key, Known { mark, sha256: digested.sha256.clone() });
            self.save();
        }
        Ok(digested)
    }

    /// Saves what is known. A cache that cannot be written costs time at the next start and nothing else.
    fn save(&self) {
        let Some(file) = &self.file else { return };
        let write = || -> Option<()> {
            let folder = file.parent()?;
            std::fs::create_dir_all(folder).ok()?;
            let temporary = tempfile::NamedTempFile::new_in(folder).ok()?;
            serde_json::to_writer(&temporary, &self.known).ok()?;
            temporary.persist(file).ok().map(drop)
        };
        let _ = write();
    }
}

fn hash(mut file: &File, path: &Path) -> Result<Digested> {
    let (mut digest, mut buffer, mut bytes) = (Sha256::new(), vec![0; BUFFER], 0);
    loop {
        match file.read(&mut buffer).map_err(Error::io("read", path))? {
            0 => return Ok(Digested { bytes, sha256: hex(&digest.finalize()) }),
            count => {
                digest.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_changed_file_is_hashed_again_even_when_its_time_is_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("weights"), folder.path().join("cache/digests.json"));
        std::fs::write(&path, "one").unwrap();
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let first = Digests::in_file(cache.clone()).of(&path).unwrap();
        assert_eq!(first.sha256, hex(&Sha256::digest("one")));
        assert_eq!(Digests::in_file(cache.clone()).of(&path).unwrap(), first);
        std::thread::sleep(std::time::Duration::from_millis(20)); // a tick of the file system's clock
        std::fs::write(&path, "two").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(Digests::in_file(cache).of(&path).unwrap().sha256, hex(&Sha256::digest("two")));
    }

    #[cfg(unix)]
    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (path, cache) = (folder.path().join("weights"), folder.path().join("digests.json"));
        std::fs::write(&path, "one").unwrap();
        Digests::in_file(cache.clone()).of(&path).unwrap();
        let saved = std::fs::read_to_string(&cache).unwrap();
        let marked = saved.replace(&hex(&Sha256::digest("one")), &"0".repeat(64));
        std::fs::write(&cache, marked).unwrap();
        assert_eq!(Digests::in_file(cache).of(&path).unwrap().sha256, "0".repeat(64)); // what was remembered
    }

    #[test]
    fn a_cache_that_cannot_be_kept_or_read_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, "one").unwrap();
        let cache = folder.path().join("digests.json");
        std::fs::write(&cache, "{ not json").unwrap();
        assert!(Digests::in_file(cache).of(&path).is_ok());
        assert!(Digests::in_file(path.join("below a file")).of(&path).is_ok());
        assert!(Digests::default().of(&folder.path().join("absent")).is_err());
    }
}
