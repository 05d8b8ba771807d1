//! The worker's records of a run: queueing, blocks, steps, the cancel's way through the engine, the release.
//!
//! Here it is decided what is waste and what is overrun, once for views and metrics.
//!
//! Invariant: a token computed is counted as waste or as overrun or as neither, never as both.
// contract: C-12 C-20

use lifecycle::event::{Event, Record};
use lifecycle::message::Receipt;
use lifecycle::{Cause, OutcomeKind, Phase, StepId};

use super::{Progress, Run};
use crate::metrics::{Defect, Totals};

impl Run {
    pub(super) fn fold_worker(&mut self, record: &Record, totals: &mut Totals) {
        let at = record.at;
        match &record.event {
            Event::Queued { prompt_tokens } => {
                self.stamps.queued.get_or_insert(at);
                self.tokens.prompt = u64::from(*prompt_tokens);
            }
            Event::BlocksAllocated { held, cached_tokens, shared } => self.allocated(record, (*held, *cached_tokens, *shared), totals),
            Event::PrefillStart => {
                if self.stamps.prefill_start.is_none() {
                    self.stamps.prefill_start = Some(at);
                    totals.queue.observe(at.since(self.stamps.queued.unwrap_or(self.opened)));
                }
                self.progress(record.attempt, Progress::Prefilling);
            }
            Event::Computed { step, prompt_tokens, generated, discarded } => {
                self.computed(record, *step, (*prompt_tokens, *generated, *discarded), totals);
            }
            Event::RowsDropped { step, layers } if *layers > 0 => self.took_step(record, *step, totals),
            Event::FirstToken => {
                if self.stamps.first_token.is_none() {
                    self.stamps.first_token = Some(at);
                    totals.first_token.observe(at.since(self.stamps.accepted.unwrap_or(self.opened)));
                }
                self.progress(record.attempt, Progress::Decoding);
            }
            Event::Preempted => {
                self.preempted_once = true;
                self.blocks.held = 0;
                totals.preemptions += 1;
                self.progress(record.attempt, Progress::Preempted);
            }
            Event::CancelReceived { cause } => {
                self.stamps.cancel_received.get_or_insert(at);
                self.mark_stopping(record.attempt);
                self.abandon(at, *cause);
            }
            Event::CancelApplied { cause, phase } => self.cancel_applied(record, *cause, *phase, totals),
            Event::AttemptEnded { outcome } => {
                let kind = outcome.kind();
                if let Some(attempt) = self.attempt_mut(record.attempt)
                    && attempt.ended.replace(kind).is_some()
                {
                    totals.defect(Defect::AttemptEndedTwice);
                }
            }
            Event::FenceCompleted { .. } => {
                self.stamps.fence_completed.get_or_insert(at);
            }
            Event::Released { receipt } => self.released(record, receipt, totals),
            Event::Void => {
                if let Some(attempt) = self.attempt_mut(record.attempt) {
                    attempt.void = true;
                }
            }
            _ => {}
        }
    }

    fn allocated(&mut self, record: &Record, (held, cached, shared): (u32, u32, u32), totals: &mut Totals) {
        self.stamps.blocks_allocated.get_or_insert(record.at);
        self.blocks.held = held;
        self.blocks.peak = self.blocks.peak.max(held);
        self.blocks.shared = self.blocks.shared.saturating_add(shared);
        // After a preemption the index mostly gives back the run's own work: that saves time, but is no cached prompt. Nor is a prompt
        // that n sequences share cached more than once.
        if !self.preempted_once {
            let fresh = u64::from(cached).min(self.tokens.prompt.saturating_sub(self.tokens.cached_prompt));
            self.tokens.cached_prompt += fresh;
            totals.prefix_cached += fresh;
        }
        self.check_unreleased(record.attempt, totals);
    }

    fn computed(&mut self, record: &Record, step: StepId, (prompt, generated, discarded): (u32, u32, u32), totals: &mut Totals) {
        let (prompt, generated, discarded) = (u64::from(prompt), u64::from(generated), u64::from(discarded));
        self.check_unreleased(record.attempt, totals);
        self.took_step(record, step, totals);
        self.prompt_computed += prompt;
        self.tokens.generated += generated;
        totals.prompt_computed += prompt;
        totals.generated += generated;
        if self.is_waste(record.attempt) {
            let phase = self.phase_at_disconnect.unwrap_or(Phase::Queued);
            self.tokens.after_disconnect += generated + discarded;
            self.tokens.prompt_computed_after_disconnect += prompt;
            totals.after_disconnect(phase, generated + discarded);
            totals.prompt_after_disconnect += prompt;
        } else {
            self.tokens.overrun += discarded;
            totals.overrun += discarded;
        }
        if generated > 0 {
            if let Some(last) = self.last_token.replace(record.at) {
                totals.inter_token.observe(record.at.since(last));
            }
            self.progress(record.attempt, Progress::Decoding);
        } else if prompt > 0 {
            self.progress(record.attempt, Progress::Prefilling);
        }
    }

    /// Whether what an attempt computes now is computed for somebody who has left. Its own end comes first: what is thrown away because of
    /// that is overrun.
    fn is_waste(&self, number: u32) -> bool {
        let own_end = self.attempts.iter().any(|a| a.number == number && a.ended == Some(OutcomeKind::Completed));
        self.abandoned.is_some() && !own_end
    }

    /// Counts a step once, however many records of it come (n sequences: some rows computed, some dropped).
    fn took_step(&mut self, record: &Record, step: StepId, totals: &mut Totals) {
        self.stamps.last_compute = Some(record.at);
        if self.last_step.is_some_and(|last| step <= last) {
            return;
        }
        self.last_step = Some(step);
        self.steps.total += 1;
        if self.is_waste(record.attempt) {
            self.steps.after_disconnect += 1;
            totals.steps_after_disconnect += 1;
        }
    }

    fn cancel_applied(&mut self, record: &Record, cause: Cause, phase: Phase, totals: &mut Totals) {
        let first = self.stamps.cancel_applied.is_none();
        self.stamps.cancel_applied.get_or_insert(record.at);
        self.mark_stopping(record.attempt);
        match self.abandoned {
            Some((since, why)) if first => totals.disconnect_to_cancel(why, record.at.since(since)),
            Some(_) => {}
            None => {
                self.abandon(record.at, cause);
                self.phase_at_disconnect = Some(phase);
            }
        }
    }

    fn released(&mut self, record: &Record, receipt: &Receipt, totals: &mut Totals) {
        if receipt.blocks_held > 0 {
            totals.defect(Defect::ReleasedHolding);
        }
        let Some(attempt) = self.attempt_mut(record.attempt) else { return };
        if std::mem::replace(&mut attempt.released, true) {
            totals.defect(Defect::ReleasedTwice);
            return;
        }
        totals.released += 1;
        if self.current().is_some_and(|a| a.number == record.attempt) {
            self.stamps.released = Some(record.at);
            self.blocks.held = receipt.blocks_held;
        }
        self.blocks.peak = self.blocks.peak.max(receipt.blocks_peak);
        self.blocks.shared = self.blocks.shared.max(receipt.blocks_shared);
        if let Some((since, cause)) = self.abandoned {
            totals.disconnect_to_released(cause, record.at.since(since));
        }
    }

    /// Computing for an attempt, or giving it blocks, after its release would make the release a lie.
    fn check_unreleased(&self, number: u32, totals: &mut Totals) {
        if self.attempts.iter().any(|a| a.number == number && a.released) {
            totals.defect(Defect::UsedAfterRelease);
        }
    }
}
