//! What can go wrong, named by what the caller learns from it. None of these changes the pool, beyond the counters they are counted in.

use lifecycle::StepId;

use crate::{BlockId, BlockState, Found, Generation, NodeId, Owner};

/// No block can be handed out now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no block is free or cached; {draining} are draining until step {oldest:?}")]
pub struct Exhausted {
    /// Blocks that come back by themselves when their fences complete: with any, waiting is better than another victim.
    pub draining: u32,
    /// The step that completes next among those that blocks wait for.
    pub oldest: Option<StepId>,
}

/// Why a release by name changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The pool has no such block. Counted with the stale releases.
    #[error("the pool has no such block")]
    UnknownBlock,
    /// It names another hand-out than the block's current one.
    #[error("the block is at generation {}", current.0)]
    Stale {
        /// The block's generation.
        current: Generation,
    },
    /// The owner is not listed and is none of those that left last.
    #[error("the owner does not hold the block")]
    Foreign,
    /// The owner has left this hand-out before.
    #[error("the owner has left the block before")]
    Double,
}

/// Why no computation of a block was registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// The prefix index has this block already: follow it, or acquire it.
    #[error("the prefix index has the block already")]
    Exists(Found),
    /// The parent left the index; the run goes on without sharing.
    #[error("the parent is not in the prefix index")]
    NoParent,
    /// Not exactly one block of tokens.
    #[error("{given} tokens are not one block of {block_tokens}")]
    NotABlock {
        /// Tokens given.
        given: usize,
        /// Tokens a block has.
        block_tokens: u32,
    },
    /// As many blocks are being computed for the index as the pool has.
    #[error("{limit} blocks are being computed already")]
    Full {
        /// The limit.
        limit: u32,
    },
}

/// The pool contradicts itself: a fault in this crate, never in its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Defect {
    /// The states do not add up to the pool.
    #[error("{found} blocks are accounted for, the pool has {total}")]
    Sum {
        /// Blocks in the pool.
        total: u32,
        /// Blocks in all states together.
        found: u64,
    },
    /// A state's counter is wrong.
    #[error("{counted} blocks are counted as {state}, there are {found}")]
    Count {
        /// The state.
        state: BlockState,
        /// What the counter says.
        counted: u32,
        /// What is there.
        found: u32,
    },
    /// A block's state is not what its facts say.
    #[error("block {} is {is}, its facts say {should}", block.0)]
    State {
        /// The block.
        block: BlockId,
        /// Its state.
        is: BlockState,
        /// The state that follows from owners, fence and index.
        should: BlockState,
    },
    /// A list holds something else than the blocks that belong into it, or is out of order.
    #[error("the list of {list} is wrong")]
    List {
        /// Which.
        list: &'static str,
    },
    /// A fence that has completed, or that a condemned block keeps.
    #[error("block {} has a fence that cannot be", block.0)]
    Fence {
        /// The block.
        block: BlockId,
    },
    /// The count of an owner's blocks is wrong.
    #[error("{owner:?} is counted with {counted} blocks and listed in {found}")]
    Owned {
        /// The owner.
        owner: Owner,
        /// What the counter says.
        counted: u32,
        /// In how many blocks it is listed.
        found: u32,
    },
    /// A node and its block, its parent, its children or its list contradict each other.
    #[error("{node:?} is wrong: {what}")]
    Node {
        /// The node.
        node: NodeId,
        /// How.
        what: &'static str,
    },
    /// The index's own counts are wrong.
    #[error("the prefix index is wrong: {what}")]
    Index {
        /// How.
        what: &'static str,
    },
}
