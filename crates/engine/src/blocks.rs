//! Where sequences get their blocks and how they lose them: prefix reuse with take-over, allocation, preemption, retirement.
// contract: C-16, C-18, C-19

use std::sync::Arc;

use kv::{BlockId, NodeId, NodeState};
use lifecycle::event::Event;
use lifecycle::{AttemptEvent, Rules, StepId};

use crate::attempt::Rank;
use crate::engine::Engine;

/// What a lookup of a sequence's next full block says.
pub(crate) enum Next {
    /// It is there to be shared.
    Ready(NodeId),
    /// Another sequence computes it.
    Elsewhere,
    /// Nobody has it.
    Nobody,
}

impl<R: Rules> Engine<R> {
    /// The prefix index's word on full block `b` of a sequence, whose chain is known up to there.
    pub(crate) fn look_up(&mut self, key: u64, s: usize, b: usize) -> Next {
        let Some(parent) = self.parent_node(key, s, b) else { return Next::Nobody };
        let bt = self.limits.block_tokens as usize;
        let seq = &self.attempts[&key].sequences[s];
        match self.pool.lookup(parent, &seq.tokens[b * bt..(b + 1) * bt]) {
            None => Next::Nobody,
            Some(found) => match found.state {
                NodeState::Ready(_) => Next::Ready(found.node),
                NodeState::Computing { .. } => Next::Elsewhere,
            },
        }
    }

    /// The node that block `b` hangs on; `None` when the chain is not known that far.
    pub(crate) fn parent_node(&mut self, key: u64, s: usize, b: usize) -> Option<NodeId> {
        let attempt = &self.attempts[&key];
        let seq = &attempt.sequences[s];
        if seq.chain_broken || seq.nodes.len() < b {
            return None;
        }
        match b {
            0 => Some(self.pool.root(attempt.id.key.tenant.as_str(), &self.config.model, &attempt.salt)),
            _ => Some(seq.nodes[b - 1]),
        }
    }

    /// Shares every ready block that comes next, but never the one with the last known token: its logits are needed.
    pub(crate) fn share_prefix(&mut self, key: u64, s: usize) -> bool {
        let bt = self.limits.block_tokens as usize;
        let (mut shared, mut follow) = (0u32, false);
        loop {
            let seq = &self.attempts[&key].sequences[s];
            let b = seq.leases.len();
            debug_assert!(seq.nodes.len() <= b, "no chain is longer than what is scheduled; a shorter one finds nobody");
            if seq.scheduled != b * bt || (b + 1) * bt > seq.tokens.len() - 1 {
                break;
            }
            match self.look_up(key, s, b) {
                Next::Nobody => break,
                Next::Elsewhere => {
                    follow = true;
                    break;
                }
                Next::Ready(node) => {
                    let owner = self.attempts[&key].sequences[s].owner;
                    let Some(lease) = self.pool.acquire(node, owner) else { break };
                    let Some(attempt) = self.attempts.get_mut(&key) else { break };
                    let seq = &mut attempt.sequences[s];
                    seq.leases.push(lease);
                    seq.nodes.push(node);
                    seq.indexed = seq.leases.len();
                    seq.scheduled += bt;
                    shared += 1;
                }
            }
        }
        if shared > 0 {
            self.note_shared(key, s, shared);
        }
        !follow
    }

    fn note_shared(&mut self, key: u64, s: usize, shared: u32) {
        let bt = self.limits.block_tokens;
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        attempt.blocks_shared += shared;
        // Reuse inside the attempt (its n sequences have one prompt), or of its own blocks after a preemption, is not "cached".
        let first = s == 0 && attempt.sequences[0].epoch == 0;
        let cached = if first { shared * bt } else { 0 };
        attempt.cached_prompt += cached;
        self.note_blocks(key, s, cached, shared);
    }

