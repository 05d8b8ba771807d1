//! Identities. They match whole or not at all; none is a prefix match, none is reused.
// contract: C-1

use std::fmt;
use std::sync::Arc;

/// Longest run id in bytes that a caller may give.
pub const RUN_ID_MAX_LEN: usize = 128;
/// Longest tenant name in bytes.
pub const TENANT_MAX_LEN: usize = 64;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text has no characters.
    #[error("is empty")]
    Empty,
    /// The text is longer than the limit.
    #[error("has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// `.` and `..` mean something else in a URL's path.
    #[error("is made of dots alone, which a URL's path cannot name")]
    Dots,
    /// A character outside `A-Z a-z 0-9 . _ : ~ -`.
    #[error("has {found:?} at byte {at}; only A-Z a-z 0-9 . _ : ~ - are allowed")]
    Character {
        /// The character found.
        found: char,
        /// Its byte offset.
        at: usize,
    },
}

fn check(text: &str, max: usize) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty);
    }
    if text.len() > max {
        return Err(IdError::TooLong { len: text.len(), max });
    }
    if text == "." || text == ".." {
        return Err(IdError::Dots);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._:~-".contains(c);
    match text.char_indices().find(|(_, c)| !allowed(*c)) {
        Some((at, found)) => Err(IdError::Character { found, at }),
        None => Ok(()),
    }
}

/// A run's id, from the caller or from the gateway. Unique within its tenant.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunId(Arc<str>);

impl RunId {
    /// Checks a text that a caller gave.
    pub fn parse(text: &str) -> Result<RunId, IdError> {
        check(text, RUN_ID_MAX_LEN)?;
        Ok(RunId(text.into()))
    }

    /// The id for the `k`-th run (from 2) that asked for this id: `ID~k`, the front cut so that it stays within the limit.
    pub fn taken(&self, k: u32) -> RunId {
        let tail = format!("~{k}");
        let keep = self.0.len().min(RUN_ID_MAX_LEN - tail.len());
        RunId(format!("{}{tail}", &self.0[..keep]).into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A name space for ids and prefixes: whoever's runs these are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// Checks a tenant's name.
    pub fn parse(text: &str) -> Result<Tenant, IdError> {
        check(text, TENANT_MAX_LEN)?;
        Ok(Tenant(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Tenant("default".into())
    }
}

/// A run's full identity: tenant and id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// Whose run it is.
    pub tenant: Tenant,
    /// The id within that tenant.
    pub run: RunId,
}

/// One execution of a run on one worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The run.
    pub key: RunKey,
    /// Counted from 1.
    pub attempt: u32,
}

/// One life of a process; a fresh 128-bit value at every start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u128);

/// A step of an engine, counted from 1; a fence names a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StepId(pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl fmt::Debug for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.tenant, self.run)
    }
}
impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.key.run, self.attempt)
    }
}
impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}/{}", self.key, self.attempt)
    }
}
impl fmt::Display for Incarnation {
    /// As a UUID: 8-4-4-4-12 lower-case hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            v >> 96,
            (v >> 80) & 0xffff,
            (v >> 64) & 0xffff,
            (v >> 48) & 0xffff,
            v & 0xffff_ffff_ffff
        )
    }
}
impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Debug for StepId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
