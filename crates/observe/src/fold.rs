//! What the journal keeps of a run: each record is folded into it as it comes, and into the process's totals in the same breath.
//!
//! A number that both a run's view and a metric show is added in one place here, so the two cannot disagree.
//!
//! Invariant: a run's fold holds ids, stamps and counts, never text or tokens; its size does not grow with the run's length.
// contract: C-20 C-24

use std::sync::Arc;

use lifecycle::event::{Event, Record};
use lifecycle::message::Receipt;
use lifecycle::{Cause, Delivery, Guarantee, Outcome, OutcomeKind, Phase, RunKey, StepId, Time};

use crate::metrics::{Defect, Totals};
use crate::view::{BlocksView, RunState, StepsView, TokensView};

/// When things happened to a run. The first time counts, except for `last_compute`.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Stamps {
    pub accepted: Option<Time>,
    pub queued: Option<Time>,
    pub blocks_allocated: Option<Time>,
    pub prefill_start: Option<Time>,
    pub first_token: Option<Time>,
    pub deadline_fired: Option<Time>,
    pub disconnect_observed: Option<Time>,
    pub cancel_sent: Option<Time>,
    pub cancel_received: Option<Time>,
    pub cancel_applied: Option<Time>,
    pub cancel_acknowledged: Option<Time>,
    pub last_compute: Option<Time>,
    pub fence_completed: Option<Time>,
    pub released: Option<Time>,
    pub settled: Option<Time>,
    /// Abandonment as the gateway first observed it, for whatever cause.
    pub observed: Option<Time>,
}

/// How far an attempt has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Queued,
    Prefilling,
    Decoding,
    Preempted,
}

/// One execution.
#[derive(Clone, Debug)]
pub(crate) struct AttemptFold {
    pub number: u32,
    progress: Progress,
    /// Its end is wanted.
    stopping: bool,
    ended: Option<OutcomeKind>,
    released: bool,
    void: bool,
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub key: RunKey,
    /// Place in the order of acceptance.
    pub seq: u64,
    /// The first record's time: the base of all times where the front door is in another process.
    pub opened: Time,
    pub model: Option<Arc<str>>,
    pub stamps: Stamps,
    /// In order of their numbers; a gateway bounds how often it dispatches again.
    attempts: Vec<AttemptFold>,
    pub outcome: Option<Outcome>,
    delivery_ended: Option<Delivery>,
    /// `Settled`'s own word on whether the release was proven.
    proven: bool,
    /// First observation of abandonment anywhere, and its cause.
    abandoned: Option<(Time, Cause)>,
    pub phase_at_disconnect: Option<Phase>,
    pub tokens: TokensView,
    pub steps: StepsView,
    pub blocks: BlocksView,
    pub superseded: Vec<Cause>,
    prompt_computed: u64,
    preempted_once: bool,
    last_step: Option<StepId>,
    last_token: Option<Time>,
}

impl Run {
    pub(crate) fn new(key: RunKey, seq: u64, opened: Time) -> Run {
        Run {
            key,
            seq,
            opened,
            model: None,
            stamps: Stamps::default(),
            attempts: Vec::with_capacity(1),
            outcome: None,
            delivery_ended: None,
            proven: false,
            abandoned: None,
            phase_at_disconnect: None,
            tokens: TokensView::default(),
            steps: StepsView::default(),
            blocks: BlocksView::default(),
            superseded: Vec::new(),
            prompt_computed: 0,
            preempted_once: false,
            last_step: None,
            last_token: None,
        }
    }

    pub(crate) fn current(&self) -> Option<&AttemptFold> {
        self.attempts.last()
    }

    /// Whether no attempt of it is on a worker.
    fn is_idle(&self) -> bool {
        self.current().is_none_or(|a| a.released || a.void)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.current().is_some_and(|a| a.released) || self.proven
    }

