//! What a worker answers to a question: one cut of its account and its runs, taken between two steps.
//!
//! Invariant: everything in it was true at the same moment.
// contract: C-15

use crate::{AttemptId, StepId};

/// One consistent cut of a worker: C-15's account and its runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// The newest step that was submitted.
    pub step: StepId,
    /// Positions a block.
    pub block_tokens: u32,
    /// Blocks in the pool.
    pub total: u32,
    /// Handed out to nobody, in no step, in no index.
    pub free: u32,
    /// With at least one owner.
    pub active: u32,
    /// Of `active`: those whose attempt no gateway claims.
    pub orphaned: u32,
    /// Held by the prefix index alone.
    pub cached: u32,
    /// Without an owner, waiting for a fence.
    pub draining: u32,
    /// Behind a fence that can never complete.
    pub quarantined: u32,
    /// Attempts waiting (tokenising, queued or preempted).
    pub queued: u32,
    /// Attempts computing.
    pub running: u32,
    /// Attempts ended and not yet released.
    pub stopping: u32,
    /// Releases refused because of an old generation.
    pub stale_releases: u64,
    /// Releases refused because the owner was not listed and is none of those that left last.
    pub foreign_releases: u64,
    /// Releases refused because the owner had left the block before.
    pub double_releases: u64,
    /// Why the device takes no more steps, if it does not: every attempt fails then.
    pub device_lost: Option<String>,
    /// Fence messages that named no open step.
    pub late_completions: u64,
    /// Bytes reserved for the pool.
    pub reserved_bytes: u64,
    /// Attempts remembered as cancelled before their submit.
    pub tombstones: u32,
    /// Lengths of the tables with an entry an attempt.
    pub held: Held,
    /// Live attempts and how they stand.
    pub attempts: Vec<AttemptCut>,
    /// Every block, where asked for.
    pub blocks: Vec<BlockCut>,
    /// Attempts that ended because no gateway claimed them, in this life of the worker.
    pub orphaned_attempts: u64,
    /// Times that an attempt was suspended.
    pub suspensions: u64,
    /// Messages of other lives, tenures or sessions, which changed nothing (C-3).
    pub stale_messages: u64,
}

impl Snapshot {
    /// Whether free + active + cached + draining + quarantined = total.
    // contract: C-15
    pub fn is_conserved(&self) -> bool {
        let sum = [self.free, self.active, self.cached, self.draining, self.quarantined];
        sum.iter().map(|x| u64::from(*x)).sum::<u64>() == u64::from(self.total)
    }
}

/// How much lies in a worker's tables for attempts and steps, each counted by its own length: with nothing alive all are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Attempts by number; each also has a name and an owner of its blocks.
    pub attempts: u32,
    /// Owners of blocks that the engine knows: one a sequence.
    pub owners: u32,
    /// Attempts in the order in which they wait.
    pub waiting: u32,
    /// Attempts that are scheduled.
    pub running: u32,
    /// Deadlines that are watched.
    pub deadlines: u32,
    /// Places on the device that are taken.
    pub slots: u32,
    /// Of so many: no table but the device's size.
    pub slots_total: u32,
    /// Steps in flight.
    pub steps: u32,
    /// Texts of answers in the making.
    pub answers: u32,
}

impl Held {
    /// What must be 0 when nothing is alive, by name.
    pub fn kinds(&self) -> [(&'static str, u32); 8] {
        [
            ("attempts", self.attempts),
            ("owners", self.owners),
            ("waiting", self.waiting),
            ("running", self.running),
            ("deadlines", self.deadlines),
            ("slots", self.slots),
            ("steps", self.steps),
            ("answers", self.answers),
        ]
    }
}

/// A live attempt in a cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttemptCut {
    /// Which attempt.
    pub attempt: AttemptId,
    /// The API's word for its state.
    pub state: &'static str,
    /// Blocks it holds now.
    pub blocks: u32,
}

/// A block in a cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockCut {
    /// Index in the pool.
    pub block: u32,
    /// Hand-out counter.
    pub generation: u64,
    /// `free`, `active`, `cached`, `draining` or `quarantined`.
    pub state: &'static str,
    /// Attempts that hold it.
    pub owners: Vec<AttemptId>,
    /// Newest step that may still touch it.
    pub fence: Option<StepId>,
}
