//! One file from the Hub into the cache: resumed where it stopped, checked by size and hash before it gets its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use ureq::Body;
use ureq::http::{Response, StatusCode};

use super::cache::{RepoCache, create_parent};
use super::client::{Client, FileInfo, Target, content_length, content_range};
use super::digest::Hasher;
use super::retry::{Failure, Retry};
use super::settings::Settings;
use crate::cli::{Progress, Units};
use crate::error::{Error, Result};

/// Bytes that count as progress, so that a server which drops every connection early is not tried for ever.
const PROGRESS: u64 = 1 << 20;
/// Bytes read, hashed and written at a time.
const BUFFER: usize = 256 << 10;

/// One file that the cache lacks.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) settings: &'a Settings,
    pub(super) cache: &'a RepoCache,
    pub(super) target: Target<'a>,
    /// Commit that the file belongs to.
    pub(super) commit: &'a str,
    /// Name of the file.
    pub(super) name: &'a str,
    pub(super) info: FileInfo,
}

/// Why a connection gave no whole file.
enum Stop {
    Failed(Failure),
    Damaged { expected: String, found: String },
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(Failure::from(error))
    }
}

impl Download<'_> {
    /// Downloads the file, unless another process does so meanwhile, and links it into the commit's folder.
    pub(super) fn run(&self) -> Result<()> {
        let bar = |label: &str| Progress::new(label, self.info.size, Units::Bytes);
        let mut waiting = None;
        let lock = self.cache.lock(&self.info.hash, || waiting = Some(bar("waiting for another one")));
        waiting.inspect(Progress::finish);
        let _lock = lock?;
        let progress = bar(self.name);
        let result = self.fetch(&progress);
        progress.finish();
        result?;
        self.cache.link(self.commit, self.name, &self.info.hash)
    }

    /// Fills the blob; a damaged download is deleted and made once more from the start.
    fn fetch(&self, progress: &Progress) -> Result<()> {
        let blob = self.cache.blob(&self.info.hash);
        match fs::metadata(&blob) {
            Ok(found) if found.len() == self.info.size => return Ok(()),
            Ok(_) => fs::remove_file(&blob).map_err(Error::io("delete the cut file", &blob))?,
            Err(_) => {}
        }
        let mut damaged_before = false;
        loop {
            let mut partial = Partial::open(self.cache.incomplete(&self.info.hash), &self.info)?;
            match self.fill(&mut partial, progress) {
                Ok(()) => return partial.finish(&blob),
                Err(Stop::Failed(failure)) => return Err(failure.into_error()),
                Err(Stop::Damaged { expected, found }) => {
                    partial.delete()?;
                    if damaged_before {
                        return Err(self.damaged(expected, found));
                    }
                    damaged_before = true;
                }
            }
        }
    }

    fn damaged(&self, expected: String, found: String) -> Error {
        Error::invalid(Target { file: None, ..self.target }, self.name, expected, format!("{found}, in two downloads"))
            .with_hint(
                "the damaged download was deleted; try again later, or check the mirror in HF_ENDPOINT and any proxy",
            )
    }

    /// Connects until the content has its size, then checks its hash.
    fn fill(&self, partial: &mut Partial, progress: &Progress) -> std::result::Result<(), Stop> {
        let mut retry = Retry::new(self.settings);
        while partial.length < self.info.size {
            let before = partial.length;
            match self.pull(partial, progress) {
                Ok(()) => {}
                Err(Stop::Failed(failure)) => {
                    if partial.length >= before + PROGRESS {
                        retry.reset();
                    }
                    retry.wait(failure)?;
                }
                Err(damaged) => return Err(damaged),
            }
        }
        let (hash, found) = (&self.info.hash, partial.hasher.hex());
        match found == hash.hex() {
            true => Ok(()),
            false => Err(Stop::Damaged {
                expected: format!("{} {}", hash.kind(), hash.hex()),
                found: format!("{} {found}", hash.kind()),
            }),
        }
    }

    /// One connection: asks for what is missing and appends what comes.
    ///
    /// There is no `If-Range`: the address names a commit, so the content cannot change under it; the host that holds
    /// the content has ETags of its own that no earlier run knows; and the hash covers the resumed part as well.
    fn pull(&self, partial: &mut Partial, progress: &Progress) -> std::result::Result<(), Stop> {
        let range = (partial.length > 0).then(|| format!("bytes={}-", partial.length));
        let response = self.client.get(self.target, range)?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if partial.length > 0 => match content_range(&response) {
                Some((range, size)) if range.start == partial.length => self.check_size(size)?,
                _ => return self.restart(partial, "answered with another range than asked for"),
            },
            StatusCode::OK => {
                if let Some(size) = content_length(&response) {
                    self.check_size(size)?;
                }
                partial.restart()?; // the server ignored the range and sends everything
            }
            status => return self.restart(partial, &format!("answered {status}")),
        }
        progress.set(partial.length);
        self.receive(response, partial, progress)
    }

    fn receive(
        &self,
        response: Response<Body>,
        partial: &mut Partial,
        progress: &Progress,
    ) -> std::result::Result<(), Stop> {
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = match body.read(&mut buffer) {
                Ok(count) => count,
                Err(error) => return Err(self.dropped(partial, &error.to_string()).into()),
            };
            let left = self.info.size - partial.length;
            if count as u64 > left {
                self.check_size(self.info.size + count as u64 - left)?;
            }
            match count {
                0 if left > 0 => return Err(self.dropped(partial, "the connection was closed").into()),
                0 => return Ok(()),
                _ => partial.append(&buffer[..count])?,
            }
            progress.add(count as u64);
        }
    }

    fn check_size(&self, size: u64) -> std::result::Result<(), Stop> {
        match size == self.info.size {
            true => Ok(()),
            false => Err(Stop::Damaged {
                expected: format!("{} bytes", self.info.size),
                found: format!("{size} bytes or more"),
            }),
        }
    }

    fn restart(&self, partial: &mut Partial, reason: &str) -> std::result::Result<(), Stop> {
        partial.restart()?;
        Err(Failure::transient(self.target.failed(format!("the server {reason}"))).into())
    }

    fn dropped(&self, partial: &Partial, reason: &str) -> Failure {
        let reason = format!("{reason} after {} of {} bytes", partial.length, self.info.size);
        Failure::transient(self.target.failed(reason).with_hint("run again to go on from there"))
    }
}

