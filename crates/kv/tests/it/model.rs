//! A naive model of the pool: plain sets, every state derived anew, every question answered by a search. It does not choose which block is
//! handed out; it says which ones may be, and takes over what the pool chose.

use std::collections::BTreeSet;

use kv::{Account, BeginError, BlockId, BlockState, Found, Lease, NodeId, NodeState, Owner, Pool, Refused, Retired};
use lifecycle::StepId;

/// How many former owners the pool remembers.
const FORMER: usize = 4;

#[derive(Clone, Debug, Default)]
pub struct Block {
    pub generation: u64,
    pub owners: BTreeSet<u64>,
    pub former: Vec<u64>,
    pub fences: BTreeSet<u64>,
    pub condemned: bool,
}

/// A root's number and all blocks of tokens after it.
pub type Path = (usize, Vec<Vec<u32>>);

#[derive(Clone, Debug)]
pub struct Node {
    pub id: NodeId,
    pub path: Path,
    pub state: NodeState,
}

#[derive(Debug)]
pub struct Model {
    pub blocks: Vec<Block>,
    pub nodes: Vec<Node>,
    pub roots: Vec<Option<NodeId>>,
    pub completed: u64,
    pub lost: BTreeSet<u64>,
    pub account: Account,
}

impl Model {
    pub fn new(total: u32, roots: usize) -> Model {
        Model {
            blocks: vec![Block::default(); total as usize],
            nodes: Vec::new(),
            roots: vec![None; roots],
            completed: 0,
            lost: BTreeSet::new(),
            account: Account { total, ..Account::default() },
        }
    }

    pub fn fence(&self, i: usize) -> Option<u64> {
        self.blocks[i].fences.iter().copied().filter(|f| *f > self.completed).max()
    }

    pub fn node_of(&self, i: usize) -> Option<&Node> {
        self.nodes.iter().find(|n| n.state == NodeState::Ready(BlockId(i as u32)))
    }

    pub fn state(&self, i: usize) -> BlockState {
        let b = &self.blocks[i];
        if !b.owners.is_empty() {
            BlockState::Active
        } else if b.condemned {
            BlockState::Quarantined
        } else if self.fence(i).is_some() {
            BlockState::Draining
        } else if self.node_of(i).is_some() {
            BlockState::Cached
        } else {
            BlockState::Free
        }
    }

    pub fn account(&self) -> Account {
        let count = |state| (0..self.blocks.len()).filter(|i| self.state(*i) == state).count() as u32;
        Account {
            free: count(BlockState::Free),
            active: count(BlockState::Active),
            cached: count(BlockState::Cached),
            draining: count(BlockState::Draining),
            quarantined: count(BlockState::Quarantined),
            ..self.account
        }
    }

    pub fn owned_by(&self, owner: u64) -> u32 {
        self.blocks.iter().filter(|b| b.owners.contains(&owner)).count() as u32
    }

    pub fn pending(&self) -> u32 {
        self.nodes.iter().filter(|n| matches!(n.state, NodeState::Computing { .. })).count() as u32
    }

    fn has_children(&self, path: &Path) -> bool {
        self.nodes.iter().any(|n| n.path.0 == path.0 && n.path.1.len() == path.1.len() + 1 && n.path.1.starts_with(&path.1))
    }

    /// The blocks that may be handed out next.
    pub fn candidates(&self) -> Vec<usize> {
        let all = || 0..self.blocks.len();
        let free: Vec<usize> = all().filter(|i| self.state(*i) == BlockState::Free).collect();
        let cached: Vec<usize> = all().filter(|i| self.state(*i) == BlockState::Cached).collect();
        let is_leaf = |i: &usize| self.node_of(*i).is_some_and(|n| !self.has_children(&n.path));
        let leaves: Vec<usize> = cached.iter().copied().filter(is_leaf).collect();
        [free, leaves, cached].into_iter().find(|some| !some.is_empty()).unwrap_or_default()
    }

    fn remove_below(&mut self, path: &Path) {
        self.nodes.retain(|n| !(n.path.0 == path.0 && n.path.1.starts_with(&path.1)));
    }

    /// Takes over that the pool handed this lease out, and checks that it might.
    pub fn allocated(&mut self, pool: &Pool, lease: &Lease) {
        let i = lease.block().0 as usize;
        let candidates = self.candidates();
        assert!(candidates.contains(&i), "{i} was handed out, it is {} and only {candidates:?} may be", self.state(i));
        assert!(self.blocks[i].owners.is_empty() && self.fence(i).is_none() && !self.blocks[i].condemned);
        // What left the index must be one node with all below it, and the handed-out block's among it.
        let gone: Vec<Path> = self.nodes.iter().filter(|n| self.lookup(pool, n).is_none()).map(|n| n.path.clone()).collect();
        if let Some(top) = gone.iter().min_by_key(|path| path.1.len()).cloned() {
            assert!(self.node_of(i).is_some_and(|n| gone.contains(&n.path)), "a node left the index for nothing");
            self.remove_below(&top);
            assert!(gone.iter().all(|path| self.nodes.iter().all(|n| n.path != *path)), "nodes of two chains left the index at once");
        }
        assert!(self.node_of(i).is_none(), "a block was handed out and is still in the index");
        let b = &mut self.blocks[i];
        *b = Block { generation: b.generation + 1, owners: BTreeSet::from([lease.owner().0]), ..Block::default() };
        assert_eq!(b.generation, lease.generation().0);
    }

    pub fn parent_id(&self, path: &Path) -> Option<NodeId> {
        match path.1.split_last() {
            None => None,
            Some((_, [])) => self.roots[path.0],
            Some((_, above)) => self.nodes.iter().find(|n| n.path == (path.0, above.to_vec())).map(|n| n.id),
        }
    }

