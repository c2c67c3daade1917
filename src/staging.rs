//! A folder that appears under its final name whole or not at all.
//!
//! The work happens in a sibling, `.NAME.rumik-partial`, which is locked while it is written, so that what a killed run left
//! is told from a run that is still going, and cleaned by the next one. The last step is a rename. A folder that is replaced
//! waits as `.NAME.rumik-old` until its successor is in place; a run that finds only that puts it back.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A folder being written. Dropping it without [`Staging::commit`] removes what was written.
#[derive(Debug)]
pub struct Staging {
    partial: PathBuf,
    old: PathBuf,
    target: PathBuf,
    /// Holds the lock, where folders can be locked.
    _lock: Option<File>,
    replace: bool,
    committed: bool,
}

impl Staging {
    /// Starts a folder that will become `target`. Cleans what a killed run left.
    ///
    /// `ours` says whether an existing folder is one that this program wrote; only such a folder is replaced, and only with
    /// `replace`. An empty folder is always accepted.
    ///
    /// # Errors
    /// [`Error::Input`] when `target` exists and may not be replaced, or another run is writing it; [`Error::Io`] when the
    /// file system refuses.
    pub fn begin(target: &Path, replace: bool, ours: impl Fn(&Path) -> bool) -> Result<Staging> {
        let (partial, old) = (sibling(target, "rumik-partial")?, sibling(target, "rumik-old")?);
        let _lock = lock(&partial)?;
        let staging = Staging { partial, old, target: target.to_owned(), _lock, replace, committed: false };
        staging.recover()?;
        staging.check_target(ours)?;
        clear(&staging.partial)?;
        Ok(staging)
    }

    /// Where to write.
    pub fn folder(&self) -> &Path {
        &self.partial
    }

    /// Forces the folder to the disk and gives it its final name.
    ///
    /// # Errors
    /// [`Error::Io`] when the file system refuses; the final name then still is what it was.
    pub fn commit(mut self) -> Result<()> {
        sync_folder(&self.partial)?;
        let replaced = self.replace && self.target.exists();
        if replaced {
            std::fs::rename(&self.target, &self.old).map_err(Error::io("move aside", &self.target))?;
        }
        if let Err(source) = std::fs::rename(&self.partial, &self.target) {
            if replaced {
                let _ = std::fs::rename(&self.old, &self.target); // the error below is the one to report
            }
            return Err(Error::io("rename the finished folder to", &self.target)(source));
        }
        self.committed = true; // there is nothing left for `drop` to remove
        sync_folder(parent(&self.target))?;
        if replaced {
            std::fs::remove_dir_all(&self.old).map_err(Error::io("remove", &self.old))?;
        }
        Ok(())
    }

    /// Finishes what a killed replacement left: puts the old folder back, or removes it when its successor is there.
    fn recover(&self) -> Result<()> {
        match (self.old.exists(), self.target.exists()) {
            (true, true) => std::fs::remove_dir_all(&self.old).map_err(Error::io("remove", &self.old)),
            (true, false) => std::fs::rename(&self.old, &self.target).map_err(Error::io("put back", &self.target)),
            (false, _) => Ok(()),
        }
    }