/// The beginning of a content, and the hash of it.
struct Partial<'a> {
    file: File,
    path: PathBuf,
    length: u64,
    hasher: Hasher,
    info: &'a FileInfo,
}

impl<'a> Partial<'a> {
    /// Opens what an earlier run or another Hub tool left, or starts anew.
    fn open(path: PathBuf, info: &'a FileInfo) -> Result<Partial<'a>> {
        create_parent(&path)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(Error::io("open", &path))?;
        let length = file.metadata().map_err(Error::io("read the size of", &path))?.len();
        let mut partial = Partial { file, path, length, hasher: info.hash.hasher(info.size), info };
        match length > info.size {
            true => partial.restart()?,
            false => partial.hasher.read(&partial.file, length).map_err(Error::io("read", &partial.path))?,
        }
        Ok(partial)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.unwritten(error))?;
        self.hasher.write_all(bytes).map_err(Error::io("hash", &self.path))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// A full disk says how much is missing and what to do.
    fn unwritten(&self, error: io::Error) -> Error {
        let error = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                let missing = self.info.size - self.length;
                let advice = "free some space, or set HF_HOME to a folder on a larger disk, and run again to go on";
                io::Error::new(error.kind(), format!("{error}; {missing} bytes are still to come; {advice}"))
            }
            _ => error,
        };
        Error::io("write", &self.path)(error)
    }

    fn restart(&mut self) -> Result<()> {
        if self.length > 0 {
            self.file.set_len(0).map_err(Error::io("shorten", &self.path))?;
            self.file.rewind().map_err(Error::io("rewind", &self.path))?;
        }
        self.length = 0;
        self.hasher = self.info.hash.hasher(self.info.size);
        Ok(())
    }

    fn finish(self, blob: &Path) -> Result<()> {
        self.file.sync_all().map_err(|error| self.unwritten(error))?;
        drop(self.file); // Windows renames no open file
        fs::rename(&self.path, blob).map_err(Error::io("rename the finished download to", blob))
    }

    fn delete(self) -> Result<()> {
        drop(self.file);
        fs::remove_file(&self.path).map_err(Error::io("delete the damaged download", &self.path))
    }
}
