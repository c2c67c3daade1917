//! The Hub over HTTP: one request at a time, redirects followed by hand so that the token stays at home.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LOCATION, RANGE};
use ureq::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::digest::ContentHash;
use super::names::{encode, is_commit};
use super::retry::Failure;
use super::settings::{Settings, Token};
use crate::error::Error;

/// Redirects followed before giving up.
const MAX_REDIRECTS: usize = 10;
/// Bytes of a repository listing accepted; real ones are a few kilobytes.
const LISTING_LIMIT: u64 = 16 << 20;
/// Longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

type Attempt<T> = std::result::Result<T, Failure>;

/// What the Hub says about a file before sending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its size in bytes.
    pub size: u64,
    /// Its hash, from the ETag.
    pub hash: ContentHash,
}

/// What is asked for, by the names that the user knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// `org/name`.
    pub(super) repo: &'a str,
    /// Branch, tag or commit.
    pub(super) revision: &'a str,
    /// The file, or none for the repository as a whole.
    pub(super) file: Option<&'a str>,
}

impl std::fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)?;
        self.file.map_or(Ok(()), |file| write!(f, ": {file}"))
    }
}

impl Target<'_> {
    /// An error of the server about this.
    pub(super) fn failed(&self, reason: impl ToString) -> Error {
        Error::Network { what: self.to_string(), reason: reason.to_string(), hint: None }
    }
}

/// A repository's commit and file names.
#[derive(Debug, Deserialize)]
pub(super) struct Listing {
    /// Commit of the revision.
    pub(super) sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    /// The file names, as the server wrote them: untrusted.
    pub(super) fn names(&self) -> Vec<String> {
        self.siblings.iter().map(|sibling| sibling.rfilename.clone()).collect()
    }
}

/// Asks the Hub.
pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<Token>,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(settings.stall))
            .timeout_per_read(Some(settings.stall))
            .timeout_per_write(Some(settings.stall))
            .user_agent(concat!("rumik/", env!("CARGO_PKG_VERSION")));
        Client { agent: config.build().new_agent(), endpoint: settings.endpoint.clone(), token: settings.token.clone() }
    }

    /// The commit and the files of a revision.
    pub(super) fn list(&self, target: Target<'_>) -> Attempt<Listing> {
        let revision = encode(target.revision, true);
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, target.repo);
        let mut response = self.send(target, Method::GET, &url, None)?.response;
        if response.status() != StatusCode::OK {
            return Err(self.refused(target, &response));
        }
        let bytes = response.body_mut().with_config().limit(LISTING_LIMIT).read_to_vec();
        let bytes = bytes.map_err(|error| Failure::transient(target.failed(error)))?;
        let broken = |found: String| {
            let expected = "a commit hash and a list of files";
            Failure::from(Error::invalid(target, "the server's listing", expected, found))
        };
        let listing: Listing = serde_json::from_slice(&bytes).map_err(|error| broken(error.to_string()))?;
        if !is_commit(&listing.sha) {
            return Err(broken(format!("{:?} as the commit", listing.sha)));
        }
        if is_commit(target.revision) && listing.sha != target.revision {
            return Err(broken(format!("another commit, {}", listing.sha)));
        }
        Ok(listing)
    }

    /// Size and hash of a file. The content may be on another host, which is not asked.
    pub(super) fn info(&self, target: Target<'_>) -> Attempt<FileInfo> {
        let Reply { response, linked_size, linked_etag } =
            self.send(target, Method::HEAD, &self.file_url(target), None)?;
        if !response.status().is_success() && !response.status().is_redirection() {
            return Err(self.refused(target, &response));
        }
        // The length of a redirect is that of its own page, so it says nothing about the file.
        let own_size = response.status().is_success().then(|| number(response.headers(), CONTENT_LENGTH.as_str()));
        let size = linked_size.or(own_size.flatten());
        let etag = linked_etag.or_else(|| text(response.headers(), ETAG.as_str()));
        let hash = etag.as_deref().and_then(ContentHash::from_etag);
        let missing = |item, expected, found: String| {
            let error = Error::invalid(target, item, expected, found);
            Failure::from(error.with_hint(format!("{} does not answer like the Hub; check HF_ENDPOINT", self.endpoint)))
        };
        Ok(FileInfo {
            size: size.ok_or_else(|| missing("size", "X-Linked-Size or Content-Length", "neither".to_owned()))?,
            hash: hash
                .ok_or_else(|| missing("ETag", "a SHA-256 or a git hash", format!("{:?}", etag.unwrap_or_default())))?,
        })
    }

    /// Starts the download of a file, or of a range of it. The status is 200, 206 or 416.
    pub(super) fn get(&self, target: Target<'_>, range: Option<String>) -> Attempt<Response<Body>> {
        let response = self.send(target, Method::GET, &self.file_url(target), range)?.response;
        match response.status() {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            _ => Err(self.refused(target, &response)),
        }
    }

    fn file_url(&self, target: Target<'_>) -> String {
        let revision = encode(target.revision, true);
        let file = encode(target.file.unwrap_or_default(), false);
        format!("{}/{}/resolve/{revision}/{file}", self.endpoint, target.repo)
    }

    /// Sends one request and follows its redirects; a HEAD only within a host.
    ///
    /// The token goes to the endpoint's own scheme, host and port and nowhere else.
    fn send(&self, target: Target<'_>, method: Method, url: &str, range: Option<String>) -> Attempt<Reply> {
        let unreachable = |error: ureq::Error| {
            let advice = "check the connection, or use what is in the cache with HF_HUB_OFFLINE=1";
            Failure::unreachable(target.failed(error).with_hint(advice), None)
        };
        let home: Uri = url.parse().map_err(|error| Failure::from(target.failed(format!("{url}: {error}"))))?;
        let mut uri = home.clone();
        let (mut linked_size, mut linked_etag) = (None, None);
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::builder().method(method.clone()).uri(uri.clone());
            // A compressed answer would have other sizes and offsets than the file.
            request = request.header(ACCEPT_ENCODING, "identity");
            if let Some(token) = self.token.as_ref().filter(|_| same_origin(&uri, &home)) {
                request = request.header(AUTHORIZATION, token.authorization());
            }
            if let Some(range) = &range {
                request = request.header(RANGE, range);
            }
            let request = request.body(()).map_err(|error| Failure::from(target.failed(error)))?;
            let response = self.agent.run(request).map_err(unreachable)?;
            linked_size = linked_size.or_else(|| number(response.headers(), "x-linked-size"));
            linked_etag = linked_etag.or_else(|| text(response.headers(), "x-linked-etag"));
            let next = match text(response.headers(), LOCATION.as_str()) {
                Some(location) if response.status().is_redirection() => {
                    redirect(&uri, &location).map_err(|reason| Failure::from(target.failed(reason)))?
                }
                _ => return Ok(Reply { response, linked_size, linked_etag }),
            };
            if method == Method::HEAD && !same_origin(&uri, &next) {
                return Ok(Reply { response, linked_size, linked_etag });
            }
            uri = next;
        }
        Err(Failure::from(target.failed(format!("more than {MAX_REDIRECTS} redirects"))))
    }

    /// What a status that is no success means to the user.
    fn refused(&self, target: Target<'_>, response: &Response<Body>) -> Failure {
        let status = response.status();
        let error = target.failed(format!("the server answered {status}"));
        let page = format!("{}/{}", self.endpoint, target.repo);
        match status.as_u16() {
            401 | 403 => {
                let token = if self.token.is_some() { "the token sent gives no access" } else { "no token was sent" };
                Failure::from(error.with_hint(format!(
                    "{token}; check the name, and if it is private or gated accept its terms at {page} and set HF_TOKEN"
                )))
            }
            404 => {
                let missing = match target.file {
                    Some(file) => format!("check that {page} has {file} at revision {}", target.revision),
                    None => format!("check that {page} exists and has a revision {}", target.revision),
                };
                Failure::from(error.with_hint(missing))
            }
            408 | 429 | 500..=599 => {
                let wait = number(response.headers(), "retry-after").map(Duration::from_secs);
                let error = error.with_hint("try again later; finished parts are kept");
                Failure::unreachable(error, wait.map(|wait| wait.min(MAX_RETRY_AFTER)))
            }
            _ => Failure::from(error),
        }
    }
}

