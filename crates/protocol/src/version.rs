//! Which version of `kvit.worker.v1` two sides speak: the highest that both know, or an error that names both lists.
//!
//! Invariant: nobody goes on without a common version, and nobody guesses one.

use std::fmt;

/// The newest version that this code speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// Every version that it speaks, ascending.
pub const VERSIONS: &[u32] = &[PROTOCOL_VERSION];

/// The two sides have no version in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoCommonVersion {
    /// What the gateway speaks, ascending.
    pub gateway: Vec<u32>,
    /// What the worker speaks, ascending.
    pub worker: Vec<u32>,
}

/// The highest version that is in both lists, whatever their order.
pub fn choose(gateway: &[u32], worker: &[u32]) -> Result<u32, NoCommonVersion> {
    let common = gateway.iter().filter(|version| worker.contains(version)).max();
    common.copied().ok_or_else(|| NoCommonVersion { gateway: sorted(gateway), worker: sorted(worker) })
}

/// Whether a gateway that listed `offered` may go on with the version that a worker states.
pub fn confirm(offered: &[u32], stated: u32) -> Result<u32, NoCommonVersion> {
    choose(offered, &[stated])
}

fn sorted(versions: &[u32]) -> Vec<u32> {
    let mut versions = versions.to_vec();
    versions.sort_unstable();
    versions.dedup();
    versions
}

impl fmt::Display for NoCommonVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |versions: &[u32]| {
            let words: Vec<String> = versions.iter().map(u32::to_string).collect();
            if words.is_empty() { "none".to_owned() } else { words.join(", ") }
        };
        let (gateway, worker) = (list(&self.gateway), list(&self.worker));
        write!(f, "no common protocol version: the gateway speaks {gateway}; the worker speaks {worker}")
    }
}

impl std::error::Error for NoCommonVersion {}
