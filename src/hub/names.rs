//! Names from users and servers that become paths and addresses: checked before they do.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A folder of this machine.
    Folder(PathBuf),
    /// A repository of the Hub, `org/name`.
    Repo(String),
}

/// Reads what a user gave as a model: a local folder if there is one, else a repository id `org/name`.
///
/// # Errors
/// [`Error::Input`] when it is neither, saying why both readings failed.
pub fn resolve(source: &str) -> Result<Location> {
    let path = PathBuf::from(source);
    if path.is_dir() {
        return Ok(Location::Folder(path));
    }
    let not_a_folder = if path.exists() { "it is a file, not a folder" } else { "there is no folder of that name" };
    match check_repo(source) {
        Ok(()) if !path.exists() => Ok(Location::Repo(source.to_owned())),
        Ok(()) => Err(Error::input("model", format!("{source:?}: {not_a_folder}"))),
        Err(reason) => Err(Error::input(
            "model",
            format!("{source:?}: {not_a_folder}, and as a Hub repository {reason}; give a folder or org/name"),
        )),
    }
}

/// Checks a repository id by the rules of the Hub; the error is half a sentence.
pub(super) fn check_repo(id: &str) -> std::result::Result<(), String> {
    let parts: Vec<&str> = id.split('/').collect();
    let [org, name] = parts[..] else {
        return Err("it is not of the form org/name".to_owned());
    };
    if id.len() > 96 {
        return Err("it is longer than 96 characters".to_owned());
    }
    for part in [org, name] {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if part.is_empty() || !part.chars().all(allowed) {
            return Err("it needs two names of letters, digits, '-', '_' and '.'".to_owned());
        }
        if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) || part.contains("--") || part.contains("..") {
            return Err("a name starts or ends with '-' or '.', or doubles one".to_owned());
        }
    }
    Ok(())
}

/// Checks a branch, tag, pull request reference or commit hash.
pub(super) fn check_revision(revision: &str) -> Result<()> {
    match is_safe_path(revision) && !revision.contains(char::is_whitespace) {
        true => Ok(()),
        false => Err(Error::input(
            "revision",
            format!("expected a branch, tag or commit hash of 40 digits, found {revision:?}"),
        )),
    }
}

/// A full commit hash: its content never changes.
pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A relative path that stays in its folder on every system: no `..`, no root, no drive, no backslash.
pub(super) fn is_safe_path(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || "\\:*?\"<>|".contains(c);
    !name.contains(forbidden) && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Percent-encodes everything that has a meaning in an address, but `/` only if `slash`.
pub(super) fn encode(text: &str, slash: bool) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(byte as char),
            b'/' if !slash => encoded.push('/'),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_comes_before_a_repository() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().to_str().unwrap();
        assert_eq!(resolve(text).unwrap(), Location::Folder(folder.path().to_owned()));
        assert_eq!(resolve(super::super::DEFAULT_REPO).unwrap(), Location::Repo(super::super::DEFAULT_REPO.to_owned()));
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = resolve(file.to_str().unwrap()).unwrap_err().to_string();
        assert!(message.contains("a file, not a folder"), "{message}");
    }

    #[test]
    fn what_is_neither_is_refused_for_both_reasons() {
        for source in
            ["", "name", "./no/such", "/no/such", "a/b/c", "org/../name", "-org/name", "org/na me", "org\\name"]
        {
            let message = resolve(source).unwrap_err().to_string();
            assert!(message.contains("no folder of that name") && message.contains("as a Hub repository"), "{message}");
        }
    }

    #[test]
    fn hostile_paths() {
        for name in ["", "/etc/passwd", "../x", "a/../x", "a//b", "a\\b", "C:x", "a/.", "a\0b", "a/"] {
            assert!(!is_safe_path(name), "{name:?}");
        }
        assert!(is_safe_path("codec/model.safetensors") && is_safe_path("refs/pr/1") && is_safe_path("..x/y.."));
    }

    #[test]
    fn encoding() {
        assert_eq!(encode("refs/pr/1", true), "refs%2Fpr%2F1");
        assert_eq!(encode("codec/a b#?.json", false), "codec/a%20b%23%3F.json");
    }
}
