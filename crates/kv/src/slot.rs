//! What the pool knows of one block, and the one place where a block's state is derived from it.
// contract: C-15

use std::fmt;

use lifecycle::StepId;

use crate::owners::{Former, Owners};
use crate::{Generation, NodeId};

/// A block's state. Every block is in exactly one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BlockState {
    /// Nobody's; can be handed out.
    Free,
    /// It has an owner.
    Active,
    /// It has no owner, and a step may still touch it.
    Draining,
    /// It has no owner, and the prefix index keeps its content; can be handed out.
    Cached,
    /// It has no owner, and a step that can never complete may touch it; only a device reset frees it.
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

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A state, and for cached blocks which of the two lists of victims: those without nodes below them go first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Free,
    Active,
    Draining,
    CachedLeaf,
    CachedInner,
    Quarantined,
}

impl Place {
    pub(crate) fn state(self) -> BlockState {
        match self {
            Place::Free => BlockState::Free,
            Place::Active => BlockState::Active,
            Place::Draining => BlockState::Draining,
            Place::CachedLeaf | Place::CachedInner => BlockState::Cached,
            Place::Quarantined => BlockState::Quarantined,
        }
    }
}

/// One block's facts.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// The current hand-out; 0 before the first.
    pub(crate) generation: Generation,
    pub(crate) owners: Owners,
    pub(crate) former: Former,
    /// The newest step that may still touch it; open, else `None`.
    pub(crate) fence: Option<StepId>,
    /// Its node in the prefix index.
    pub(crate) node: Option<NodeId>,
    /// A step that can never complete may touch it.
    pub(crate) condemned: bool,
    /// Where it is, as last derived.
    pub(crate) place: Place,
    /// When it was last used, in the order of uses; meaningful while cached.
    pub(crate) used: u64,
}

impl Slot {
    pub(crate) fn new() -> Slot {
        Slot {
            generation: Generation(0),
            owners: Owners::None,
            former: Former::default(),
            fence: None,
            node: None,
            condemned: false,
            place: Place::Free,
            used: 0,
        }
    }

    /// The place that follows from the facts; `has_children` is its node's.
    pub(crate) fn derive(&self, has_children: bool) -> Place {
        if self.owners.len() > 0 {
            Place::Active
        } else if self.condemned {
            Place::Quarantined
        } else if self.fence.is_some() {
            Place::Draining
        } else if self.node.is_none() {
            Place::Free
        } else if has_children {
            Place::CachedInner
        } else {
            Place::CachedLeaf
        }
    }
}
