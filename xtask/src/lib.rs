//! What the developer commands share with the tests of other crates: how processes are run, what is found or installed, a PostgreSQL server, Prometheus.
//!
//! Invariant: whatever is started here ends with its owner, by process id.

pub mod packages;
pub mod postgres;
pub mod process;
pub mod prometheus;

use std::path::PathBuf;

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}
