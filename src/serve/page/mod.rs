//! The page at `/`: a few static files, compiled in. They ask nothing of any other origin, and a policy forbids it to them.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, media type and content of every file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("/page/api.js", SCRIPT, include_str!("api.js")),
    ("/page/app.js", SCRIPT, include_str!("app.js")),
    ("/page/player.js", SCRIPT, include_str!("player.js")),
    ("/page/reading.js", SCRIPT, include_str!("reading.js")),
    ("/page/settings.js", SCRIPT, include_str!("settings.js")),
    ("/page/shelf.js", SCRIPT, include_str!("shelf.js")),
    ("/page/store.js", SCRIPT, include_str!("store.js")),
    ("/page/wave.js", SCRIPT, include_str!("wave.js")),
];

/// Only files of this server, no script or style inside the page, no frame around it, nowhere to send a form or a base to.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every file. A new version of the program is seen at once: the files are small.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

/// The files of the page.
pub(super) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, &(path, kind, content)| {
        router.route(path, get(async move || file(kind, content)))
    })
}

fn file(kind: &'static str, content: &'static str) -> Response {
    (HEADERS, [(header::CONTENT_TYPE, kind)], content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_asked_for_is_there() {
        let served = |name: &str| FILES.iter().any(|(path, ..)| *path == format!("/page/{name}"));
        for (path, _, content) in FILES {
            let imports =
                content.lines().filter(|line| line.starts_with("import ")).filter_map(|line| line.split("\"./").nth(1));
            let links = content.split("=\"page/").skip(1);
            for name in imports.chain(links).filter_map(|rest| rest.split('"').next()) {
                assert!(served(name), "{path} asks for {name}");
            }
        }
    }

    #[test]
    fn nothing_needs_what_the_policy_forbids() {
        for (path, _, content) in FILES {
            for foreign in ["http://", "https://", "<style", "style=\"", "onclick=", "eval(", "innerHTML", "data:"] {
                let namespace = content.matches("xmlns=\"http://www.w3.org/2000/svg\"").count();
                let found = content.matches(foreign).count() - if foreign == "http://" { namespace } else { 0 };
                assert_eq!(found, 0, "{path} has {foreign}");
            }
        }
    }
}
