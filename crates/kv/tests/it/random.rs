//! Random operations, most of them wrong in some way, on small pools under eviction pressure; after each the pool must equal the model.
// contract: C-15, C-16, C-17, C-18, C-19
// field: F-36, F-39, F-47, F-58, F-60, F-61, F-62, F-63

use kv::{BlockId, Generation, Lease, NodeId, Owner, Pool, Retired};
use lifecycle::StepId;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::model::{Model, Node};

const BLOCK_TOKENS: u32 = 2;
const OWNERS: u64 = 5;
const ROOTS: [(&str, &str, &str); 3] = [("a", "m", ""), ("b", "m", ""), ("a", "m", "s")];

#[derive(Clone, Debug)]
enum Op {
    Allocate { owner: u64 },
    Retire { lease: Index, fence: Option<u64> },
    Release { lease: Index, older: u64, block: u32, owner: Option<u64>, fence: Option<u64> },
    Complete { ahead: u64 },
    Quarantine { ahead: u64 },
    QuarantineLease { lease: Index },
    Reset { ahead: u64 },
    Begin { parent: Index, token: u32, owner: u64, len: u32 },
    Commit { node: Index, lease: Index },
    Fill { parent: Index, token: u32, owner: u64 },
    Acquire { node: Index, owner: u64 },
    Abandon { owner: u64 },
}

/// Steps are given relative to two before the newest completed one, so that late and open ones both come.
fn op() -> impl Strategy<Value = Op> {
    let owner = || 0..OWNERS;
    let fence = || proptest::option::of(0..6u64);
    let index = any::<Index>;
    prop_oneof![
        6 => owner().prop_map(|owner| Op::Allocate { owner }),
        8 => (index(), fence()).prop_map(|(lease, fence)| Op::Retire { lease, fence }),
        3 => (index(), prop_oneof![3 => Just(0u64), 1 => 1..3u64], prop_oneof![8 => Just(0u32), 1 => 1..20u32],
              proptest::option::weighted(0.3, owner()), fence())
            .prop_map(|(lease, older, block, owner, fence)| Op::Release { lease, older, block, owner, fence }),
        4 => (0..6u64).prop_map(|ahead| Op::Complete { ahead }),
        1 => (0..6u64).prop_map(|ahead| Op::Quarantine { ahead }),
        1 => index().prop_map(|lease| Op::QuarantineLease { lease }),
        1 => (0..6u64).prop_map(|ahead| Op::Reset { ahead }),
        4 => (index(), 0..3u32, owner(), prop_oneof![9 => Just(BLOCK_TOKENS), 1 => Just(BLOCK_TOKENS + 1)])
            .prop_map(|(parent, token, owner, len)| Op::Begin { parent, token, owner, len }),
        4 => (index(), index()).prop_map(|(node, lease)| Op::Commit { node, lease }),
        8 => (index(), 0..3u32, owner()).prop_map(|(parent, token, owner)| Op::Fill { parent, token, owner }),
        6 => (index(), owner()).prop_map(|(node, owner)| Op::Acquire { node, owner }),
        1 => owner().prop_map(|owner| Op::Abandon { owner }),
    ]
}

struct World {
    pool: Pool,
    model: Model,
    leases: Vec<Lease>,
    /// Every node that there ever was, so that gone ones are asked for too.
    known: Vec<NodeId>,
}

impl World {
    fn new(total: u32) -> World {
        let mut world =
            World { pool: Pool::new(total, BLOCK_TOKENS), model: Model::new(total, ROOTS.len()), leases: vec![], known: vec![] };
        world.plant();
        world
    }

    fn plant(&mut self) {
        for (at, (tenant, model, salt)) in ROOTS.iter().enumerate() {
            let id = self.pool.root(tenant, model, salt);
            if self.model.roots[at] != Some(id) {
                assert!(self.model.roots[at].is_none() && !self.known.contains(&id), "a root changed its id, or an id came again");
                self.model.roots[at] = Some(id);
                self.known.push(id);
            }
        }
    }

    fn step(&self, ahead: u64) -> u64 {
        (self.model.completed + ahead).saturating_sub(2)
    }

