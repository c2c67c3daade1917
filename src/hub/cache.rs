//! One repository in the standard Hub cache, laid out as every Hub tool expects it.
//!
//! ```text
//! <cache>/.locks/models--org--name/<hash>.lock       one writer a blob
//! <cache>/models--org--name/
//!     refs/<branch>                                  the commit it stood at
//!     blobs/<hash>                                   whole, checked content
//!     blobs/<hash>.incomplete                        the beginning of one
//!     snapshots/<commit>/<file>                      link to its blob
//!     .no_exist/<commit>/<file>                      empty: the commit has no such file
//! ```
//!
//! A name without `.incomplete` is only ever given to a finished file, by this program and by the Python tools, so
//! whatever has one is reused. Source: "Hub Local Cache" in the Hub's documentation; `hf-hub` supplies the names.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::digest::ContentHash;
use super::names::is_commit;
use crate::error::{Error, Result};

/// A repository at a revision, in the cache.
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
    layout: CacheRepo,
    revision: String,
}

impl RepoCache {
    /// `repo` and `revision` must have been checked: they become paths.
    pub(super) fn new(cache: &Path, repo: &str, revision: &str) -> RepoCache {
        let layout = Repo::with_revision(repo.to_owned(), RepoType::Model, revision.to_owned());
        let name = layout.folder_name();
        RepoCache {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(&name),
            layout: Cache::new(cache.to_owned()).repo(layout),
            revision: revision.to_owned(),
        }
    }

    /// The repository's folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The commit of the revision as far as the cache knows.
    pub(super) fn commit(&self) -> Option<String> {
        if is_commit(&self.revision) {
            return Some(self.revision.clone());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(&self.revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Remembers which commit a branch or tag stands at.
    pub(super) fn save_commit(&self, commit: &str) -> Result<()> {
        if is_commit(&self.revision) || self.commit().as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(&self.revision);
        self.layout.create_ref(commit).map_err(Error::io("write the branch's commit to", &path))
    }

    /// The folder of a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.layout.pointer_path(commit)
    }

    /// A file of a commit, if the cache has it whole.
    pub(super) fn file(&self, commit: &str, name: &str) -> Option<PathBuf> {
        Some(self.snapshot(commit).join(name)).filter(|path| path.is_file())
    }

    /// The hash of a cached file, told by the blob that its link points to.
    pub(super) fn hash(&self, commit: &str, name: &str) -> Option<ContentHash> {
        let target = fs::read_link(self.snapshot(commit).join(name)).ok()?;
        ContentHash::from_etag(target.file_name()?.to_str()?)
    }

    /// Names at the top of a commit's folder.
    pub(super) fn names(&self, commit: &str) -> Vec<String> {
        let entries = fs::read_dir(self.snapshot(commit)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Whether the commit is known to have no such file.
    pub(super) fn is_absent(&self, commit: &str, name: &str) -> bool {
        self.folder.join(".no_exist").join(commit).join(name).is_file()
    }

    /// Remembers that the commit has no such file.
    pub(super) fn mark_absent(&self, commit: &str, name: &str) -> Result<()> {
        let path = self.folder.join(".no_exist").join(commit).join(name);
        create_parent(&path)?;
        File::create(&path).map_err(Error::io("create", &path))?;
        Ok(())
    }

    /// Where a content goes once it is whole.
    pub(super) fn blob(&self, hash: &ContentHash) -> PathBuf {
        self.folder.join("blobs").join(hash.hex())
    }

    /// Where a content grows.
    pub(super) fn incomplete(&self, hash: &ContentHash) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.incomplete", hash.hex()))
    }

    /// Becomes the only writer of a content, among this program and the Python tools; waits for another to finish.
    ///
    /// The lock ends with the file that is returned. `waiting` is called if there is a wait.
    pub(super) fn lock(&self, hash: &ContentHash, waiting: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{}.lock", hash.hex()));
        create_parent(&path)?;
        let options = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = options.map_err(Error::io("open the lock", &path))?;
        let locked = match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        match locked {
            // Some network file systems have no locks. Hashes still keep damaged files out.
            Err(error) if error.kind() != io::ErrorKind::Unsupported => Err(Error::io("lock", &path)(error)),
            _ => Ok(file),
        }
    }

    /// Gives a finished blob its name in the commit's folder.
    pub(super) fn link(&self, commit: &str, name: &str, hash: &ContentHash) -> Result<()> {
        let path = self.snapshot(commit).join(name);
        if path.is_file() {
            return Ok(());
        }
        create_parent(&path)?;
        let up = "../".repeat(2 + name.matches('/').count());
        let target = format!("{up}blobs/{}", hash.hex());
        link_or_copy(Path::new(&target), &self.blob(hash), &path, symlink).map_err(Error::io("link", &path))
    }
}

pub(super) fn create_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    fs::create_dir_all(parent).map_err(Error::io("create the folder", parent))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target.to_string_lossy().replace('/', "\\"), link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Links `path` to `target`, or copies `blob` there where links cannot be made.
fn link_or_copy(
    target: &Path,
    blob: &Path,
    path: &Path,
    symlink: impl Fn(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    if path.is_symlink() {
        fs::remove_file(path)?; // its blob is gone, or it would have counted as a file
    }
    match symlink(target, path) {
        Ok(()) => Ok(()),
        // Another process was faster; a name in a commit has one content.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => {
            let mut unfinished = path.as_os_str().to_owned();
            unfinished.push(".incomplete");
            fs::copy(blob, &unfinished)?;
            fs::rename(&unfinished, path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_links_the_content_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let (blob, path) = (folder.path().join("blob"), folder.path().join("file"));
        fs::write(&blob, "content").unwrap();
        let refuse = |_: &Path, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
        link_or_copy(Path::new("blob"), &blob, &path, refuse).unwrap();
        assert!(path.is_file() && !path.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"content");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_without_its_blob_is_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let commit = "0".repeat(40);
        let repo = RepoCache::new(cache.path(), "org/name", &commit);
        let hash = ContentHash::from_etag(&"a".repeat(64)).unwrap();
        for path in [repo.snapshot(&commit).join("codec/config.json"), repo.blob(&hash)] {
            create_parent(&path).unwrap();
        }
        symlink(Path::new("gone"), &repo.snapshot(&commit).join("codec/config.json")).unwrap();
        assert_eq!(repo.file(&commit, "codec/config.json"), None);
        fs::write(repo.blob(&hash), "content").unwrap();
        repo.link(&commit, "codec/config.json", &hash).unwrap();
        assert_eq!(fs::read(repo.file(&commit, "codec/config.json").unwrap()).unwrap(), b"content");
        assert_eq!(repo.hash(&commit, "codec/config.json"), Some(hash));
    }
}
