//! What was computed for nobody: work after the first observation of abandonment, folded run by run and summed over runs.
//!
//! Waste and overrun are two things (C-12): waste is work after abandonment was observed anywhere; overrun is tokens behind a stop that was
//! found late, in a run that nobody abandoned. Waste is measured, [`Estimate`] is arithmetic and says so.
//!
//! Invariant: every count only grows, so a window is the difference of two sums.

use std::fmt;

use crate::Phase;
use crate::message::Reported;

/// What one step did for one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepWork {
    /// Tokens it generated, those that were thrown away included.
    pub generated: u32,
    /// Prompt tokens it computed, recomputed ones included.
    pub prompt: u32,
    /// Of `generated`: those behind a stop that was found late.
    pub overrun: u32,
}

/// Tokens or steps after abandonment, by where their run was when it was first observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByPhase([u64; Phase::ALL.len()]);

impl ByPhase {
    /// Those of runs that were in this phase.
    pub const fn of(&self, phase: Phase) -> u64 {
        self.0[phase as usize]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Those of runs that had no token yet: queued, in their prefill, or at the end of it.
    pub fn before_first_token(&self) -> u64 {
        Phase::ALL.iter().filter(|p| **p != Phase::Decode).fold(0, |sum, p| sum.saturating_add(self.of(*p)))
    }

    const fn add(&mut self, phase: Phase, by: u64) {
        let count = &mut self.0[phase as usize];
        *count = count.saturating_add(by);
    }

    fn zip(&self, other: &ByPhase, op: impl Fn(u64, u64) -> u64) -> ByPhase {
        ByPhase(std::array::from_fn(|at| op(self.0[at], other.0[at])))
    }
}

/// One run's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// Tokens generated, before and after.
    pub generated: u64,
    /// Of them, tokens handed to the caller's connection.
    pub delivered: u64,
    /// Tokens generated after abandonment, by phase.
    pub after: ByPhase,
    /// Prompt tokens computed, before and after.
    pub prompt: u64,
    /// Prompt tokens computed after abandonment.
    pub prompt_after: u64,
    /// Steps that held rows of it.
    pub steps: u64,
    /// Of them, steps after abandonment, by phase.
    pub steps_after: ByPhase,
    /// Tokens behind a stop that was found late; no part of `after`.
    pub overrun: u64,
}

impl Waste {
    /// Whether work was done for the run and its caller got no token of it.
    pub const fn is_zero_delivery(&self) -> bool {
        self.steps > 0 && self.delivered == 0
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Waste) {
        *self = self.zip(other, u64::saturating_add);
    }

    /// What was counted since `earlier`, a former value of the same counts.
    pub fn since(&self, earlier: &Waste) -> Waste {
        self.zip(earlier, u64::saturating_sub)
    }

    fn zip(&self, other: &Waste, op: impl Fn(u64, u64) -> u64 + Copy) -> Waste {
        Waste {
            generated: op(self.generated, other.generated),
            delivered: op(self.delivered, other.delivered),
            after: self.after.zip(&other.after, op),
            prompt: op(self.prompt, other.prompt),
            prompt_after: op(self.prompt_after, other.prompt_after),
            steps: op(self.steps, other.steps),
            steps_after: self.steps_after.zip(&other.steps_after, op),
            overrun: op(self.overrun, other.overrun),
        }
    }
}

/// Folds one run's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WasteMeter {
    counts: Waste,
    abandoned: Option<Phase>,
    /// What was computed since, while it may turn out that nobody has left.
    held: Option<Waste>,
}

impl WasteMeter {
    /// Abandonment was observed while the run was in `phase`. The first observation counts. Returns whether it was that one.
    // contract: C-12
    pub const fn abandon(&mut self, phase: Phase) -> bool {
        let first = self.abandoned.is_none();
        if first {
            self.abandoned = Some(phase);
        }
        first
    }

    /// Where the run was when abandonment was first observed; `None` if it never was.
    pub const fn abandoned(&self) -> Option<Phase> {
        self.abandoned
    }

    /// Nobody has left after all: it was the worker that stopped, and another goes on.
    pub const fn wanted_again(&mut self) {
        self.abandoned = None;
    }

