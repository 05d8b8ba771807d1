//! How a command can fail, and the exit code that says so.

use std::fmt;
use std::process::ExitCode;

use crate::config::ConfigError;

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The command line or the configuration is wrong: exit code 2.
    Usage(String),
    /// What was asked for is not there: exit code 3.
    NotFound(String),
    /// Nobody answers at the server's address: exit code 4.
    Unreachable(String),
    /// A second signal cut the drain short: exit code 128 and the signal's number, 130 or 143.
    CutShort {
        /// The exit code.
        code: u8,
        /// What was left undone, if anything was.
        left: Option<String>,
    },
    /// Anything else: exit code 1.
    Other(anyhow::Error),
}

impl Failure {
    /// The process's exit code.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Other(_) => 1,
            Failure::Usage(_) => 2,
            Failure::NotFound(_) => 3,
            Failure::Unreachable(_) => 4,
            Failure::CutShort { code, .. } => *code,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::NotFound(text) | Failure::Unreachable(text) => f.write_str(text),
            Failure::CutShort { left: None, .. } => f.write_str("a second signal cut the drain short; every run was told and settled"),
            Failure::CutShort { left: Some(left), .. } => write!(f, "a second signal cut the drain short: {left}"),
            Failure::Other(error) => write!(f, "{error:#}"),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Read { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => Failure::NotFound(error.to_string()),
            other => Failure::Usage(other.to_string()),
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure::Other(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::Other(error.into())
    }
}
