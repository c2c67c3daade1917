//! What SOURCE on the command line means: a local folder, or a repository of the Hub.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::outline::{Folder, SourceFiles};
use crate::error::{Error, Result};
use crate::hub::{DEFAULT_REPO, DEFAULT_REVISION, Hub, Location, Snapshot, Wanted, resolve};

/// What the user gave.
#[derive(Clone, Debug, Default)]
pub struct SourceRequest {
    /// A local folder or a repository id `org/name`; the published model if absent.
    pub source: Option<String>,
    /// Commit, tag or branch of a repository; the pinned commit of the published model, or `main` of another, if absent.
    pub revision: Option<String>,
    /// Name to write into the report instead of the source's own.
    pub name: Option<String>,
    /// Uses no network; a local folder never does.
    pub offline: bool,
    /// Whether the codec is wanted too.
    pub codec: bool,
}

/// Where a checkpoint was found.
#[derive(Clone, Debug)]
pub struct Located {
    /// Its folder.
    pub folder: PathBuf,
    /// Repository id, or the folder's own name without its path.
    pub name: String,
    /// Commit, where it is known.
    pub revision: Option<String>,
}

/// Finds the files of a source for a look at its headers, with its name and revision.
///
/// Of a repository only the small files are downloaded; of the weights, the headers are read by range.
///
/// # Errors
/// As [`locate`].
pub fn look(request: &SourceRequest) -> Result<(Box<dyn SourceFiles>, Located)> {
    match request.place()? {
        Place::Folder(folder) => {
            let located = request.located_folder(folder)?;
            Ok((Box::new(Folder::new(&located.folder)), located))
        }
        Place::Repo { repo, revision } => {
            let hub = Hub::from_env(request.offline)?;
            let snapshot = hub.snapshot(&repo, &revision, &request.wanted().without_weights())?;
            let names = hub.names(&repo, &snapshot.commit)?;
            let located = request.located_repo(&repo, &snapshot);
            Ok((Box::new(Remote { hub, repo, snapshot, names }), located))
        }
    }
}

/// Finds a source as a complete local folder; a repository is downloaded into the Hub cache, as far as it is not there.
///
/// # Errors
/// [`Error::Input`] for a source that is neither a folder nor a repository id, or a revision asked of a folder; the
/// errors of [`Hub::snapshot`].
pub fn locate(request: &SourceRequest) -> Result<Located> {
    match request.place()? {
        Place::Folder(folder) => request.located_folder(folder),
        Place::Repo { repo, revision } => {
            let snapshot = Hub::from_env(request.offline)?.snapshot(&repo, &revision, &request.wanted())?;
            Ok(request.located_repo(&repo, &snapshot))
        }
    }
}

enum Place {
    Folder(PathBuf),
    Repo { repo: String, revision: String },
}

impl SourceRequest {
    fn place(&self) -> Result<Place> {
        let repo = match &self.source {
            None => DEFAULT_REPO.to_owned(),
            Some(source) => match resolve(source).map_err(about_source)? {
                Location::Folder(folder) => return Ok(Place::Folder(folder)),
                Location::Repo(repo) => repo,
            },
        };
        let default = if repo == DEFAULT_REPO { DEFAULT_REVISION } else { "main" };
        let revision = self.revision.clone().unwrap_or_else(|| default.to_owned());
        Ok(Place::Repo { repo, revision })
    }

    fn wanted(&self) -> Wanted {
        Wanted::source(self.codec)
    }

    fn located_folder(&self, folder: PathBuf) -> Result<Located> {
        if self.revision.is_some() {
            let message = format!("{} is a local folder; revisions belong to repositories", folder.display());
            return Err(Error::input("--revision", message));
        }
        let name = match &self.name {
            Some(name) => name.clone(),
            None => own_name(&folder)?,
        };
        Ok(Located { folder, name, revision: None })
    }

    fn located_repo(&self, repo: &str, snapshot: &Snapshot) -> Located {
        Located {
            folder: snapshot.folder.clone(),
            name: self.name.clone().unwrap_or_else(|| repo.to_owned()),
            revision: Some(snapshot.commit.clone()),
        }
    }
}

/// The same complaint under the name that the argument has here.
fn about_source(error: Error) -> Error {
    match error {
        Error::Input { message, .. } => Error::input("SOURCE", message),
        other => other,
    }
}

/// The folder's last component, with links and `..` followed, so that no machine's paths get into a report.
fn own_name(folder: &Path) -> Result<String> {
    let real = folder.canonicalize().map_err(Error::io("resolve", folder))?;
    Ok(real.file_name().map_or_else(|| "checkpoint".to_owned(), |name| name.to_string_lossy().into_owned()))
}

/// A repository whose large files are not here.
struct Remote {
    hub: Hub,
    repo: String,
    snapshot: Snapshot,
    names: Vec<String>,
}

impl SourceFiles for Remote {
    fn place(&self) -> String {
        format!("{}@{}", self.repo, self.snapshot.commit)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.names.iter().any(|other| other == name) {
            true => Ok(Some(self.hub.file_info(&self.repo, &self.snapshot.commit, name)?.size)),
            false => Ok(None),
        }
    }

    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        match range.is_empty() {
            true => Ok(Vec::new()),
            false => self.hub.read_range(&self.repo, &self.snapshot.commit, name, range),
        }
    }
}
