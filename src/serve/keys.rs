//! Who may speak: API keys from a file, one a line.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::waiting::Client;
use crate::error::{Error, Result};

/// Shortest key accepted: shorter ones can be guessed.
const SHORTEST_KEY: usize = 16;

/// Whose a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Owner(pub Client);

impl Owner {
    /// A caller known only by its address.
    pub(super) fn of_address(address: IpAddr) -> Owner {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Owner(hasher.finish())
    }
}

/// The keys, as digests: a comparison takes the same time wherever two keys differ, and none can be printed.
#[derive(Clone)]
pub struct Keys(Vec<[u8; 32]>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

impl Keys {
    /// Reads a file of keys; empty lines and those that begin with `#` are left out.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Invalid`] naming the line, never its content, for a key that is too short or cannot stand in a
    /// header, and for a file without keys.
    pub fn read(path: &Path) -> Result<Keys> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read the API keys", path))?;
        Keys::parse(&path.display().to_string(), &text)
    }

    /// As [`Keys::read`], from a text; `place` names it in messages.
    ///
    /// # Errors
    /// As [`Keys::read`].
    pub fn parse(place: &str, text: &str) -> Result<Keys> {
        let mut keys = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let key = line.trim();
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            let fits = key.len() >= SHORTEST_KEY && key.bytes().all(|byte| byte.is_ascii_graphic());
            if !fits {
                let expected = format!("a key of at least {SHORTEST_KEY} printable ASCII characters without spaces");
                return Err(Error::invalid(place, format!("line {}", number + 1), expected, "another text"));
            }
            keys.push(digest(key.as_bytes()));
        }
        match keys.is_empty() {
            true => Err(Error::invalid(place, "keys", "at least one line with a key", "none")),
            false => Ok(Keys(keys)),
        }
    }

    /// Whose the key of a request is; all keys are compared, so that the time does not tell which one fits.
    pub(super) fn owner(&self, headers: &HeaderMap) -> Option<Owner> {
        let value = headers.get(header::AUTHORIZATION)?.as_bytes();
        let (scheme, key) = value.split_at_checked("Bearer ".len())?;
        let given = digest(key.trim_ascii());
        let (mut found, mut owner) = (Choice::from(0), 0u64);
        for (number, key) in self.0.iter().enumerate() {
            let same = key.ct_eq(&given);
            owner.conditional_assign(&(number as u64), same);
            found |= same;
        }
        (scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(found)).then_some(Owner(owner))
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# team\n\nalpha-alpha-alpha-1\n  beta-beta-beta-beta  \n";

    fn owner(keys: &Keys, value: &str) -> Option<Owner> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        keys.owner(&headers)
    }

    #[test]
    fn a_key_lets_in_and_says_whose_it_is() {
        let keys = Keys::parse("keys.txt", FILE).unwrap();
        assert_eq!(owner(&keys, "Bearer alpha-alpha-alpha-1"), Some(Owner(0)));
        assert_eq!(owner(&keys, "bearer beta-beta-beta-beta"), Some(Owner(1)));
        for wrong in ["Bearer alpha-alpha-alpha-2", "Bearer ", "Basic alpha-alpha-alpha-1", "alpha-alpha-alpha-1", ""] {
            assert_eq!(owner(&keys, wrong), None, "{wrong:?}");
        }
        assert_eq!(keys.owner(&HeaderMap::new()), None);
        assert_eq!(format!("{keys:?}"), "2 keys");
    }

    #[test]
    fn a_bad_file_is_refused_without_printing_a_key() {
        let error = Keys::parse("keys.txt", "alpha-alpha-alpha-1\nsecret\n").unwrap_err().to_string();
        assert!(error.starts_with("keys.txt: line 2: expected a key of at least 16"), "{error}");
        assert!(!error.contains("secret"), "{error}");
        assert!(Keys::parse("keys.txt", "# none\n").is_err());
    }
}