    pub(crate) fn state(&self) -> RunState {
        // A worker without a gateway in its process never learns the outcome: there the attempt's end is all there is.
        let decided = self.outcome.is_some() || (self.stamps.accepted.is_none() && self.current().is_some_and(|a| a.ended.is_some()));
        if self.stamps.settled.is_some() || (decided && self.is_idle()) {
            return RunState::Ended;
        }
        let Some(attempt) = self.current() else { return RunState::Queued };
        if decided || attempt.stopping || attempt.ended.is_some() || attempt.released {
            return RunState::Stopping;
        }
        match attempt.progress {
            Progress::Queued => RunState::Queued,
            Progress::Prefilling => RunState::Prefilling,
            Progress::Decoding => RunState::Decoding,
            Progress::Preempted => RunState::Preempted,
        }
    }

    pub(crate) fn delivery(&self) -> Delivery {
        let so_far = if self.tokens.delivered > 0 { Delivery::Partial } else { Delivery::None };
        self.delivery_ended.unwrap_or(so_far)
    }

    pub(crate) fn guarantee(&self) -> Option<Guarantee> {
        if self.is_released() {
            Some(Guarantee::Confirmed)
        } else if self.stamps.settled.is_some() || self.current().is_some_and(|a| a.void) {
            Some(Guarantee::BestEffort)
        } else {
            None
        }
    }

