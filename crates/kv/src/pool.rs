//! The pool: hands blocks out, takes owners off them, and lets them go when their fences complete.
//!
//! Every transition changes a block's facts and then calls `settle`, which alone moves blocks between lists and counts them. Every operation
//! is O(1), amortised, whatever the pool's size: lists are threaded through the blocks, a completed fence touches only the blocks that
//! waited for it, and a node that leaves the index with its parent was put there by one `begin`. A test counts it (`scale.rs`).
//!
//! **Which cached block goes first.** Two lists, each in the order of last use: *leaves* (no node below) and *inner* (some node below). The
//! victim is the oldest leaf; an inner block only when there is no leaf, that is, when all below it is in use, and then what was below leaves
//! the index with it, for nothing could reach it any more. An inner block that loses its last child takes the child's place at the front of
//! the leaves, so that a chain goes from its end to its beginning, in whatever order it was retired. If it was used after the oldest leaf
//! (a shared beginning), it goes to the back instead: such a block may stay longer than its turn, never shorter.
//!
//! Invariant: a block is handed out only when it has no owner, no open fence and is not condemned.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;

use lifecycle::{Rules, Sound, StepId};

use crate::fence::{Fences, Standing};
use crate::items::Items;
use crate::list::{Link, List};
use crate::prefix::Index;
use crate::slot::{Place, Slot};
use crate::{BlockId, Exhausted, Generation, Lease, NodeId, Owner, Refused, Retired};

/// All blocks of one worker. A copy is a world of its own: see [`Lease::fork`].
#[derive(Clone, Debug)]
pub struct Pool<R: Rules = Sound> {
    pub(crate) slots: Items<Slot>,
    pub(crate) links: Items<Link>,
    pub(crate) free: List,
    pub(crate) leaves: List,
    pub(crate) inner: List,
    pub(crate) fences: Fences,
    pub(crate) index: Index,
    pub(crate) owned: HashMap<Owner, u32>,
    pub(crate) uses: u64,
    pub(crate) counts: Counts,
    pub(crate) block_tokens: u32,
    pub(crate) rules: PhantomData<R>,
}

/// What is counted as it happens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) active: u32,
    pub(crate) draining: u32,
    pub(crate) quarantined: u32,
    pub(crate) stale_releases: u64,
    pub(crate) foreign_releases: u64,
    pub(crate) double_releases: u64,
    pub(crate) late_completions: u64,
}

impl Pool {
    /// A pool of `blocks_total` free blocks of `block_tokens` token positions each (at least 1).
    pub fn new(blocks_total: u32, block_tokens: u32) -> Pool {
        Pool::with_rules(blocks_total, block_tokens)
    }
}

impl<R: Rules> Pool<R> {
    /// The same with other rules than the sound ones; for `sim`'s museum.
    pub fn with_rules(blocks_total: u32, block_tokens: u32) -> Pool<R> {
        let block_tokens = block_tokens.max(1);
        let mut pool = Pool {
            slots: Items::new(vec![Slot::new(); blocks_total as usize]),
            links: Items::new(vec![Link::OUT; blocks_total as usize]),
            free: List::EMPTY,
            leaves: List::EMPTY,
            inner: List::EMPTY,
            fences: Fences::default(),
            // A node that is being computed needs a block, so there is no use for more of them than blocks.
            index: Index::new(blocks_total, block_tokens),
            owned: HashMap::new(),
            uses: 0,
            counts: Counts::default(),
            block_tokens,
            rules: PhantomData,
        };
        (0..blocks_total).for_each(|i| pool.free.push_back(&mut pool.links, i));
        pool
    }

