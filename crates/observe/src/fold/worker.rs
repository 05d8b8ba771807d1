//! The worker's records of a run: queueing, blocks, steps, the cancel's way through the engine, the release.
//!
//! Here it is decided what is waste and what is overrun, once for views and metrics.
//!
//! Invariant: a token computed is counted as waste or as overrun or as neither, never as both.
// contract: C-12 C-20

use lifecycle::event::{Event, Record};
use lifecycle::message::Receipt;
use lifecycle::{Cause, Milestone, OutcomeKind, Phase, StepId, StepWork, Time};

use super::{Ahead, Progress, Run};
use crate::metrics::{Defect, Totals};

impl Run {
    pub(super) fn fold_worker(&mut self, record: &Record, totals: &mut Totals) {
        let at = record.at;
        match &record.event {
            Event::Queued { prompt_tokens, n, max_tokens } => {
                self.stamps.mark(Milestone::Queued, at);
                if let Some(attempt) = self.attempt_mut(record.attempt) {
                    attempt.queued = true;
                }
                self.prompt = u64::from(*prompt_tokens);
                self.ahead(record.attempt, |ahead| ahead.queued(*prompt_tokens, *n, *max_tokens));
            }
            Event::BlocksAllocated { held, cached_tokens, shared } => self.allocated(record, (*held, *cached_tokens, *shared), totals),
            Event::PrefillStart => {
                if self.stamps.mark(Milestone::PrefillStart, at) {
                    totals.queue.observe(at.since(self.stamps.get(Milestone::Queued).unwrap_or(self.opened)), &self.key.run, at);
                }
                self.progress(record.attempt, Progress::Prefilling);
            }
            Event::Computed { step, prompt_tokens, generated, discarded, late } => {
                if self.stamps.get(Milestone::CancelReceived).is_some() {
                    self.after_receipt += u64::from(*late);
                }
                self.computed(record, *step, (*prompt_tokens, *generated, *discarded), totals);
            }
            Event::RowsDropped { step, layers } if *layers > 0 => {
                self.layers_dropped += u64::from(*layers);
                self.rows_dropped(record, *step, totals);
            }
            Event::FirstToken => {
                if self.stamps.mark(Milestone::FirstToken, at) {
                    let since = self.stamps.get(Milestone::Accepted).unwrap_or(self.opened);
                    totals.first_token.observe(at.since(since), &self.key.run, at);
                }
                self.progress(record.attempt, Progress::Decoding);
            }
            Event::Preempted => {
                self.preempted_once = true;
                self.blocks.held = 0;
                totals.preemptions += 1;
                self.ahead(record.attempt, Ahead::preempted);
                self.progress(record.attempt, Progress::Preempted);
            }
            Event::Suspended => {
                totals.suspensions += 1;
                self.suspended(record.attempt, true);
            }
            Event::Attached => self.suspended(record.attempt, false),
            Event::Orphaned => {
                if let Some(attempt) = self.attempt_mut(record.attempt)
                    && !std::mem::replace(&mut attempt.orphaned, true)
                {
                    totals.orphaned += 1;
                }
            }
            Event::CancelReceived { cause } => {
                let first = self.stamps.mark(Milestone::CancelReceived, at);
                self.mark_stopping(record.attempt);
                self.abandon(at, *cause, self.phase());
                if first {
                    self.crossed(Milestone::CancelReceived, at, totals);
                }
            }
            Event::CancelApplied { cause, phase } => self.cancel_applied(record, *cause, *phase, totals),
            Event::PromptCounted { tokens, cached } => {
                let cached = u64::from(*cached);
                totals.looked_up(cached);
                totals.prefix_cached += cached.saturating_sub(self.cached_prompt);
                (self.prompt, self.cached_prompt) = (u64::from(*tokens), cached);
            }
            Event::AttemptEnded { outcome } => {
                let kind = outcome.kind();
                if let Some(attempt) = self.attempt_mut(record.attempt)
                    && attempt.ended.replace(kind).is_some()
                {
                    totals.defect(Defect::AttemptEndedTwice);
                }
            }
            Event::FenceCompleted { .. } => {
                self.count_dropped(None, record.at, totals);
                self.reached(Milestone::FenceCompleted, at, totals);
            }
            Event::Released { receipt } => self.released(record, receipt, totals),
            Event::SentAs { upstream, request } => self.sent_as = Some((upstream.clone(), request.clone())),
            Event::Reported { work } => self.reported(record.attempt, work, totals),
            Event::LetGo { guarantee } => self.proof = Some(*guarantee),
            Event::Void { .. } => {
                if let Some(attempt) = self.attempt_mut(record.attempt)
                    && !std::mem::replace(&mut attempt.void, true)
                {
                    totals.void += 1;
                }
            }
            _ => {}
        }
    }