    /// Whoever left may come back: what is computed from here on is held, and counted or given back later.
    // contract: C-25
    pub fn hold(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Whether work is held.
    pub const fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Somebody came back: nothing that was held is waste. Whether anything could be given back.
    // contract: C-25
    pub const fn give_back(&mut self) -> bool {
        let held = self.held.take().is_some();
        if held {
            self.abandoned = None;
        }
        held
    }

    /// Nobody came back: what was held is waste, and so is what follows.
    // contract: C-25
    pub fn count_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.counts.add(&held);
        }
    }

    /// A step that held rows of the run is over.
    pub fn step(&mut self, work: StepWork) {
        self.count(work, self.abandoned);
    }

    /// A step that was over before abandonment was observed, whenever it is told.
    pub fn step_before(&mut self, work: StepWork) {
        self.count(work, None);
    }

    /// What somebody else counted of the run's work and nobody here: tokens and steps so many more, and, once the run is abandoned, so many
    /// after that in all, if that is more than was counted.
    // contract: C-12
    pub fn reported(&mut self, (generated, steps): (u64, u64), after: &Reported) {
        let counts = &mut self.counts;
        counts.generated = counts.generated.saturating_add(generated);
        counts.steps = counts.steps.saturating_add(steps);
        let Some(phase) = self.abandoned else { return };
        let counted = self.held.unwrap_or(self.counts);
        let missing = after.prompt_after.saturating_sub(counted.prompt_after);
        self.counts.prompt = self.counts.prompt.saturating_add(missing);
        let counts = self.held.as_mut().unwrap_or(&mut self.counts);
        counts.prompt_after = counts.prompt_after.saturating_add(missing);
        counts.after.add(phase, after.after.saturating_sub(counted.after.total()));
        counts.steps_after.add(phase, after.steps_after.saturating_sub(counted.steps_after.total()));
    }

    fn count(&mut self, work: StepWork, abandoned: Option<Phase>) {
        let counts = &mut self.counts;
        let overrun = work.overrun.min(work.generated);
        let bump = |count: &mut u64, by: u32| *count = count.saturating_add(u64::from(by));
        bump(&mut counts.generated, work.generated);
        bump(&mut counts.prompt, work.prompt);
        bump(&mut counts.steps, 1);
        bump(&mut counts.overrun, overrun);
        if let Some(phase) = abandoned {
            let counts = self.held.as_mut().unwrap_or(&mut self.counts);
            counts.after.add(phase, u64::from(work.generated - overrun));
            bump(&mut counts.prompt_after, work.prompt);
            counts.steps_after.add(phase, 1);
        }
    }

    /// Tokens were handed to the caller's connection.
    pub fn deliver(&mut self, tokens: u32) {
        self.counts.delivered = self.counts.delivered.saturating_add(u64::from(tokens));
    }

    /// The counts so far.
    pub const fn waste(&self) -> Waste {
        self.counts
    }
}

/// Sums over runs that are over. Runs that delivered nothing are counted apart, because their whole work was for nobody, abandoned or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Sums over all of them.
    pub sum: Waste,
    /// Of them, runs that were computed for and delivered nothing.
    pub zero_delivery_runs: u64,
    /// Sums over those.
    pub zero_delivery: Waste,
}

impl Totals {
    /// Adds a run that is over.
    pub fn add(&mut self, run: &Waste) {
        self.sum.add(run);
        if run.is_zero_delivery() {
            self.zero_delivery_runs = self.zero_delivery_runs.saturating_add(1);
            self.zero_delivery.add(run);
        }
    }
}

/// Tokens that a run at `rate_tok_s` tokens a second goes on to generate while the word of its end crosses boundaries that take
/// `latencies_s` seconds each: rate × Σ latency. An estimate, not a bound: rates and latencies vary. What is negative or no number is 0.
pub fn estimate_tokens(rate_tok_s: f64, latencies_s: &[f64]) -> f64 {
    let sane = |x: f64| if x.is_finite() { x.max(0.0) } else { 0.0 };
    sane(rate_tok_s) * latencies_s.iter().copied().map(sane).sum::<f64>()
}

/// The result of [`estimate_tokens`] in words that say what it is: an estimate, not a bound.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// Tokens.
    pub tokens: f64,
}

impl Estimate {
    /// As [`estimate_tokens`].
    pub fn of(rate_tok_s: f64, latencies_s: &[f64]) -> Estimate {
        Estimate { tokens: estimate_tokens(rate_tok_s, latencies_s) }
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "about {:.1} tokens (an estimate, not a bound)", self.tokens)
    }
}

#[cfg(test)]
mod tests;
