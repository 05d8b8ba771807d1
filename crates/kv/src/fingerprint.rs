//! A pool's state as a number, for whoever keeps a set of states: equal where nothing can ever tell two pools apart.
//!
//! What only grows (generations, serials of nodes, uses, steps, owners) goes in as its order or its distance, never as its value; maps go in
//! sorted. Every field of a structure is named here, so a new one does not compile until somebody has decided about it.
//!
//! Invariant: two pools with the same fingerprint answer every further sequence of calls alike, but for the values of those counters. What
//! may matter is in: a fingerprint may tell pools apart that behave alike, never the other way round.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use lifecycle::{Rules, StepId};

use crate::fence::{Fences, Standing};
use crate::list::List;
use crate::owners::Former;
use crate::pool::Counts;
use crate::prefix::{Index, Kind, Node};
use crate::slot::{Place, Slot};
use crate::{Lease, NodeId, Owner, Pool};

/// A hasher of 128 bits that gives the same number in every process and on every machine (FNV-1a, by words where words are written). For
/// sets of states: no defence against somebody who wants two states to collide.
#[derive(Clone, Debug)]
pub struct Digest(u128);

impl Digest {
    const PRIME: u128 = (1 << 88) + 0x13b;

    /// The number for all that was written.
    pub fn value(&self) -> u128 {
        self.0
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0 ^ u128::from(word)).wrapping_mul(Digest::PRIME);
    }
}

impl Default for Digest {
    fn default() -> Digest {
        Digest(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        (self.0 ^ (self.0 >> 64)) as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.word(u64::from(*byte)));
    }

