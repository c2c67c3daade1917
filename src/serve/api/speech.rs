//! `POST /v1/audio/speech`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::error::ApiError;
use super::fields::Fields;
use crate::engine::Sampling;
use crate::engine::sampler;
use crate::pipeline::{Plan, Script};
use crate::serve::body::{Account, Shape, SpeechBody};
use crate::serve::encode::Format;
use crate::serve::keys::Owner;
use crate::serve::net::Peer;
use crate::serve::state::Condition;
use crate::serve::stream::{Cut, Event, Failure, Listener, Totals, stream};
use crate::serve::worker::Job;
use crate::serve::{App, Catalog};
use crate::speech::{Options, Style};

/// The default of OpenAI's API.
const DEFAULT_FORMAT: Format = Format::Mp3;
/// The model knows three paces and no factor; only this value changes nothing and is true.
const SPEED: f64 = 1.0;

/// What a client asks for.
#[derive(Debug)]
struct Wanted {
    text: String,
    style: Style,
    normalize: bool,
    sampling: Sampling,
    seed: u64,
    max_seconds: Option<f64>,
    format: Format,
    shape: Shape,
}

/// Speaks.
pub async fn speak(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let owner = request.extensions().get::<Owner>().copied().unwrap_or_default();
    let cut = request.extensions().get::<Peer>().map(|peer| peer.cut.clone()).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let fields = Fields::read(&parts.headers, body, &app.options.limits).await?;
    let catalog = app.catalog()?;
    let wanted = wanted(fields, &app, catalog)?;
    let place = admit(&app)?;
    let (format, shape, seed) = (wanted.format, wanted.shape, wanted.seed);
    let (mut listener, dropped) = {
        let app = app.clone();
        let prepared = tokio::task::spawn_blocking(move || start(&app, &wanted, owner, cut, place)).await;
        prepared.map_err(|_| ApiError::from(Failure::Engine))??
    };
    let waited = timeout(app.options.limits.queue_timeout, listener.next()).await;
    let first = match waited {
        Ok(Some(Event::Sound(sound))) => sound,
        Ok(Some(Event::Failed(failure))) => return Err(failure.into()),
        Ok(Some(Event::Done(_)) | None) => return Err(Failure::Engine.into()),
        Err(_) => {
            listener.leave();
            let message = "no slot became free in time; try again later";
            return Err(ApiError::unavailable("queue_timeout", message, app.retry_after()));
        }
    };
    let account = Account::new(&app, seed, dropped, begun);
    let body = SpeechBody::new(listener, format, shape, account, &first)?;
    match shape {
        Shape::Whole => body.collect().await,
        Shape::Stream | Shape::Events => Ok(body.into_response(Body::new)),
    }
}

/// A place in the slots or the queue.
fn admit(app: &App) -> Result<OwnedSemaphorePermit, ApiError> {
    let refuse = |code, message: &str| Err(ApiError::unavailable(code, message, app.retry_after()));
    match app.shared.condition() {
        Condition::Ready => {}
        Condition::Loading => return refuse("loading", "the model is being loaded"),
        Condition::Draining => return refuse("draining", "this server is shutting down; ask another"),
        Condition::Failing | Condition::Stalled | Condition::Stopped => {
            return refuse("not_ready", "the speech engine does not answer");
        }
    }
    app.shared.place().ok_or_else(|| ApiError::overloaded(app.retry_after()))
}

