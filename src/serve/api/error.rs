//! One error type and one table of statuses, in OpenAI's shape.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::Error;
use crate::serve::stream::Failure;

/// An answer other than speech.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    /// Short name, for programs and the metric of errors.
    pub code: &'static str,
    /// The field at fault.
    pub param: Option<String>,
    /// One line for people.
    pub message: String,
    /// Seconds after which it is worth to try again.
    retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl ToString) -> ApiError {
        ApiError { status, code, param: None, message: message.to_string(), retry_after: None }
    }

    /// A field that cannot be accepted.
    pub fn field(param: impl ToString, message: impl ToString) -> ApiError {
        let message = format!("{}: {}", param.to_string(), message.to_string());
        ApiError { param: Some(param.to_string()), ..ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
    }

    /// A body that is not what it should be.
    pub fn body(message: impl ToString) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// A body that came too slowly.
    pub fn slow_body() -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", "the body took too long to arrive")
    }

    /// A body that is too large.
    pub fn too_large(limit: usize) -> ApiError {
        let message = format!("the body is longer than {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
    }

    /// A body of another type than JSON.
    pub fn media_type() -> ApiError {
        let message = "expected a body with content-type application/json";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    /// A path that is not there.
    pub fn not_found() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "not_found", "no such path; /openapi.json lists those there are")
    }

    /// A model that is not there.
    pub fn no_model(name: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", format!("no model {name:?}; see /v1/models"))
    }

    /// A path that is there, asked in another way.
    pub fn method() -> ApiError {
        let message = "this path does not take this method; /openapi.json lists those there are";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> ApiError {
        let message = "expected a valid API key in the header `Authorization: Bearer KEY`";
        ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// All slots and the queue are full.
    pub fn overloaded(retry_after: u64) -> ApiError {
        let message = "all slots are busy and the queue is full; try again later";
        let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// Speech cannot be had now.
    pub fn unavailable(code: &'static str, message: impl ToString, retry_after: u64) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// The object of an error, `{"message", "type", "param", "code"}`.
    pub fn object(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "message": self.message, "type": kind, "param": self.param, "code": self.code })
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        let internal = |code, message: &str| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, code, message);
        match failure {
            Failure::Engine => internal("engine_failed", "the speech engine failed; the request was not completed"),
            Failure::Silence => internal("no_speech", "the model said nothing; try another seed"),
            Failure::TimeLimit => {
                ApiError::unavailable("time_limit", "the request took longer than the server allows", 1)
            }
            Failure::Stopping => ApiError::unavailable("stopping", "the server is stopping", 5),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        match error {
            Error::Input { parameter, message } => {
                let name = if parameter == "description" { "instructions" } else { parameter };
                ApiError::field(name, message)
            }
            other => {
                crate::serve::log(&format!("a request failed: {other}"));
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request could not be prepared")
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({ "error": self.object() }).to_string();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(Code(self.code));
        response
    }
}

/// Marks a response as an error, for the metric.
#[derive(Clone, Copy, Debug)]
pub struct Code(pub &'static str);