    pub fn lookup(&self, pool: &Pool, node: &Node) -> Option<Found> {
        pool.lookup(self.parent_id(&node.path)?, node.path.1.last()?)
    }

    /// The path of a root or node that exists.
    pub fn path_of(&self, id: NodeId) -> Option<Path> {
        let root = self.roots.iter().position(|r| *r == Some(id)).map(|r| (r, Vec::new()));
        root.or_else(|| self.nodes.iter().find(|n| n.id == id).map(|n| n.path.clone()))
    }

    pub fn refusal(&self, block: u32, generation: u64, owner: u64) -> Option<Refused> {
        let Some(b) = self.blocks.get(block as usize) else { return Some(Refused::UnknownBlock) };
        let former = &b.former[b.former.len().saturating_sub(FORMER)..];
        if b.generation != generation {
            Some(Refused::Stale { current: kv::Generation(b.generation) })
        } else if b.owners.contains(&owner) {
            None
        } else if former.contains(&owner) {
            Some(Refused::Double)
        } else {
            Some(Refused::Foreign)
        }
    }

    pub fn release(&mut self, block: u32, generation: u64, owner: u64, fence: Option<u64>, condemn: bool) -> Result<Retired, Refused> {
        if let Some(refused) = self.refusal(block, generation, owner) {
            match refused {
                Refused::UnknownBlock | Refused::Stale { .. } => self.account.stale_releases += 1,
                Refused::Foreign => self.account.foreign_releases += 1,
                Refused::Double => self.account.double_releases += 1,
            }
            return Err(refused);
        }
        let i = block as usize;
        if condemn || fence.is_some_and(|f| self.lost.contains(&f)) {
            self.condemn(i);
        } else if let Some(f) = fence.filter(|_| !self.blocks[i].condemned) {
            self.blocks[i].fences.insert(f);
        }
        self.blocks[i].owners.remove(&owner);
        self.blocks[i].former.push(owner);
        if self.owned_by(owner) == 0 {
            self.abandon(owner);
        }
        Ok(match self.state(i) {
            BlockState::Active => Retired::Shared { owners: self.blocks[i].owners.len() as u32 },
            BlockState::Draining => Retired::Draining { until: StepId(self.fence(i).unwrap_or(0)) },
            BlockState::Cached => Retired::Cached,
            BlockState::Free => Retired::Free,
            BlockState::Quarantined => Retired::Quarantined,
        })
    }

    fn condemn(&mut self, i: usize) {
        self.blocks[i].condemned = true;
        self.blocks[i].fences.clear();
        if let Some(path) = self.node_of(i).map(|n| n.path.clone()) {
            self.remove_below(&path);
        }
    }

    fn in_flight(&mut self, step: u64) -> bool {
        let known = step > self.completed && !self.lost.contains(&step);
        self.account.late_completions += u64::from(!known);
        known
    }

    pub fn complete(&mut self, step: u64) -> u32 {
        let before = self.account().draining;
        if self.in_flight(step) {
            self.completed = step;
        }
        before - self.account().draining
    }

    pub fn quarantine(&mut self, step: u64) -> u32 {
        if !self.in_flight(step) {
            return 0;
        }
        self.lost.insert(step);
        let touched: Vec<usize> = (0..self.blocks.len()).filter(|i| self.fence(*i).is_some_and(|f| f >= step)).collect();
        touched.iter().for_each(|i| self.condemn(*i));
        touched.len() as u32
    }

    pub fn reset(&mut self, newest: u64) -> u32 {
        let freed = self.account().quarantined;
        self.completed = self.completed.max(newest);
        self.lost.clear();
        self.nodes.clear();
        self.roots.fill(None);
        self.blocks.iter_mut().for_each(|b| b.condemned = false);
        freed
    }

    pub fn abandon(&mut self, owner: u64) {
        let by = NodeState::Computing { by: Owner(owner) };
        while let Some(path) = self.nodes.iter().find(|n| n.state == by).map(|n| n.path.clone()) {
            self.remove_below(&path);
        }
    }

    pub fn may_begin(&self, parent: NodeId, tokens: &[u32], block_tokens: u32) -> Result<Path, BeginError> {
        if tokens.len() != block_tokens as usize {
            return Err(BeginError::NotABlock { given: tokens.len(), block_tokens });
        }
        let (root, mut path) = self.path_of(parent).ok_or(BeginError::NoParent)?;
        path.push(tokens.to_vec());
        if let Some(n) = self.nodes.iter().find(|n| n.path == (root, path.clone())) {
            return Err(BeginError::Exists(Found { node: n.id, state: n.state }));
        }
        let limit = self.account.total;
        if self.pending() == limit { Err(BeginError::Full { limit }) } else { Ok((root, path)) }
    }

    pub fn commit(&mut self, id: NodeId, lease: &Lease) -> bool {
        let (block, owner) = (lease.block(), lease.owner());
        let Some(at) = self.nodes.iter().position(|n| n.id == id) else { return false };
        let (root, path) = &self.nodes[at].path;
        let above = (*root, path[..path.len() - 1].to_vec());
        let parent_ready = self.nodes.iter().all(|n| n.path != above || matches!(n.state, NodeState::Ready(_)));
        let ready = self.nodes[at].state == NodeState::Computing { by: owner }
            && parent_ready
            && self.refusal(block.0, lease.generation().0, owner.0).is_none()
            && !self.blocks[block.0 as usize].condemned
            && self.node_of(block.0 as usize).is_none();
        if ready {
            self.nodes[at].state = NodeState::Ready(block);
        }
        ready
    }
}