    fn pick(&self, lease: &Index) -> Option<usize> {
        (!self.leases.is_empty()).then(|| lease.index(self.leases.len()))
    }

    /// Half of the time one of the newest nodes, else any that ever was.
    fn node(&self, node: &Index) -> NodeId {
        let recent = self.known.len().min(6);
        let at = node.index(self.known.len() + recent);
        self.known[if at < self.known.len() { at } else { at - recent }]
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Allocate { owner } => drop(self.allocate(*owner)),
            Op::Retire { lease, fence } => {
                if let Some(at) = self.pick(lease) {
                    let lease = self.leases.swap_remove(at);
                    let fence = fence.map(|ahead| self.step(ahead));
                    let expected = self.model.release(lease.block().0, lease.generation().0, lease.owner().0, fence, false);
                    assert_eq!(self.pool.retire(lease, fence.map(StepId)), expected.unwrap_or_else(Retired::Refused));
                }
            }
            Op::Release { lease, older, block, owner, fence } => {
                let Some(at) = self.pick(lease) else { return };
                let block = self.leases[at].block().0 + block;
                let generation = self.leases[at].generation().0.saturating_sub(*older);
                let owner = owner.unwrap_or(self.leases[at].owner().0);
                let fence = fence.map(|ahead| self.step(ahead));
                let expected = self.model.release(block, generation, owner, fence, false);
                assert_eq!(self.pool.release(BlockId(block), Generation(generation), Owner(owner), fence.map(StepId)), expected);
            }
            Op::Complete { ahead } => {
                let step = self.step(*ahead);
                assert_eq!(self.pool.fence_completed(StepId(step)), self.model.complete(step));
            }
            Op::Quarantine { ahead } => {
                let step = self.step(*ahead);
                assert_eq!(self.pool.quarantine(StepId(step)), self.model.quarantine(step));
            }
            Op::QuarantineLease { lease } => {
                if let Some(at) = self.pick(lease) {
                    let lease = self.leases.swap_remove(at);
                    let expected = self.model.release(lease.block().0, lease.generation().0, lease.owner().0, None, true);
                    assert_eq!(self.pool.quarantine_lease(lease), expected.unwrap_or_else(Retired::Refused));
                }
            }
            Op::Reset { ahead } => {
                let newest = self.step(*ahead);
                assert_eq!(self.pool.device_reset(StepId(newest)), self.model.reset(newest));
                self.plant();
            }
            Op::Begin { parent, token, owner, len } => drop(self.begin(self.node(parent), &vec![*token; *len as usize], *owner)),
            Op::Commit { node, lease } => {
                if let Some(at) = self.pick(lease) {
                    let node = self.node(node);
                    let expected = self.model.commit(node, &self.leases[at]);
                    assert_eq!(self.pool.commit(node, &self.leases[at]), expected);
                }
            }
            Op::Fill { parent, token, owner } => {
                let parent = self.node(parent);
                if let (Some(at), Some(node)) = (self.allocate(*owner), self.begin(parent, &[*token; BLOCK_TOKENS as usize], *owner)) {
                    let expected = self.model.commit(node, &self.leases[at]);
                    assert_eq!(self.pool.commit(node, &self.leases[at]), expected);
                }
            }
            Op::Acquire { node, owner } => self.acquire(self.node(node), *owner),
            Op::Abandon { owner } => {
                self.pool.abandon(Owner(*owner));
                self.model.abandon(*owner);
            }
        }
    }

    fn allocate(&mut self, owner: u64) -> Option<usize> {
        match self.pool.allocate(Owner(owner)) {
            Ok(lease) => {
                self.model.allocated(&self.pool, &lease);
                self.leases.push(lease);
                Some(self.leases.len() - 1)
            }
            Err(exhausted) => {
                assert!(self.model.candidates().is_empty());
                assert_eq!(exhausted.draining, self.model.account().draining);
                None
            }
        }
    }

    fn begin(&mut self, parent: NodeId, tokens: &[u32], owner: u64) -> Option<NodeId> {
        let expected = self.model.may_begin(parent, tokens, BLOCK_TOKENS);
        let begun = self.pool.begin(parent, tokens, Owner(owner));
        match (begun, expected) {
            (Ok(id), Ok(path)) => {
                assert!(!self.known.contains(&id), "a node's id came again");
                self.known.push(id);
                self.model.nodes.push(Node { id, path, state: kv::NodeState::Computing { by: Owner(owner) } });
                Some(id)
            }
            (Err(is), Err(should)) => {
                assert_eq!(is, should);
                None
            }
            (is, should) => panic!("begin gave {is:?}, should {should:?}"),
        }
    }

    fn acquire(&mut self, node: NodeId, owner: u64) {
        let block = self.model.nodes.iter().find(|n| n.id == node).and_then(|n| match n.state {
            kv::NodeState::Ready(block) => Some(block),
            kv::NodeState::Computing { .. } => None,
        });
        let expected = block.filter(|b| !self.model.blocks[b.0 as usize].owners.contains(&owner));
        let lease = self.pool.acquire(node, Owner(owner));
        assert_eq!(lease.as_ref().map(Lease::block), expected, "the reference is on the node's own block");
        if let Some(lease) = lease {
            let block = &mut self.model.blocks[lease.block().0 as usize];
            block.owners.insert(owner);
            assert_eq!((lease.generation().0, lease.owner().0), (block.generation, owner));
            self.leases.push(lease);
        }
    }

    fn compare(&self) {
        assert_eq!(self.pool.check(), Ok(()));
        assert_eq!(self.pool.audit(), Ok(()));
        assert_eq!(self.pool.account(), self.model.account());
        let account = self.pool.account();
        assert_eq!(self.pool.available(), account.free + account.cached);
        for view in self.pool.blocks() {
            let i = view.block.0 as usize;
            let should = &self.model.blocks[i];
            let owners: Vec<u64> = view.owners.iter().map(|o| o.0).collect();
            assert_eq!((view.state, view.generation.0, view.condemned), (self.model.state(i), should.generation, should.condemned));
            assert_eq!(owners, should.owners.iter().copied().collect::<Vec<_>>());
            assert_eq!(view.fence.map(|f| f.0), self.model.fence(i));
        }
        for owner in 0..OWNERS {
            assert_eq!(self.pool.owned_by(Owner(owner)), self.model.owned_by(owner));
        }
        assert_eq!(self.pool.pending(), self.model.pending());
        for node in &self.model.nodes {
            let found = self.model.lookup(&self.pool, node);
            assert_eq!(found.map(|f| (f.node, f.state)), Some((node.id, node.state)));
        }
        for id in &self.known {
            for token in 0..3 {
                let tokens = [token; BLOCK_TOKENS as usize];
                let should = self.model.path_of(*id).and_then(|(root, mut path)| {
                    path.push(tokens.to_vec());
                    self.model.nodes.iter().find(|n| n.path == (root, path.clone())).map(|n| n.id)
                });
                assert_eq!(self.pool.lookup(*id, &tokens).map(|f| f.node), should);
            }
        }
    }

    /// Everything is given back: only what a lost step holds is missing, and after a reset nothing is.
    fn settle_all(mut self) {
        for lease in std::mem::take(&mut self.leases) {
            self.pool.retire(lease, None);
        }
        // Released by name with a fence that is still open.
        self.pool.fence_completed(StepId(self.model.completed + 1_000));
        let a = self.pool.account();
        assert_eq!((a.active, a.draining, a.free + a.cached + a.quarantined), (0, 0, a.total));
        assert_eq!(self.pool.audit(), Ok(()));
        self.pool.device_reset(StepId(self.model.completed + 1_000));
        assert_eq!((self.pool.account().free, self.pool.pending()), (a.total, 0));
        assert_eq!(self.pool.audit(), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn the_pool_equals_the_model(total in 1..8u32, ops in proptest::collection::vec(op(), 1..120)) {
        let mut world = World::new(total);
        for op in &ops {
            world.apply(op);
            world.compare();
        }
        world.settle_all();
    }
}
