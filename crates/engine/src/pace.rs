//! Whether a deadline can be met at all: how fast this engine was ever seen to compute a prompt, and what is left to compute of another.
//! A run that cannot even have its first token in time is turned away, where it would be computed for nobody and expire.
//!
//! Only a step that found the device idle is measured, for only its beginning is known; it must be full of prompt chunks and of nothing
//! else. Position counts: a later chunk attends to more. So a step tells of prompts that begin where it did, or later.
//!
//! Invariant: optimistic. What is cached or being computed counts as free, nobody else as there, the fastest step as every step; and of that
//! time a share counts that the operator chose. What is not known turns nobody away.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use lifecycle::{Cause, Outcome, Rules, StepId, Time};

use crate::admission::DEADLINES_MAX;
use crate::device::RowDone;
use crate::engine::{Engine, InFlight};

/// Steps that must have been measured before anybody is turned away: the first ones find everything cold.
pub(crate) const MEASURED_MIN: u32 = 8;
/// Most attempts that are turned away with nothing measured in between. The next is taken on, so that an engine that has become faster is
/// found to be: of attempts that are turned away nothing can be measured.
pub(crate) const UNTRIED_MAX: u32 = 16;

/// Steps that began at the same block.
#[derive(Clone, Copy, Hash, Debug)]
struct Measured {
    steps: u32,
    /// Nanoseconds a prompt token, rounded down, in the fastest of them.
    fastest: u64,
}

/// What was seen of this engine's pace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Time of the newest input. The engine plans when something has happened, so a step for an idle device begins then.
    pub now: Time,
    /// The newest step that found the device idle.
    pub alone: Option<(StepId, Time)>,
    /// By the block where the latest of a step's rows began: at most one entry a block of the context.
    measured: BTreeMap<u32, Measured>,
    /// Attempts turned away since the last measurement.
    untried: u32,
}

impl Pace {
    /// A step is handed out.
    pub(crate) fn planned(&mut self, step: StepId, idle: bool) {
        if idle {
            self.alone = Some((step, self.now));
        }
    }

    /// All that a later judgement depends on. Times count from `now` back; when the step that is measured began, only while it is in flight.
    pub(crate) fn hash_state<H: Hasher>(&self, (now, next): (Time, StepId), running: bool, out: &mut H) {
        let Pace { now: newest, alone, measured, untried } = self;
        now.since(*newest).hash(out);
        alone.filter(|_| running).map(|(step, began)| (next.0 - step.0, now.since(began))).hash(out);
        (measured, untried).hash(out);
    }

    /// The fastest that a prompt was seen to go on from this block on, in nanoseconds a token, once enough was seen.
    fn fastest_from(&self, block: u32) -> Option<u64> {
        let known = || self.measured.range(..=block).map(|(_, m)| m);
        let steps = known().fold(0, |sum: u32, m| sum.saturating_add(m.steps));
        known().map(|m| m.fastest).min().filter(|_| steps >= MEASURED_MIN)
    }
}

impl<R: Rules> Engine<R> {
    /// Most prompt tokens of a step that has nothing else, and how many of a prompt that goes on after it: a chunk ends with a block.
    fn chunk(&self) -> (u64, u64) {
        let bt = u64::from(self.limits.block_tokens);
        let budget = u64::from(self.config.step_tokens).max(bt);
        (budget, budget / bt * bt)
    }

    /// Takes the time of a step that was alone on the device and had all the prompt tokens that one can have.
    pub(crate) fn measure(&mut self, step: &InFlight, rows: &[RowDone]) {
        let Some((_, began)) = self.pace.alone.filter(|(id, _)| *id == step.id) else { return };
        let prompt_only = step.rows.iter().all(|r| r.known > 0) && rows.iter().all(|r| matches!(r, RowDone::Computed { .. }));
        let tokens: u64 = step.rows.iter().map(|r| u64::from(r.known)).sum();
        if !prompt_only || tokens < self.chunk().1 {
            return;
        }
        let latest = step.rows.iter().map(|r| r.end - r.known as usize).max().unwrap_or(0) as u32;
        let micros = self.pace.now.0.saturating_sub(began.0);
        let pace = micros.saturating_mul(1000) / tokens;
        let start = latest.div_ceil(self.limits.block_tokens);
        let at = self.pace.measured.entry(start).or_insert(Measured { steps: 0, fastest: u64::MAX });
        (at.steps, at.fastest) = (at.steps.saturating_add(1), at.fastest.min(pace));
        self.pace.untried = 0;
    }

    /// Says why an attempt's first token cannot come before its earliest deadline, if it cannot. A queue deadline ends no run that is
    /// scheduled at once, and one that has passed already ends the run by itself.
    // contract: C-22
    pub(crate) fn in_time(&mut self, key: u64, tokens: &[u32]) -> Result<(), Outcome> {
        let percent = u64::from(self.config.deadline_check_percent);
        let Some(attempt) = self.attempts.get(&key) else { return Ok(()) };
        let of_run = attempt.deadlines.iter().take(DEADLINES_MAX).filter(|(_, cause)| *cause != Cause::QueueDeadline);
        let Some(&(at, cause)) = of_run.min() else { return Ok(()) };
        let left = at.0.saturating_sub(self.pace.now.0);
        if percent == 0 || left == 0 || self.pace.measured.is_empty() {
            return Ok(());
        }
        let cached = self.cached_blocks(key, tokens);
        let (budget, chunk) = self.chunk();
        let rest = tokens.len() as u64 - u64::from(cached) * u64::from(self.limits.block_tokens);
        // Nothing is known of the pace of a step that is not full.
        let Some(pace) = self.pace.fastest_from(cached).filter(|_| rest >= chunk) else { return Ok(()) };
        let need = rest.saturating_mul(pace) / 1000;
        if need.saturating_mul(percent) / 100 <= left {
            return Ok(());
        }
        if self.pace.untried >= UNTRIED_MAX {
            self.pace.untried = 0;
            return Ok(());
        }
        self.pace.untried += 1;
        let steps = 1 + rest.saturating_sub(budget).div_ceil(chunk);
        let why = format!(
            "the prompt needs at least {steps} steps, {} ms at the fastest pace seen here; of its {cause} at most {} ms are left",
            need / 1000,
            left.div_ceil(1000)
        );
        Err(Outcome::because(Cause::DeadlineUnreachable, why))
    }

    /// Full blocks of a prompt that the prefix index has or somebody computes, but never the one with the last token.
    fn cached_blocks(&mut self, key: u64, tokens: &[u32]) -> u32 {
        let Some(attempt) = self.attempts.get(&key) else { return 0 };
        let mut parent = self.pool.root(attempt.id.key.tenant.as_str(), &self.config.model, &attempt.salt);
        let mut found = 0;
        for block in tokens[..tokens.len() - 1].chunks_exact(self.limits.block_tokens as usize) {
            match self.pool.lookup(parent, block) {
                Some(next) => (parent, found) = (next.node, found + 1),
                None => break,
            }
        }
        found
    }
}
