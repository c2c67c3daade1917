//! Which files of a repository a program needs. Only these are ever downloaded: data and licences, never code.

use std::collections::BTreeSet;

use serde_json::Value;

use super::names::is_safe_path;
use crate::error::{Error, Result};
use crate::format::layout::REFERENCE_FILE;

/// The language model in one file.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The table of a language model in several files.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

const CODEC_FILES: [&str; 2] = ["codec/config.json", "codec/model.safetensors"];

/// A choice of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Files without which there is no model.
    required: Vec<&'static str>,
    /// Files taken where the repository has them; a `*` stands for any text without `/`.
    optional: Vec<&'static str>,
    /// The language model: one file, or the index and its shards.
    weights: bool,
}

impl Wanted {
    /// A source checkpoint, with or without its codec.
    pub fn source(codec: bool) -> Wanted {
        let mut wanted = Wanted {
            required: vec!["config.json", "tokenizer.json"],
            optional: vec!["LICENSE", "NOTICE", "generation_config.json", "tokenizer_config.json", "tokenizer*.json"],
            weights: true,
        };
        if codec {
            wanted.required.extend(CODEC_FILES);
            wanted.optional.extend(["codec/preprocessor_config.json", "codec/*.json"]);
        }
        wanted
    }

    /// An int4 export, which may lack the codec, the report and, when others made it, all that is not weights.
    pub fn export() -> Wanted {
        let mut wanted = Wanted { required: vec![], ..Wanted::source(false) };
        wanted.optional.extend(["export.json", "config.json", "tokenizer.json", "verify.json", REFERENCE_FILE]);
        wanted.optional.extend(CODEC_FILES);
        wanted
    }

    /// What an export that holds only its int4 file takes from the source: config, tokenizer and codec.
    pub fn companions() -> Wanted {
        Wanted { weights: false, ..Wanted::source(true) }
    }

    /// The same without the large files: what can be had before a download worth planning.
    ///
    /// The index of a sharded model is kept. Headers of the large files come from [`super::Hub::read_range`].
    pub fn without_weights(mut self) -> Wanted {
        let small = |name: &&str| !name.ends_with(".safetensors");
        self.required.retain(small);
        self.optional.retain(small);
        self.optional.extend(self.weights.then_some(INDEX_FILE));
        self.weights = false;
        self
    }

    /// Chooses among the `available` names of a repository. `read_index` is called for a model in several files.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a wanted name that does not stay inside the folder or for a broken index; the error of
    /// `read_index`.
    pub(super) fn select(
        &self,
        place: &str,
        available: &[String],
        read_index: &mut dyn FnMut() -> Result<Vec<u8>>,
    ) -> Result<Selection> {
        let mut required: Vec<String> = self.required.iter().map(|&name| name.to_owned()).collect();
        let matching = |name: &&String| self.optional.iter().any(|pattern| matches(pattern, name));
        let mut optional: BTreeSet<String> = available.iter().filter(matching).cloned().collect();
        optional.retain(|name| !required.contains(name) && !is_code(name));
        if let Some(name) = optional.iter().find(|name| !is_safe_path(name)) {
            return Err(Error::invalid(place, "file name", "a path inside the repository", format!("{name:?}")));
        }
        if self.weights {
            match weights_file(available) {
                INDEX_FILE => {
                    required.push(INDEX_FILE.to_owned());
                    required.extend(shards(place, &read_index()?)?);
                }
                name => required.push(name.to_owned()),
            }
        }
        let is_absent = |name: &str| !name.contains('*') && !available.iter().any(|other| other == name);
        let absent = self.optional.iter().filter(|name| is_absent(name)).map(|&name| name.to_owned()).collect();
        Ok(Selection { required, optional: optional.into_iter().collect(), absent })
    }
}

/// The outcome of a choice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// Must be there; may not be.
    pub(super) required: Vec<String>,
    /// Wanted, and there.
    pub(super) optional: Vec<String>,
    /// Would have been taken, but is not there.
    pub(super) absent: Vec<String>,
}

/// The file that leads to the weights, by the order of transformers; an export by others may have its own name for it.
fn weights_file(available: &[String]) -> &str {
    let has = |name: &str| available.iter().any(|other| other == name);
    if has(WEIGHTS_FILE) {
        return WEIGHTS_FILE;
    }
    if has(INDEX_FILE) {
        return INDEX_FILE;
    }
    // A lone shard is a part of a download that never got its index.
    let is_model = |name: &&String| {
        name.ends_with(".safetensors") && !name.contains('/') && !name.contains("-of-") && *name != REFERENCE_FILE
    };
    let mut models = available.iter().filter(is_model).filter(|name| is_safe_path(name));
    match (models.next(), models.next()) {
        (Some(only), None) => only,
        _ => WEIGHTS_FILE,
    }
}