    /// Whether a cancel was sent whose effect nobody has confirmed yet.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        let s = &self.stamps;
        s.cancel_sent.is_some() && s.cancel_acknowledged.is_none() && s.settled.is_none() && !self.is_idle()
    }

    /// Whether it computed something and nothing of it was ever delivered.
    fn is_zero_delivery(&self) -> bool {
        self.steps.total > 0 && self.tokens.delivered == 0
    }

    /// Folds one record.
    pub(crate) fn fold(&mut self, record: &Record, totals: &mut Totals) {
        self.open_attempt(record);
        self.fold_gateway(record, totals);
        self.fold_worker(record, totals);
    }

    /// A number above the current one is a new attempt: what was said of the old one's release no longer holds for the run.
    fn open_attempt(&mut self, record: &Record) {
        let number = record.attempt;
        if number == 0 || self.attempts.iter().any(|a| a.number == number) {
            return;
        }
        let fresh = AttemptFold { number, progress: Progress::Queued, stopping: false, ended: None, released: false, void: false };
        let place = self.attempts.partition_point(|a| a.number < number);
        if place == self.attempts.len() {
            (self.stamps.released, self.stamps.fence_completed) = (None, None);
        }
        self.attempts.insert(place, fresh);
    }

    fn fold_gateway(&mut self, record: &Record, totals: &mut Totals) {
        let at = record.at;
        match &record.event {
            Event::Accepted { model, .. } => match self.stamps.accepted {
                Some(_) => totals.defect(Defect::AcceptedTwice),
                None => (self.stamps.accepted, self.model) = (Some(at), Some(model.clone())),
            },
            Event::AbandonmentObserved { cause } => {
                self.stamps.observed.get_or_insert(at);
                self.abandon(at, *cause);
            }
            Event::CancelSent { count, .. } => {
                self.stamps.cancel_sent.get_or_insert(at);
                self.mark_stopping(record.attempt);
                totals.cancels_sent += 1;
                totals.cancels_repeated += u64::from(*count > 1);
            }
            Event::CancelAcknowledged => {
                self.stamps.cancel_acknowledged.get_or_insert(at);
            }
            Event::Delivered { tokens } => {
                self.tokens.delivered += u64::from(*tokens);
                totals.delivered += u64::from(*tokens);
                if self.delivery_ended.is_some() {
                    totals.defect(Defect::DeliveredAfterEnd);
                }
            }
            Event::DeliveryEnded { delivery } => match self.delivery_ended {
                Some(_) => totals.defect(Defect::DeliveryEndedTwice),
                None => self.delivery_ended = Some(*delivery),
            },
            Event::OutcomeSet { outcome } => match self.outcome {
                Some(_) => totals.defect(Defect::OutcomeTwice),
                None => {
                    self.outcome = Some(outcome.clone());
                    totals.outcome(outcome.cause);
                }
            },
            Event::Superseded { cause, .. } => {
                if !self.superseded.contains(cause) {
                    self.superseded.push(*cause);
                }
                totals.superseded(*cause);
            }
            Event::Settled { proven } => match self.stamps.settled {
                Some(_) => totals.defect(Defect::SettledTwice),
                None => {
                    (self.stamps.settled, self.proven) = (Some(at), *proven);
                    totals.settled += 1;
                    totals.zero_delivery_runs += u64::from(self.is_zero_delivery());
                }
            },
            _ => {}
        }
    }

    fn fold_worker(&mut self, record: &Record, totals: &mut Totals) {
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
            Event::RowsDropped { step, layers } if *layers > 0 => self.took_step(at, *step, totals),
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

    fn attempt_mut(&mut self, number: u32) -> Option<&mut AttemptFold> {
        self.attempts.iter_mut().find(|a| a.number == number)
    }

    fn progress(&mut self, number: u32, progress: Progress) {
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.progress = progress;
        }
    }

    fn mark_stopping(&mut self, number: u32) {
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.stopping = true;
        }
    }

    /// Notes the first observation of abandonment: from here on, what is computed is waste.
    fn abandon(&mut self, at: Time, cause: Cause) {
        let s = &mut self.stamps;
        let stamp = if cause.outcome() == OutcomeKind::Expired { &mut s.deadline_fired } else { &mut s.disconnect_observed };
        stamp.get_or_insert(at);
        if self.abandoned.is_none() {
            self.abandoned = Some((at, cause));
            self.phase_at_disconnect = Some(self.phase());
        }
    }

    /// Where the run is now, in the words of C-24.
    fn phase(&self) -> Phase {
        let prompt_left = self.prompt_computed + self.tokens.cached_prompt < self.tokens.prompt;
        match self.stamps {
            Stamps { first_token: Some(_), .. } => Phase::Decode,
            Stamps { prefill_start: None, .. } => Phase::Queued,
            _ if prompt_left => Phase::Prefill,
            _ => Phase::BeforeFirstToken,
        }
    }

    fn allocated(&mut self, record: &Record, (held, cached, shared): (u32, u32, u32), totals: &mut Totals) {
        self.stamps.blocks_allocated.get_or_insert(record.at);
        self.blocks.held = held;
        self.blocks.peak = self.blocks.peak.max(held);
        self.blocks.shared = self.blocks.shared.saturating_add(shared);
        // After a preemption the index mostly gives back the run's own work: that saves time, but is no cached prompt.
        if !self.preempted_once {
            self.tokens.cached_prompt += u64::from(cached);
            totals.prefix_cached += u64::from(cached);
        }
        self.check_unreleased(record.attempt, totals);
    }

    fn computed(&mut self, record: &Record, step: StepId, (prompt, generated, discarded): (u32, u32, u32), totals: &mut Totals) {
        let (prompt, generated, discarded) = (u64::from(prompt), u64::from(generated), u64::from(discarded));
        self.check_unreleased(record.attempt, totals);
        self.took_step(record.at, step, totals);
        self.prompt_computed += prompt;
        self.tokens.generated += generated;
        totals.prompt_computed += prompt;
        totals.generated += generated;
        // The attempt's own end comes first: what was thrown away because of it was not computed for somebody who had left.
        let own_end = self.attempt_mut(record.attempt).is_some_and(|a| a.ended == Some(OutcomeKind::Completed));
        if let (Some(_), false) = (self.abandoned, own_end) {
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

    /// Counts a step once, however many records of it come (n sequences: some rows computed, some dropped).
    fn took_step(&mut self, at: Time, step: StepId, totals: &mut Totals) {
        self.stamps.last_compute = Some(at);
        if self.last_step.is_some_and(|last| step <= last) {
            return;
        }
        self.last_step = Some(step);
        self.steps.total += 1;
        if self.abandoned.is_some() {
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
