//! Files of a Hugging Face Hub repository, in the cache that all Hub tools share.
//!
//! A file gets its name in the cache only when its size and hash are those that the Hub promised, so whatever has a name
//! is reused without asking. Downloads go on where they stopped. A commit hash with all its files in the cache needs no
//! network; a branch is asked for, and taken as last seen when there is no answer.
//!
//! ```text
//! settings  environment to endpoint, cache, token       cache     names and locks on disk
//! names     repository ids, revisions, safe paths       client    requests, redirects, refusals
//! wanted    which files                                 download  resume, verify, rename
//! ```

mod cache;
mod client;
mod digest;
mod download;
mod names;
mod retry;
mod settings;
mod wanted;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use ureq::http::StatusCode;

use self::cache::RepoCache;
pub use self::client::FileInfo;
use self::client::{Client, Target, content_range};
pub use self::digest::ContentHash;
use self::download::Download;
pub use self::names::{Location, resolve};
use self::names::{check_repo, check_revision, is_commit, is_safe_path};
use self::retry::{Failure, Retry};
pub use self::settings::{Settings, Token};
use self::wanted::Selection;
pub use self::wanted::{INDEX_FILE, WEIGHTS_FILE, Wanted};
use crate::error::{Error, Result};

/// The model that this program is made for.
pub const DEFAULT_REPO: &str = "rumik-ai/rumik-oss-1";
/// The commit of [`DEFAULT_REPO`] that this program was made against.
pub const DEFAULT_REVISION: &str = "0ed3c98684e14350c910129c0efa179841c41ad2";

/// Bytes that one range may have: a safetensors header is at most 100 MB.
const LARGEST_RANGE: u64 = 128 << 20;

/// The files of a repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Folder with the wanted files under the names of the repository.
    pub folder: PathBuf,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
}

/// Access to the Hub and its cache.
pub struct Hub {
    settings: Settings,
    client: Client,
}

impl Hub {
    /// The Hub as the environment describes it ([`Settings::from_env`]), or only its cache if `offline`.
    ///
    /// # Errors
    /// As [`Settings::from_env`].
    pub fn from_env(offline: bool) -> Result<Hub> {
        let mut settings = Settings::from_env()?;
        settings.offline |= offline;
        Ok(Hub::new(settings))
    }

    /// The Hub as `settings` describe it.
    pub fn new(settings: Settings) -> Hub {
        Hub { client: Client::new(&settings), settings }
    }

    /// Brings the wanted files of a repository into the cache and names their folder.
    ///
    /// `revision` is a branch, tag or commit. Shows a progress bar for each file that is downloaded.
    ///
    /// # Errors
    /// [`Error::Input`] for an impossible repository or revision; [`Error::Network`] naming the file for a refusal, for a
    /// connection that keeps failing, or for a file that is not in the cache when offline; [`Error::Invalid`] for a file
    /// that is damaged in two downloads or an unusable answer; [`Error::Io`] for a full disk or a folder that cannot be
    /// written.
    pub fn snapshot(&self, repo: &str, revision: &str, wanted: &Wanted) -> Result<Snapshot> {
        let cache = self.open_cache(repo, revision)?;
        let target = Target { repo, revision, file: None };
        let cached = cache.commit().map(|commit| Cached::find(&cache, target, commit, wanted)).transpose()?;
        let (usable, missing) = match cached {
            Some(Cached { snapshot, missing: None, complete }) => {
                if self.settings.offline || (complete && is_commit(revision)) {
                    return Ok(snapshot);
                }
                (Some(snapshot), None)
            }
            Some(Cached { snapshot, missing: Some(name), .. }) => (None, Some(snapshot.folder.join(name))),
            None => (None, None),
        };
        if self.settings.offline {
            let wanted = missing.unwrap_or_else(|| cache.folder().join("refs").join(revision));
            return Err(self.offline(target, &cache, &wanted));
        }
        self.update(target, &cache, wanted, usable)
    }