/// The last answer of a chain of redirects, with what the ones before it said about the file.
struct Reply {
    response: Response<Body>,
    linked_size: Option<u64>,
    linked_etag: Option<String>,
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.trim().parse().ok()
}

/// Length of a body, if the server states it.
pub(super) fn content_length(response: &Response<Body>) -> Option<u64> {
    number(response.headers(), CONTENT_LENGTH.as_str())
}

/// The range that a 206 carries and the size of the whole file: `bytes 10-19/100`.
pub(super) fn content_range(response: &Response<Body>) -> Option<(Range<u64>, u64)> {
    let value = text(response.headers(), CONTENT_RANGE.as_str())?;
    let (range, size) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?))
}

fn same_origin(a: &Uri, b: &Uri) -> bool {
    let origin = |uri: &Uri| (uri.scheme().cloned(), uri.authority().cloned());
    origin(a) == origin(b)
}

/// The address that a redirect of `from` leads to.
fn redirect(from: &Uri, location: &str) -> std::result::Result<Uri, String> {
    let refused = |why: &str| format!("redirected to {location:?}, {why}");
    let absolute = match (location.starts_with('/'), from.scheme_str(), from.authority()) {
        (true, Some(scheme), _) if location.starts_with("//") => format!("{scheme}:{location}"),
        (true, Some(scheme), Some(authority)) => format!("{scheme}://{authority}{location}"),
        _ => location.to_owned(),
    };
    let to: Uri = absolute.parse().map_err(|_| refused("which is no address"))?;
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) => Ok(to),
        (Some("https"), Some("http")) => Err(refused("which is not encrypted")),
        _ => Err(refused("which is neither http nor https")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects() {
        let from: Uri = "https://hub:8080/a/b?c=d".parse().unwrap();
        let to = |location| redirect(&from, location).map(|uri| uri.to_string());
        assert_eq!(to("/x?y").unwrap(), "https://hub:8080/x?y");
        assert_eq!(to("//cdn/x").unwrap(), "https://cdn/x");
        assert_eq!(to("https://cdn/x").unwrap(), "https://cdn/x");
        for (location, reason) in [("http://cdn/x", "not encrypted"), ("ftp://cdn/x", "neither"), ("", "no address")] {
            let message = to(location).unwrap_err();
            assert!(message.contains(reason), "{message}");
        }
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let home: Uri = "https://hub/a".parse().unwrap();
        let same = |other: &str| same_origin(&home, &other.parse().unwrap());
        assert!(same("https://hub/b?c"));
        for other in ["http://hub/a", "https://hub:444/a", "https://hub.evil/a", "https://hub@evil/a"] {
            assert!(!same(other), "{other}");
        }
    }
}