    /// Blocks in the pool.
    pub fn total(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Token positions in a block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks that can be handed out now: free and cached. Draining blocks are not capacity.
    pub fn available(&self) -> u32 {
        self.free.len() + self.leaves.len() + self.inner.len()
    }

    /// Blocks that admission may give away: those that are available, and no others.
    // contract: C-16
    pub fn capacity(&self) -> u32 {
        R::capacity(self.available(), self.counts.draining)
    }

    /// Whether a block has owners and all of them are among these. As costly as the block has owners.
    pub fn is_owned_within(&self, block: BlockId, among: &HashSet<Owner>) -> bool {
        self.slots.get(block.0 as usize).is_some_and(|slot| slot.owners.len() > 0 && slot.owners.are_within(among))
    }

    /// In how many blocks this owner is listed. 0 once everything of it is retired; anything else then is a dropped lease.
    pub fn owned_by(&self, owner: Owner) -> u32 {
        self.owned.get(&owner).copied().unwrap_or(0)
    }

    /// Hands out one block, as a new generation with this one owner: a free one, else the cached one that its index misses least.
    ///
    /// # Errors
    /// [`Exhausted`] where none is free or cached; nothing changes.
    // contract: C-16
    pub fn allocate(&mut self, owner: Owner) -> Result<Lease, Exhausted> {
        if self.free.len() == 0
            && let Some(victim) = self.leaves.front().or(self.inner.front())
            && let Some(node) = self.slots[victim as usize].node
        {
            self.unindex(node);
        }
        let Some(i) = self.free.front() else {
            let oldest = self.fences.waiting.keys().next().copied();
            return Err(Exhausted { draining: self.counts.draining, oldest: oldest.filter(|_| self.counts.draining > 0) });
        };
        let slot = &mut self.slots[i as usize];
        slot.generation.0 += 1;
        slot.former = Default::default();
        self.own(i, owner);
        Ok(Lease::new(BlockId(i), self.slots[i as usize].generation, owner))
    }

    /// Takes a lease back: its owner, and no other, leaves the block. `fence` is the newest step that may still touch the block through this
    /// owner; `None`, or one that has completed, holds nothing back. A step that was lost condemns the block.
    ///
    /// A block's fence is the newest of all its owners'.
    // contract: C-16, C-18
    pub fn retire(&mut self, lease: Lease, fence: Option<StepId>) -> Retired {
        self.release(lease.block(), lease.generation(), lease.owner(), fence).unwrap_or_else(Retired::Refused)
    }

    /// The same by name, for messages.
    ///
    /// # Errors
    /// [`Refused`] where the name is not a standing ownership; it is counted and nothing else changes.
    // contract: C-17
    pub fn release(&mut self, block: BlockId, generation: Generation, owner: Owner, fence: Option<StepId>) -> Result<Retired, Refused> {
        self.standing(block, generation, owner).inspect_err(|refused| self.count(refused))?;
        let i = block.0;
        if let Some(step) = R::fence_of_block(fence) {
            match self.fences.standing(step) {
                Standing::Completed => {}
                Standing::Lost => self.condemn(i),
                Standing::Open => self.raise_fence(i, step),
            }
        }
        Ok(self.disown(i, owner))
    }

    /// Whether a name is a standing ownership; why not, else.
    pub(crate) fn standing(&self, block: BlockId, generation: Generation, owner: Owner) -> Result<(), Refused> {
        let slot = self.slots.get(block.0 as usize).ok_or(Refused::UnknownBlock)?;
        if slot.generation != generation {
            Err(Refused::Stale { current: slot.generation })
        } else if slot.owners.contains(owner) {
            Ok(())
        } else if slot.former.contains(owner) {
            Err(Refused::Double)
        } else {
            Err(Refused::Foreign)
        }
    }

    pub(crate) fn count(&mut self, refused: &Refused) {
        match refused {
            Refused::UnknownBlock | Refused::Stale { .. } => self.counts.stale_releases += 1,
            Refused::Foreign => self.counts.foreign_releases += 1,
            Refused::Double => self.counts.double_releases += 1,
        }
    }

    /// A step is done, and with it all before it: what waited for them is draining no more. How many blocks that were.
    ///
    /// The completion of a step that has completed or was lost changes nothing and is counted. Which newer steps were submitted at all only
    /// the engine knows; what it does not know it passes to [`note_late_completion`](Pool::note_late_completion) instead.
    // contract: C-16
    pub fn fence_completed(&mut self, step: StepId) -> u32 {
        if !self.fences.is_in_flight(step) {
            self.note_late_completion();
            return 0;
        }
        self.fences.completed = step;
        self.close_fences_until(step)
    }

    /// A completion of a step that the engine does not know came: counted, nothing else.
    pub fn note_late_completion(&mut self) {
        self.counts.late_completions += 1;
    }

    pub(crate) fn close_fences_until(&mut self, step: StepId) -> u32 {
        let draining = self.counts.draining;
        while let Some(i) = self.fences.first_until(step) {
            self.clear_fence(i);
            self.settle(i);
        }
        draining - self.counts.draining
    }

    /// Lists an owner that is not listed yet.
    pub(crate) fn own(&mut self, i: u32, owner: Owner) {
        if self.slots[i as usize].owners.insert(owner) {
            *self.owned.entry(owner).or_insert(0) += 1;
            self.settle(i);
        }
    }

    /// Takes a listed owner off a block. An owner that holds nothing any more computes nothing either.
    pub(crate) fn disown(&mut self, i: u32, owner: Owner) -> Retired {
        if R::leaves_alone() {
            self.take_off(i, owner);
        } else {
            self.slots[i as usize].owners.sorted().into_iter().for_each(|owner| self.take_off(i, owner));
        }
        self.settle(i);
        let slot = &self.slots[i as usize];
        match slot.place {
            Place::Active => Retired::Shared { owners: slot.owners.len() },
            Place::Draining => Retired::Draining { until: slot.fence.unwrap_or_default() },
            Place::CachedLeaf | Place::CachedInner => Retired::Cached,
            Place::Free => Retired::Free,
            Place::Quarantined => Retired::Quarantined,
        }
    }

    fn take_off(&mut self, i: u32, owner: Owner) {
        let slot = &mut self.slots[i as usize];
        if slot.owners.remove(owner) {
            slot.former.push(owner);
            self.forget_one(owner);
        }
    }

    fn forget_one(&mut self, owner: Owner) {
        let left = self.owned_by(owner).saturating_sub(1);
        if left > 0 {
            self.owned.insert(owner, left);
        } else {
            self.owned.remove(&owner);
            self.abandon(owner);
        }
    }

    fn raise_fence(&mut self, i: u32, step: StepId) {
        let slot = &self.slots[i as usize];
        if !slot.condemned && slot.fence.is_none_or(|fence| fence < step) {
            self.clear_fence(i);
            self.slots[i as usize].fence = Some(step);
            self.fences.wait(&mut self.links, i, step);
        }
    }

    pub(crate) fn clear_fence(&mut self, i: u32) {
        if let Some(step) = self.slots[i as usize].fence.take() {
            self.fences.leave(&mut self.links, i, step);
        }
    }

    /// Takes a node, and all below it, out of the index; their blocks and the parent's settle.
    pub(crate) fn unindex(&mut self, node: NodeId) {
        let gone = self.index.remove(node);
        for block in gone.blocks {
            self.slots[block.0 as usize].node = None;
            self.settle(block.0);
        }
        if let Some(parent) = gone.parent {
            self.settle(parent.0);
        }
    }

    pub(crate) fn derive(&self, i: u32) -> Place {
        let slot = &self.slots[i as usize];
        let node = slot.node.and_then(|node| self.index.get(node));
        slot.derive(node.is_some_and(|node| !node.children.is_empty()))
    }

    /// Moves a block to where its facts say it belongs. The only place where blocks change lists and counts.
    // contract: C-15
    pub(crate) fn settle(&mut self, i: u32) {
        let (from, to) = (self.slots[i as usize].place, self.derive(i));
        if from == to {
            return;
        }
        match from {
            Place::Free => self.free.remove(&mut self.links, i),
            Place::CachedLeaf => self.leaves.remove(&mut self.links, i),
            Place::CachedInner => self.inner.remove(&mut self.links, i),
            Place::Active => self.counts.active -= 1,
            Place::Draining => self.counts.draining -= 1,
            Place::Quarantined => self.counts.quarantined -= 1,
        }
        self.slots[i as usize].place = to;
        match to {
            Place::Free => self.free.push_front(&mut self.links, i),
            Place::CachedLeaf if from == Place::CachedInner && self.is_older_than_leaves(i) => self.leaves.push_front(&mut self.links, i),
            Place::CachedLeaf => {
                self.touch(i);
                self.leaves.push_back(&mut self.links, i);
            }
            Place::CachedInner => {
                self.touch(i);
                self.inner.push_back(&mut self.links, i);
            }
            Place::Active => self.counts.active += 1,
            Place::Draining => self.counts.draining += 1,
            Place::Quarantined => self.counts.quarantined += 1,
        }
    }

    fn is_older_than_leaves(&self, i: u32) -> bool {
        let oldest = self.leaves.front().map(|leaf| self.slots[leaf as usize].used);
        oldest.is_none_or(|oldest| self.slots[i as usize].used < oldest)
    }

    fn touch(&mut self, i: u32) {
        self.uses += 1;
        self.slots[i as usize].used = self.uses;
    }
}
