//! The account of C-15, and the two ways to check it: by its sum at any moment, and by recomputing everything when there is time.
// contract: C-15

use std::collections::HashSet;

use crate::block::{BlockId, Generation, Owner};
use crate::pool::Pool;
use lifecycle::StepId;

/// Where a block stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BlockState {
    /// Nobody's, in no step, in no index.
    Free,
    /// It has an owner.
    Active,
    /// Without an owner; its fence is open.
    Draining,
    /// Without an owner or an open fence; the prefix index holds it.
    Cached,
    /// Its fence can never complete.
    Quarantined,
}

impl BlockState {
    /// The contract's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            BlockState::Free => "free",
            BlockState::Active => "active",
            BlockState::Draining => "draining",
            BlockState::Cached => "cached",
            BlockState::Quarantined => "quarantined",
        }
    }
}

/// One consistent cut of the pool. The five states add up to `total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Blocks in the pool.
    pub total: u32,
    /// See [`BlockState::Free`].
    pub free: u32,
    /// See [`BlockState::Active`].
    pub active: u32,
    /// See [`BlockState::Cached`].
    pub cached: u32,
    /// See [`BlockState::Draining`].
    pub draining: u32,
    /// See [`BlockState::Quarantined`].
    pub quarantined: u32,
    /// Releases refused because they named an old generation.
    pub stale_releases: u64,
    /// Releases refused because the owner was not listed: foreign, or a second time.
    pub foreign_releases: u64,
    /// Fence messages that named no open step.
    pub late_completions: u64,
}

/// The account or the pool's inner links are wrong. Never expected: handing out another block could give somebody wrong tokens.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Defect(pub(crate) String);

/// A block as a cut shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// Its index.
    pub block: BlockId,
    /// Its hand-out counter; 0 if it was never handed out.
    pub generation: Generation,
    /// Where it stands.
    pub state: BlockState,
    /// Who owns it.
    pub owners: Vec<Owner>,
    /// The newest step that may still touch it, if that is not over.
    pub fence: Option<StepId>,
}

impl Pool {
    /// Whether the account adds up. O(1).
    pub fn check(&self) -> Result<(), Defect> {
        let a = &self.account;
        let sum = u64::from(a.free) + u64::from(a.active) + u64::from(a.cached) + u64::from(a.draining) + u64::from(a.quarantined);
        let lists = self.free.len() == a.free as usize && self.lru.len() == a.cached;
        match sum == u64::from(a.total) && lists {
            true => Ok(()),
            false => Err(Defect(format!("free + active + cached + draining + quarantined is {sum}, the pool has {} ({a:?})", a.total))),
        }
    }

    /// Derives every block's state from its owners, fence and place in the index, and compares all that is kept beside it. O(pool).
    pub fn audit(&self) -> Result<(), Defect> {
        self.check()?;
        let (ready, claims, idle_ghosts) = self.index.census();
        let free: HashSet<u32> = self.free.iter().map(|b| b.0).collect();
        let cached: HashSet<u32> = self.lru.iter().map(|b| b.0).collect();
        let mut counted = Account { total: self.account.total, ..Account::default() };
        for (i, b) in self.blocks.iter().enumerate() {
            let id = BlockId(i as u32);
            let state = match () {
                () if !b.owners.is_empty() => BlockState::Active,
                () if b.poisoned => BlockState::Quarantined,
                () if b.fence.is_some_and(|f| f > self.closed) => BlockState::Draining,
                () if b.node.is_some() => BlockState::Cached,
                () => BlockState::Free,
            };
            let distinct: HashSet<&Owner> = b.owners.iter().collect();
            let wrong = match () {
                () if state != b.state => "its state does not follow from what it is",
                () if distinct.len() != b.owners.len() => "an owner is listed twice",
                () if free.contains(&id.0) != (state == BlockState::Free) => "the free list disagrees",
                () if cached.contains(&id.0) != (state == BlockState::Cached) => "the list of cached blocks disagrees",
                () if b.node != ready.get(&id).copied() => "the prefix index disagrees",
                () => "",
            };
            if !wrong.is_empty() {
                return Err(Defect(format!("block {i}: {wrong} ({state:?}, {b:?})")));
            }
            *counted.slot(state) += 1;
        }
        let a = self.account;
        let same = (counted.free, counted.active, counted.cached, counted.draining, counted.quarantined)
            == (a.free, a.active, a.cached, a.draining, a.quarantined);
        match () {
            () if !same => Err(Defect(format!("counted {counted:?}, the account says {a:?}"))),
            () if claims != self.index.claims_open() => Err(Defect(format!("{claims} claims, {} counted", self.index.claims_open()))),
            () if idle_ghosts > 0 => Err(Defect(format!("{idle_ghosts} nodes of the index hold nothing"))),
            () => Ok(()),
        }
    }
}

impl Account {
    pub(crate) fn slot(&mut self, state: BlockState) -> &mut u32 {
        match state {
            BlockState::Free => &mut self.free,
            BlockState::Active => &mut self.active,
            BlockState::Draining => &mut self.draining,
            BlockState::Cached => &mut self.cached,
            BlockState::Quarantined => &mut self.quarantined,
        }
    }
}
