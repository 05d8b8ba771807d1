//! An engine's state as a number, for whoever keeps a set of states: equal where nothing can ever tell two engines apart.
//!
//! Keys, owners, generations, nodes and steps go in by their order and distance, deadlines by the time left, maps sorted (as in
//! [`kv::fingerprint`]). Every field of a structure is named here, so a new one does not compile until somebody has decided about it.
//!
//! Invariant: two engines of one configuration with the same fingerprint give the same effects to every further sequence of inputs, but for
//! the numbers of steps. What may matter is in: a fingerprint may tell engines apart that behave alike, never the other way round.
//! Numbers of submits go in as they are, for messages from outside name them; so do the device's slots and blocks, for rows name them.

use std::fmt::{Debug, Write};
use std::hash::{Hash, Hasher};

use kv::{Digest, NodeNames, Owner};
use lifecycle::{Outcome, Rules, StepId, Time};

use crate::admission::DEADLINES_MAX;
use crate::attempt::{Attempt, Sequence};
use crate::engine::{Engine, InFlight, RowRef};
use crate::tombstone::Tombstones;

/// What stands for the numbers that only grow.
struct Names<'a, R: Rules> {
    engine: &'a Engine<R>,
    owners: &'a [Owner],
    nodes: NodeNames,
}

impl<R: Rules> Names<'_, R> {
    /// An attempt's place in the order of arrival, from 1; 0 where it is gone.
    fn key(&self, key: u64) -> usize {
        if self.engine.attempts.contains_key(&key) { self.engine.attempts.range(..=key).count() } else { 0 }
    }

    fn owner(&self, owner: Owner) -> u64 {
        owner_name(self.owners, owner)
    }

    fn step(&self, step: StepId) -> u64 {
        self.engine.pool.step_name(step, StepId(self.engine.next_step))
    }
}

fn owner_name(owners: &[Owner], owner: Owner) -> u64 {
    owners.binary_search(&owner).map_or(0, |at| at as u64 + 1)
}

impl<R: Rules> Engine<R> {
    /// The state as one number. Equal to another engine's of the same configuration only where both go on alike from `now` on.
    pub fn fingerprint(&self, now: Time) -> u128 {
        let mut out = Digest::default();
        self.hash_state(now, &mut out);
        out.value()
    }

    /// Writes the state into a hasher, for a fingerprint of more than the engine.
    pub fn hash_state<H: Hasher>(&self, now: Time, out: &mut H) {
        let Engine {
            config,
            limits: _,
            pool,
            attempts,
            by_id: _,
            owners,
            waiting,
            running,
            suspended,
            deadlines,
            slots,
            in_flight,
            tombstones,
            lost,
            next_key: _,
            next_owner: _,
            next_step,
            newest_done,
            pace,
            out: effects,
        } = self;
        let mut live: Vec<Owner> = owners.keys().copied().collect();
        live.sort_unstable();
        let next = StepId(*next_step);
        let nodes = pool.hash_state(next, &|owner| owner_name(&live, owner), out);
        let names = Names { engine: self, owners: &live, nodes };
        for ranks in [waiting, running, suspended] {
            ranks.len().hash(out);
            ranks.iter().for_each(|(priority, key)| (priority, names.key(*key)).hash(out));
        }
        deadlines.len().hash(out);
        for ((at, entry), cause) in deadlines {
            let (key, index) = (entry / DEADLINES_MAX as u64, entry % DEADLINES_MAX as u64);
            (at.since(now), names.key(key), index, cause).hash(out);
        }
        slots.hash(out);
        in_flight.len().hash(out);
        in_flight.iter().for_each(|step| step.hash_state(next, &names, out));
        tombstones.hash_state(out);
        (lost, newest_done.0 + in_flight.len() as u64 + 1 == next.0).hash(out);
        if config.deadline_check_percent > 0 {
            pace.hash_state((now, next), !in_flight.is_empty(), out);
        }
        text(effects, out); // none between two calls
        attempts.len().hash(out);
        attempts.values().for_each(|attempt| attempt.hash_state(&names, out));
    }
}

