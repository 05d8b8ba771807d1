//! What one look at a server saw: its workers' accounts, the runs whose callers are gone, and what the process holds.
//!
//! It is written to a file and read back by another release, so every field has a default and none is renamed.
//!
//! Invariant: no text of a prompt or an answer; lists are bounded, and what they leave out is counted.
// contract: C-15 C-24

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::account::AccountLook;

/// One look.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Look {
    /// Always `look`.
    pub object: String,
    /// When, in milliseconds of the calendar.
    pub at_ms: u64,
    /// The server's version and its life.
    pub version: String,
    /// The life of its process.
    pub incarnation: String,
    /// How long a cancel may be on its way, and a fence be waited for, before that says something: `alert_unacknowledged_ms`.
    pub patience_ms: u64,
    /// How long an orphan may be unreaped: `alert_orphaned_ms`.
    pub orphaned_ms: u64,
    /// The workers.
    pub workers: Vec<WorkerLook>,
    /// Runs by state, without those that have ended.
    pub runs: BTreeMap<String, u64>,
    /// Runs that nobody wants any more and of which something is held, those that wait longest first.
    pub left: Vec<LeftRun>,
    /// How many there are of them, those included that are not named: a look names 64.
    pub left_total: u64,
    /// How long the oldest orphan waits; 0 if there is none.
    pub orphans_oldest_ms: u64,
    /// Things that must not happen and did, within the last window.
    pub defects: u64,
    /// Tokens generated since the process began.
    pub tokens_generated: u64,
    /// Runs that were settled with no more than the best effort, since the process began: nobody knows whether they stopped.
    pub unproven: u64,
    /// What the process holds; `None` where the system does not say.
    pub process: Option<ProcessLook>,
    /// Whether the pool is in that process.
    pub has_pool: bool,
}

/// A worker.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerLook {
    /// What it is called.
    pub name: String,
    /// Its life.
    pub life: Option<String>,
    /// How it stands with the gateway: `here`, `silent`, `refused`, `lost`, ...
    pub presence: String,
    /// An engine that others wrote: it has no account that could be asked for.
    pub forwards: bool,
    /// Runs that it was given and that are not over.
    pub runs: u32,
    /// Most of them at once, where the gateway keeps further ones back.
    pub slots: Option<u32>,
    /// Its account; `None` if it did not answer.
    pub account: Option<AccountLook>,
}

/// A run that nobody wants any more and of which something is held.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LeftRun {
    /// Whose it is.
    pub tenant: String,
    /// Its id.
    pub run: String,
    /// Its state.
    pub state: String,
    /// Why nobody wants it.
    pub cause: String,
    /// The worker that has it, where that is known.
    pub worker: Option<String>,
    /// How long nobody has wanted it.
    pub left_ms: u64,
    /// The boundary that the word of it has come to and not crossed.
    pub boundary: String,
    /// How long it has been there.
    pub waits_ms: u64,
    /// Whether the engine has ended it, so that only a fence is waited for.
    pub ended: bool,
    /// Tokens generated since nobody wants it.
    pub tokens_after: u64,
    /// Blocks that it holds, as far as its records say.
    pub blocks: u32,
}

/// What the system says of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessLook {
    /// Memory in RAM, in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Threads.
    pub threads: u64,
}

impl Look {
    /// Runs that live.
    pub(crate) fn live(&self) -> u64 {
        self.runs.values().sum()
    }

    /// Blocks that attempts hold, or that wait for a fence, of every worker that answered.
    pub(crate) fn held(&self) -> u64 {
        self.workers.iter().filter_map(|w| w.account.as_ref()).map(AccountLook::held).sum()
    }
}
