//! What the Hub promises about a file: its size and the hash that is its ETag.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Bytes read and hashed at a time.
const BUFFER: usize = 256 << 10;

/// The hash of a file's content, in lower-case hexadecimal. It is also the name of the file's blob in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentHash {
    /// SHA-256 of the content: files in large-file storage.
    Sha256(String),
    /// SHA-1 of the content as a git blob: small files.
    GitBlob(String),
}

impl ContentHash {
    /// Reads an ETag as the Hub writes it: quoted or not, weak or not.
    ///
    /// `None` for anything that is not a hash, which then can name no file and prove no content.
    pub fn from_etag(etag: &str) -> Option<ContentHash> {
        let hex = etag.trim().trim_start_matches("W/").trim_matches('"');
        let is_hash = hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match hex.len() {
            64 if is_hash => Some(ContentHash::Sha256(hex.to_owned())),
            40 if is_hash => Some(ContentHash::GitBlob(hex.to_owned())),
            _ => None,
        }
    }

    /// The hexadecimal digits.
    pub fn hex(&self) -> &str {
        match self {
            ContentHash::Sha256(hex) | ContentHash::GitBlob(hex) => hex,
        }
    }

    /// The kind of hash, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            ContentHash::Sha256(_) => "SHA-256",
            ContentHash::GitBlob(_) => "git SHA-1",
        }
    }

    /// The SHA-256 of a whole file.
    ///
    /// # Errors
    /// The file's own.
    pub(super) fn sha256(file: &File) -> io::Result<ContentHash> {
        let mut hasher = Hasher::Sha256(Sha256::new());
        hasher.read(file, file.metadata()?.len())?;
        Ok(ContentHash::Sha256(hasher.hex()))
    }

    /// Starts hashing a content of `size` bytes the way this hash was made.
    pub(super) fn hasher(&self, size: u64) -> Hasher {
        match self {
            ContentHash::Sha256(_) => Hasher::Sha256(Sha256::new()),
            ContentHash::GitBlob(_) => Hasher::GitBlob(Sha1::new().chain_update(format!("blob {size}\0"))),
        }
    }
}

/// A hash being computed.
pub(super) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// Hashes the next `length` bytes of a file.
    ///
    /// # Errors
    /// The file's own, or that it is shorter.
    pub(super) fn read(&mut self, file: &File, length: u64) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(BUFFER, file.take(length));
        match io::copy(&mut reader, self)? {
            count if count == length => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The hash so far, in lower-case hexadecimal.
    pub(super) fn hex(&self) -> String {
        let digest = match self {
            Hasher::Sha256(hasher) => hasher.clone().finalize().to_vec(),
            Hasher::GitBlob(hasher) => hasher.clone().finalize().to_vec(),
        };
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Hashing as a destination of a copy.
impl Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`
        for known in [
            "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0",
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        ] {
            let hash = ContentHash::from_etag(&format!("W/\"{known}\"")).unwrap();
            let mut hasher = hash.hasher(5);
            hasher.write_all(b"hel").unwrap();
            hasher.write_all(b"lo").unwrap();
            assert_eq!(hasher.hex(), known);
            assert_eq!(hash.hex(), known);
        }
    }

    #[test]
    fn an_etag_that_is_no_hash_is_refused() {
        let upper = "B6FC4C620B67D95F953A5C1C1230AAAB5DB5A1B0";
        let path = "../../../../../../../../../../../../../..";
        for etag in ["", "\"abc\"", upper, &path[..40], "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0-gzip"] {
            assert_eq!(ContentHash::from_etag(etag), None, "{etag}");
        }
    }
}
