//! A worker's account as a look keeps it: the sums, who owns what by the pool and by the attempts themselves, and what waits for which fence.
//!
//! Invariant: all of it is of one cut, so what does not agree in it never did.
// contract: C-15 C-16

use std::collections::BTreeMap;

use lifecycle::AttemptId;
use lifecycle::message::{BlockCut, Snapshot};
use serde::{Deserialize, Serialize};

use crate::accounts::unowned;

/// Most attempts, and most fences, that a look names.
const NAMED_MAX: usize = 64;

/// A worker's account.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AccountLook {
    /// The newest step that was submitted, and how many are not done.
    pub step: u64,
    /// Steps in flight.
    pub steps_in_flight: u32,
    /// Blocks in the pool.
    pub total: u32,
    /// Handed out to nobody.
    pub free: u32,
    /// With an owner.
    pub active: u32,
    /// Of them, those whose attempt no gateway claims.
    pub orphaned: u32,
    /// Kept for the next prompt, and given away when needed.
    pub cached: u32,
    /// Without an owner, waiting for a fence.
    pub draining: u32,
    /// Behind a fence that can never complete.
    pub quarantined: u32,
    /// Whether they add up.
    pub conserved: bool,
    /// Positions a block.
    pub block_tokens: u32,
    /// Bytes reserved for the pool.
    pub reserved_bytes: u64,
    /// Attempts that wait, compute, and have ended without being released.
    pub queued: u32,
    /// Attempts that are computed.
    pub running: u32,
    /// Attempts that have ended and are not released.
    pub stopping: u32,
    /// Sequences that can run at once, and of those the taken places.
    pub slots_total: u32,
    /// Places that are taken.
    pub slots: u32,
    /// Entries in the worker's tables that belong to no attempt, where there is none.
    pub forsaken: u32,
    /// Active blocks that no live attempt owns, one that has ended being none. `None` if that cannot be said of this worker.
    pub unowned: Option<u64>,
    /// Blocks that attempts say they hold and of which the pool does not know them for an owner. `None` where the blocks were not asked for.
    pub disputed: Option<u64>,
    /// Blocks that were handed out at least once. `None` where the blocks were not asked for.
    pub touched: Option<u64>,
    /// Releases that changed nothing.
    pub refused_releases: u64,
    /// Fence messages that named no open step.
    pub late_completions: u64,
    /// Why the device takes no more steps, if it does not.
    pub device_lost: Option<String>,
    /// Live attempts, as many as are named.
    pub attempts: Vec<AttemptLook>,
    /// What drains, by the fence that it waits for, as many as are named. Empty where the blocks were not asked for.
    pub fences: Vec<FenceLook>,
}

/// A live attempt on a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptLook {
    /// Whose it is.
    pub tenant: String,
    /// Its run.
    pub run: String,
    /// Which attempt of it.
    pub attempt: u32,
    /// Its state.
    pub state: String,
    /// Blocks that it says it holds.
    pub blocks: u32,
}

/// Blocks that wait for one fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FenceLook {
    /// The step.
    pub step: u64,
    /// How many.
    pub blocks: u32,
}

impl AccountLook {
    /// Of a worker's cut.
    pub fn of(cut: &Snapshot) -> AccountLook {
        let by_blocks = (!cut.blocks.is_empty()).then(|| ByBlocks::of(cut));
        let held = &cut.held;
        let forsaken = if cut.attempts.is_empty() && cut.queued + cut.running + cut.stopping == 0 {
            held.attempts + held.owners + held.waiting + held.running + held.deadlines + held.slots
        } else {
            0
        };
        AccountLook {
            step: cut.step.0,
            steps_in_flight: held.steps,
            total: cut.total,
            free: cut.free,
            active: cut.active,
            orphaned: cut.orphaned,
            cached: cut.cached,
            draining: cut.draining,
            quarantined: cut.quarantined,
            conserved: cut.is_conserved(),
            block_tokens: cut.block_tokens,
            reserved_bytes: cut.reserved_bytes,
            queued: cut.queued,
            running: cut.running,
            stopping: cut.stopping,
            slots_total: held.slots_total,
            slots: held.slots,
            forsaken,
            unowned: by_blocks.as_ref().map_or_else(|| unowned(cut), |by| by.unowned),
            disputed: by_blocks.as_ref().and_then(|by| by.disputed),
            touched: by_blocks.as_ref().map(|by| by.touched),
            refused_releases: cut.stale_releases + cut.foreign_releases + cut.double_releases,
            late_completions: cut.late_completions,
            device_lost: cut.device_lost.clone(),
            attempts: cut.attempts.iter().take(NAMED_MAX).map(AttemptLook::of).collect(),
            fences: by_blocks.map_or_else(Vec::new, |by| by.fences),
        }
    }

    /// Blocks that attempts hold, or that wait for a fence.
    pub(crate) fn held(&self) -> u64 {
        u64::from(self.active) + u64::from(self.draining)
    }

    /// Blocks that a run can be given.
    pub(crate) fn available(&self) -> u64 {
        u64::from(self.free) + u64::from(self.cached)
    }

    /// Attempts that wait or compute.
    pub(crate) fn live(&self) -> u64 {
        u64::from(self.queued) + u64::from(self.running)
    }

    /// Bytes a block.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.reserved_bytes.checked_div(u64::from(self.total)).unwrap_or(0)
    }
}

impl AttemptLook {
    fn of(cut: &lifecycle::message::AttemptCut) -> AttemptLook {
        let key = &cut.attempt.key;
        AttemptLook {
            tenant: key.tenant.as_str().to_owned(),
            run: key.run.as_str().to_owned(),
            attempt: cut.attempt.attempt,
            state: cut.state.to_owned(),
            blocks: cut.blocks,
        }
    }
}

/// What the blocks themselves say.
struct ByBlocks {
    unowned: Option<u64>,
    disputed: Option<u64>,
    touched: u64,
    fences: Vec<FenceLook>,
}

impl ByBlocks {
    fn of(cut: &Snapshot) -> ByBlocks {
        // What has ended owns nothing any more: its blocks are free, cached or behind a fence.
        let mut listed: BTreeMap<&AttemptId, (u64, bool)> = cut.attempts.iter().map(|a| (&a.attempt, (0, a.state != "stopping"))).collect();
        // A worker of another make need not name its attempts: then nobody can say whose a block is.
        let names_all = cut.attempts.len() as u64 == u64::from(cut.queued) + u64::from(cut.running) + u64::from(cut.stopping);
        let (mut unowned, mut fences) = (0, BTreeMap::new());
        for block in &cut.blocks {
            let mut lives = false;
            for owner in &block.owners {
                if let Some((n, is_live)) = listed.get_mut(owner) {
                    *n += 1;
                    lives |= *is_live;
                }
            }
            unowned += u64::from(block.state == "active" && !lives);
            if let ("draining", Some(fence)) = (block.state, block.fence) {
                *fences.entry(fence.0).or_insert(0_u32) += 1;
            }
        }
        let missing = |held: u32, id| u64::from(held).saturating_sub(listed.get(id).map_or(0, |(n, _)| *n));
        let disputed = cut.attempts.iter().map(|a| missing(a.blocks, &a.attempt)).sum();
        ByBlocks {
            unowned: names_all.then_some(unowned),
            disputed: names_all.then_some(disputed),
            touched: cut.blocks.iter().filter(|block: &&BlockCut| block.generation > 0).count() as u64,
            fences: fences.into_iter().take(NAMED_MAX).map(|(step, blocks)| FenceLook { step, blocks }).collect(),
        }
    }
}
