//! How a store is opened: which database, with which key, and how long anything may take.
//!
//! Invariant: nothing is waited for without a limit that stands here.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Which store, and its limits.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// A path, or `sqlite:PATH`, is an SQLite file; `postgres://…` is a PostgreSQL database.
    pub url: String,
    /// A file with the 32 bytes of the key that content is encrypted with: as they are, in hexadecimal or in base64.
    pub key_file: Option<PathBuf>,
    /// How long an ended run is kept that does not say so itself.
    pub retention: Duration,
    /// Whether writes send wakes. Without them everything is found by looking, and later.
    pub notify: bool,
    /// Most connections to PostgreSQL, one of which listens; most readers of SQLite.
    pub connections: u32,
    /// How long one may take to come about.
    pub connect: Duration,
    /// How long one is waited for when all are in use.
    pub acquire: Duration,
    /// How long anything that is asked of the store may take altogether.
    pub operation: Duration,
    /// Wakes that are kept for a receiver that is behind; one that is further behind has to look at everything.
    pub wakes_max: usize,
    /// SQLite: how long the log may become before it is carried over into the file.
    pub log_bytes: u64,
    /// SQLite: how often its length is looked at.
    pub checkpoint: Duration,
}

impl StoreConfig {
    /// The defaults, for this URL.
    pub fn at(url: impl Into<String>) -> StoreConfig {
        StoreConfig {
            url: url.into(),
            key_file: None,
            retention: Duration::from_secs(30 * 24 * 3600),
            notify: true,
            connections: 8,
            connect: Duration::from_secs(5),
            acquire: Duration::from_secs(2),
            operation: Duration::from_secs(10),
            wakes_max: 1024,
            log_bytes: 16 << 20,
            checkpoint: Duration::from_secs(1),
        }
    }

    /// What the URL names, without a password.
    pub fn place(&self) -> String {
        match (self.url.split_once("://"), self.url.rsplit_once('@')) {
            // A parameter may hold a password, too.
            (Some((scheme, _)), Some((_, place))) => format!("{scheme}://{}", place.split('?').next().unwrap_or_default()),
            _ => self.url.split('?').next().unwrap_or_default().to_owned(),
        }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig").field("place", &self.place()).field("encrypted", &self.key_file.is_some()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for url in ["postgres://kvit:secret@db:5432/kvit", "postgres://db/kvit?user=kvit&password=secret"] {
            let shown = format!("{:?} {}", StoreConfig::at(url), StoreConfig::at(url).place());
            assert!(!shown.contains("secret") && shown.contains("postgres://db"), "{shown}");
        }
        assert_eq!(StoreConfig::at("sqlite:runs.db").place(), "sqlite:runs.db");
    }
}