    fn check_target(&self, ours: impl Fn(&Path) -> bool) -> Result<()> {
        let target = self.target.display();
        if !self.target.exists() || is_empty_folder(&self.target) {
            return Ok(());
        }
        if !self.replace {
            return Err(Error::input(
                "--out",
                format!("{target} exists; give --force to replace it, or another folder"),
            ));
        }
        if !ours(&self.target) {
            let message = format!(
                "{target} exists and was not written by this program, or holds other files too; give another folder"
            );
            return Err(Error::input("--out", message));
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.committed {
            let _ = std::fs::remove_dir_all(&self.partial);
        }
    }
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

/// `.NAME.suffix` beside `target`.
fn sibling(target: &Path, suffix: &str) -> Result<PathBuf> {
    let name = target.file_name().ok_or_else(|| {
        Error::input("--out", format!("{} has no last component to name a folder after", target.display()))
    })?;
    Ok(parent(target).join(format!(".{}.{suffix}", name.to_string_lossy())))
}

/// The folder that holds `path`.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates the folder if need be and locks it. The lock ends with the process, however that ends.
///
/// # Errors
/// [`Error::Input`] when another run holds the lock; [`Error::Io`].
#[cfg(unix)]
pub fn lock(folder: &Path) -> Result<Option<File>> {
    use std::os::unix::fs::MetadataExt;
    loop {
        std::fs::create_dir_all(parent(folder)).map_err(Error::io("create the folder", parent(folder)))?;
        match std::fs::create_dir(folder) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create the folder", folder)(e));
            }
            _ => {}
        }
        let handle = File::open(folder).map_err(Error::io("open", folder))?;
        match handle.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(Error::input("--out", format!("another run is writing {}", folder.display())));
            }
            // Some cluster file systems have no locks; two runs with one `--out` are the user's to avoid there.
            Err(std::fs::TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => return Ok(None),
            Err(std::fs::TryLockError::Error(e)) => return Err(Error::io("lock", folder)(e)),
        }
        // Another run may have renamed or removed the folder between opening and locking: then the lock is on something else.
        let locked = handle.metadata().map_err(Error::io("look at", folder))?;
        match std::fs::metadata(folder) {
            Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => return Ok(Some(handle)),
            _ => continue,
        }
    }
}

/// Creates the folder if need be. Folders cannot be locked here; two runs with one `--out` are the user's to avoid.
///
/// # Errors
/// [`Error::Io`].
#[cfg(not(unix))]
pub fn lock(folder: &Path) -> Result<Option<File>> {
    std::fs::create_dir_all(folder).map_err(Error::io("create the folder", folder))?;
    Ok(None)
}

fn clear(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::io("read the folder", folder))? {
        let entry = entry.map_err(Error::io("read the folder", folder))?;
        let path = entry.path();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let removed = if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        removed.map_err(Error::io("remove", &path))?;
    }
    Ok(())
}

fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Forces a folder's entries to the disk, where folders can be opened.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io("sync", folder))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn write(root: &Path, content: &str, replace: bool) -> Result<()> {
        let staging = Staging::begin(&root.join("out"), replace, |folder| folder.join("mark").exists())?;
        std::fs::write(staging.folder().join("mark"), content).unwrap();
        staging.commit()
    }

    #[test]
    fn appears_whole_and_is_replaced_only_on_request() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "one", false).unwrap();
        let error = write(root.path(), "two", false).unwrap_err().to_string();
        assert!(error.contains("exists; give --force"), "{error}");
        assert_eq!(std::fs::read_to_string(root.path().join("out/mark")).unwrap(), "one");
        write(root.path(), "two", true).unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("out/mark")).unwrap(), "two");
        assert_eq!(names(root.path()), ["out"]);
    }

    #[test]
    fn a_foreign_folder_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("out")).unwrap();
        std::fs::write(root.path().join("out/thesis.txt"), "years").unwrap();
        assert!(write(root.path(), "x", true).unwrap_err().to_string().contains("not written by this program"));
        assert_eq!(names(root.path()), ["out"]);
    }

    #[test]
    fn what_killed_runs_left_is_cleaned_or_put_back() {
        let root = tempfile::tempdir().unwrap();
        for leftover in [".out.rumik-partial/codec", ".out.rumik-old"] {
            std::fs::create_dir_all(root.path().join(leftover)).unwrap();
        }
        std::fs::write(root.path().join(".out.rumik-partial/codec/half"), "x").unwrap();
        std::fs::write(root.path().join(".out.rumik-old/mark"), "before").unwrap();
        // the old folder is back under its name, and protected like any other
        assert!(write(root.path(), "x", false).unwrap_err().to_string().contains("exists"));
        assert_eq!(std::fs::read_to_string(root.path().join("out/mark")).unwrap(), "before");
        assert_eq!(names(root.path()), ["out"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_run_that_is_still_going_is_not_disturbed() {
        let root = tempfile::tempdir().unwrap();
        let first = Staging::begin(&root.path().join("out"), false, |_| true).unwrap();
        std::fs::write(first.folder().join("mark"), "first").unwrap();
        assert!(write(root.path(), "second", true).unwrap_err().to_string().contains("another run"));
        first.commit().unwrap();
        assert_eq!(std::fs::read_to_string(root.path().join("out/mark")).unwrap(), "first");
    }
}
