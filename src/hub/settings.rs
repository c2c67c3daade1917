//! Where the Hub and its cache are, and how patient to be: the environment variables of the Python tools, read once.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// An access token; shown to the endpoint and to nobody else.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Takes a token as the user wrote it; blank means none.
    ///
    /// # Errors
    /// [`Error::Input`] when it holds characters that no token has, without repeating them.
    pub fn new(text: &str) -> Result<Option<Token>> {
        let text = text.trim();
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::input("HF_TOKEN", "the token holds spaces or unprintable characters; copy it again"));
        }
        Ok((!text.is_empty()).then(|| Token(text.to_owned())))
    }

    /// The value of the `Authorization` header.
    pub(super) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// How to reach the Hub and where to keep what it sends.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the Hub, without a slash at the end.
    pub endpoint: String,
    /// Folder of the cache, which holds `models--org--name` folders.
    pub cache: PathBuf,
    /// Token for private and gated repositories.
    pub token: Option<Token>,
    /// Use only the cache.
    pub offline: bool,
    /// Failures in a row, without progress between them, that are tried again.
    pub retries: u32,
    /// Wait before the first retry; doubled for each further one, up to 30 s.
    pub backoff: Duration,
    /// Silence of the server after which a connection counts as dropped.
    pub stall: Duration,
}

impl Settings {
    /// Settings for an endpoint and a cache folder: no token, online, patient.
    pub fn new(endpoint: impl Into<String>, cache: impl Into<PathBuf>) -> Settings {
        Settings {
            endpoint: endpoint.into(),
            cache: cache.into(),
            token: None,
            offline: false,
            retries: 5,
            backoff: Duration::from_secs(1),
            stall: Duration::from_secs(30),
        }
    }

    /// Reads `HF_ENDPOINT`, `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH` and `HF_HUB_OFFLINE` of this process.
    ///
    /// # Errors
    /// As [`Settings::from_lookup`].
    pub fn from_env() -> Result<Settings> {
        Settings::from_lookup(&|name| std::env::var_os(name), std::env::home_dir())
    }

    /// As [`Settings::from_env`], from any source of variables. `home` is the user's home folder.
    ///
    /// # Errors
    /// [`Error::Input`] naming the variable that is unusable; [`Error::Io`] for a token file that cannot be read.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Settings> {
        let variable = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(|value| expand_home(PathBuf::from(value), home.as_deref()));
        let hf_home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
            .or_else(|| home.as_ref().map(|home| home.join(".cache/huggingface")))
            .ok_or_else(|| Error::input("HF_HOME", "there is no home folder to keep the cache in; set HF_HOME"))?;
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let mut settings =
            Settings::new(check_endpoint(endpoint)?, path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub")));
        settings.token = match variable("HF_TOKEN") {
            Some(value) => Token::new(&value.to_string_lossy())?,
            None => read_token(&token_file)?,
        };
        settings.offline = variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value.to_string_lossy()));
        Ok(settings)
    }
}

/// The values that the Python tools take for true.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

fn expand_home(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

fn check_endpoint(endpoint: OsString) -> Result<String> {
    let text = endpoint.to_string_lossy();
    let uri = text.trim_end_matches('/').parse::<ureq::http::Uri>().ok();
    let usable = |uri: &ureq::http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.query().is_none();
    match uri.filter(usable) {
        Some(_) => Ok(text.trim_end_matches('/').to_owned()),
        None => Err(Error::input(
            "HF_ENDPOINT",
            format!("expected an address such as {DEFAULT_ENDPOINT}, found {text:?}; correct or unset it"),
        )),
    }
}

fn read_token(path: &Path) -> Result<Option<Token>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Token::new(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read the Hub token from", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)], home: &Path) -> Result<Settings> {
        let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        Settings::from_lookup(&lookup, Some(home.to_owned()))
    }

    #[test]
    fn defaults_are_those_of_the_python_tools() {
        let home = tempfile::tempdir().unwrap();
        let found = settings(&[], home.path()).unwrap();
        assert_eq!(found.endpoint, "https://huggingface.co");
        assert_eq!(found.cache, home.path().join(".cache/huggingface/hub"));
        assert!(found.token.is_none() && !found.offline);
        let found = settings(&[("XDG_CACHE_HOME", "/xdg")], home.path()).unwrap();
        assert_eq!(found.cache, Path::new("/xdg/huggingface/hub"));
    }

    #[test]
    fn the_more_specific_variable_wins() {
        let home = tempfile::tempdir().unwrap();
        let both = [("HF_HOME", "/hf"), ("HF_HUB_CACHE", "~/cache"), ("HF_ENDPOINT", "http://mirror:81/base/")];
        let found = settings(&both, home.path()).unwrap();
        assert_eq!(found.cache, home.path().join("cache"));
        assert_eq!(found.endpoint, "http://mirror:81/base");
        assert_eq!(settings(&both[..1], home.path()).unwrap().cache, Path::new("/hf/hub"));
        for (value, offline) in [("1", true), ("TRUE", true), ("yes", true), ("0", false), ("", false)] {
            assert_eq!(settings(&[("HF_HUB_OFFLINE", value)], home.path()).unwrap().offline, offline, "{value}");
        }
    }

    #[test]
    fn tokens_come_from_the_variable_then_the_file_and_are_never_shown() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("token");
        std::fs::write(&file, "hf_from_file\n").unwrap();
        let hf_home = ("HF_HOME", home.path().to_str().unwrap());
        let authorization = |found: &Settings| found.token.as_ref().unwrap().authorization();
        let found = settings(&[hf_home], home.path()).unwrap();
        assert_eq!(authorization(&found), "Bearer hf_from_file");
        assert!(!format!("{found:?}").contains("hf_from_file"));
        let found = settings(&[hf_home, ("HF_TOKEN", " hf_variable ")], home.path()).unwrap();
        assert_eq!(authorization(&found), "Bearer hf_variable");
        let found = settings(&[("HF_TOKEN_PATH", file.to_str().unwrap())], Path::new("/nowhere")).unwrap();
        assert_eq!(authorization(&found), "Bearer hf_from_file");
    }

    #[test]
    fn unusable_values_are_named() {
        let home = tempfile::tempdir().unwrap();
        for endpoint in ["huggingface.co", "ftp://host", "http://", "http://host?x=1"] {
            let message = settings(&[("HF_ENDPOINT", endpoint)], home.path()).unwrap_err().to_string();
            assert!(message.starts_with("HF_ENDPOINT: ") && message.contains(endpoint), "{message}");
        }
        let message = settings(&[("HF_TOKEN", "secret two")], home.path()).unwrap_err().to_string();
        assert!(message.starts_with("HF_TOKEN: ") && !message.contains("secret"), "{message}");
    }
}
