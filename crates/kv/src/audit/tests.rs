//! The audit must see every kind of corruption: each is done by hand here, behind the pool's back.

use super::*;
use crate::{NodeId, Retired};

const A: Owner = Owner(1);
const B: Owner = Owner(2);

/// A block in each state: 0 active with a fence, 1 draining, 2 and 3 a cached chain, 4 quarantined, 5 and 6 free; one node being computed.
struct Sample {
    pool: Pool,
    root: NodeId,
    inner: NodeId,
    leaf: NodeId,
    pending: NodeId,
}

fn sample() -> Sample {
    let mut pool = Pool::new(7, 1);
    let root = pool.root("t", "m", "");
    let node = |pool: &mut Pool, parent, token| {
        let lease = pool.allocate(A).expect("free");
        let node = pool.begin(parent, &[token], A).expect("new");
        assert!(pool.commit(node, &lease));
        (node, lease)
    };
    let (shared, held) = node(&mut pool, root, 1);
    assert!(pool.acquire(shared, B).is_some_and(|lease| lease.owner() == B));
    let draining = pool.allocate(A).expect("free");
    let (inner, above) = node(&mut pool, root, 2);
    let (leaf, below) = node(&mut pool, inner, 3);
    let lost = pool.allocate(A).expect("free");
    pool.retire(held, Some(StepId(5)));
    pool.retire(draining, Some(StepId(6)));
    pool.retire(above, None);
    pool.retire(below, None);
    assert_eq!(pool.quarantine_lease(lost), Retired::Quarantined);
    let pending = pool.begin(shared, &[4], B).expect("new");
    assert_eq!(pool.audit(), Ok(()));
    Sample { pool, root, inner, leaf, pending }
}

fn finds(what: &str, corrupt: impl FnOnce(&mut Sample)) {
    let mut s = sample();
    corrupt(&mut s);
    let found = s.pool.audit().map_err(|defect| defect.to_string());
    assert!(found.as_ref().is_err_and(|found| found.contains(what)), "expected a word on {what:?}, found {found:?}");
}

fn kind(s: &mut Sample, id: NodeId) -> &mut Kind {
    let node = s.pool.index.nodes.iter_mut().flatten().find(|node| node.id == id);
    &mut node.expect("it is there").kind
}

#[test]
fn the_sample_has_a_block_in_each_state() {
    let a = sample().pool.account();
    assert_eq!((a.free, a.active, a.cached, a.draining, a.quarantined, a.total), (2, 1, 2, 1, 1, 7));
}

#[test]
fn sums_and_counts() {
    finds("8 blocks are accounted for, the pool has 7", |s| s.pool.counts.active += 1);
    finds("8 blocks are accounted for, the pool has 7", |s| s.pool.counts.quarantined += 1);
    finds("2 blocks are counted as active, there are 1", |s| {
        s.pool.counts.active += 1;
        s.pool.counts.draining -= 1;
    });
    assert!(sample().pool.check().is_ok());
    let mut s = sample();
    s.pool.counts.draining = 0;
    assert_eq!(s.pool.check(), Err(Defect::Sum { total: 7, found: 6 }));
}

#[test]
fn states() {
    finds("block 1 is draining, its facts say free", |s| s.pool.slots[1].fence = None);
    finds("block 0 is active, its facts say draining", |s| {
        s.pool.slots[0].owners.remove(B);
    });
    finds("block 5 is free, its facts say active", |s| {
        s.pool.slots[5].owners.insert(A);
    });
    finds("block 4 is quarantined, its facts say free", |s| s.pool.slots[4].condemned = false);
    finds("block 3 is cached, its facts say free", |s| s.pool.slots[3].node = None);
}

#[test]
fn lists() {
    finds("the list of free blocks", |s| s.pool.links.swap(5, 1));
    finds("the list of cached leaves", |s| {
        s.pool.leaves.remove(&mut s.pool.links, 3);
        s.pool.inner.push_back(&mut s.pool.links, 3);
    });
    finds("the list of cached leaves", |s| {
        let lease = s.pool.allocate(A).expect("free");
        let node = s.pool.begin(s.root, &[9], A).expect("new");
        assert!(s.pool.commit(node, &lease));
        s.pool.retire(lease, None);
        s.pool.slots[3].used = u64::MAX;
    });
}

