//! Paths, keys, and what every response carries.

pub mod error;
mod fields;
mod speech;
mod status;
mod text;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::App;
use super::keys::Owner;
use super::net::Peer;
use error::{ApiError, Code};

/// All paths of the server.
pub(super) fn router(app: &Arc<App>) -> Router {
    let api = Router::new()
        .route("/v1/audio/speech", post(speech::speak))
        .route("/v1/text", post(text::prepare))
        .route("/v1/models", get(status::models))
        .route("/v1/models/{id}", get(status::one_model))
        .route("/v1/voices", get(status::voices))
        .layer(from_fn_with_state(app.clone(), identify));
    let open = Router::new()
        .route("/health", get(status::health))
        .route("/ready", get(status::ready))
        .route("/metrics", get(status::metrics))
        .route("/openapi.json", get(status::openapi));
    let mut router = api.merge(open).merge(crate::serve::page::router()).with_state(app.clone());
    router = router.fallback(|| async { ApiError::not_found() });
    router = router.method_not_allowed_fallback(|| async { ApiError::method() });
    router = router.layer(from_fn_with_state(app.clone(), finish));
    match app.options.cors.is_empty() {
        true => router,
        false => router.layer(cors(app.options.cors.clone())),
    }
}

/// Pages of other origins, each named by the operator; never with credentials of the browser.
fn cors(origins: Vec<HeaderValue>) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([axum::http::Method::GET, axum::http::Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        .expose_headers(super::body::HEADERS.map(axum::http::HeaderName::from_static))
}

/// Lets in whom the keys let in, and notes whose the request is.
async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Result<Response, ApiError> {
    let peer = request.extensions().get::<Peer>().map(|peer| peer.address.ip());
    let owner = match &app.options.keys {
        Some(keys) => keys.owner(request.headers()).ok_or_else(ApiError::unauthorized)?,
        None => peer.map_or_else(Owner::default, Owner::of_address),
    };
    request.extensions_mut().insert(owner);
    Ok(next.run(request).await)
}

/// Counts errors, closes connections while draining, and says loudly when the model was not verified.
async fn finish(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(Code(code)) = response.extensions().get().copied() {
        app.shared.metrics.error(code);
    }
    if app.shared.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if app.catalog().is_ok_and(|catalog| !catalog.standing.is_verified()) {
        response.headers_mut().insert("x-rumik-unverified", HeaderValue::from_static("true"));
    }
    response.into_response()
}
