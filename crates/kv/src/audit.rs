//! The account, and the audit that believes nothing: it derives every state, list, count and link again and compares.
//!
//! `check` is O(1) and belongs after every apply; `audit` walks the pool and belongs into tests and idle moments.
// contract: C-15

use std::collections::HashMap;

use lifecycle::{Rules, StepId};

use crate::list::List;
use crate::prefix::{Kind, Node};
use crate::slot::Place;
use crate::{BlockId, BlockState, Defect, Generation, Owner, Pool};

/// One consistent cut of the pool: where every block is, and what was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// Blocks in the pool.
    pub total: u32,
    /// Blocks that nobody holds and that hold nothing.
    pub free: u32,
    /// Blocks with an owner.
    pub active: u32,
    /// Blocks without an owner whose content the prefix index keeps.
    pub cached: u32,
    /// Blocks without an owner that a step may still touch.
    pub draining: u32,
    /// Blocks that are lost until a device reset.
    pub quarantined: u32,
    /// Releases refused: another hand-out of the block, or no such block.
    pub stale_releases: u64,
    /// Releases refused: an owner that is not listed.
    pub foreign_releases: u64,
    /// Releases refused: an owner that had left this hand-out already.
    pub double_releases: u64,
    /// Completions, and losses, of steps that were not in flight.
    pub late_completions: u64,
}

/// What there is to see of one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockView {
    /// The block.
    pub block: BlockId,
    /// Its current hand-out; 0 before the first.
    pub generation: Generation,
    /// Its state.
    pub state: BlockState,
    /// Its owners in ascending order.
    pub owners: Vec<Owner>,
    /// The step that may still touch it.
    pub fence: Option<StepId>,
    /// Whether a lost step may touch it, so that it will be quarantined when its last owner leaves.
    pub condemned: bool,
}

impl<R: Rules> Pool<R> {
    /// The account, O(1).
    pub fn account(&self) -> Account {
        Account {
            total: self.total(),
            free: self.free.len(),
            active: self.counts.active,
            cached: self.leaves.len() + self.inner.len(),
            draining: self.counts.draining,
            quarantined: self.counts.quarantined,
            stale_releases: self.counts.stale_releases,
            foreign_releases: self.counts.foreign_releases,
            double_releases: self.counts.double_releases,
            late_completions: self.counts.late_completions,
        }
    }

    /// Conservation, O(1): free + active + cached + draining + quarantined = total.
    ///
    /// # Errors
    /// The defect, where it does not hold.
    pub fn check(&self) -> Result<(), Defect> {
        let a = self.account();
        let found = [a.free, a.active, a.cached, a.draining, a.quarantined].map(u64::from).iter().sum();
        if found == u64::from(a.total) { Ok(()) } else { Err(Defect::Sum { total: a.total, found }) }
    }

