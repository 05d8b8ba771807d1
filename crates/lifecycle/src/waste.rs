//! What was computed for nobody: work after the first observation of abandonment, folded run by run and summed over runs.
//!
//! Waste and overrun are two things (C-12): waste is work after abandonment was observed anywhere; overrun is tokens behind a stop that was
//! found late, in a run that nobody abandoned. Waste is measured, [`Estimate`] is arithmetic and says so.
//!
//! Invariant: every count only grows, so a window is the difference of two sums.

use std::fmt;

use crate::Phase;

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

/// Tokens by where their run was when abandonment was first observed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseTokens {
    /// Queued, in its prefill, or at the end of it: no token was there.
    pub before_first_token: u64,
    /// Tokens were being generated.
    pub decode: u64,
}

impl PhaseTokens {
    /// Both together.
    pub const fn total(&self) -> u64 {
        self.before_first_token.saturating_add(self.decode)
    }

    const fn add(&mut self, phase: Phase, tokens: u64) {
        let part = match phase {
            Phase::Queued | Phase::Prefill | Phase::BeforeFirstToken => &mut self.before_first_token,
            Phase::Decode => &mut self.decode,
        };
        *part = part.saturating_add(tokens);
    }
}

/// One run's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waste {
    /// Tokens generated, before and after.
    pub generated: u64,
    /// Of them, tokens handed to the caller's connection.
    pub delivered: u64,
    /// Tokens generated after abandonment.
    pub after: PhaseTokens,
    /// Prompt tokens computed, before and after.
    pub prompt: u64,
    /// Prompt tokens computed after abandonment.
    pub prompt_after: u64,
    /// Steps that held rows of it.
    pub steps: u64,
    /// Of them, steps after abandonment.
    pub steps_after: u64,
    /// Tokens behind a stop that was found late; no part of `after`.
    pub overrun: u64,
}

impl Waste {
    /// Whether work was done for the run and its caller got no token of it.
    pub const fn is_zero_delivery(&self) -> bool {
        self.steps > 0 && self.delivered == 0
    }
}

/// Folds one run's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WasteMeter {
    counts: Waste,
    abandoned: Option<Phase>,
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

    /// A step that held rows of the run is over.
    pub fn step(&mut self, work: StepWork) {
        let counts = &mut self.counts;
        let overrun = work.overrun.min(work.generated);
        let bump = |count: &mut u64, by: u32| *count = count.saturating_add(u64::from(by));
        bump(&mut counts.generated, work.generated);
        bump(&mut counts.prompt, work.prompt);
        bump(&mut counts.steps, 1);
        bump(&mut counts.overrun, overrun);
        if let Some(phase) = self.abandoned {
            counts.after.add(phase, u64::from(work.generated - overrun));
            bump(&mut counts.prompt_after, work.prompt);
            bump(&mut counts.steps_after, 1);
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

/// Sums over runs. Runs that delivered nothing are counted apart, because their whole work was for nobody, abandoned or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Runs added.
    pub runs: u64,
    /// Sums over all of them.
    pub sum: Waste,
    /// Of them, runs that were computed for and delivered nothing.
    pub zero_delivery_runs: u64,
    /// Tokens that those generated.
    pub zero_delivery_generated: u64,
    /// Prompt tokens that were computed for those.
    pub zero_delivery_prompt: u64,
}

impl Totals {
    /// Adds a run that is over.
    pub fn add(&mut self, run: &Waste) {
        let apart = run.is_zero_delivery();
        let one = Totals {
            runs: 1,
            sum: *run,
            zero_delivery_runs: u64::from(apart),
            zero_delivery_generated: if apart { run.generated } else { 0 },
            zero_delivery_prompt: if apart { run.prompt } else { 0 },
        };
        *self = self.zip(&one, u64::saturating_add);
    }

    /// What was added since `earlier`, a former value of the same sums: the counts of a window.
    pub fn since(&self, earlier: &Totals) -> Totals {
        self.zip(earlier, u64::saturating_sub)
    }

    /// The part of the generated tokens that was generated after abandonment, from 0 to 1; `None` if none were generated.
    pub fn ratio(&self) -> Option<f64> {
        (self.sum.generated > 0).then(|| self.sum.after.total() as f64 / self.sum.generated as f64)
    }

    fn zip(&self, other: &Totals, op: impl Fn(u64, u64) -> u64) -> Totals {
        let (a, b) = (&self.sum, &other.sum);
        Totals {
            runs: op(self.runs, other.runs),
            sum: Waste {
                generated: op(a.generated, b.generated),
                delivered: op(a.delivered, b.delivered),
                after: PhaseTokens {
                    before_first_token: op(a.after.before_first_token, b.after.before_first_token),
                    decode: op(a.after.decode, b.after.decode),
                },
                prompt: op(a.prompt, b.prompt),
                prompt_after: op(a.prompt_after, b.prompt_after),
                steps: op(a.steps, b.steps),
                steps_after: op(a.steps_after, b.steps_after),
                overrun: op(a.overrun, b.overrun),
            },
            zero_delivery_runs: op(self.zero_delivery_runs, other.zero_delivery_runs),
            zero_delivery_generated: op(self.zero_delivery_generated, other.zero_delivery_generated),
            zero_delivery_prompt: op(self.zero_delivery_prompt, other.zero_delivery_prompt),
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