    fn write_u32(&mut self, n: u32) {
        self.word(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        self.word(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.word(n as u64);
    }
}

/// The nodes of a pool's prefix index by their order.
#[derive(Debug)]
pub struct NodeNames(HashMap<NodeId, u64>);

impl NodeNames {
    /// A node's name: 0 where it has left the index.
    pub fn of(&self, node: NodeId) -> u64 {
        self.0.get(&node).copied().unwrap_or(0)
    }
}

impl<R: Rules> Pool<R> {
    /// A step's name: what its fence is worth, and for an open one how long before `next` it was.
    pub fn step_name(&self, step: StepId, next: StepId) -> u64 {
        self.fences.name(step, next)
    }

    /// How many times the lease's block was handed out since.
    pub fn hand_outs_since(&self, lease: &Lease) -> u64 {
        self.slots.get(lease.block().0 as usize).map_or(0, |slot| slot.generation.0.wrapping_sub(lease.generation().0))
    }

    /// Writes the pool's state. `next` is the step to be planned next; `owner` gives each owner that may still be named in a call a name, by
    /// the order of owners, and 0 to all others. The names of the index's nodes come back, for whoever holds some.
    pub fn hash_state<H: Hasher>(&self, next: StepId, owner: &dyn Fn(Owner) -> u64, out: &mut H) -> NodeNames {
        // `owned` counts what the blocks list, `uses` what they have been used.
        let Pool { slots, links, free, leaves, inner, fences, index, owned: _, uses: _, counts, block_tokens, rules: _ } = self;
        let names = index.names();
        block_tokens.hash(out);
        counts.hash_state(out);
        let is_cached = |slot: &Slot| matches!(slot.place, Place::CachedLeaf | Place::CachedInner);
        // No two blocks share a use, so a block that is not cached is not found.
        let mut used: Vec<u64> = slots.iter().filter(|slot| is_cached(slot)).map(|slot| slot.used).collect();
        used.sort_unstable();
        for slot in slots.iter() {
            let rank = used.binary_search(&slot.used).map_or(0, |at| at as u64 + 1);
            slot.hash_state(rank, |step| fences.name(step, next), owner, &names, out);
        }
        [free, leaves, inner].iter().for_each(|list| list.walk(links).hash(out));
        fences.waiting.len().hash(out);
        for (step, list) in &fences.waiting {
            (fences.name(*step, next), list.walk(links)).hash(out);
        }
        index.hash_state(owner, &names, out);
        names
    }
}

impl Fences {
    /// Which steps are done and which were lost goes in only as what it means for the steps that something still waits for.
    fn name(&self, step: StepId, next: StepId) -> u64 {
        match self.standing(step) {
            Standing::Completed => 0,
            Standing::Lost => 1,
            Standing::Open => 2 + next.0.wrapping_sub(step.0),
        }
    }
}

impl Counts {
    fn hash_state<H: Hasher>(&self, out: &mut H) {
        let Counts { active, draining, quarantined, stale_releases, foreign_releases, double_releases, late_completions } = self;
        [*active, *draining, *quarantined].hash(out);
        [*stale_releases, *foreign_releases, *double_releases, *late_completions].hash(out);
    }
}

impl Slot {
    fn hash_state<H: Hasher>(&self, used: u64, step: impl Fn(StepId) -> u64, owner: &dyn Fn(Owner) -> u64, names: &NodeNames, out: &mut H) {
        // A generation is only ever compared with a lease's; whoever holds the lease writes that.
        let Slot { generation: _, owners, former, fence, node, condemned, place, used: _ } = self;
        owners.sorted().into_iter().map(owner).collect::<Vec<u64>>().hash(out);
        former.names(owner).hash(out);
        (fence.map(step), node.map(|node| names.of(node)), condemned, *place as u8, used).hash(out);
    }
}

impl Former {
    /// From the one that left first; who cannot come back is as if he had never been.
    fn names(&self, owner: &dyn Fn(Owner) -> u64) -> [u64; crate::owners::FORMER_MAX] {
        let mut last = self.last;
        last.rotate_left(usize::from(self.next));
        last.map(|former| former.map_or(0, owner))
    }
}

impl Index {
    /// In the order of their making, from 1.
    fn names(&self) -> NodeNames {
        let mut ids: Vec<NodeId> = self.nodes.iter().flatten().map(|node| node.id).collect();
        ids.sort_unstable();
        NodeNames(ids.into_iter().zip(1..).collect())
    }

    fn hash_state<H: Hasher>(&self, owner: &dyn Fn(Owner) -> u64, names: &NodeNames, out: &mut H) {
        // Roots, the lists of what each owner computes (in the order of making) and their number follow from the nodes; which places for
        // nodes are vacant, and how many nodes there ever were, nobody sees.
        let Index { nodes, links, vacant: _, serial: _, roots: _, idle_roots, pending_of: _, pending: _, pending_max, block_tokens: _ } =
            self;
        pending_max.hash(out);
        let mut all: Vec<&Node> = nodes.iter().flatten().collect();
        all.sort_unstable_by_key(|node| node.id);
        all.len().hash(out);
        for Node { id: _, kind, parent, tokens, children: _ } in all {
            (parent.map(|parent| names.of(parent)), tokens).hash(out);
            match kind {
                Kind::Root(key) => (0u8, key).hash(out),
                Kind::Pending(by) => (1u8, owner(*by)).hash(out),
                Kind::Ready(block) => (2u8, block).hash(out),
            }
        }
        self.idle_order(idle_roots, names, links).hash(out);
    }

    fn idle_order(&self, idle: &List, names: &NodeNames, links: &crate::items::Items<crate::list::Link>) -> Vec<u64> {
        let slots = idle.walk(links).unwrap_or_default();
        slots.into_iter().filter_map(|slot| self.nodes[slot as usize].as_ref()).map(|node| names.of(node.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockId;

    fn ignore<T>(_: T) {}

    fn print(pool: &Pool, next: u64) -> u128 {
        let mut out = Digest::default();
        pool.hash_state(StepId(next), &|owner| owner.0, &mut out);
        out.value()
    }

    #[test]
    fn counters_that_only_grow_do_not_tell_pools_apart() {
        let mut pool = Pool::new(3, 2);
        let fresh = print(&pool, 1);
        for step in 1..=5 {
            let leases = [Owner(1), Owner(1)].map(|owner| pool.allocate(owner).expect("there is room"));
            assert_ne!(print(&pool, step), fresh);
            let [first, second] = leases;
            assert_eq!(pool.hand_outs_since(&first), 0);
            pool.retire(second, Some(StepId(step)));
            pool.retire(first, None);
            assert_ne!(print(&pool, step + 1), fresh, "one drains");
            pool.fence_completed(StepId(step));
        }
        // The order in which the free blocks come next is part of the state.
        let again = print(&pool, 6);
        let lease = pool.allocate(Owner(7)).expect("there is room");
        pool.retire(lease, None);
        let forgotten = |pool: &Pool| {
            let mut out = Digest::default();
            pool.hash_state(StepId(6), &|_| 0, &mut out);
            out.value()
        };
        let mut other = Pool::new(3, 2);
        let leases = [Owner(1), Owner(2)].map(|owner| other.allocate(owner).expect("there is room"));
        leases.into_iter().rev().for_each(|lease| ignore(other.retire(lease, None)));
        assert_eq!(forgotten(&other), fresh, "owners that are gone are nobody");
        assert_ne!(again, fresh, "who was here is told apart while it may come back");
    }

    #[test]
    fn every_fact_of_a_block_and_every_count_tells_pools_apart() {
        let base = || {
            let mut pool = Pool::new(4, 2);
            let root = pool.root("t", "m", "");
            let node = pool.begin(root, &[1, 2], Owner(1)).expect("nobody has it");
            let lease = pool.allocate(Owner(1)).expect("there is room");
            assert!(pool.commit(node, &lease));
            (pool, lease, node, root)
        };
        type Change = fn(&mut Pool, Lease, NodeId, NodeId);
        let changes: [Change; 13] = [
            |_, _, _, _| {},
            |pool, _, node, _| ignore(pool.acquire(node, Owner(2))),
            |pool, lease, _, _| ignore(pool.retire(lease, None)),
            |pool, lease, _, _| ignore(pool.retire(lease, Some(StepId(1)))),
            |pool, lease, _, _| ignore(pool.retire(lease, Some(StepId(2)))),
            |pool, lease, _, _| ignore(pool.quarantine_lease(lease)),
            |pool, _, node, _| ignore(pool.begin(node, &[3, 4], Owner(1))),
            |pool, _, node, _| ignore(pool.begin(node, &[3, 5], Owner(1))),
            |pool, _, node, _| ignore(pool.begin(node, &[3, 5], Owner(2))),
            |pool, _, _, root| ignore(pool.begin(root, &[3, 5], Owner(2))),
            |pool, _, _, _| ignore(pool.root("t", "m", "salt")),
            |pool, lease, _, _| {
                let (block, generation) = (lease.block(), lease.generation());
                assert!(pool.release(block, generation, Owner(9), None).is_err());
            },
            |pool, _, _, _| assert!(pool.release(BlockId(9), crate::Generation(1), Owner(9), None).is_err()),
        ];
        let mut seen = HashMap::new();
        for (i, change) in changes.into_iter().enumerate() {
            let (mut pool, lease, node, root) = base();
            change(&mut pool, lease, node, root);
            assert_eq!(seen.insert(print(&pool, 3), i), None, "change {i}");
        }
    }

    /// Two chains: of each the beginning is cached above a block in use. A third block is cached below nothing.
    fn retired_in(order: [usize; 3]) -> Pool {
        let mut pool = Pool::new(5, 2);
        let root = pool.root("t", "m", "");
        let mut cached = Vec::new();
        for tokens in [[1, 2], [3, 4], [5, 6]] {
            let node = pool.begin(root, &tokens, Owner(1)).expect("nobody has it");
            let lease = pool.allocate(Owner(1)).expect("there is room");
            assert!(pool.commit(node, &lease));
            if tokens[0] < 5 {
                let below = pool.begin(node, &[7, 8], Owner(2)).expect("nobody has it");
                let kept = pool.allocate(Owner(2)).expect("there is room");
                assert!(pool.commit(below, &kept));
            }
            cached.push(Some(lease));
        }
        for i in order {
            assert_eq!(pool.retire(cached[i].take().expect("once"), None), crate::Retired::Cached);
        }
        pool
    }

    #[test]
    fn the_order_of_use_across_the_lists_of_victims_tells_pools_apart() {
        // Each list is in the same order in all three: only which was used before a block of the other list differs, and by that a block
        // that loses what was below it goes to the front or to the back.
        let prints = [[0, 1, 2], [0, 2, 1], [2, 0, 1]].map(|order| print(&retired_in(order), 1));
        assert!(prints[0] != prints[1] && prints[1] != prints[2] && prints[0] != prints[2], "{prints:?}");
        assert_eq!(print(&retired_in([0, 2, 1]), 1), prints[1]);
    }
}
