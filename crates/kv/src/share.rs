//! The pool's side of the prefix index: whose block a node has, and who may have it too.
//!
//! Invariant: an owner is listed on the node's own block, never on an equal one; what is not complete is never acquired.
// contract: C-19, C-21

use lifecycle::Rules;

use crate::prefix::RootKey;
use crate::{BeginError, BlockId, Found, Lease, NodeId, Owner, Pool};

impl<R: Rules> Pool<R> {
    /// The beginning of all prefixes of one tenant, model and salt; compared in full.
    ///
    /// A root without nodes is dropped when [`IDLE_ROOTS_MAX`](crate::prefix::IDLE_ROOTS_MAX) others became idle after it; its id then finds
    /// nothing, and asking again gives a new one.
    pub fn root(&mut self, tenant: &str, model: &str, salt: &str) -> NodeId {
        self.index.root(RootKey { tenant: tenant.into(), model: model.into(), salt: salt.into() })
    }

    /// The node for these tokens (exactly one block of them) right after `parent`. Changes nothing, not even what was used last.
    pub fn lookup(&self, parent: NodeId, tokens: &[u32]) -> Option<Found> {
        self.index.child(parent, tokens)
    }

    /// Shares a ready node's block: this owner, too, holds it now. `None` where the node is gone, is still being computed, or this owner holds
    /// the block already.
    ///
    /// A block that drains may be acquired: it is complete and nobody writes it again. It is active then, and its fence stays for later.
    // contract: C-18, C-19
    pub fn acquire(&mut self, node: NodeId, owner: Owner) -> Option<Lease> {
        let BlockId(i) = self.index.get(node)?.block()?;
        if self.slots[i as usize].owners.contains(owner) {
            return None;
        }
        self.own(i, owner);
        Some(Lease::new(BlockId(i), self.slots[i as usize].generation, owner))
    }

    /// Announces that this owner computes these tokens (exactly one block of them) right after `parent`, so that others follow it. Nothing
    /// can be acquired from the node before its [`commit`](Pool::commit).
    ///
    /// # Errors
    /// [`BeginError`]; nothing changes.
    pub fn begin(&mut self, parent: NodeId, tokens: &[u32], owner: Owner) -> Result<NodeId, BeginError> {
        let node = self.index.begin(parent, tokens, owner)?;
        if let Some(BlockId(above)) = self.index.get(parent).and_then(|parent| parent.block()) {
            self.settle(above);
        }
        Ok(node)
    }

    /// Every layer of the rows that filled the lease's block has completed: the node has this block now and is ready.
    ///
    /// False, and nothing changes, where the lease's owner does not compute the node (any more), the node's parent is not ready, the lease
    /// does not stand, or its block is condemned or another node's. The block then stays private.
    // contract: C-19
    pub fn commit(&mut self, node: NodeId, lease: &Lease) -> bool {
        let owner = lease.owner();
        if !self.index.may_commit(node, owner) || self.standing(lease.block(), lease.generation(), owner).is_err() {
            return false;
        }
        let slot = &mut self.slots[lease.block().0 as usize];
        if slot.condemned || slot.node.is_some() {
            return false;
        }
        slot.node = Some(node);
        self.index.commit(node, owner, lease.block());
        true
    }

    /// Forgets all that this owner was computing, and what others built on it; whoever followed looks up again and takes over. Happens by
    /// itself when the owner's last block is retired.
    // contract: C-19
    pub fn abandon(&mut self, owner: Owner) {
        while let Some(node) = self.index.first_pending(owner) {
            self.unindex(node);
        }
    }

    /// Nodes that somebody computes.
    pub fn pending(&self) -> u32 {
        self.index.pending
    }
}
