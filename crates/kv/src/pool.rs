//! The pool. Every change of a block goes through `settle`, which derives its state anew, so that account and lists cannot drift.
//!
//! Invariant: a block is handed out only when it has no owner, its fence has completed and it is not poisoned. O(1) a block operation.
// contract: C-15, C-16, C-17, C-18

use std::collections::BTreeMap;

use lifecycle::StepId;

use crate::audit::{Account, BlockState, BlockView};
use crate::block::{BlockId, Generation, Owner};
use crate::lease::Lease;
use crate::lru::Lru;
use crate::prefix::{BeginError, Found, Index, NodeId};

#[derive(Debug)]
pub(crate) struct Block {
    pub generation: u64,
    pub owners: Vec<Owner>,
    pub fence: Option<StepId>,
    pub node: Option<NodeId>,
    /// Its fence can never complete.
    pub poisoned: bool,
    pub state: BlockState,
}

/// No block can be handed out now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no block is free; {draining} are draining")]
pub struct Exhausted {
    /// Blocks that come back by themselves when their fences complete: waiting beats taking others'.
    pub draining: u32,
}

/// Why a release by name changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// No such block.
    #[error("the pool has no such block")]
    Unknown,
    /// The block was handed out again since.
    #[error("the generation is an old one")]
    Stale,
    /// The owner is not listed: it never was, or it released already.
    #[error("the owner does not hold the block")]
    NotOwner,
}

/// One worker's blocks.
#[derive(Debug)]
pub struct Pool {
    pub(crate) blocks: Vec<Block>,
    pub(crate) free: Vec<BlockId>,
    pub(crate) lru: Lru,
    pub(crate) index: Index,
    pub(crate) account: Account,
    /// The newest step whose fence has completed or was given up; older ones have too.
    pub(crate) closed: StepId,
    waiting: BTreeMap<StepId, Vec<BlockId>>,
    block_tokens: u32,
}

impl Pool {
    /// A pool of free blocks of `block_tokens` positions each.
    pub fn new(blocks_total: u32, block_tokens: u32) -> Pool {
        let block = || Block { generation: 0, owners: Vec::new(), fence: None, node: None, poisoned: false, state: BlockState::Free };
        Pool {
            blocks: (0..blocks_total).map(|_| block()).collect(),
            free: (0..blocks_total).rev().map(BlockId).collect(),
            lru: Lru::new(blocks_total),
            index: Index::default(),
            account: Account { total: blocks_total, free: blocks_total, ..Account::default() },
            closed: StepId(0),
            waiting: BTreeMap::new(),
            block_tokens,
        }
    }

    /// Positions a block.
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Blocks that can be handed out now: free and cached. Draining ones are no capacity.
    pub fn available(&self) -> u32 {
        self.account.free + self.account.cached
    }

    /// The account. O(1).
    pub fn account(&self) -> Account {
        self.account
    }

    /// Hands out a block: a free one, else the least recently released cached one, which leaves the index.
    // contract: C-16
    pub fn allocate(&mut self, owner: Owner) -> Result<Lease, Exhausted> {
        let id = match (self.free.last().copied(), self.lru.first()) {
            (Some(id), _) => id,
            (None, Some(id)) => id,
            (None, None) => return Err(Exhausted { draining: self.account.draining }),
        };
        let block = &mut self.blocks[id.0 as usize];
        block.generation += 1;
        block.owners.push(owner);
        block.fence = None;
        let node = block.node.take();
        let generation = Generation(block.generation);
        if let Some(node) = node {
            self.index.vacate(node);
        }
        self.settle(id);
        Ok(Lease { block: id, generation, owner })
    }

    /// Shares a ready node's block with one more owner, also while the block is cached or draining: its content is complete and nobody
    /// writes it any more. `None` if the node is not ready, the block is given up, or the owner has it already.
    // contract: C-18, C-19
    pub fn acquire(&mut self, node: NodeId, owner: Owner) -> Option<Lease> {
        let id = self.index.block_of(node)?;
        let block = &mut self.blocks[id.0 as usize];
        if block.poisoned || block.owners.contains(&owner) {
            return None;
        }
        block.owners.push(owner);
        let generation = Generation(block.generation);
        self.settle(id);
        Some(Lease { block: id, generation, owner })
    }

    /// Takes one owner off a block: the way out for every lease. `fence` is the newest step in which this owner may still touch the block;
    /// `None`, or a step that is over, ends it at once. Says where the block stands now.
    // contract: C-16, C-18
    pub fn retire(&mut self, lease: Lease, fence: Option<StepId>) -> BlockState {
        let Lease { block, owner, .. } = lease;
        self.unown(block, owner, fence);
        self.blocks[block.0 as usize].state
    }

    /// The same by name, for messages. An old generation or an owner that is not listed changes nothing and is counted.
    // contract: C-17
    pub fn release(&mut self, block: BlockId, generation: Generation, owner: Owner, fence: Option<StepId>) -> Result<BlockState, Refused> {
        let Some(b) = self.blocks.get(block.0 as usize) else {
            self.account.foreign_releases += 1;
            return Err(Refused::Unknown);
        };
        if b.generation != generation.0 {
            self.account.stale_releases += 1;
            return Err(Refused::Stale);
        }
        if !b.owners.contains(&owner) {
            self.account.foreign_releases += 1;
            return Err(Refused::NotOwner);
        }
        self.unown(block, owner, fence);
        Ok(self.blocks[block.0 as usize].state)
    }

    fn unown(&mut self, id: BlockId, owner: Owner, fence: Option<StepId>) {
        let block = &mut self.blocks[id.0 as usize];
        block.owners.retain(|o| *o != owner);
        let open = fence.filter(|f| *f > self.closed);
        block.fence = block.fence.filter(|f| *f > self.closed).max(open);
        if let (true, Some(fence)) = (block.owners.is_empty() && !block.poisoned, block.fence) {
            self.waiting.entry(fence).or_default().push(id);
        }
        self.settle(id);
    }

