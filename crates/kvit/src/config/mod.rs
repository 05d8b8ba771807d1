//! What `kvit serve`, `kvit worker` and `kvit gateway` can be told: one list of options, each with its default and its sentence, read from flags
//! over environment over TOML.
//!
//! An option has one name. `kv_blocks` is `--kv-blocks` on the command line, `KVIT_KV_BLOCKS` in the environment and `kv_blocks` in the
//! file, and docs/config.md is printed from the same list (`kvit config`), so none can be forgotten in one place.
//!
//! Invariant: a name that is not in the list is an error that says where it stands and what was probably meant; nothing is ignored.

mod check;
mod commands;
mod docs;
mod env;
mod file;
mod keys;
mod options;
mod otlp;
mod told;
mod upstreams;
mod value;
mod webhooks;

pub use commands::{Flags, GATEWAY, SERVE, WORKER};
pub use docs::{json, markdown};
pub use env::refuse_unknown;
pub use keys::table as key_table;
pub use options::{OPTIONS, ServeConfig, ServeFlags};
pub use value::{Isa, LogLevel, StorePlace};

use std::ffi::OsString;
use std::path::Path;

/// Names in the environment that are no option of `serve`, with their sentences.
pub const OTHER_VARIABLES: &[(&str, &str)] = &[
    ("KVIT_CONFIG", "The configuration file, where `--config FILE` does not name one."),
    (
        "KVIT_CACHE",
        "The cache folder, where `--cache DIR` does not name one. Without either: `$XDG_CACHE_HOME/kvit`, else `~/.cache/kvit`.",
    ),
    (
        "KVIT_API_KEY",
        "The key that `trace`, `top`, `kv`, `runs`, `alerts`, `waste`, `diagnose` and `soak` show to a server that has keys. It is no flag, for everybody on the machine sees flags.",
    ),
    (
        "KVIT_SERVER",
        "The server that `trace`, `top`, `kv`, `runs`, `alerts`, `waste`, `diagnose` and `soak` ask, where `--server URL` does not name one.",
    ),
];

/// Everything that is wrong with a configuration is one of these; each says where it stands.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A name in the file or the environment is no option.
    #[error("{place}: unknown {what} `{name}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    Unknown {
        /// File and line, or the environment.
        place: String,
        /// `key`, `variable` or `field of [[key]]`.
        what: &'static str,
        /// The name as written.
        name: String,
        /// The known name that is written most alike, if any is.
        nearest: Option<String>,
    },
    /// A value is not of its option's kind.
    #[error("{place}: {name}: {why}")]
    Value {
        /// File and line, or the environment.
        place: String,
        /// The option's name.
        name: String,
        /// What is wrong with the value.
        why: String,
    },
    /// Two values do not go together, or one is out of range.
    #[error("{name} {why}")]
    Range {
        /// The option's name.
        name: &'static str,
        /// What it would have to be.
        why: String,
    },
    /// The file is no TOML.
    #[error("{place}: {why}")]
    Syntax {
        /// File and line.
        place: String,
        /// What the parser says.
        why: String,
    },
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Reads all three sources and lays them over one another: flags over environment over file over what OpenTelemetry's variables say over defaults.
///
/// # Errors
/// The first thing that is wrong, file before environment.
pub fn load(flags: ServeFlags, env: &[(OsString, OsString)], file: Option<&Path>) -> Result<ServeConfig, ConfigError> {
    let from_file = match file {
        Some(path) => file::read(path)?,
        None => file::File::default(),
    };
    let from_env = env::read(env)?;
    let mut flags = flags.or(from_env).or(from_file.flags);
    let otlp_headers = otlp::standard(&mut flags, env)?;
    let mut config = flags.fill();
    config.otlp_headers = otlp_headers;
    config.keys = from_file.keys;
    config.webhooks = from_file.webhooks;
    config.check()?;
    Ok(config)
}

/// The known name written most like `name`, if one is alike enough to be what was meant.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<String> {
    known
        .map(|k| (strsim::jaro_winkler(name, k), k))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, k)| k.to_owned())
}

#[cfg(test)]
mod tests;
