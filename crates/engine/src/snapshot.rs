//! One consistent cut of the engine: the account of C-15 and the runs.
// contract: C-15

use std::collections::HashSet;

use kv::{BlockId, Lease, Owner};
use lifecycle::message::{AttemptCut, BlockCut, Held, Snapshot};
use lifecycle::{AttemptId, AttemptState, Rules, StepId};

use crate::attempt::Attempt;
use crate::engine::Engine;

impl<R: Rules> Engine<R> {
    /// The account and the live attempts; with every block if `blocks` (O(pool)). `orphaned` says which attempts no gateway claims.
    pub fn snapshot(&self, blocks: bool, orphaned: &dyn Fn(&AttemptId) -> bool) -> Snapshot {
        let account = self.pool.account();
        let (mut queued, mut running, mut stopping) = (0, 0, 0);
        let mut attempts: Vec<&Attempt> = self.attempts.values().collect();
        attempts.sort_by_key(|a| a.rank);
        for a in &attempts {
            match a.state {
                AttemptState::Stopping { .. } | AttemptState::Released { .. } => stopping += 1,
                AttemptState::Prefilling | AttemptState::Decoding => running += 1,
                _ => queued += 1,
            }
        }
        Snapshot {
            step: StepId(self.next_step - 1),
            block_tokens: self.limits.block_tokens,
            total: account.total,
            free: account.free,
            active: account.active,
            orphaned: self.orphaned(orphaned),
            cached: account.cached,
            draining: account.draining,
            quarantined: account.quarantined,
            queued,
            running,
            stopping,
            stale_releases: account.stale_releases,
            foreign_releases: account.foreign_releases,
            double_releases: account.double_releases,
            device_lost: self.lost.clone(),
            late_completions: account.late_completions,
            reserved_bytes: u64::from(self.limits.blocks_total) * self.limits.block_bytes,
            tombstones: self.tombstones.len() as u32,
            held: self.held(),
            attempts: attempts
                .iter()
                .map(|a| AttemptCut { attempt: a.id.clone(), state: a.state.name(), blocks: a.blocks_held() })
                .collect(),
            blocks: if blocks { self.block_cuts() } else { Vec::new() },
            // What only the sessions know.
            orphaned_attempts: 0,
            suspensions: 0,
            stale_messages: 0,
        }
    }

    /// Active blocks whose owners are all attempts that no gateway claims. Walks those attempts' blocks, not the pool.
    // contract: C-15
    fn orphaned(&self, orphaned: &dyn Fn(&AttemptId) -> bool) -> u32 {
        let claimless: Vec<&Attempt> = self.attempts.values().filter(|a| orphaned(&a.id)).collect();
        let of_them: HashSet<Owner> = claimless.iter().flat_map(|a| a.sequences.iter().map(|s| s.owner)).collect();
        let held = claimless.iter().flat_map(|a| &a.sequences).flat_map(|s| &s.leases).map(Lease::block);
        let blocks: HashSet<BlockId> = held.filter(|b| self.pool.is_owned_within(*b, &of_them)).collect();
        blocks.len() as u32
    }

    /// Each table by its own length: they should agree, and where one does not an entry was left behind.
    fn held(&self) -> Held {
        let slots_total = self.limits.slots.min(self.config.max_running);
        Held {
            attempts: self.attempts.len().max(self.by_id.len()) as u32,
            owners: self.owners.len() as u32,
            waiting: self.waiting.len() as u32,
            running: (self.running.len() + self.suspended.len()) as u32,
            deadlines: self.deadlines.len() as u32,
            slots: slots_total.saturating_sub(self.slots.len() as u32),
            slots_total,
            steps: self.in_flight.len() as u32,
            answers: 0,
        }
    }

    fn block_cuts(&self) -> Vec<BlockCut> {
        let owner = |o: &kv::Owner| self.owners.get(o).and_then(|key| self.attempts.get(key)).map(|a| a.id.clone());
        self.pool
            .blocks()
            .map(|b| BlockCut {
                block: b.block.0,
                generation: b.generation.0,
                state: b.state.as_str(),
                owners: b.owners.iter().filter_map(owner).collect(),
                fence: b.fence,
            })
            .collect()
    }
}