    fn note_blocks(&mut self, key: u64, s: usize, cached_tokens: u32, shared: u32) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        let seq = &mut attempt.sequences[s];
        seq.table = seq.leases.iter().map(|l| l.block()).collect::<Arc<[BlockId]>>();
        let held = attempt.blocks_held();
        attempt.blocks_peak = attempt.blocks_peak.max(held);
        self.journal(key, Event::BlocksAllocated { held, cached_tokens, shared });
    }

    /// Brings a sequence to at least `want` blocks. Returns how many it has; fewer when there is no room now.
    pub(crate) fn allocate(&mut self, rank: Rank, s: usize, want: usize) -> usize {
        let key = rank.1;
        let had = self.attempts[&key].sequences[s].leases.len();
        let mut have = had;
        while have < want {
            let owner = self.attempts[&key].sequences[s].owner;
            match self.pool.allocate(owner) {
                Ok(lease) => {
                    let Some(attempt) = self.attempts.get_mut(&key) else { break };
                    attempt.sequences[s].leases.push(lease);
                    have += 1;
                }
                // Draining blocks come back by themselves: taking more from others would only cascade.
                Err(exhausted) if exhausted.draining > 0 => break,
                Err(_) if self.preempt_youngest(rank) => {}
                Err(_) => break,
            }
        }
        if have > had {
            self.note_blocks(key, s, 0, 0);
        }
        have
    }

    /// Takes the blocks of the last attempt in order that comes after `rank`. The first in order is never a victim, so it goes on.
    fn preempt_youngest(&mut self, rank: Rank) -> bool {
        match self.running.last().copied() {
            Some(victim) if victim > rank => {
                self.preempt(victim);
                true
            }
            _ => false,
        }
    }

    /// Sends a running attempt back to wait; its known tokens are kept and recomputed, to the same bits.
    pub(crate) fn preempt(&mut self, rank: Rank) {
        self.take_place(rank);
        self.step_machine(rank.1, AttemptEvent::Preempt);
        self.journal(rank.1, Event::Preempted);
    }

    /// Takes an attempt's blocks and slots and puts it back into the order of those that wait.
    pub(crate) fn take_place(&mut self, rank: Rank) {
        let key = rank.1;
        let sequences = self.attempts[&key].sequences.len();
        for s in 0..sequences {
            self.retire_sequence(key, s);
            if let Some(attempt) = self.attempts.get_mut(&key) {
                attempt.sequences[s].restart();
            }
        }
        self.running.remove(&rank);
        self.suspended.remove(&rank);
        self.waiting.insert(rank);
    }

    /// Takes a sequence's blocks, slot and place in the index away. Its rows in flight are flagged; its blocks wait for their fence.
    pub(crate) fn retire_sequence(&mut self, key: u64, s: usize) {
        self.publish(key, s);
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        let seq = &mut attempt.sequences[s];
        seq.flag.set();
        let fence = seq.fence();
        let leases = std::mem::take(&mut seq.leases);
        seq.table = Arc::from([]);
        let owner = seq.owner;
        if let Some(slot) = seq.slot.take() {
            self.slots.push(slot);
        }
        self.pool.abandon(owner);
        // Deepest first, so that the ends of a chain are evicted before its beginnings.
        for lease in leases.into_iter().rev() {
            self.pool.retire(lease, fence);
        }
    }

    /// What a sequence that goes may still put into the index: by the rules nothing that is not there already, for its rows in flight are
    /// dropped.
    // contract: C-19
    fn publish(&mut self, key: u64, s: usize) {
        let Some(seq) = self.attempts.get(&key).and_then(|attempt| attempt.sequences.get(s)) else { return };
        let bt = self.limits.block_tokens as usize;
        self.index_blocks(key, s, R::publishes(seq.indexed, seq.scheduled / bt) * bt);
    }

    /// As `retire_sequence` for a sequence whose step hangs: nobody knows when its blocks are left alone.
    pub(crate) fn quarantine_sequence(&mut self, key: u64, s: usize) -> u32 {
        let Some(attempt) = self.attempts.get_mut(&key) else { return 0 };
        let seq = &mut attempt.sequences[s];
        let leases = std::mem::take(&mut seq.leases);
        let owner = seq.owner;
        self.pool.abandon(owner);
        let count = leases.len() as u32;
        for lease in leases.into_iter().rev() {
            self.pool.quarantine_lease(lease);
        }
        count
    }

    /// Puts blocks that were just filled into the index, each where its chain says.
    pub(crate) fn index_blocks(&mut self, key: u64, s: usize, computed: usize) {
        let bt = self.limits.block_tokens as usize;
        let full = computed.min(self.attempts[&key].sequences[s].tokens.len()) / bt;
        let mut b = self.attempts[&key].sequences[s].indexed;
        while b < full {
            let seq = &self.attempts[&key].sequences[s];
            if b < seq.nodes.len() {
                self.pool.commit(seq.nodes[b], &seq.leases[b]);
            } else if !self.extend_chain(key, s, b) {
                return;
            }
            b += 1;
            if let Some(attempt) = self.attempts.get_mut(&key) {
                attempt.sequences[s].indexed = b;
            }
        }
    }

    /// Adds block `b`, which is full, to the end of a sequence's chain.
    fn extend_chain(&mut self, key: u64, s: usize, b: usize) -> bool {
        let bt = self.limits.block_tokens as usize;
        let node = match (self.parent_node(key, s, b), self.look_up(key, s, b)) {
            (Some(_), Next::Ready(node)) => Some(node), // an equal block is there already; this one stays private
            (Some(parent), Next::Nobody) => {
                let seq = &self.attempts[&key].sequences[s];
                let tokens = &seq.tokens[b * bt..(b + 1) * bt];
                self.pool.begin(parent, tokens, seq.owner).ok().inspect(|node| {
                    self.pool.commit(*node, &seq.leases[b]);
                })
            }
            _ => None,
        };
        let Some(attempt) = self.attempts.get_mut(&key) else { return false };
        let seq = &mut attempt.sequences[s];
        match node {
            Some(node) => seq.nodes.push(node),
            None => seq.chain_broken = true,
        }
        node.is_some()
    }

    /// Says "I compute these" for the full blocks from `first` to before `end` that nobody has, so that others with the same prefix wait
    /// for them. The sequence has blocks for them: nobody waits for one that does not run.
    pub(crate) fn claim_blocks(&mut self, key: u64, s: usize, first: usize, end: usize) {
        let bt = self.limits.block_tokens as usize;
        for b in first..end {
            let Next::Nobody = self.look_up(key, s, b) else { return };
            let Some(parent) = self.parent_node(key, s, b) else { return };
            let seq = &self.attempts[&key].sequences[s];
            let begun = self.pool.begin(parent, &seq.tokens[b * bt..(b + 1) * bt], seq.owner);
            let Some(attempt) = self.attempts.get_mut(&key) else { return };
            match begun {
                Ok(node) => attempt.sequences[s].nodes.push(node),
                Err(_) => return, // the index is full of claims: compute without one
            }
        }
    }

    /// A step that never completes takes the draining blocks behind it along.
    pub(crate) fn quarantine_step(&mut self, step: StepId) {
        self.pool.quarantine(step);
    }
}