    fn suspended(&mut self, number: u32, suspended: bool) {
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.suspended = suspended;
        }
    }

    fn allocated(&mut self, record: &Record, (held, cached, shared): (u32, u32, u32), totals: &mut Totals) {
        if self.stamps.mark(Milestone::BlocksAllocated, record.at) {
            totals.looked_up(u64::from(cached));
        }
        self.blocks.held = held;
        self.blocks.peak = self.blocks.peak.max(held);
        self.blocks.shared = self.blocks.shared.saturating_add(shared);
        self.ahead(record.attempt, |ahead| ahead.cached(cached));
        // After a preemption the index mostly gives back the run's own work: that saves time, but is no cached prompt. Nor is a prompt
        // that n sequences share cached more than once.
        if !self.preempted_once {
            let fresh = u64::from(cached).min(self.prompt.saturating_sub(self.cached_prompt));
            self.cached_prompt += fresh;
            totals.prefix_cached += fresh;
        }
        self.check_unreleased(record.attempt, totals);
    }

    fn computed(&mut self, record: &Record, step: StepId, (prompt, generated, discarded): (u32, u32, u32), totals: &mut Totals) {
        self.check_unreleased(record.attempt, totals);
        self.count_dropped(Some(step), record.at, totals);
        // What was thrown away because of the attempt's own end was not computed for somebody who had left, even if he has left since.
        let own_end = self.attempt_mut(record.attempt).is_some_and(|a| a.ended == Some(OutcomeKind::Completed));
        let overrun = if own_end || !self.is_abandoned_at(record.at) { discarded } else { 0 };
        self.ahead(record.attempt, |ahead| ahead.computed(prompt, generated));
        self.work(StepWork { generated: generated.saturating_add(discarded), prompt, overrun }, record.at, totals);
        self.stamps.mark(Milestone::LastCompute, record.at);
        self.last_step = Some(step);
        if generated > 0 {
            if let Some(last) = self.last_token.replace(record.at) {
                totals.inter_token.observe(record.at.since(last), &self.key.run, record.at);
            }
            self.progress(record.attempt, Progress::Decoding);
        } else if prompt > 0 {
            self.progress(record.attempt, Progress::Prefilling);
        }
    }

    /// A step that computed some layers of dropped rows computed in vain. It is counted when it is clear that no other row of the run was
    /// computed in it to the end, so that it is counted once in whatever order its records come.
    fn rows_dropped(&mut self, record: &Record, step: StepId, totals: &mut Totals) {
        self.count_dropped(Some(step), record.at, totals);
        self.stamps.mark(Milestone::LastCompute, record.at);
        if self.last_step != Some(step) {
            self.dropped = Some(step);
        }
    }

    fn count_dropped(&mut self, but_not: Option<StepId>, at: Time, totals: &mut Totals) {
        if self.dropped.take().is_some_and(|step| Some(step) != but_not) {
            self.work(StepWork::default(), at, totals);
        }
    }

    /// Meters one step, and lets the totals grow by what the run's own counts grew by.
    fn work(&mut self, work: StepWork, at: Time, totals: &mut Totals) {
        let before = self.meter.waste();
        // What a worker elsewhere did before somebody left may be told after it.
        if self.is_abandoned_at(at) {
            self.meter.step(work)
        } else {
            self.meter.step_before(work)
        }
        totals.work.add(&self.meter.waste().since(&before));
    }

    fn is_abandoned_at(&self, at: Time) -> bool {
        self.abandoned.is_some_and(|(since, _)| at >= since)
    }

    fn cancel_applied(&mut self, record: &Record, cause: Cause, phase: Phase, totals: &mut Totals) {
        let first = self.stamps.mark(Milestone::CancelApplied, record.at);
        self.mark_stopping(record.attempt);
        match self.abandoned {
            Some(_) if first => self.crossed(Milestone::CancelApplied, record.at, totals),
            Some(_) => {}
            None => self.abandon(record.at, cause, phase),
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
        self.count_dropped(None, record.at, totals);
        totals.released += 1;
        if self.current().is_some_and(|a| a.number == record.attempt) {
            self.stamps.mark(Milestone::Released, record.at);
            self.blocks.held = receipt.blocks_held;
        }
        self.blocks.peak = self.blocks.peak.max(receipt.blocks_peak);
        self.blocks.shared = self.blocks.shared.max(receipt.blocks_shared);
        self.crossed(Milestone::Released, record.at, totals);
    }

    /// Computing for an attempt, or giving it blocks, after its release would make the release a lie.
    pub(super) fn check_unreleased(&self, number: u32, totals: &mut Totals) {
        if self.attempts.iter().any(|a| a.number == number && a.released) {
            totals.defect(Defect::UsedAfterRelease);
        }
    }
}
