//! The error vocabulary of the crate.
//!
//! Every message is one line that says where, what, what was expected, what was found and, where there is something to
//! do about it, what to do next. Lower case, no full stop, the cause kept.

use std::path::{Path, PathBuf};

/// Result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong, by who can mend it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as a verb with its object: `open`, `write the index`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A file's content breaks its contract: a header, a tensor, a configuration field.
    #[error("{place}: {item}: expected {expected}, found {found}{}", next_step(hint))]
    Invalid {
        /// The file, as the user knows it.
        place: String,
        /// The tensor, field or part of the file.
        item: String,
        /// What the contract asks for.
        expected: String,
        /// What the file has.
        found: String,
        /// What the user can do, if anything is known to help.
        hint: Option<String>,
    },
    /// An operand of an operation has the wrong size; a mistake of the caller inside this program.
    #[error("{operation}: {operand}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// The operand.
        operand: &'static str,
        /// The size the operation needs.
        expected: String,
        /// The size it was given.
        found: String,
    },
    /// A request that cannot be carried out as written.
    #[error("{parameter}: {message}")]
    Input {
        /// Name of the option or request field at fault.
        parameter: &'static str,
        /// What is wrong with it and what is accepted.
        message: String,
    },
    /// A server did not deliver.
    #[error("{what}: {reason}{}", next_step(hint))]
    Network {
        /// The repository and file that were asked for.
        what: String,
        /// The status or transport failure.
        reason: String,
        /// What the user can do.
        hint: Option<String>,
    },
    /// A GPU or its driver failed.
    #[error("{device}: cannot {action}: {reason}")]
    Device {
        /// The device as the user knows it: `cuda:0 (NVIDIA L4)`.
        device: String,
        /// What was tried, as a verb with its object: `launch the layer kernels`.
        action: &'static str,
        /// The driver's answer.
        reason: String,
    },
    /// Something this program does not do on this machine or with this file.
    #[error("{what}: not supported: {why}")]
    Unsupported {
        /// The thing asked for.
        what: String,
        /// The reason, and what is supported.
        why: String,
    },
}

fn next_step(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default()
}

impl Error {
    /// Wraps an I/O failure with what was tried and where. For use in `map_err`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { action, path, source }
    }

    /// A broken contract, without advice.
    pub fn invalid(place: impl ToString, item: impl ToString, expected: impl ToString, found: impl ToString) -> Error {
        Error::Invalid {
            place: place.to_string(),
            item: item.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
            hint: None,
        }
    }

    /// A request field that cannot be accepted.
    pub fn input(parameter: &'static str, message: impl ToString) -> Error {
        Error::Input { parameter, message: message.to_string() }
    }

    /// Adds what the user can do next, where the kind of error has room for it.
    pub fn with_hint(mut self, advice: impl ToString) -> Error {
        if let Error::Invalid { hint, .. } | Error::Network { hint, .. } = &mut self {
            *hint = Some(advice.to_string());
        }
        self
    }
}