/// The files that an index names, in order.
fn shards(place: &str, index: &[u8]) -> Result<BTreeSet<String>> {
    let broken = |expected, found: String| Error::invalid(place, INDEX_FILE, expected, found);
    let json: Value = serde_json::from_slice(index).map_err(|error| broken("JSON", error.to_string()))?;
    let expected = "a weight_map from tensor names to .safetensors files";
    let Some(map) = json.get("weight_map").and_then(Value::as_object).filter(|map| !map.is_empty()) else {
        return Err(broken(expected, "none".to_owned()));
    };
    map.values()
        .map(|value| match value.as_str() {
            Some(name) if is_safe_path(name) && name.ends_with(".safetensors") => Ok(name.to_owned()),
            _ => Err(broken(expected, value.to_string())),
        })
        .collect()
}

fn is_code(name: &str) -> bool {
    name.ends_with(".py")
}

/// Whether `name` is `pattern`, in which one `*` stands for any text without `/`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let middle = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
            middle.is_some_and(|middle| !middle.contains('/'))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(wanted: &Wanted, available: &[&str], index: &str) -> Result<Selection> {
        let names: Vec<String> = available.iter().map(|&name| name.to_owned()).collect();
        wanted.select("org/name", &names, &mut || Ok(index.as_bytes().to_vec()))
    }

    const PUBLISHED: [&str; 14] = [
        ".gitattributes",
        "LICENSE",
        "NOTICE",
        "README.md",
        "codec/config.json",
        "codec/model.safetensors",
        "codec/preprocessor_config.json",
        "config.json",
        "generation_config.json",
        "modeling_rumik_oss.py",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer_extra.json",
        INDEX_FILE,
    ];
    const INDEX: &str = r#"{"weight_map": {"b": "model-2-of-2.safetensors", "a": "model-1-of-2.safetensors",
        "c": "model-2-of-2.safetensors"}}"#;

    #[test]
    fn a_sharded_source() {
        let chosen = select(&Wanted::source(true), &PUBLISHED, INDEX).unwrap();
        let required = ["config.json", "tokenizer.json", "codec/config.json", "codec/model.safetensors", INDEX_FILE];
        assert_eq!(chosen.required[..5], required);
        assert_eq!(chosen.required[5..], ["model-1-of-2.safetensors", "model-2-of-2.safetensors"]);
        let optional = ["LICENSE", "NOTICE", "codec/preprocessor_config.json", "generation_config.json"];
        assert_eq!(chosen.optional[..4], optional);
        assert_eq!(chosen.optional[4..], ["tokenizer_config.json", "tokenizer_extra.json"]);
        assert!(chosen.absent.is_empty());
    }

    #[test]
    fn the_codec_and_the_weights_can_be_left_out() {
        let chosen = select(&Wanted::source(false), &PUBLISHED, INDEX).unwrap();
        assert!(!chosen.required.iter().chain(&chosen.optional).any(|name| name.starts_with("codec/")));
        let chosen = select(&Wanted::source(true).without_weights(), &PUBLISHED, INDEX).unwrap();
        assert!(!chosen.required.iter().chain(&chosen.optional).any(|name| name.ends_with(".safetensors")));
        assert!(chosen.optional.iter().any(|name| name == INDEX_FILE));
    }

    #[test]
    fn one_file_comes_before_an_index_and_before_other_names() {
        let weights = |available: &[&str]| select(&Wanted::export(), available, INDEX).unwrap().required;
        assert_eq!(weights(&["model.safetensors", INDEX_FILE, "other.safetensors"]), ["model.safetensors"]);
        assert_eq!(weights(&["int4.safetensors", "codec/model.safetensors"]), ["int4.safetensors"]);
        for ambiguous in [&["a.safetensors", "b.safetensors"][..], &["model-1-of-2.safetensors"], &[]] {
            assert_eq!(weights(ambiguous), ["model.safetensors"]);
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        for shard in ["../x.safetensors", "/x.safetensors", "a\\\\x.safetensors", "evil.py", ""] {
            let index = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
            let message = select(&Wanted::source(true), &PUBLISHED, &index).unwrap_err().to_string();
            assert!(message.contains(INDEX_FILE), "{message}");
        }
        for index in ["", "{}", r#"{"weight_map": {}}"#, r#"{"weight_map": {"a": 1}}"#] {
            select(&Wanted::source(true), &PUBLISHED, index).unwrap_err();
        }
        let error = select(&Wanted::source(true), &["codec/..\\..\\x.json", WEIGHTS_FILE], "").unwrap_err();
        assert!(error.to_string().contains("file name"), "{error}");
        assert!(!matches("codec/*.json", "codec/../../x.json"));
    }
}