/// Reads the fields, each checked as far as it can be alone.
fn wanted(mut fields: Fields, app: &App, catalog: &Catalog) -> Result<Wanted, ApiError> {
    if let Some(model) = fields.string("model")?
        && !catalog.models.contains(&model)
    {
        let message = format!("unknown model; models: {}", catalog.models.join(", "));
        return Err(ApiError::field("model", message));
    }
    let text = text(&mut fields, app)?;
    let style = Style {
        voice: fields.string("voice")?,
        tone: fields.word("tone")?,
        accent: fields.word("accent")?,
        pace: fields.word("pace")?,
        description: fields.string("instructions")?.filter(|text| !text.trim().is_empty()),
    };
    style.speaker(catalog.speech.voices())?;
    style.description()?;
    if let Some(speed) = fields.number("speed")?.filter(|speed| *speed != SPEED) {
        let message =
            format!("found {speed}; this model has no factor of speed, only 1; use pace: slow, steady or fast");
        return Err(ApiError::field("speed", message));
    }
    let (format, shape) = form(&mut fields)?;
    let sampling = sampling(&mut fields)?;
    let max_seconds = fields.number("max_seconds")?;
    let seed = fields.count("seed")?.unwrap_or_else(random_seed);
    let normalize = fields.flag("normalize")?.unwrap_or(true);
    fields.finish()?;
    Ok(Wanted { text, style, normalize, sampling, seed, max_seconds, format, shape })
}

/// The text, within its limit.
pub(super) fn text(fields: &mut Fields, app: &App) -> Result<String, ApiError> {
    let text = fields.string("input")?.ok_or_else(|| ApiError::field("input", "expected a text, found none"))?;
    let (length, limit) = (text.chars().count(), app.options.limits.text_chars);
    if length > limit {
        return Err(ApiError::field("input", format!("{length} characters; at most {limit} are accepted")));
    }
    Ok(text)
}

fn form(fields: &mut Fields) -> Result<(Format, Shape), ApiError> {
    let format = match fields.string("response_format")? {
        None => DEFAULT_FORMAT,
        Some(name) => Format::of(&name).ok_or_else(|| {
            let names = Format::ALL.map(Format::name).join(", ");
            ApiError::field("response_format", format!("unknown format; accepted: {names}"))
        })?,
    };
    let stream = fields.flag("stream")?;
    let shape = match (fields.string("stream_format")?.as_deref(), stream) {
        (None | Some("audio"), None | Some(true)) => Shape::Stream,
        (None | Some("audio"), Some(false)) => Shape::Whole,
        (Some("sse"), None | Some(true)) => Shape::Events,
        (Some("sse"), Some(false)) => {
            return Err(ApiError::field("stream", "false does not go with stream_format sse"));
        }
        (Some(_), _) => return Err(ApiError::field("stream_format", "expected audio or sse")),
    };
    Ok((format, shape))
}

fn sampling(fields: &mut Fields) -> Result<Sampling, ApiError> {
    let defaults = Sampling::default();
    let sampling = Sampling {
        temperature: fields.number("temperature")?.map_or(defaults.temperature, |value| value as f32),
        top_k: fields.count("top_k")?.map_or(defaults.top_k, |value| usize::try_from(value).unwrap_or(usize::MAX)),
    };
    sampler::check(sampling)?;
    Ok(sampling)
}

/// A seed that JavaScript's numbers hold exactly.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish() >> 32
}

/// Turns the text into prompts and hands the request to the engine's thread; the stream, and what was left out of the text.
fn start(
    app: &Arc<App>,
    wanted: &Wanted,
    owner: Owner,
    cut: Cut,
    place: OwnedSemaphorePermit,
) -> Result<(Listener, Vec<String>), ApiError> {
    let catalog = app.catalog()?;
    let script = Script {
        text: &wanted.text,
        style: wanted.style.clone(),
        preparation: Options { normalize: wanted.normalize, ..catalog.preparation(wanted.style.pace) },
        sampling: wanted.sampling,
        seed: wanted.seed,
        max_seconds: wanted.max_seconds,
    };
    let plan = Plan::new(&catalog.info, &catalog.speech, &script)?;
    let dropped = plan.dropped.clone();
    let prompt_tokens = plan.pieces().map(|piece| piece.prompt.len()).sum();
    let limits = &app.options.limits;
    let (voice, listener) = stream(&app.shared, limits.write_timeout, cut);
    app.shared.submit(Job {
        plan,
        client: owner.0,
        arrival: app.shared.next_arrival(),
        deadline: Instant::now() + limits.time_limit,
        voice,
        totals: Totals { prompt_tokens, ..Totals::default() },
        _place: place,
    });
    Ok((listener, dropped))
}