    /// A step is over: nothing of it touches a block any more, nor of any step before it. Returns how many blocks stopped draining. A
    /// message for a step that is over already changes nothing and is counted.
    // contract: C-16
    pub fn fence_completed(&mut self, step: StepId) -> u32 {
        if step <= self.closed {
            self.account.late_completions += 1;
            return 0;
        }
        self.closed = step;
        self.close_waiting(step, false)
    }

    /// A message about a step that nobody knows: counted, nothing else.
    pub fn note_late_completion(&mut self) {
        self.account.late_completions += 1;
    }

    /// A step can never complete: the blocks that drain behind it are quarantined. Blocks that still have owners are quarantined lease by
    /// lease. A message about it that comes later is a late one.
    pub fn quarantine(&mut self, step: StepId) -> u32 {
        self.closed = self.closed.max(step);
        self.close_waiting(step, true)
    }

    fn close_waiting(&mut self, step: StepId, poison: bool) -> u32 {
        let later = self.waiting.split_off(&StepId(step.0 + 1));
        let over = std::mem::replace(&mut self.waiting, later);
        let mut count = 0;
        for id in over.into_values().flatten() {
            // It may have been taken by a new owner, or wait for a later fence, since it was put here.
            let block = &mut self.blocks[id.0 as usize];
            if block.state != BlockState::Draining || block.fence.is_some_and(|f| f > step) {
                continue;
            }
            if poison {
                self.poison(id);
            }
            self.settle(id);
            count += 1;
        }
        count
    }

    /// Gives up the hand-out of a lease whose step can never complete: its block is never handed out again. Others that share it keep it.
    pub fn quarantine_lease(&mut self, lease: Lease) {
        let Lease { block, owner, .. } = lease;
        self.poison(block);
        self.unown(block, owner, None);
    }

    fn poison(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        block.poisoned = true;
        if let Some(node) = block.node.take() {
            self.index.vacate(node);
        }
    }

    /// The device was reset: nothing runs on it, nothing in its memory counts. Frees the quarantined blocks, and only they need it.
    pub fn device_reset(&mut self) -> u32 {
        let mut count = 0;
        for i in 0..self.blocks.len() {
            let block = &mut self.blocks[i];
            count += u32::from(block.state == BlockState::Quarantined);
            block.poisoned = false;
            self.settle(BlockId(i as u32));
        }
        count
    }

    /// Derives a block's state anew, and moves it between the lists and in the account.
    fn settle(&mut self, id: BlockId) {
        let closed = self.closed;
        let block = &mut self.blocks[id.0 as usize];
        let state = match () {
            () if !block.owners.is_empty() => BlockState::Active,
            () if block.poisoned => BlockState::Quarantined,
            () if block.fence.is_some_and(|f| f > closed) => BlockState::Draining,
            () if block.node.is_some() => BlockState::Cached,
            () => BlockState::Free,
        };
        let before = std::mem::replace(&mut block.state, state);
        if before == state {
            return;
        }
        match before {
            // A free block is only ever taken from the end of the list.
            BlockState::Free => {
                self.free.pop();
            }
            BlockState::Cached => self.lru.remove(id),
            _ => {}
        }
        match state {
            BlockState::Free => self.free.push(id),
            BlockState::Cached => self.lru.push(id),
            _ => {}
        }
        *self.account.slot(before) -= 1;
        *self.account.slot(state) += 1;
    }

    /// The root that prefixes of a tenant, a model revision and a salt hang on.
    // contract: C-21
    pub fn root(&mut self, tenant: &str, model: &str, salt: &str) -> NodeId {
        self.index.root(tenant, model, salt)
    }

    /// Who has the full block with these tokens after `parent`, if anybody.
    pub fn lookup(&self, parent: NodeId, tokens: &[u32]) -> Option<Found> {
        self.index.lookup(parent, tokens)
    }

    /// Says that an owner computes the full block with these tokens after `parent`. Nothing can be shared from it before `commit`.
    pub fn begin(&mut self, parent: NodeId, tokens: &[u32], owner: Owner) -> Result<NodeId, BeginError> {
        self.index.begin(parent, tokens, owner)
    }

    /// All layers of the rows that filled the block are computed: it can be shared. False, and nothing changes, if the claim is not open
    /// any more, or the block is in the index already or given up.
    // contract: C-19
    pub fn commit(&mut self, node: NodeId, lease: &Lease) -> bool {
        let block = &mut self.blocks[lease.block.0 as usize];
        let current = block.generation == lease.generation.0 && block.owners.contains(&lease.owner);
        if !current || block.poisoned || block.node.is_some() || !self.index.commit(node, lease.owner, lease.block) {
            return false;
        }
        block.node = Some(node);
        true
    }

    /// Gives up all open claims of an owner. Whoever followed looks up again and takes over.
    // contract: C-19
    pub fn abandon(&mut self, owner: Owner) {
        self.index.abandon(owner);
    }

    /// Blocks that list an owner; after all its leases were retired it is 0. O(pool).
    pub fn owned_by(&self, owner: Owner) -> usize {
        self.blocks.iter().filter(|b| b.owners.contains(&owner)).count()
    }

    /// Every block as it stands. O(pool).
    pub fn blocks(&self) -> impl Iterator<Item = BlockView> {
        self.blocks.iter().enumerate().map(|(i, b)| BlockView {
            block: BlockId(i as u32),
            generation: Generation(b.generation),
            state: b.state,
            owners: b.owners.clone(),
            fence: b.fence.filter(|f| *f > self.closed),
        })
    }
}
