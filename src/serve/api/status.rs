//! What the server is and how it is: models, voices, health, readiness, metrics, the API's description.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::ApiError;
use crate::serve::App;
use crate::serve::metrics::MEDIA_TYPE;
use crate::serve::state::Condition;
use crate::speech::{Accent, Pace, TAGS, Tone};

const OPENAPI: &str = include_str!("../openapi.json");

fn model(app: &App, id: &str) -> Value {
    json!({ "id": id, "object": "model", "created": app.created, "owned_by": "rumik" })
}

/// `GET /v1/models`.
pub async fn models(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let data: Vec<Value> = app.catalog()?.models.iter().map(|id| model(&app, id)).collect();
    Ok(Json(json!({ "object": "list", "data": data })))
}

/// `GET /v1/models/{id}`.
pub async fn one_model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    match app.catalog()?.models.contains(&id) {
        true => Ok(Json(model(&app, &id))),
        false => Err(ApiError::no_model(&id)),
    }
}

/// `GET /v1/voices`: voices, and the words for their manner.
pub async fn voices(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let catalog = app.catalog()?;
    let voice = |name: &String| json!({ "id": name, "object": "voice", "name": name });
    Ok(Json(json!({
        "object": "list",
        "data": catalog.speech.voices().iter().map(voice).collect::<Vec<_>>(),
        "tones": Tone::ALL.iter().map(|word| word.word()).collect::<Vec<_>>(),
        "accents": Accent::ALL.iter().map(|word| word.word()).collect::<Vec<_>>(),
        "paces": Pace::ALL.iter().map(|word| word.word()).collect::<Vec<_>>(),
        "tags": TAGS,
        "sample_rate": catalog.info.sample_rate_hz,
        "max_characters": app.options.limits.text_chars,
    })))
}

/// `GET /health`: the process lives. Says what it runs.
pub async fn health(State(app): State<Arc<App>>) -> Json<Value> {
    let catalog = app.catalog().ok();
    Json(json!({
        "status": "ok",
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": app.shared.uptime().as_secs(),
        "model": catalog.map(|catalog| &catalog.models[0]),
        "backend": catalog.map(|catalog| &catalog.info.backend),
        "verified": catalog.map(|catalog| catalog.standing.is_verified()),
        "standing": catalog.map(|catalog| catalog.standing.summary()),
        "notice": catalog.and_then(|catalog| catalog.notice),
    }))
}

/// `GET /ready`: 200 while the engine's thread speaks or could, else 503.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    let condition = app.shared.condition();
    let status = match condition {
        Condition::Ready => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(json!({ "status": condition.to_string() }))).into_response()
}

/// `GET /metrics`.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    ([(header::CONTENT_TYPE, MEDIA_TYPE)], app.shared.metrics.render()).into_response()
}

/// `GET /openapi.json`.
pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
