//! From the lines of the input to checked jobs: every mistake is found before anything is spoken.

use std::collections::HashMap;
use std::str::FromStr;

use serde::Deserialize;

use super::folder::{Row, Status};
use super::{Shard, digest};
use crate::cli::model::Model;
use crate::engine::Sampling;
use crate::error::{Error, Result};
use crate::pipeline::{Plan, Script};
use crate::speech::{self, Lang, Style};

/// Longest id; it becomes part of a file name.
const LONGEST_ID: usize = 100;

/// A line as it is written: the fields of a request to `rumik-run serve`, and an id.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    id: Option<String>,
    input: String,
    voice: Option<String>,
    instructions: Option<String>,
    tone: Option<String>,
    accent: Option<String>,
    pace: Option<String>,
    #[serde(default)]
    seed: u64,
    temperature: Option<f32>,
    top_k: Option<usize>,
    max_seconds: Option<f64>,
    #[serde(default = "yes")]
    normalize: bool,
    language: Option<String>,
}

fn yes() -> bool {
    true
}

/// A line that can be spoken.
#[derive(Clone, Debug)]
pub(super) struct Job {
    line: usize,
    fields: Fields,
    left_out: Vec<String>,
    /// Name of its file in the folder.
    pub(super) file: String,
}

/// The lines of one shard.
#[derive(Debug)]
pub(super) struct Batch {
    /// Lines of the whole input that hold anything.
    pub(super) lines: usize,
    /// Those of the shard that can be spoken, in order.
    pub(super) jobs: Vec<Job>,
    /// Those that cannot, in order.
    pub(super) refused: Vec<Row>,
    preparation: speech::Options,
}

impl Batch {
    /// Reads all lines and checks those of the shard against the model. Empty lines are skipped.
    pub(super) fn read(text: &[u8], shard: Shard, model: &Model, preparation: speech::Options) -> Batch {
        let model_digest = digest::of_model(&model.files);
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let mut ids = HashMap::new();
        let mut batch = Batch { lines: 0, jobs: Vec::new(), refused: Vec::new(), preparation };
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let number = number + 1;
            let mine = batch.lines % shard.count == shard.index;
            batch.lines += 1;
            let fields = Fields::parse(line).and_then(|fields| fields.with_unique_id(number, &mut ids));
            if !mine {
                continue;
            }
            let id = fields.as_ref().ok().and_then(|fields| fields.id.clone());
            match fields.and_then(|fields| batch.job(number, fields, model, &model_digest)) {
                Ok(job) => batch.jobs.push(job),
                Err(error) => {
                    let status = Status::Refused { error: error.to_string() };
                    batch.refused.push(Row { line: number, id, left_out: Vec::new(), status });
                }
            }
        }
        batch
    }

    fn job(&self, line: usize, fields: Fields, model: &Model, model_digest: &[u8]) -> Result<Job> {
        let script = fields.script(&self.preparation)?;
        let plan = Plan::new(model.engine.info(), &model.speech, &script)?;
        let digest = digest::of_script(model_digest, &plan, &script);
        let file = match &fields.id {
            Some(id) => format!("{id}-{digest}.wav"),
            None => format!("{digest}.wav"),
        };
        Ok(Job { line, left_out: plan.dropped, fields, file })
    }

    /// What the engine is to say for a job. Made when it is needed: a batch may have more lines than memory has prompts.
    ///
    /// # Errors
    /// None that the check of the line did not find.
    pub(super) fn plan(&self, job: &Job, model: &Model) -> Result<Plan> {
        Plan::new(model.engine.info(), &model.speech, &job.fields.script(&self.preparation)?)
    }
}

impl Fields {
    fn parse(line: &[u8]) -> Result<Fields> {
        let fields: Fields = serde_json::from_slice(line).map_err(|error| {
            let text = error.to_string();
            // There is one line, and its number is told already.
            Error::input("json", text.replace(" at line 1 column", " at column"))
        })?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match &fields.id {
            Some(id) if id.is_empty() || id.len() > LONGEST_ID || id.starts_with('.') || !id.chars().all(allowed) => {
                let expected = format!("expected 1 to {LONGEST_ID} letters a-z, digits, '-', '_' and '.'");
                Err(Error::input("id", format!("{expected}, not first a '.'")))
            }
            _ => Ok(fields),
        }
    }

    /// Two lines of one id would be told apart by nobody who reads the manifest.
    fn with_unique_id(self, line: usize, ids: &mut HashMap<String, usize>) -> Result<Fields> {
        let Some(id) = &self.id else { return Ok(self) };
        match ids.get(id) {
            Some(first) => Err(Error::input("id", format!("{id:?} is the id of line {first} already"))),
            None => {
                ids.insert(id.clone(), line);
                Ok(self)
            }
        }
    }

    fn script(&self, preparation: &speech::Options) -> Result<Script<'_>> {
        let style = Style {
            voice: self.voice.clone(),
            tone: parsed(&self.tone)?,
            accent: parsed(&self.accent)?,
            pace: parsed(&self.pace)?,
            description: self.instructions.clone(),
        };
        let language: Option<Lang> = parsed(&self.language)?;
        let usual = Sampling::default();
        Ok(Script {
            text: &self.input,
            preparation: speech::Options {
                normalize: self.normalize,
                language,
                pace: style.pace,
                ..preparation.clone()
            },
            style,
            sampling: Sampling {
                temperature: self.temperature.unwrap_or(usual.temperature),
                top_k: self.top_k.unwrap_or(usual.top_k),
            },
            seed: self.seed,
            max_seconds: self.max_seconds,
        })
    }
}

fn parsed<T: FromStr<Err = Error>>(field: &Option<String>) -> Result<Option<T>> {
    field.as_deref().map(T::from_str).transpose()
}

impl Job {
    /// Its line in the manifest.
    pub(super) fn row(&self, status: Status) -> Row {
        Row { line: self.line, id: self.fields.id.clone(), left_out: self.left_out.clone(), status }
    }
}
