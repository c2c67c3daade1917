//! What SOURCE on the command line means.

use std::path::{Path, PathBuf};

use super::outline::{Folder, SourceFiles};
use crate::error::{Error, Result};

/// What the user gave.
#[derive(Clone, Debug, Default)]
pub struct SourceRequest {
    /// A local folder.
    pub source: Option<String>,
    /// Commit, tag or branch; for repositories.
    pub revision: Option<String>,
    /// Name to write into the report instead of the source's own.
    pub name: Option<String>,
    /// Uses no network; a local folder never does.
    pub offline: bool,
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
/// # Errors
/// As [`locate`].
pub fn look(request: &SourceRequest) -> Result<(Box<dyn SourceFiles>, Located)> {
    let located = locate(request)?;
    Ok((Box::new(Folder::new(&located.folder)), located))
}

/// Finds a source as a complete local folder.
///
/// # Errors
/// [`Error::Input`] when nothing is given, there is no such folder, or a revision is asked of one.
pub fn locate(request: &SourceRequest) -> Result<Located> {
    let Some(source) = &request.source else {
        return Err(Error::input("SOURCE", "nothing given; give the folder of a checkpoint"));
    };
    let folder = Path::new(source);
    if !folder.is_dir() {
        return Err(Error::input("SOURCE", format!("{} is not a folder", folder.display())));
    }
    if request.revision.is_some() {
        let message = format!("{} is a local folder; revisions belong to repositories", folder.display());
        return Err(Error::input("--revision", message));
    }
    let name = match &request.name {
        Some(name) => name.clone(),
        None => own_name(folder)?,
    };
    Ok(Located { folder: folder.to_owned(), name, revision: None })
}

/// The folder's last component, with links and `..` followed, so that no machine's paths get into a report.
fn own_name(folder: &Path) -> Result<String> {
    let real = folder.canonicalize().map_err(Error::io("resolve", folder))?;
    Ok(real.file_name().map_or_else(|| "checkpoint".to_owned(), |name| name.to_string_lossy().into_owned()))
}