#[test]
fn fences() {
    finds("block 4 has a fence that cannot be", |s| {
        s.pool.slots[4].fence = Some(StepId(9));
        s.pool.fences.wait(&mut s.pool.links, 4, StepId(9));
    });
    finds("block 0 has a fence that cannot be", |s| s.pool.fences.completed = StepId(5));
    finds("the list of the fences", |s| s.pool.fences.leave(&mut s.pool.links, 0, StepId(5)));
    finds("the list of a fence", |s| s.pool.slots[0].fence = Some(StepId(6)));
    finds("the list of a fence", |s| {
        s.pool.fences.waiting.insert(StepId(7), List::EMPTY);
    });
    finds("the list of a fence", |s| s.pool.links[0] = s.pool.links[5]);
}

#[test]
fn owned() {
    finds("o2 is counted with 2 blocks and listed in 1", |s| {
        s.pool.owned.insert(B, 2);
    });
    finds("o2 is counted with 0 blocks and listed in 1", |s| {
        s.pool.owned.remove(&B);
    });
    finds("o9 is counted with 0 blocks and listed in 0", |s| {
        s.pool.owned.insert(Owner(9), 0);
    });
}

#[test]
fn nodes() {
    finds("its block does not know it", |s| {
        let pending = s.pending;
        *kind(s, pending) = Kind::Ready(BlockId(3));
    });
    finds("its block does not know it", |s| {
        let pending = s.pending;
        *kind(s, pending) = Kind::Ready(BlockId(99));
    });
    finds("a block names it wrongly", |s| s.pool.slots[1].node = Some(s.pending));
    finds("a block names it wrongly", |s| {
        let leaf = s.leaf;
        *kind(s, leaf) = Kind::Pending(B);
    });
    finds("it is ready before its parent", |s| {
        let inner = s.inner;
        *kind(s, inner) = Kind::Pending(B);
    });
    finds("a root is not found by its key", |s| s.pool.index.roots.clear());
    finds("a root has a parent", |s| {
        let (inner, key) = (s.inner, s.pool.index.roots.keys().next().expect("one").clone());
        *kind(s, inner) = Kind::Root(key);
    });
}

fn node(s: &mut Sample, id: NodeId) -> &mut Node {
    s.pool.index.nodes.iter_mut().flatten().find(|node| node.id == id).expect("it is there")
}

#[test]
fn relatives() {
    finds("it has no parent", |s| {
        let (root, pending) = (s.root, s.pending);
        // Out of its parent first, for else the parent's fault is found.
        let shared = node(s, pending).parent.expect("it has one");
        node(s, shared).children.clear();
        node(s, pending).parent = None;
        assert!(root < pending);
    });
    finds("its parent does not know it", |s| {
        let pending = s.pending;
        let shared = node(s, pending).parent.expect("it has one");
        node(s, shared).children.clear();
    });
    finds("a child is not its own", |s| {
        let (root, pending) = (s.root, s.pending);
        node(s, pending).parent = Some(root);
    });
    // Its own parent and child, and nobody else's.
    finds("a child is not its own", |s| {
        let pending = s.pending;
        let shared = node(s, pending).parent.expect("it has one");
        node(s, shared).children.clear();
        let itself = node(s, pending);
        itself.parent = Some(pending);
        itself.children.insert(itself.tokens.clone(), pending);
    });
}

#[test]
fn the_index() {
    finds("the nodes being computed are miscounted", |s| s.pool.index.pending = 0);
    finds("the nodes being computed are miscounted", |s| s.pool.index.pending_max = 0);
    finds("the nodes being computed are miscounted", |s| {
        s.pool.index.pending_of.clear();
    });
    finds("the nodes being computed are miscounted", |s| {
        let list = s.pool.index.pending_of.remove(&B).expect("one");
        s.pool.index.pending_of.insert(A, list);
    });
    finds("the list of idle roots is wrong", |s| {
        s.pool.root("idle", "m", "");
        s.pool.index.idle_roots = List::EMPTY;
    });
    finds("the roots are miscounted", |s| {
        let (id, mut key) = (s.root, s.pool.index.roots.keys().next().expect("one").clone());
        key.salt.push('x');
        s.pool.index.roots.insert(key, id);
    });
}
