//! The prefix index: a tree of full blocks of tokens, below one root per tenant, model and salt.
//!
//! A node's identity is its parent's identity and its own tokens; parents are compared by an id that is never used again and tokens are
//! compared in full, so two equal nodes have the same tokens from the first to the last, and the same root. Hashing only finds; it never
//! decides. No map here is iterated where the order could be seen.
// contract: C-19, C-21

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::items::Items;
use crate::list::{Link, List};
use crate::{BeginError, BlockId, Owner};

/// How many roots without nodes are kept; the oldest is dropped for a new one. Roots with nodes are bounded by the nodes.
pub const IDLE_ROOTS_MAX: u32 = 256;

/// A place in the prefix index; never used again for another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    serial: u64,
    slot: u32,
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.serial)
    }
}

/// What a node has to offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// The block is complete and may be acquired.
    Ready(BlockId),
    /// Somebody computes it: follow, do not compute it twice.
    Computing {
        /// Who.
        by: Owner,
    },
}

/// A node that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The node.
    pub node: NodeId,
    /// What it has to offer.
    pub state: NodeState,
}

/// What separates prefixes that must never be shared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RootKey {
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) salt: String,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Root(RootKey),
    Pending(Owner),
    Ready(BlockId),
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) kind: Kind,
    pub(crate) parent: Option<NodeId>,
    pub(crate) tokens: Arc<[u32]>,
    pub(crate) children: HashMap<Arc<[u32]>, NodeId>,
}

impl Node {
    fn found(&self) -> Option<Found> {
        let state = match self.kind {
            Kind::Root(_) => return None,
            Kind::Pending(by) => NodeState::Computing { by },
            Kind::Ready(block) => NodeState::Ready(block),
        };
        Some(Found { node: self.id, state })
    }

    pub(crate) fn block(&self) -> Option<BlockId> {
        match self.kind {
            Kind::Ready(block) => Some(block),
            Kind::Root(_) | Kind::Pending(_) => None,
        }
    }
}

/// What left the index with a node.
pub(crate) struct Gone {
    /// The blocks of the node and of all below it, oldest node first.
    pub(crate) blocks: Vec<BlockId>,
    /// The block of its parent, which lost a child.
    pub(crate) parent: Option<BlockId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Index {
    pub(crate) nodes: Items<Option<Node>>,
    pub(crate) links: Items<Link>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) serial: u64,
    pub(crate) roots: HashMap<RootKey, NodeId>,
    pub(crate) idle_roots: List,
    pub(crate) pending_of: HashMap<Owner, List>,
    pub(crate) pending: u32,
    pub(crate) pending_max: u32,
    pub(crate) block_tokens: u32,
}

impl Index {
    pub(crate) fn new(pending_max: u32, block_tokens: u32) -> Index {
        Index {
            nodes: Items::new(Vec::new()),
            links: Items::new(Vec::new()),
            vacant: Vec::new(),
            serial: 0,
            roots: HashMap::new(),
            idle_roots: List::EMPTY,
            pending_of: HashMap::new(),
            pending: 0,
            pending_max,
            block_tokens,
        }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(id.slot as usize)?.as_ref().filter(|node| node.id == id)
    }

    fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(id.slot as usize)?.as_mut().filter(|node| node.id == id)
    }

    fn add(&mut self, kind: Kind, parent: Option<NodeId>, tokens: Arc<[u32]>) -> NodeId {
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.links.push(Link::OUT);
            (self.nodes.len() - 1) as u32
        });
        self.serial += 1;
        let id = NodeId { serial: self.serial, slot };
        self.nodes[slot as usize] = Some(Node { id, kind, parent, tokens, children: HashMap::new() });
        id
    }

    pub(crate) fn root(&mut self, key: RootKey) -> NodeId {
        if let Some(id) = self.roots.get(&key) {
            return *id;
        }
        let id = self.add(Kind::Root(key.clone()), None, Arc::from([]));
        self.roots.insert(key, id);
        self.idle(id);
        id
    }

    pub(crate) fn child(&self, parent: NodeId, tokens: &[u32]) -> Option<Found> {
        let child = self.get(parent)?.children.get(tokens)?;
        self.get(*child)?.found()
    }

    pub(crate) fn begin(&mut self, parent: NodeId, tokens: &[u32], by: Owner) -> Result<NodeId, BeginError> {
        if tokens.len() != self.block_tokens as usize {
            return Err(BeginError::NotABlock { given: tokens.len(), block_tokens: self.block_tokens });
        }
        if let Some(found) = self.child(parent, tokens) {
            return Err(BeginError::Exists(found));
        }
        let above = self.get(parent).ok_or(BeginError::NoParent)?;
        if self.pending == self.pending_max {
            return Err(BeginError::Full { limit: self.pending_max });
        }
        if matches!(above.kind, Kind::Root(_)) && above.children.is_empty() {
            self.idle_roots.remove(&mut self.links, parent.slot);
        }
        let tokens: Arc<[u32]> = Arc::from(tokens);
        let id = self.add(Kind::Pending(by), Some(parent), tokens.clone());
        if let Some(above) = self.get_mut(parent) {
            above.children.insert(tokens, id);
        }
        self.pending_of.entry(by).or_insert(List::EMPTY).push_back(&mut self.links, id.slot);
        self.pending += 1;
        Ok(id)
    }

    /// Whether `by` may make this node ready now: it computes it, and all before it are complete.
    pub(crate) fn may_commit(&self, id: NodeId, by: Owner) -> bool {
        let Some(node) = self.get(id) else { return false };
        let above = node.parent.and_then(|parent| self.get(parent));
        matches!(node.kind, Kind::Pending(owner) if owner == by) && above.is_some_and(|above| !matches!(above.kind, Kind::Pending(_)))
    }

    pub(crate) fn commit(&mut self, id: NodeId, by: Owner, block: BlockId) {
        self.leave_pending(id.slot, by);
        if let Some(node) = self.get_mut(id) {
            node.kind = Kind::Ready(block);
        }
    }

    fn leave_pending(&mut self, slot: u32, by: Owner) {
        if let Some(list) = self.pending_of.get_mut(&by) {
            list.remove(&mut self.links, slot);
            self.pending -= 1;
            if list.len() == 0 {
                self.pending_of.remove(&by);
            }
        }
    }

    /// The oldest node that this owner computes.
    pub(crate) fn first_pending(&self, by: Owner) -> Option<NodeId> {
        let slot = self.pending_of.get(&by)?.front()?;
        self.nodes[slot as usize].as_ref().map(|node| node.id)
    }

    /// Removes a node and all below it, which without it cannot be reached. Each node is removed once, so the cost is its `begin`'s.
    pub(crate) fn remove(&mut self, id: NodeId) -> Gone {
        let mut gone = Gone { blocks: Vec::new(), parent: None };
        let mut below = Vec::new();
        let mut open = vec![id];
        while let Some(at) = open.pop() {
            if let Some(node) = self.get(at) {
                below.push(at);
                open.extend(node.children.values().copied());
            }
        }
        // In the order of their making, for the map's own order differs from process to process.
        below.sort_unstable();
        for at in below {
            if let Some(node) = self.take(at) {
                gone.blocks.extend(node.block());
                if at == id
                    && let Some(parent) = node.parent
                {
                    gone.parent = self.unlink(parent, &node.tokens);
                }
            }
        }
        gone
    }

    /// Every root, oldest first.
    pub(crate) fn all_roots(&self) -> Vec<NodeId> {
        let mut all: Vec<NodeId> = self.roots.values().copied().collect();
        all.sort_unstable();
        all
    }

    fn take(&mut self, id: NodeId) -> Option<Node> {
        let node = self.nodes[id.slot as usize].take()?;
        self.vacant.push(id.slot);
        match &node.kind {
            Kind::Root(key) => {
                if node.children.is_empty() {
                    self.idle_roots.remove(&mut self.links, id.slot);
                }
                self.roots.remove(key);
            }
            Kind::Pending(by) => self.leave_pending(id.slot, *by),
            Kind::Ready(_) => {}
        }
        Some(node)
    }

    /// Takes a child out of its parent; a root that has none left is idle. The parent's block, if it has one.
    fn unlink(&mut self, parent: NodeId, tokens: &[u32]) -> Option<BlockId> {
        let above = self.get_mut(parent)?;
        above.children.remove(tokens);
        let (block, is_root, childless) = (above.block(), matches!(above.kind, Kind::Root(_)), above.children.is_empty());
        if is_root && childless {
            self.idle(parent);
        }
        block
    }

    /// A root has no nodes: it is kept a while, for whoever just asked for it, at the cost of the one that is idle longest.
    fn idle(&mut self, root: NodeId) {
        self.idle_roots.push_back(&mut self.links, root.slot);
        if self.idle_roots.len() > IDLE_ROOTS_MAX
            && let Some(slot) = self.idle_roots.front()
            && let Some(Node { id, .. }) = self.nodes[slot as usize]
        {
            self.take(id);
        }
    }
}