    /// Names of all files of a repository; of those in the cache when offline or when nobody answers.
    ///
    /// # Errors
    /// As [`Hub::snapshot`].
    pub fn names(&self, repo: &str, revision: &str) -> Result<Vec<String>> {
        let cache = self.open_cache(repo, revision)?;
        let cached = cache.commit().map(|commit| cache.names(&commit));
        let target = Target { repo, revision, file: None };
        match (cached, self.settings.offline) {
            (Some(names), true) => Ok(names),
            (None, true) => Err(self.offline(target, &cache, &cache.folder().join("refs").join(revision))),
            (cached, false) => match (self.client.list(target), cached) {
                (Ok(listing), _) => Ok(listing.names()),
                (Err(failure), Some(names)) if failure.is_unreachable() => Ok(names),
                (Err(_), _) => Retry::new(&self.settings).run(|| self.client.list(target)).map(|l| l.names()),
            },
        }
    }

    /// Size and hash of one file, from the cache if it is there.
    ///
    /// # Errors
    /// As [`Hub::snapshot`].
    pub fn file_info(&self, repo: &str, revision: &str, file: &str) -> Result<FileInfo> {
        let cache = self.open_cache(repo, revision)?;
        let target = Target { repo, revision, file: Some(file) };
        match self.find(target, &cache)? {
            Some((commit, path)) => {
                let size = fs::metadata(&path).map_err(Error::io("read the size of", &path))?.len();
                let hash = cache.hash(&commit, file).map_or_else(|| hash_file(&path), Ok)?;
                Ok(FileInfo { size, hash })
            }
            None => Retry::new(&self.settings).run(|| self.client.info(target)),
        }
    }

    /// Reads bytes `range` of one file, from the cache if it is there; never the whole file from the network.
    ///
    /// # Errors
    /// As [`Hub::snapshot`]; [`Error::Network`] for a server that ignores ranges; [`Error::Input`] for a range that is
    /// empty or over 128 MiB; [`Error::Io`] for a range past the end of a cached file.
    pub fn read_range(&self, repo: &str, revision: &str, file: &str, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() || range.end - range.start > LARGEST_RANGE {
            return Err(Error::input(
                "range",
                format!("expected 1 to {LARGEST_RANGE} bytes of {file}, found {range:?}"),
            ));
        }
        let cache = self.open_cache(repo, revision)?;
        let target = Target { repo, revision, file: Some(file) };
        match self.find(target, &cache)? {
            Some((_, path)) => read_part(&path, range),
            None => Retry::new(&self.settings).run(|| self.request_range(target, &range)),
        }
    }

    fn open_cache(&self, repo: &str, revision: &str) -> Result<RepoCache> {
        check_repo(repo).map_err(|reason| Error::input("repository", format!("{repo:?}: {reason}")))?;
        check_revision(revision)?;
        Ok(RepoCache::new(&self.settings.cache, repo, revision))
    }

    /// A single file in the cache. A branch may have moved, so its files count only when there is nobody to ask.
    fn find(&self, target: Target<'_>, cache: &RepoCache) -> Result<Option<(String, PathBuf)>> {
        let name = target.file.unwrap_or_default();
        if !is_safe_path(name) {
            return Err(Error::input("file", format!("expected a path inside the repository, found {name:?}")));
        }
        let known = cache.commit().filter(|_| self.settings.offline || is_commit(target.revision));
        let found = known.clone().and_then(|commit| Some((commit.clone(), cache.file(&commit, name)?)));
        if found.is_none() && self.settings.offline {
            let folder = known.map_or_else(|| cache.folder().to_owned(), |commit| cache.snapshot(&commit));
            return Err(self.offline(target, cache, &folder.join(name)));
        }
        Ok(found)
    }

    fn offline(&self, target: Target<'_>, cache: &RepoCache, path: &Path) -> Error {
        let inside = path.strip_prefix(cache.folder()).unwrap_or(path);
        let error = target.failed(format!(
            "offline, and {} is not in the cache {}",
            inside.display(),
            cache.folder().display()
        ));
        error.with_hint("run once without --offline and HF_HUB_OFFLINE, or set HF_HOME to the cache that has it")
    }

