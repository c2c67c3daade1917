//! `POST /v1/text`: what would be said, as `rumik-run text --json` prints it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};

use super::error::ApiError;
use super::fields::Fields;
use crate::serve::App;
use crate::speech::{self, Options, Prepared};

/// Shows the pieces of a text, their estimated seconds and every rewrite with its rule.
pub async fn prepare(State(app): State<Arc<App>>, request: Request) -> Result<Json<Prepared>, ApiError> {
    let (parts, body) = request.into_parts();
    let mut fields = Fields::read(&parts.headers, body, &app.options.limits).await?;
    let text = super::speech::text(&mut fields, &app)?;
    let normalize = fields.flag("normalize")?.unwrap_or(true);
    let pace = fields.word("pace")?;
    fields.finish()?;
    let options = Options { normalize, ..app.catalog()?.preparation(pace) };
    let prepared = tokio::task::spawn_blocking(move || speech::prepare(&text, &options)).await;
    Ok(Json(prepared.map_err(|_| ApiError::from(crate::serve::stream::Failure::Engine))?))
}
