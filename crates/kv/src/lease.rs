//! The right to use one hand-out of a block.

use crate::block::{BlockId, Generation, Owner};

/// One owner's hold on one hand-out of a block. Move-only: it can be given back once. Nothing happens when it is dropped; the audit and
/// [`crate::Pool::owned_by`] find what was lost that way.
// contract: C-17
#[must_use = "a lease leaves only by `Pool::retire`"]
#[derive(Debug, PartialEq, Eq)]
pub struct Lease {
    pub(crate) block: BlockId,
    pub(crate) generation: Generation,
    pub(crate) owner: Owner,
}

impl Lease {
    /// Which block.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// Which hand-out of it.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whose hold.
    pub fn owner(&self) -> Owner {
        self.owner
    }
}
