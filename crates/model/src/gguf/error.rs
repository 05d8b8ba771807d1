//! What can be wrong with a GGUF file. Each error says where, in which field, and what mends it.

use std::path::PathBuf;

/// Why a file, a key or a tensor could not be had.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("{}: {source}; give the path of a readable GGUF file", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file ends inside a field.
    #[error("byte {offset}, {field}: needs {needed} bytes and the file has {left} more; it is truncated or damaged, fetch it again")]
    Truncated {
        /// Where the field begins.
        offset: u64,
        /// Which field.
        field: String,
        /// Bytes the field takes.
        needed: u64,
        /// Bytes there are.
        left: u64,
    },
    /// A field holds what it must not.
    #[error("byte {offset}, {field}: {problem}; {mend}")]
    Invalid {
        /// Where the field begins.
        offset: u64,
        /// Which field.
        field: String,
        /// What is wrong.
        problem: String,
        /// What mends it.
        mend: &'static str,
    },
    /// A key or tensor that is asked for is not there.
    #[error("bytes {from} to {to}, {field}: not in the file; {mend}")]
    Missing {
        /// Begin of the section that was searched.
        from: u64,
        /// Its end.
        to: u64,
        /// What was asked for.
        field: String,
        /// What mends it.
        mend: &'static str,
    },
    /// A key has another type than what it is needed as.
    #[error("byte {offset}, {field}: is {found}, needed is {wanted}; convert the model again with a current converter")]
    WrongType {
        /// Where the value begins.
        offset: u64,
        /// Which key.
        field: String,
        /// Its type (and value where short).
        found: String,
        /// What it should be.
        wanted: &'static str,
    },
}

/// The mend for damage that no converter writes.
pub(super) const FETCH: &str = "the file is damaged, fetch it again";
/// The mend for what a converter did.
pub(super) const CONVERT: &str = "convert the model again with a current converter";
