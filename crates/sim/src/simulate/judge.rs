//! The oracle's questions to the whole world: who may be scheduled, which outcome has a reason, what is left at the end.
//!
//! Invariant: every answer comes from the truth (what is, at this moment, in every process), not from what a process was told.

use engine::StepPlan;
use kv::BlockId;
use lifecycle::{AttemptId, Cause, OutcomeKind, Rules, Time};

use super::device::{BLOCK_TOKENS, TAG_BITS};
use super::scenario::called;
use super::world::World;

impl<R: Rules> World<R> {
    /// Whether each row of a step may be computed.
    // contract: C-5, C-9, C-10, C-11, C-13
    pub fn judge_plan(&mut self, w: usize, plan: &StepPlan, now: Time) {
        self.judge_blocks(w, plan);
        for row in &plan.rows {
            let slot = &mut self.workers[w].slots[row.slot.0 as usize];
            if let Some(start) = &row.start {
                *slot = start.sampling.seed;
            }
            let tag = *slot;
            self.workers[w].rows.entry(plan.id).or_default().push(tag);
            let (run, number) = ((tag >> TAG_BITS) as usize - 1, (tag & ((1 << TAG_BITS) - 1)) as u32);
            let life = self.workers[w].shell.life;
            let truth = &self.oracle.runs[run];
            let Some(attempt) = truth.attempts.get(number as usize - 1) else { continue };
            let current = number as usize == truth.attempts.len();
            let heard = truth.owner.and_then(|owner| self.workers[w].heard.get(&owner)).copied().unwrap_or_default();
            let silent = now >= heard.after(self.scenario.session.suspend_after);
            let id = || AttemptId { key: truth.plan.key.clone(), attempt: number };
            let broken = match () {
                () if attempt.ended || attempt.released > 0 => Some(("C-13", "it has ended")),
                () if attempt.fenced => Some(("C-9", "its gateway has concluded that this worker is lost")),
                () if !current => Some(("C-5", "a later attempt of the run has begun")),
                () if attempt.suspended => Some(("C-10", "it is suspended")),
                () if silent => Some(("C-10", "its gateway was not heard")),
                () if self.oracle.has_tombstone(&id(), w, life) => Some(("C-11", "a cancel that came before it was acknowledged")),
                () => None,
            };
            if let Some((clause, why)) = broken {
                let what = format!("worker-{}: {} is scheduled in step {}, though {why}", w + 1, id(), plan.id);
                return self.oracle.fail(clause, || what);
            }
        }
    }

    /// No row writes a block that another sequence's row is on, in this step or in one that is not over.
    // contract: C-16
    fn judge_blocks(&mut self, w: usize, plan: &StepPlan) {
        for row in &plan.rows {
            let written = (row.position / BLOCK_TOKENS) as usize..=((row.position + row.count() - 1) / BLOCK_TOKENS) as usize;
            let queue = &self.workers[w].device.queue;
            let mut others = queue.iter().chain([plan]).flat_map(|p| &p.rows).filter(|o| !o.flag.is_same(&row.flag));
            let touched = |table: &[BlockId]| row.table[written.clone()].iter().any(|b| table.contains(b));
            if others.any(|other| touched(&other.table)) {
                let what = format!("worker-{}: step {} writes a block that another sequence's row is on", w + 1, plan.id);
                return self.oracle.fail("C-16", || what);
            }
        }
    }

    /// Whoever is released has no row in a step that is not over.
    // contract: C-6, C-20
    pub fn judge_released(&mut self, w: usize, attempt: &AttemptId) {
        let tag = self.oracle.tag(attempt);
        if self.workers[w].rows.values().flatten().any(|of| *of == tag) {
            self.oracle.fail("C-20", || format!("worker-{}: {attempt} is released, and a row of it is in a step that is not over", w + 1));
        }
    }

    /// The account after a step: the cheap sum, and block by block.
    // contract: C-15, C-17
    pub fn audit(&mut self, w: usize) {
        let engine = &self.workers[w].engine;
        if let Err(defect) = engine.audit() {
            return self.oracle.fail("C-15", || format!("worker-{}: {defect}", w + 1));
        }
        let cut = engine.snapshot(false, &|_| false);
        if !cut.is_conserved() {
            return self.oracle.fail("C-15", || format!("worker-{}: the account does not add up", w + 1));
        }
        if cut.stale_releases + cut.foreign_releases + cut.double_releases > 0 {
            self.oracle.fail("C-17", || format!("worker-{}: a block was released twice, or by somebody who did not own it", w + 1));
        }
    }