    /// Asks which commit and files there are, then downloads what the cache lacks. `usable` serves if nobody answers.
    fn update(
        &self,
        target: Target<'_>,
        cache: &RepoCache,
        wanted: &Wanted,
        usable: Option<Snapshot>,
    ) -> Result<Snapshot> {
        let listing = match (self.client.list(target), usable) {
            (Err(failure), Some(snapshot)) if failure.is_unreachable() => return Ok(snapshot),
            (Ok(listing), _) => listing,
            (Err(failure), _) => {
                let mut retry = Retry::new(&self.settings);
                retry.wait(failure)?;
                retry.run(|| self.client.list(target))?
            }
        };
        let commit = &listing.sha;
        let available = listing.names();
        let mut read_index = || {
            let path = self.ensure(target, cache, commit, INDEX_FILE)?;
            fs::read(&path).map_err(Error::io("read", &path))
        };
        let Selection { required, optional, absent } =
            wanted.select(&target.to_string(), &available, &mut read_index)?;
        if let Some(name) = required.iter().find(|name| !available.contains(name)) {
            let error = Target { file: Some(name), ..target }.failed("the repository has no such file");
            return Err(error.with_hint("check that the repository holds a model of this kind"));
        }
        for name in optional.iter().chain(&required) {
            self.ensure(target, cache, commit, name)?;
        }
        for name in &absent {
            cache.mark_absent(commit, name)?;
        }
        cache.save_commit(commit)?; // last, so that an interrupted update leaves the branch where it was
        Ok(Snapshot { folder: cache.snapshot(commit), commit: commit.clone() })
    }

    /// The path of a file of a commit, downloaded if need be.
    fn ensure(&self, target: Target<'_>, cache: &RepoCache, commit: &str, name: &str) -> Result<PathBuf> {
        let path = cache.snapshot(commit).join(name);
        if cache.file(commit, name).is_none() {
            let target = Target { revision: commit, file: Some(name), ..target };
            let info = Retry::new(&self.settings).run(|| self.client.info(target))?;
            let (client, settings) = (&self.client, &self.settings);
            Download { client, settings, cache, target, commit, name, info }.run()?;
        }
        Ok(path)
    }

    fn request_range(&self, target: Target<'_>, range: &Range<u64>) -> std::result::Result<Vec<u8>, Failure> {
        let response = self.client.get(target, Some(format!("bytes={}-{}", range.start, range.end - 1)))?;
        let asked = format!("bytes {}-{}", range.start, range.end - 1);
        match response.status() {
            StatusCode::PARTIAL_CONTENT if content_range(&response).is_some_and(|(found, _)| found == *range) => {}
            StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => {
                return Err(target.failed(format!("the server does not have {asked}; the file is shorter")).into());
            }
            _ => {
                let error =
                    target.failed(format!("the server ignored the request for {asked} and sends the whole file"));
                return Err(error.with_hint("download the files first, without --dry-run").into());
            }
        }
        let length = range.end - range.start;
        let mut bytes = Vec::new();
        let body = response.into_body().into_reader().take(length).read_to_end(&mut bytes);
        match body {
            Ok(count) if count as u64 == length => Ok(bytes),
            Ok(count) => Err(Failure::transient(target.failed(format!("{count} of {length} bytes came")))),
            Err(error) => Err(Failure::transient(target.failed(error))),
        }
    }
}

/// What the cache has of a commit.
struct Cached {
    snapshot: Snapshot,
    /// A required file that it lacks.
    missing: Option<String>,
    /// Every optional file is there, or known not to exist.
    complete: bool,
}

impl Cached {
    fn find(cache: &RepoCache, target: Target<'_>, commit: String, wanted: &Wanted) -> Result<Cached> {
        let folder = cache.snapshot(&commit);
        let index = folder.join(INDEX_FILE);
        let mut read_index = || fs::read(&index).map_err(Error::io("read", &index));
        let chosen = wanted.select(&target.to_string(), &cache.names(&commit), &mut read_index)?;
        let missing = chosen.required.into_iter().find(|name| cache.file(&commit, name).is_none());
        let known = |name: &String| cache.file(&commit, name).is_some() || cache.is_absent(&commit, name);
        let complete = chosen.absent.iter().all(known);
        Ok(Cached { snapshot: Snapshot { folder, commit }, missing, complete })
    }
}

fn read_part(path: &Path, range: Range<u64>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    file.seek(SeekFrom::Start(range.start)).map_err(Error::io("seek in", path))?;
    file.read_exact(&mut bytes).map_err(Error::io("read a range past the end of", path))?;
    Ok(bytes)
}

/// Hash of a cached file that is a copy rather than a link and so does not tell it.
fn hash_file(path: &Path) -> Result<ContentHash> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    ContentHash::sha256(&file).map_err(Error::io("read", path))
}
