//! Fields of a JSON body, taken by name: a wrong type, a wrong value or an unknown name is told with the field's name.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::error::ApiError;
use crate::serve::Limits;

/// Bytes of a body over the limit that are still read, so that a client gets to read the refusal.
const DRAINED: usize = 16 << 20;

/// The fields that were not taken yet.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Reads a body of one JSON object.
    ///
    /// # Errors
    /// 400, 408, 413 or 415.
    pub async fn read(headers: &HeaderMap, body: Body, limits: &Limits) -> Result<Fields, ApiError> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
            return Err(ApiError::media_type());
        }
        let read = timeout(limits.header_timeout, bytes(body, limits.body_bytes)).await;
        let bytes = read.map_err(|_| ApiError::slow_body())??;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(ApiError::body("expected a JSON object")),
            Err(error) => Err(ApiError::body(format!("the body is not JSON: {error}"))),
        }
    }

    /// Takes a field; `null` is as good as none.
    fn take<T>(
        &mut self,
        name: &str,
        expected: &str,
        convert: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let found = || ApiError::field(name, format!("expected {expected}, found {}", kind(&value)));
                convert(&value).map(Some).ok_or_else(found)
            }
        }
    }

    /// A string.
    pub fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.take(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.take(name, "true or false", Value::as_bool)
    }

    /// A number.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        self.take(name, "a number", Value::as_f64)
    }

    /// A whole number from 0 on.
    pub fn count(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        self.take(name, "a whole number from 0 on", Value::as_u64)
    }

    /// A word of a list, in the words' own type.
    pub fn word<T: std::str::FromStr<Err = crate::Error>>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        self.string(name)?.map(|word| word.parse().map_err(ApiError::from)).transpose()
    }

    /// Refuses whatever was not taken: no field is accepted without effect.
    ///
    /// # Errors
    /// 400 naming the field.
    pub fn finish(self) -> Result<(), ApiError> {
        match self.0.keys().next() {
            Some(name) => Err(ApiError::field(name, "unknown field; /openapi.json lists those there are")),
            None => Ok(()),
        }
    }
}

/// A whole body of at most `limit` bytes. More is read and forgotten.
async fn bytes(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (mut bytes, mut seen) = (Vec::new(), 0);
    while seen <= DRAINED
        && let Some(frame) = body.frame().await
    {
        let data = frame.map_err(|_| ApiError::body("the body broke off"))?.into_data().unwrap_or_default();
        seen += data.len();
        match seen <= limit {
            true => bytes.extend_from_slice(&data),
            false => bytes = Vec::new(),
        }
    }
    if seen <= limit { Ok(bytes) } else { Err(ApiError::too_large(limit)) }
}

/// What a value is, in a message.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}