    /// Whether an outcome has a reason in what happened.
    // contract: C-5, C-7, C-22, C-25
    pub fn judge_outcome(&mut self, run: usize, cause: Cause) {
        self.oracle.outcome(run, cause);
        self.oracle.may_end(run, cause, self.now);
        let truth = &self.oracle.runs[run];
        let last = truth.attempts.last();
        let worker = last.map(|a| &self.workers[a.worker]);
        let here = last.zip(worker).is_some_and(|(a, w)| a.life == w.shell.life && w.shell.alive);
        // Clocks may be half a per cent too fast.
        let passed = (self.now - truth.accepted_at) * 1006 / 1000 + 1000;
        let after = |left: Option<u64>| left.is_some_and(|left| passed >= left);
        let reason = match cause {
            Cause::Stop | Cause::Length => true,
            // The worker itself may end it, if it lives and its gateway had no longer waited for it.
            Cause::WorkerLost => last.is_some_and(|a| a.fenced || self.oracle.has_refused(a.worker)) || !here,
            Cause::Orphaned => last.is_some_and(|a| a.orphaned),
            Cause::DeviceError => !here || worker.is_some_and(|w| w.device_faults > 0),
            Cause::WorkerError | Cause::CannotFit => !here || worker.is_some_and(|w| w.hung > 0),
            Cause::QueueFull => (self.scenario.engine.queue_limit as usize) < self.scenario.runs.len(),
            Cause::Shutdown => !here || worker.is_some_and(|w| w.draining),
            Cause::ClientDeadline => after(truth.plan.deadline),
            Cause::QueueDeadline => after(u64::try_from(self.scenario.dispatch.queue_deadline.as_micros()).ok()),
            _ => truth.wanted.contains(&cause),
        };
        if !reason {
            let clause = if cause.outcome() == OutcomeKind::Expired { "C-22" } else { "C-4" };
            self.oracle.fail(clause, || format!("{} ended with {cause}, and nobody and nothing asked for it", called(run)));
        }
    }

    /// A run is settled. If its release is called proven, no worker holds anything of it.
    // contract: C-6, C-20
    pub fn judge_settled(&mut self, run: usize, proven: bool) {
        let truth = &mut self.oracle.runs[run];
        if std::mem::replace(&mut truth.settled, true) || truth.outcome.is_none() {
            return self.oracle.fail("C-5", || format!("{} settled twice, or without an outcome", called(run)));
        }
        let truth = &self.oracle.runs[run];
        let voided = truth.attempts.iter().any(|a| a.fenced);
        let held = truth.attempts.iter().any(|a| a.submitted > 0 && a.released == 0);
        if proven && (voided || held) {
            let why = if voided { "a worker that had it was given up" } else { "a worker still holds it" };
            self.oracle.fail("C-20", || format!("{} is called released, though {why}", called(run)));
        }
    }

    /// What is not over yet; `None` if nothing is left.
    pub fn open_ends(&self) -> Option<String> {
        for (g, gateway) in self.gateways.iter().enumerate() {
            if let Some((run, entry)) = gateway.runs.iter().next() {
                return Some(format!("gateway-{}: {} is {:?}", g + 1, called(*run), entry.dispatch.call().state()));
            }
            if let Some(waiting) = gateway.links.iter().map(|l| l.side.waiting()).find(|n| *n > 0) {
                return Some(format!("gateway-{}: {waiting} messages are not acknowledged", g + 1));
            }
        }
        for (w, worker) in self.workers.iter().enumerate() {
            if worker.draining && worker.shell.alive {
                return Some(format!("worker-{} drains", w + 1));
            }
            let held = worker.side.held().into_iter().find(|(kind, n)| *n > 0 && !matches!(*kind, "gateways" | "tombstones"));
            if let Some((kind, n)) = held {
                return Some(format!("worker-{}: its session holds {n} {kind}", w + 1));
            }
            if !worker.engine.is_idle() {
                return Some(format!("worker-{}: its engine is not idle", w + 1));
            }
        }
        None
    }

    /// Nothing may take for ever once everything is well.
    pub fn judge_liveness(&mut self) {
        if let Some(open) = self.open_ends() {
            self.oracle.fail("liveness", || format!("long after the network has healed: {open}"));
        }
    }

    /// At rest: every run has come to its end, and every block is back.
    // contract: C-6, C-7, C-15, C-20
    pub fn judge_rest(&mut self) {
        for run in 0..self.oracle.runs.len() {
            let truth = &self.oracle.runs[run];
            if truth.owner.is_some() && !truth.owner_lost && !truth.settled {
                return self.oracle.fail("C-7", || format!("{} is forgotten without an end", called(run)));
            }
            for (i, a) in truth.attempts.iter().enumerate() {
                let here = self.workers[a.worker].shell.life == a.life;
                if here && a.submitted > 0 && a.released != 1 {
                    let n = a.released;
                    return self.oracle.fail("C-20", || format!("{}/{} was released {n} times", called(run), i + 1));
                }
            }
        }
        for w in 0..self.workers.len() {
            self.audit(w);
            let worker = &self.workers[w];
            let cut = worker.engine.snapshot(false, &|_| false);
            let tables = cut.held.kinds().into_iter().find(|(_, n)| *n > 0);
            let quarantined = cut.quarantined > 0 && worker.device_faults == 0;
            if cut.active + cut.draining > 0 || quarantined || tables.is_some() {
                let (active, draining, quarantined) = (cut.active, cut.draining, cut.quarantined);
                return self.oracle.fail("C-15", || {
                    format!("worker-{} at rest: active {active}, draining {draining}, quarantined {quarantined}, {tables:?}", w + 1)
                });
            }
        }
    }
}
