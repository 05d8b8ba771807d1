//! A PostgreSQL server for the tests: one that is named, or a fresh one on loopback that is gone afterwards.
//!
//! Invariant: a server that is named is never stopped.

mod own;
mod programs;

pub use own::{Own, Stop};
pub use programs::found;

use anyhow::Context;

use crate::process::command;

/// The tests find their server by this; one that is named already is used, and none is started.
pub const VARIABLE: &str = "KVIT_TEST_POSTGRES";

/// A server that runs, or one that somebody else runs.
pub struct Postgres {
    /// How a client reaches it.
    pub url: String,
    /// Ends with this.
    _own: Option<Own>,
}

/// The server that is named.
#[must_use]
pub fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|url| !url.is_empty())
}

impl Postgres {
    /// The server that is named, or one of our own.
    ///
    /// # Errors
    /// It is not installed and cannot be, or does not start.
    pub fn start() -> anyhow::Result<Postgres> {
        if let Some(url) = named() {
            return Ok(Postgres { url, _own: None });
        }
        let own = fresh()?;
        eprintln!("xtask: PostgreSQL at {}", own.url());
        Ok(Postgres { url: own.url(), _own: Some(own) })
    }
}

/// One of our own, whatever is named; installed if it must be.
///
/// # Errors
/// It is not installed and cannot be, or does not start.
pub fn fresh() -> anyhow::Result<Own> {
    programs::install()?;
    Own::start()
}

/// Runs a command with a server in its environment.
///
/// # Errors
/// No server, or the command fails.
pub fn with(words: &[&str]) -> anyhow::Result<()> {
    let (program, args) = words.split_first().context("a command is missing")?;
    let postgres = Postgres::start()?;
    crate::process::run(command(program).args(args).env(VARIABLE, &postgres.url))
}
