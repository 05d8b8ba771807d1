//! A second world that goes on from here: for whoever explores what an engine may do next, and must leave the first as it is.
//!
//! A plain copy would share the flags of its rows with the first, and a lease is made to be moved; so an engine is forked, together with the
//! plans that its device still has, by one map of flags.
//!
//! Invariant: nothing that a fork or its device does is seen in the world that it was made from.

use std::collections::HashMap;
use std::sync::Arc;

use kv::Lease;
use lifecycle::Rules;

use crate::attempt::{Attempt, Sequence};
use crate::device::{Flag, Row, StepPlan};
use crate::engine::Engine;

/// Which flag of the new world stands for which of the old. One map serves one fork: the engine, and all plans that its device has.
#[derive(Debug, Default)]
pub struct FlagMap(HashMap<usize, Flag>);

impl FlagMap {
    /// The flag in the new world, set where the old one is.
    pub fn fork(&mut self, flag: &Flag) -> Flag {
        let new = || {
            let new = Flag::default();
            if flag.is_set() {
                new.set();
            }
            new
        };
        self.0.entry(flag.identity()).or_insert_with(new).clone()
    }
}

impl StepPlan {
    /// The same plan in the world that `flags` belongs to.
    pub fn fork(&self, flags: &mut FlagMap) -> StepPlan {
        let rows = self.rows.iter().map(|row| Row { flag: flags.fork(&row.flag), ..row.clone() }).collect();
        StepPlan { id: self.id, rows }
    }
}

impl<R: Rules> Engine<R> {
    /// The same engine in a world of its own.
    pub fn fork(&self, flags: &mut FlagMap) -> Engine<R> {
        Engine {
            config: self.config.clone(),
            limits: self.limits,
            pool: self.pool.clone(),
            attempts: self.attempts.iter().map(|(key, attempt)| (*key, attempt.fork(flags))).collect(),
            by_id: self.by_id.clone(),
            owners: self.owners.clone(),
            waiting: self.waiting.clone(),
            running: self.running.clone(),
            suspended: self.suspended.clone(),
            deadlines: self.deadlines.clone(),
            slots: self.slots.clone(),
            in_flight: self.in_flight.clone(),
            tombstones: self.tombstones.clone(),
            lost: self.lost.clone(),
            next_key: self.next_key,
            next_owner: self.next_owner,
            next_step: self.next_step,
            newest_done: self.newest_done,
            pace: self.pace.clone(),
            out: self.out.clone(),
        }
    }
}

impl Attempt {
    fn fork(&self, flags: &mut FlagMap) -> Attempt {
        Attempt {
            id: self.id.clone(),
            rank: self.rank,
            state: self.state,
            sampling: Arc::clone(&self.sampling),
            stop_tokens: Arc::clone(&self.stop_tokens),
            n: self.n,
            max_tokens: self.max_tokens,
            salt: self.salt.clone(),
            deadlines: self.deadlines.clone(),
            sequences: self.sequences.iter().map(|sequence| sequence.fork(flags)).collect(),
            prompt_len: self.prompt_len,
            cached_prompt: self.cached_prompt,
            generated: self.generated,
            outcome: self.outcome.clone(),
            rows_in_flight: self.rows_in_flight,
            steps: self.steps,
            last_step: self.last_step,
            blocks_peak: self.blocks_peak,
            blocks_shared: self.blocks_shared,
            prefill_started: self.prefill_started,
        }
    }
}

impl Sequence {
    fn fork(&self, flags: &mut FlagMap) -> Sequence {
        Sequence {
            owner: self.owner,
            index: self.index,
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            scheduled: self.scheduled,
            samples_in_flight: self.samples_in_flight,
            epoch: self.epoch,
            leases: self.leases.iter().map(Lease::fork).collect(),
            table: Arc::clone(&self.table),
            nodes: self.nodes.clone(),
            indexed: self.indexed,
            chain_broken: self.chain_broken,
            slot: self.slot,
            started: self.started,
            sampled: self.sampled,
            flag: flags.fork(&self.flag),
            rows_in_flight: self.rows_in_flight,
            last_step: self.last_step,
            finished: self.finished,
        }
    }
}
