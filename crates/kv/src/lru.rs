//! The cached blocks from the least to the most recently released, as a doubly linked list over block indices: every operation O(1).

use crate::block::BlockId;

const NONE: u32 = u32::MAX;

/// The list.
#[derive(Debug)]
pub(crate) struct Lru {
    /// (before, after) of each block; meaningless for blocks outside the list.
    links: Vec<(u32, u32)>,
    first: u32,
    last: u32,
    len: u32,
}

impl Lru {
    pub(crate) fn new(blocks: u32) -> Lru {
        Lru { links: vec![(NONE, NONE); blocks as usize], first: NONE, last: NONE, len: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Adds a block that is not in the list as the most recent.
    pub(crate) fn push(&mut self, block: BlockId) {
        self.links[block.0 as usize] = (self.last, NONE);
        match self.last {
            NONE => self.first = block.0,
            last => self.links[last as usize].1 = block.0,
        }
        self.last = block.0;
        self.len += 1;
    }

    /// Takes a block that is in the list out of it.
    pub(crate) fn remove(&mut self, block: BlockId) {
        let (before, after) = self.links[block.0 as usize];
        match before {
            NONE => self.first = after,
            b => self.links[b as usize].1 = after,
        }
        match after {
            NONE => self.last = before,
            a => self.links[a as usize].0 = before,
        }
        self.len -= 1;
    }

    /// The least recent one.
    pub(crate) fn first(&self) -> Option<BlockId> {
        (self.first != NONE).then_some(BlockId(self.first))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BlockId> {
        let next = |b: &BlockId| Some(self.links[b.0 as usize].1).filter(|n| *n != NONE).map(BlockId);
        std::iter::successors(self.first(), next)
    }
}
