//! A lease: the proof that an owner holds a block. Move-only, so one hand-out cannot be given back twice.
//!
//! Nothing happens in `Drop`: a lease leaves by [`Pool::retire`](crate::Pool::retire) or [`Pool::quarantine_lease`](crate::Pool::quarantine_lease).
//! One that was dropped keeps its owner listed, and [`Pool::owned_by`](crate::Pool::owned_by) shows it.

use lifecycle::StepId;

use crate::{BlockId, Generation, Owner, Refused};

/// One owner's hold on one hand-out of a block.
#[must_use = "a lease that is dropped keeps its block owned for ever; retire it"]
#[derive(Debug)]
pub struct Lease {
    block: BlockId,
    generation: Generation,
    owner: Owner,
}

impl Lease {
    pub(crate) fn new(block: BlockId, generation: Generation, owner: Owner) -> Lease {
        Lease { block, generation, owner }
    }

    /// The same hold in a copy of the pool. For whoever copies a whole world to look ahead in it: a lease and its fork must never meet the
    /// same pool.
    pub fn fork(&self) -> Lease {
        Lease { ..*self }
    }

    /// The block.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Which hand-out of the block.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Who holds it.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}

/// What became of a block when one owner left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retired {
    /// Others still own it.
    Shared {
        /// How many.
        owners: u32,
    },
    /// Nobody owns it, but a step may still touch it.
    Draining {
        /// The step that must complete first.
        until: StepId,
    },
    /// The prefix index keeps it.
    Cached,
    /// It can be handed out.
    Free,
    /// It is lost until a device reset.
    Quarantined,
    /// Nothing: the lease no longer stood, because its ownership had been released by name. Counted.
    Refused(Refused),
}
