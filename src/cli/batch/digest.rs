//! The name of a file: a digest of everything that decides its samples.

use sha2::{Digest, Sha256};

use crate::format::Files;
use crate::pipeline::{Plan, Script};
use crate::tensors::TensorFile;

/// Raised when an engine would make other samples from the same ids, so that files of an older program are not taken for its own.
const SOUND_VERSION: u32 = 1;

/// Hexadecimal digits in a file name: 80 bits, so that among 10^9 files the chance of one clash is below 10^-6.
const DIGITS: usize = 20;

/// Digest of what the model's sound depends on, for given prompt ids: its configuration, its weights and its codec.
///
/// Reads all of the weights once.
pub(super) fn of_model(files: &Files) -> Vec<u8> {
    let mut hasher = Hasher::default();
    hasher.part(&SOUND_VERSION.to_le_bytes());
    hasher.part(&files.config);
    hasher.tensors(&files.weights);
    if let Some((config, weights)) = &files.codec {
        hasher.part(config);
        hasher.tensors(weights);
    }
    hasher.0.finalize().to_vec()
}

/// Digest of one script: the prompt ids rather than the text, so that a better front end redoes only what it changes.
pub(super) fn of_script(model: &[u8], plan: &Plan, script: &Script) -> String {
    let mut hasher = Hasher::default();
    hasher.part(model);
    hasher.part(&script.seed.to_le_bytes());
    hasher.part(&script.sampling.temperature.to_bits().to_le_bytes());
    hasher.part(&(script.sampling.top_k as u64).to_le_bytes());
    hasher.part(&script.max_seconds.map_or(Vec::new(), |seconds| seconds.to_bits().to_le_bytes().to_vec()));
    for piece in plan.pieces() {
        hasher.part(&piece.prompt.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
        hasher.part(&(piece.max_new_tokens as u64).to_le_bytes());
    }
    let digest = hasher.0.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..DIGITS].to_owned()
}

/// SHA-256 over parts, each with its length before it, so that no two lists of parts read the same.
#[derive(Default)]
struct Hasher(Sha256);

impl Hasher {
    fn part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn tensors(&mut self, file: &TensorFile) {
        for (name, tensor) in file.tensors() {
            self.part(name.as_bytes());
            self.part(format!("{:?} {:?}", tensor.dtype, tensor.shape).as_bytes());
            self.part(&tensor.data);
        }
    }
}
