//! Figures in JSON: rounded so that they read back as what was written, and words for what is not finite.
//!
//! For `#[serde(with = "number")]` on f64 fields that may be NaN or infinite, which JSON has no numbers for.

use serde::{Deserialize, Deserializer, Serializer};
use serde_json::{Number, Value};

/// Significant digits of a figure. Decimals this short are exact quotients of small powers of ten, so every reader gets
/// the bits that were written.
const DIGITS: usize = 7;
/// Below this a figure is noise of f64 arithmetic and becomes 0.
const SMALLEST: f64 = 1e-15;
/// Above this a figure is as good as infinite.
const LARGEST: f64 = 1e28;

/// Writes a finite number as a number, anything else as `"NaN"`, `"inf"`, `"-inf"`.
///
/// # Errors
/// The serializer's own.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match value.is_finite() {
        true => serializer.serialize_f64(*value),
        false => serializer.collect_str(value),
    }
}

/// Reads what [`serialize`] writes.
///
/// # Errors
/// For anything else.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Figure {
        Number(f64),
        Word(String),
    }
    match Figure::deserialize(deserializer)? {
        Figure::Number(value) => Ok(value),
        Figure::Word(word) => match word.as_str() {
            "NaN" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            other => Err(serde::de::Error::custom(format!("expected a number, found {other:?}"))),
        },
    }
}

/// The nearest number of seven significant digits; 0 or infinite where no such number is a sound figure.
pub fn rounded(value: f64) -> f64 {
    if value.abs() < SMALLEST {
        return 0.0;
    }
    if value.abs() > LARGEST {
        return value * f64::INFINITY;
    }
    format!("{value:.*e}", DIGITS - 1).parse().unwrap_or(value)
}

/// Rounds every fractional number of a document.
pub fn round_all(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            if let Some(short) = number.as_f64().map(rounded).and_then(Number::from_f64) {
                *number = short;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(round_all),
        Value::Object(fields) => fields.values_mut().for_each(round_all),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Serialize, Deserialize)]
    struct One(#[serde(with = "super")] f64);

    #[test]
    fn every_figure_reads_back_as_it_was_written() {
        for value in [0.0, -1.5, 1.0 / 3.0, 1e-14 / 7.0, 123456.789012, 1e28 / 7.0, f64::INFINITY, f64::NEG_INFINITY] {
            let short = rounded(value);
            let read: One = serde_json::from_str(&serde_json::to_string(&One(short)).unwrap()).unwrap();
            assert_eq!(read.0.to_bits(), short.to_bits(), "{value}");
            assert!(!value.is_finite() || (short - value).abs() <= value.abs() * 1e-6, "{value} {short}");
        }
        let read: One = serde_json::from_str(&serde_json::to_string(&One(f64::NAN)).unwrap()).unwrap();
        assert!(read.0.is_nan());
        assert!(serde_json::from_str::<One>("\"0.5\"").is_err() && serde_json::from_str::<One>("null").is_err());
    }
}
