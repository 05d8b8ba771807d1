//! The prefix index: a tree of full blocks, each known by its parent and its tokens, under a root for tenant, model and salt.
//!
//! Tokens are compared, not only hashed, and a parent is a node that is never reused, so a match is a match of all tokens before it.
//! A node whose block was handed out again stays as a *ghost* while it has children, so that they can be reached again once the block is
//! recomputed; a ghost without children goes. Invariant: a ready node's block says that it is that node's.
// contract: C-19, C-21

use std::collections::HashMap;

use crate::block::{BlockId, Owner};

/// A node's name; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) u64);

/// What a node stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// Its block can be shared.
    Ready(BlockId),
    /// An owner computes it; follow, or take over when the owner ends.
    Computing {
        /// Who.
        by: Owner,
    },
}

/// A match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The node.
    pub node: NodeId,
    /// What it stands for.
    pub state: NodeState,
}

/// Why a claim was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// The parent is not in the index any more.
    #[error("the parent is no longer in the index")]
    NoParent,
    /// Somebody has it or computes it: look it up.
    #[error("the block is in the index already")]
    Exists,
    /// Too many claims are open.
    #[error("too many blocks are being computed for the index")]
    Full,
}

/// Most claims open at once, over all owners.
pub const CLAIMS_MAX: usize = 1 << 20;
/// Most roots kept; beyond that, roots without nodes are dropped.
pub const ROOTS_MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Root,
    Computing(Owner),
    Ready(BlockId),
    Ghost,
}

#[derive(Debug)]
struct Node {
    kind: Kind,
    parent: NodeId,
    tokens: Box<[u32]>,
    children: HashMap<Box<[u32]>, NodeId>,
}

/// The tree.
#[derive(Debug, Default)]
pub(crate) struct Index {
    nodes: HashMap<NodeId, Node>,
    roots: HashMap<(String, String, String), NodeId>,
    claims: HashMap<Owner, Vec<NodeId>>,
    claims_open: usize,
    next: u64,
}

impl Index {
    fn insert(&mut self, kind: Kind, parent: NodeId, tokens: &[u32]) -> NodeId {
        self.next += 1;
        let id = NodeId(self.next);
        self.nodes.insert(id, Node { kind, parent, tokens: tokens.into(), children: HashMap::new() });
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children.insert(tokens.into(), id);
        }
        id
    }

    pub(crate) fn root(&mut self, tenant: &str, model: &str, salt: &str) -> NodeId {
        let key = (tenant.to_string(), model.to_string(), salt.to_string());
        if let Some(id) = self.roots.get(&key) {
            return *id;
        }
        if self.roots.len() >= ROOTS_MAX {
            let nodes = &mut self.nodes;
            self.roots.retain(|_, id| {
                let keep = nodes.get(id).is_some_and(|n| !n.children.is_empty());
                if !keep {
                    nodes.remove(id);
                }
                keep
            });
        }
        let id = self.insert(Kind::Root, NodeId(0), &[]);
        self.roots.insert(key, id);
        id
    }

    pub(crate) fn lookup(&self, parent: NodeId, tokens: &[u32]) -> Option<Found> {
        let node = *self.nodes.get(&parent)?.children.get(tokens)?;
        let state = match self.nodes.get(&node)?.kind {
            Kind::Ready(block) => NodeState::Ready(block),
            Kind::Computing(by) => NodeState::Computing { by },
            Kind::Ghost | Kind::Root => return None,
        };
        Some(Found { node, state })
    }

    pub(crate) fn begin(&mut self, parent: NodeId, tokens: &[u32], owner: Owner) -> Result<NodeId, BeginError> {
        let at = self.nodes.get(&parent).ok_or(BeginError::NoParent)?;
        if self.claims_open >= CLAIMS_MAX {
            return Err(BeginError::Full);
        }
        let id = match at.children.get(tokens).copied() {
            None => self.insert(Kind::Computing(owner), parent, tokens),
            Some(id) => match self.nodes.get_mut(&id) {
                Some(node) if node.kind == Kind::Ghost => {
                    node.kind = Kind::Computing(owner);
                    id
                }
                _ => return Err(BeginError::Exists),
            },
        };
        self.claims.entry(owner).or_default().push(id);
        self.claims_open += 1;
        Ok(id)
    }

    /// The claim becomes a match for others. False if it is not this owner's open claim.
    pub(crate) fn commit(&mut self, node: NodeId, owner: Owner, block: BlockId) -> bool {
        match self.nodes.get_mut(&node) {
            Some(n) if n.kind == Kind::Computing(owner) => n.kind = Kind::Ready(block),
            _ => return false,
        }
        if let Some(open) = self.claims.get_mut(&owner) {
            let before = open.len();
            // Claims are committed in the order of their making, so the first is the one.
            if let Some(at) = open.iter().position(|id| *id == node) {
                open.remove(at);
            }
            self.claims_open -= before - open.len();
            if open.is_empty() {
                self.claims.remove(&owner);
            }
        }
        true
    }

    pub(crate) fn abandon(&mut self, owner: Owner) {
        let open = self.claims.remove(&owner).unwrap_or_default();
        self.claims_open -= open.len();
        for id in open.into_iter().rev() {
            self.vacate(id);
        }
    }

    pub(crate) fn block_of(&self, node: NodeId) -> Option<BlockId> {
        match self.nodes.get(&node)?.kind {
            Kind::Ready(block) => Some(block),
            _ => None,
        }
    }

    /// A node loses its block or its claim: it becomes a ghost, or goes, with every ghost above it that has no child left.
    pub(crate) fn vacate(&mut self, id: NodeId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.kind = Kind::Ghost;
        }
        let mut at = id;
        while let Some(node) = self.nodes.get(&at) {
            if node.kind != Kind::Ghost || !node.children.is_empty() {
                return;
            }
            let parent = node.parent;
            if let Some(gone) = self.nodes.remove(&at)
                && let Some(parent) = self.nodes.get_mut(&parent)
            {
                parent.children.remove(&gone.tokens);
            }
            at = parent;
        }
    }

    /// Every ready node and its block; claims that are open; ghosts that nothing hangs on (there must be none).
    pub(crate) fn census(&self) -> (HashMap<BlockId, NodeId>, usize, usize) {
        let ready = self.nodes.iter().filter_map(|(id, n)| match n.kind {
            Kind::Ready(block) => Some((block, *id)),
            _ => None,
        });
        let claims = self.nodes.values().filter(|n| matches!(n.kind, Kind::Computing(_))).count();
        let idle = self.nodes.values().filter(|n| n.kind == Kind::Ghost && n.children.is_empty()).count();
        (ready.collect(), claims, idle)
    }

    pub(crate) fn claims_open(&self) -> usize {
        self.claims_open
    }
}