impl InFlight {
    fn hash_state<R: Rules, H: Hasher>(&self, next: StepId, names: &Names<R>, out: &mut H) {
        let InFlight { id, rows } = self;
        (next.0 - id.0, rows.len()).hash(out);
        for RowRef { key, sequence, epoch, end, known, sample_at } in rows {
            let now = names.engine.attempts.get(key).map_or(*epoch, |attempt| attempt.sequences[*sequence].epoch);
            (names.key(*key), sequence, now - epoch, end, known, sample_at).hash(out);
        }
    }
}

impl Attempt {
    fn hash_state<R: Rules, H: Hasher>(&self, names: &Names<R>, out: &mut H) {
        // The deadlines that still stand are the engine's.
        let Attempt {
            id,
            rank,
            state,
            sampling,
            stop_tokens,
            n,
            max_tokens,
            salt,
            deadlines: _,
            sequences,
            prompt_len,
            cached_prompt,
            generated,
            outcome,
            rows_in_flight,
            steps,
            last_step,
            blocks_peak,
            blocks_shared,
            prefill_started,
        } = self;
        (id, rank.0, state, stop_tokens, n, max_tokens, salt).hash(out);
        text(sampling, out);
        (prompt_len, cached_prompt, generated, rows_in_flight, steps, blocks_peak, blocks_shared, prefill_started).hash(out);
        // Of a step that is over only that there was one: the number of a receipt.
        (last_step.0.min(1), names.step(*last_step)).hash(out);
        hash_outcome(outcome.as_ref(), out);
        sequences.len().hash(out);
        sequences.iter().for_each(|sequence| sequence.hash_state(names, out));
    }
}

impl Sequence {
    fn hash_state<R: Rules, H: Hasher>(&self, names: &Names<R>, out: &mut H) {
        let Sequence {
            owner,
            index,
            tokens,
            prompt_len,
            scheduled,
            samples_in_flight,
            epoch,
            leases,
            table,
            nodes,
            indexed,
            chain_broken,
            slot,
            started,
            sampled,
            flag,
            rows_in_flight,
            last_step,
            finished,
        } = self;
        (names.owner(*owner), index, tokens, prompt_len, scheduled, samples_in_flight).hash(out);
        // Whether it was ever restarted; each row in flight says by how many restarts it is older.
        (*epoch.min(&1), leases.len()).hash(out);
        for lease in leases {
            (lease.block(), names.engine.pool.hand_outs_since(lease), names.owner(lease.owner())).hash(out);
        }
        (table, nodes.len()).hash(out);
        nodes.iter().for_each(|node| names.nodes.of(*node).hash(out));
        (indexed, chain_broken, slot, started, sampled, flag.is_set(), rows_in_flight).hash(out);
        (last_step.0.min(1), names.step(*last_step), finished).hash(out);
    }
}

impl Tombstones {
    fn hash_state<H: Hasher>(&self, out: &mut H) {
        let Tombstones { limit, mark, cancelled, by_number } = self;
        (limit, mark, by_number).hash(out);
        let mut all: Vec<_> = cancelled.iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all.len().hash(out);
        for (id, (number, outcome)) in all {
            (id, number).hash(out);
            hash_outcome(Some(outcome), out);
        }
    }
}

fn hash_outcome<H: Hasher>(outcome: Option<&Outcome>, out: &mut H) {
    outcome.map(|Outcome { cause, reason }| (cause, reason)).hash(out);
}

/// What has no hash of its own (it holds floating-point numbers) goes in as it prints.
fn text<H: Hasher>(value: &impl Debug, out: &mut H) {
    struct Text<'a, H>(&'a mut H);
    impl<H: Hasher> Write for Text<'_, H> {
        fn write_str(&mut self, s: &str) -> std::fmt::Result {
            self.0.write(s.as_bytes());
            Ok(())
        }
    }
    let _ = write!(Text(out), "{value:?}");
    out.write_u8(0xff);
}
