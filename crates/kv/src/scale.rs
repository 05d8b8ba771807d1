//! What an operation costs does not depend on the pool's size: elements touched, counted on 64 blocks and on 1,000,000.
//!
//! No clock: `benches/scale.rs` shows the same in nanoseconds, where colder memory makes a difference. All that is as large as the pool is
//! reached through [`Items`](crate::items::Items), which counts; maps are only asked for a key.

use lifecycle::StepId;

use crate::items::touched;
use crate::{Lease, NodeId, NodeState, Owner, Pool};

/// Blocks that share a beginning.
const CHAIN: u32 = 8;

/// A pool whose blocks are all cached, in chains, and the first nodes of the oldest and the newest chain.
struct Full {
    pool: Pool,
    root: NodeId,
    step: u64,
    owner: u64,
    newest: u32,
}

impl Full {
    fn new(blocks: u32) -> Full {
        let mut pool = Pool::new(blocks, 2);
        let root = pool.root("t", "m", "");
        let mut full = Full { pool, root, step: 0, owner: 0, newest: 0 };
        for chain in 0..blocks / CHAIN {
            let leases = full.fill(chain);
            full.retire(leases);
        }
        assert_eq!((full.pool.account().cached, full.pool.account().free), (blocks, 0));
        full
    }

    fn owner(&mut self) -> Owner {
        self.owner += 1;
        Owner(self.owner)
    }

    /// Computes a chain that the index does not have.
    fn fill(&mut self, chain: u32) -> Vec<Lease> {
        let owner = self.owner();
        self.newest = chain;
        let mut at = self.root;
        let mut leases = Vec::new();
        for depth in 0..CHAIN {
            at = self.pool.begin(at, &[chain, depth], owner).expect("nobody has it");
            let lease = self.pool.allocate(owner).expect("a block is free or cached");
            assert!(self.pool.commit(at, &lease));
            leases.push(lease);
        }
        leases
    }

    /// Finds the newest chain and holds it, too.
    fn share(&mut self) -> Vec<Lease> {
        let owner = self.owner();
        let mut at = self.root;
        let mut leases = Vec::new();
        for depth in 0..CHAIN {
            let found = self.pool.lookup(at, &[self.newest, depth]).expect("it is cached");
            assert!(matches!(found.state, NodeState::Ready(_)));
            leases.push(self.pool.acquire(found.node, owner).expect("it is ready"));
            at = found.node;
        }
        leases
    }

    /// Behind a fence that completes at once.
    fn retire(&mut self, leases: Vec<Lease>) {
        self.step += 1;
        for lease in leases {
            self.pool.retire(lease, Some(StepId(self.step)));
        }
        self.pool.fence_completed(StepId(self.step));
    }
}

/// Elements touched by each operation on a full pool of so many blocks.
fn costs(blocks: u32) -> Vec<(&'static str, u64)> {
    let mut full = Full::new(blocks);
    let mut costs = Vec::new();
    let mut count = |what: &'static str, since: u64| costs.push((what, touched() - since));

    let (owner, since) = (full.owner(), touched());
    let lease = full.pool.allocate(owner).expect("something is cached");
    count("allocate, evicting a cached block", since);

    full.step += 1;
    let (step, since) = (StepId(full.step), touched());
    full.pool.retire(lease, Some(step));
    count("retire behind an open fence", since);
    let since = touched();
    assert_eq!(full.pool.fence_completed(step), 1);
    count("complete a fence that one block waits for", since);
    let since = touched();
    full.pool.fence_completed(StepId(full.step + 1));
    count("complete a fence that nothing waits for", since);
    full.step += 1;

    let (owner, since) = (full.owner(), touched());
    let lease = full.pool.allocate(owner).expect("one is free");
    count("allocate a free block", since);
    let (block, generation) = (lease.block(), lease.generation());
    let since = touched();
    full.pool.retire(lease, None);
    count("retire without a fence", since);
    let since = touched();
    assert!(full.pool.release(block, generation, owner, None).is_err());
    count("refuse a release", since);

    let since = touched();
    let shared = full.share();
    count("look up and acquire a chain", since);
    let since = touched();
    full.retire(shared);
    count("retire a chain behind a fence and complete it", since);
    let since = touched();
    let fresh = full.fill(blocks);
    count("compute a chain, evicting another", since);
    full.retire(fresh);

    let since = touched();
    let (account, is_conserved) = (full.pool.account(), full.pool.check().is_ok());
    assert!(is_conserved && full.pool.owned_by(owner) == 0 && full.pool.available() == account.free + account.cached);
    count("cut the account and check it", since);

    // A lost step is no common thing, but no scan either.
    let owner = full.owner();
    let lost = full.pool.allocate(owner).expect("something is cached");
    full.step += 1;
    full.pool.retire(lost, Some(StepId(full.step)));
    let since = touched();
    assert_eq!(full.pool.quarantine(StepId(full.step)), 1);
    count("quarantine a step that one block waits for", since);

    costs
}

#[test]
fn operations_touch_as_many_elements_of_a_large_pool_as_of_a_small_one() {
    let small = costs(64);
    assert_eq!(small, costs(1_000_000));
    // Counted as it happens, or nothing to do; all else shows that the count is alive.
    let free = ["cut the account and check it", "complete a fence that nothing waits for"];
    assert!(small.iter().all(|(what, touched)| (*touched == 0) == free.contains(what)), "{small:?}");
}

#[test]
fn a_scan_would_be_seen() {
    let full = Full::new(4096);
    let since = touched();
    assert_eq!(full.pool.audit(), Ok(()));
    assert!(touched() - since >= 4096);
    let since = touched();
    assert_eq!(full.pool.blocks().filter(|b| b.generation.0 == 0).count(), 0);
    assert_eq!(touched() - since, 4096);
}