    /// Every block as it is.
    pub fn blocks(&self) -> impl Iterator<Item = BlockView> + '_ {
        self.slots.iter().enumerate().map(|(i, slot)| BlockView {
            block: BlockId(i as u32),
            generation: slot.generation,
            state: slot.place.state(),
            owners: slot.owners.sorted(),
            fence: slot.fence,
            condemned: slot.condemned,
        })
    }

    /// Derives everything again from the blocks' facts and compares, O(pool).
    ///
    /// # Errors
    /// The first defect found.
    pub fn audit(&self) -> Result<(), Defect> {
        self.check()?;
        self.audit_states()?;
        self.audit_lists()?;
        self.audit_fences()?;
        self.audit_owned()?;
        self.audit_nodes()?;
        self.audit_index()
    }

    fn audit_states(&self) -> Result<(), Defect> {
        let a = self.account();
        let mut found = HashMap::new();
        for (i, slot) in (0u32..).zip(self.slots.iter()) {
            let should = self.derive(i);
            if slot.place != should {
                return Err(Defect::State { block: BlockId(i), is: slot.place.state(), should: should.state() });
            }
            *found.entry(should.state()).or_insert(0u32) += 1;
        }
        let counted = [
            (BlockState::Free, a.free),
            (BlockState::Active, a.active),
            (BlockState::Draining, a.draining),
            (BlockState::Cached, a.cached),
            (BlockState::Quarantined, a.quarantined),
        ];
        for (state, counted) in counted {
            let found = found.get(&state).copied().unwrap_or(0);
            if counted != found {
                return Err(Defect::Count { state, counted, found });
            }
        }
        Ok(())
    }

    fn audit_lists(&self) -> Result<(), Defect> {
        let lists = [
            ("free blocks", &self.free, Place::Free),
            ("cached leaves", &self.leaves, Place::CachedLeaf),
            ("cached inner blocks", &self.inner, Place::CachedInner),
        ];
        for (list, members, place) in lists {
            let items = members.walk(&self.links).ok_or(Defect::List { list })?;
            let in_place = items.iter().all(|i| self.slots[*i as usize].place == place);
            let in_order = place == Place::Free || items.is_sorted_by_key(|i| self.slots[*i as usize].used);
            if !in_place || !in_order || items.len() != self.slots.iter().filter(|slot| slot.place == place).count() {
                return Err(Defect::List { list });
            }
        }
        Ok(())
    }

    fn audit_fences(&self) -> Result<(), Defect> {
        let mut listed = 0;
        for (step, members) in &self.fences.waiting {
            let items = members.walk(&self.links).ok_or(Defect::List { list: "a fence" })?;
            listed += items.len();
            if items.is_empty() || items.iter().any(|i| self.slots[*i as usize].fence != Some(*step)) {
                return Err(Defect::List { list: "a fence" });
            }
        }
        let mut fenced = 0;
        for (i, slot) in (0u32..).zip(self.slots.iter()) {
            if let Some(step) = slot.fence {
                fenced += 1;
                if slot.condemned || self.fences.standing(step) != crate::fence::Standing::Open {
                    return Err(Defect::Fence { block: BlockId(i) });
                }
            }
        }
        if listed == fenced { Ok(()) } else { Err(Defect::List { list: "the fences" }) }
    }

    fn audit_owned(&self) -> Result<(), Defect> {
        let mut listed: HashMap<Owner, u32> = HashMap::new();
        for owner in self.slots.iter().flat_map(|slot| slot.owners.sorted()) {
            *listed.entry(owner).or_insert(0) += 1;
        }
        let mut all: Vec<Owner> = listed.keys().chain(self.owned.keys()).copied().collect();
        all.sort_unstable();
        for owner in all {
            let (counted, found) = (self.owned.get(&owner).copied().unwrap_or(0), listed.get(&owner).copied().unwrap_or(0));
            if counted != found || found == 0 {
                return Err(Defect::Owned { owner, counted, found });
            }
        }
        Ok(())
    }

    /// Each node against its block, its parent and its children; each block's node against the block.
    fn audit_nodes(&self) -> Result<(), Defect> {
        for node in self.index.nodes.iter().flatten() {
            if let Some(what) = self.fault_of(node) {
                return Err(Defect::Node { node: node.id, what });
            }
        }
        for (i, slot) in (0u32..).zip(self.slots.iter()) {
            if let Some(node) = slot.node
                && (slot.condemned || self.index.get(node).and_then(Node::block) != Some(BlockId(i)))
            {
                return Err(Defect::Node { node, what: "a block names it wrongly" });
            }
        }
        Ok(())
    }

    fn fault_of(&self, node: &Node) -> Option<&'static str> {
        let above = node.parent.map(|parent| self.index.get(parent));
        let below = node.children.iter().all(|(tokens, id)| {
            self.index.get(*id).is_some_and(|child| child.parent == Some(node.id) && child.tokens == *tokens && child.id > node.id)
        });
        if !below {
            return Some("a child is not its own");
        }
        match (&node.kind, above) {
            (Kind::Root(key), None) => (self.index.roots.get(key) != Some(&node.id)).then_some("a root is not found by its key"),
            (Kind::Root(_), Some(_)) => Some("a root has a parent"),
            (_, None | Some(None)) => Some("it has no parent"),
            (kind, Some(Some(above))) => {
                let block = node.block().map(|BlockId(i)| self.slots.get(i as usize));
                if above.children.get(&node.tokens) != Some(&node.id) {
                    Some("its parent does not know it")
                } else if block.is_some_and(|slot| slot.is_none_or(|slot| slot.node != Some(node.id))) {
                    Some("its block does not know it")
                } else if matches!(kind, Kind::Ready(_)) && matches!(above.kind, Kind::Pending(_)) {
                    Some("it is ready before its parent")
                } else {
                    None
                }
            }
        }
    }

    fn audit_index(&self) -> Result<(), Defect> {
        let index = &self.index;
        let fault = |what| Err(Defect::Index { what });
        let nodes = || index.nodes.iter().flatten();
        let in_list = |list: &List, belongs: &dyn Fn(&Node) -> bool| {
            let items = list.walk(&index.links).unwrap_or_default();
            let all = items.iter().all(|i| index.nodes[*i as usize].as_ref().is_some_and(belongs));
            if all { items.len() } else { usize::MAX }
        };
        let idle = |node: &Node| matches!(node.kind, Kind::Root(_)) && node.children.is_empty();
        if nodes().filter(|node| matches!(node.kind, Kind::Root(_))).count() != index.roots.len() {
            return fault("the roots are miscounted");
        }
        if in_list(&index.idle_roots, &idle) != nodes().filter(|node| idle(node)).count() {
            return fault("the list of idle roots is wrong");
        }
        let pending = nodes().filter(|node| matches!(node.kind, Kind::Pending(_))).count();
        let listed: usize = index
            .pending_of
            .iter()
            .map(|(owner, list)| in_list(list, &|node| matches!(node.kind, Kind::Pending(by) if by == *owner)))
            .fold(0, usize::saturating_add);
        if pending != listed || pending != index.pending as usize || index.pending > index.pending_max {
            return fault("the nodes being computed are miscounted");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
