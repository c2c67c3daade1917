//! Typed access to a JSON object, with complaints that name file and field.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// A JSON object with the name of its file, so that every complaint says where.
pub(super) struct Fields<'a> {
    place: &'a str,
    map: Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub(super) fn parse(place: &'a str, json: &[u8]) -> Result<Fields<'a>> {
        match serde_json::from_slice(json) {
            Ok(Value::Object(map)) => Ok(Fields { place, map }),
            Ok(_) => Err(Error::invalid(place, "top level", "a JSON object", "another JSON value")),
            Err(e) => Err(Error::invalid(place, "content", "JSON", e)),
        }
    }

    /// `null` counts as absent, as transformers writes it for unset fields.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn invalid(&self, key: &str, expected: impl ToString, found: impl ToString) -> Error {
        Error::invalid(self.place, key, expected, found)
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.invalid(key, "a value", "nothing")
    }

    pub(super) fn required(&self, key: &str) -> Result<&Value> {
        self.get(key).ok_or_else(|| self.missing(key))
    }

    /// A positive integer small enough that products of a few of them cannot overflow.
    pub(super) fn size(&self, key: &str) -> Result<usize> {
        self.size_value(key, self.required(key)?)
    }

    pub(super) fn size_value(&self, key: &str, value: &Value) -> Result<usize> {
        match value.as_u64() {
            Some(n) if (1..=1 << 24).contains(&n) => Ok(n as usize),
            _ => Err(self.invalid(key, "a whole number from 1 to 16777216", value)),
        }
    }

    pub(super) fn sizes(&self, key: &str) -> Result<Vec<usize>> {
        match self.required(key)? {
            Value::Array(items) if !items.is_empty() && items.len() <= 16 => {
                items.iter().map(|item| self.size_value(key, item)).collect()
            }
            other => Err(self.invalid(key, "a list of 1 to 16 sizes", other)),
        }
    }

    pub(super) fn token(&self, key: &str) -> Result<u32> {
        let value = self.required(key)?;
        match value.as_u64() {
            Some(n) if n < 1 << 24 => Ok(n as u32),
            _ => Err(self.invalid(key, "a token id", value)),
        }
    }

    pub(super) fn positive(&self, key: &str) -> Result<f64> {
        self.positive_value(key, self.required(key)?)
    }

    pub(super) fn positive_value(&self, key: &str, value: &Value) -> Result<f64> {
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(x),
            _ => Err(self.invalid(key, "a positive number", value)),
        }
    }

    pub(super) fn strings(&self, key: &str) -> Result<Vec<String>> {
        self.string_list(key, self.required(key)?)
    }

    pub(super) fn string_list(&self, key: &str, value: &Value) -> Result<Vec<String>> {
        let strings = value
            .as_array()
            .and_then(|items| items.iter().map(|item| item.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
        strings.filter(|s| !s.is_empty()).ok_or_else(|| self.invalid(key, "a list of strings", value))
    }

    pub(super) fn one_of(&self, key: &str, accepted: &[&str]) -> Result<()> {
        self.check_word(key, self.required(key)?, accepted)
    }

    pub(super) fn one_of_or(&self, key: &str, accepted: &[&str], default: &str) -> Result<()> {
        self.check_word(key, self.get(key).unwrap_or(&Value::from(default)), accepted)
    }

    pub(super) fn check_word(&self, key: &str, value: &Value, accepted: &[&str]) -> Result<()> {
        match value.as_str() {
            Some(word) if accepted.contains(&word) => Ok(()),
            _ => Err(self.invalid(key, accepted.join(" or "), value)),
        }
    }

    pub(super) fn false_or_absent(&self, key: &str) -> Result<()> {
        match self.get(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(other) => Err(self.invalid(key, "false", other)),
        }
    }

    /// transformers 4.57 keeps `rope_theta` at the top level, 5.x under `rope_parameters`.
    pub(super) fn rope_theta(&self) -> Result<f64> {
        for key in ["rope_scaling", "rope_parameters"] {
            let kind = self.get(key).and_then(|v| v.get("rope_type").or_else(|| v.get("type")));
            if let Some(kind) = kind.filter(|kind| *kind != "default") {
                return Err(self.invalid(key, "unscaled RoPE (rope_type default)", kind));
            }
        }
        let nested = self.get("rope_parameters").and_then(|v| v.get("rope_theta"));
        match nested.or_else(|| self.get("rope_theta")) {
            Some(value) => self.positive_value("rope_theta", value),
            None => Err(self.missing("rope_theta")),
        }
    }
}
