//! What stands in the output folder: finished files, a journal of them while a run is going, and the manifest.
//!
//! A file is written in the shard's own working folder, renamed into its final place, then entered in the journal. A kill at any
//! moment leaves at worst a file that the journal does not know; it is spoken again and replaced by its equal.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Shard;
use crate::cli::output::{AudioFormat, AudioOutput, write_whole};
use crate::error::{Error, Result};
use crate::format::write::digest;
use crate::staging;
use crate::tensors::write::Digested;

/// Name of the journal in a shard's working folder.
const JOURNAL: &str = "journal.jsonl";
/// Every working folder begins with this.
const WORKING: &str = ".rumik-batch-";

/// One line of the manifest. It says nothing of when, where or how fast, so that every sharding writes the same lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    /// Number of the line in the input, from 1.
    pub line: usize,
    /// Its id.
    pub id: Option<String>,
    /// Control strings of the text that were not spoken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// What became of it.
    #[serde(flatten)]
    pub status: Status,
}

/// What became of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
pub(super) enum Status {
    /// It is spoken.
    Done(Facts),
    /// It cannot be spoken as it is.
    Refused {
        /// Field and reason.
        error: String,
    },
}

/// A finished file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Its name in the folder.
    pub file: String,
    /// Size and SHA-256 of all of it.
    #[serde(flatten)]
    pub content: Digested,
    /// What is in it.
    #[serde(flatten)]
    pub speech: Spoken,
}

/// The speech in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spoken {
    /// Its length.
    pub seconds: f64,
    /// Tokens chosen.
    pub tokens: usize,
    /// Whether a length limit ended it.
    pub truncated: bool,
}

/// The output folder, seen by one shard.
pub(super) struct Folder {
    out: PathBuf,
    shard: Shard,
    working: PathBuf,
    journal: File,
    /// By file name.
    known: HashMap<String, Facts>,
    /// Held until the run ends, however it ends.
    _lock: Option<File>,
}

impl Folder {
    /// Takes the shard's place in the folder, and stock of what earlier runs of any sharding finished.
    ///
    /// # Errors
    /// [`Error::Input`] when another run is at work on the shard; [`Error::Io`].
    pub(super) fn open(out: &Path, shard: Shard) -> Result<Folder> {
        let working = out.join(format!("{WORKING}{}-of-{}", shard.index, shard.count));
        let _lock = staging::lock(&working)?;
        let known = stock(out)?;
        for entry in entries(&working)?.filter(|path| !path.ends_with(JOURNAL)) {
            std::fs::remove_file(&entry).map_err(Error::io("remove", &entry))?;
        }
        let path = working.join(JOURNAL);
        let journal = File::options().create(true).append(true).open(&path).map_err(Error::io("open", &path))?;
        let mut folder = Folder { out: out.to_owned(), shard, working, journal, known, _lock };
        folder.journal_line("")?; // ends a line that a kill cut short
        Ok(folder)
    }

    /// What is known of a finished file; `None` if it has to be made.
    pub(super) fn facts(&self, file: &str) -> Option<&Facts> {
        self.known.get(file)
    }

    /// A place to write a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn output(&self, file: &str, sample_rate_hz: usize) -> Result<AudioOutput> {
        AudioOutput::open(&self.working.join(file), AudioFormat::Wav, sample_rate_hz as u32)
    }

    /// Gives a file that was written its final place and enters it in the journal.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn keep(&mut self, file: &str, speech: Spoken) -> Result<&Facts> {
        let (written, place) = (self.working.join(file), self.out.join(file));
        let content = digest(&written, || true)?;
        std::fs::rename(&written, &place).map_err(Error::io("rename the finished file to", &place))?;
        let facts = Facts { file: file.to_owned(), content, speech };
        self.journal_line(&serde_json::to_string(&facts).unwrap_or_default())?;
        Ok(self.known.entry(file.to_owned()).insert_entry(facts).into_mut())
    }

    fn journal_line(&mut self, line: &str) -> Result<()> {
        let path = self.working.join(JOURNAL);
        self.journal.write_all(format!("{line}\n").as_bytes()).map_err(Error::io("write", &path))
    }

    /// Writes the manifest, then removes the working folder. Returns where the manifest is.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn write_manifest(&self, rows: &[Row]) -> Result<PathBuf> {
        let name = match self.shard {
            Shard { count: 1, .. } => "manifest.jsonl".to_owned(),
            Shard { index, count } => format!("manifest-{index:05}-of-{count:05}.jsonl"),
        };
        let lines = rows.iter().filter_map(|row| serde_json::to_string(row).ok());
        let text: String = lines.map(|line| line + "\n").collect();
        let path = self.out.join(name);
        write_whole(&path, text.as_bytes())?;
        std::fs::remove_dir_all(&self.working).map_err(Error::io("remove", &self.working))?;
        Ok(path)
    }
}

/// All files that a manifest or a journal vouches for and that are there in their full size.
fn stock(out: &Path) -> Result<HashMap<String, Facts>> {
    let mut known = HashMap::new();
    for path in entries(out)? {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let journal = name.starts_with(WORKING).then(|| path.join(JOURNAL)).filter(|journal| journal.exists());
        let manifest = (name.starts_with("manifest") && name.ends_with(".jsonl")).then(|| path.clone());
        for facts in journal.into_iter().chain(manifest).flat_map(|list| read_facts(&list)) {
            let path = out.join(&facts.file);
            if path.parent() == Some(out) && path.metadata().is_ok_and(|file| file.len() == facts.content.bytes) {
                known.insert(facts.file.clone(), facts);
            }
        }
    }
    Ok(known)
}

/// Finished files out of a manifest or journal. Another shard may be writing it, or finish and remove it: what cannot be read
/// is not known, and is made again.
fn read_facts(path: &Path) -> Vec<Facts> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let facts = |line: &str| match serde_json::from_str::<Row>(line) {
        Ok(Row { status: Status::Done(facts), .. }) => Some(facts),
        Ok(_) => None,
        Err(_) => serde_json::from_str(line).ok(),
    };
    text.lines().filter_map(facts).collect()
}

fn entries(folder: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(Error::io("read the folder", folder))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())))
}
