//! What the journal keeps of a run: each record is folded into it as it comes, and into the process's totals in the same breath.
//!
//! A number that both a run's view and a metric show is added in one place here, so the two cannot disagree.
//!
//! Invariant: a run's fold holds ids, stamps and counts, never text or tokens; its size does not grow with the run's length.
// contract: C-20 C-24

use std::sync::Arc;
use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::{Cause, Delivery, Guarantee, Milestone, Milestones, Outcome, OutcomeKind, Phase, RunKey, StepId, Time, WasteMeter};

use crate::metrics::{Defect, Totals};
use crate::view::{BlocksView, RunState};
use crate::waiting::Waiting;

mod again;
mod ahead;
mod attempt;
mod crossing;
mod grace;
mod left;
mod reported;
mod stages;
mod worker;

use again::unreleased;
use ahead::Ahead;
pub use attempt::AttemptKnown;
pub(crate) use attempt::{AttemptFold, Progress};
use grace::Graces;

/// What the totals' gauges count a run under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stands {
    pub state: RunState,
    pub over: bool,
    pub awaits: bool,
    pub orphans: u64,
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
    pub stamps: Milestones,
    /// Abandonment as the gateway first observed it, for whatever cause.
    pub observed: Option<Time>,
    /// In order of their numbers; a gateway bounds how often it dispatches again.
    pub(crate) attempts: Vec<AttemptFold>,
    pub outcome: Option<Outcome>,
    delivery_ended: Option<Delivery>,
    /// Why the run ends, as readers were told before its outcome was decided.
    pub told: Option<Cause>,
    /// `Settled`'s own word on whether the release was proven.
    proven: bool,
    /// How well the end is proven by an engine that acknowledges no release.
    proof: Option<Guarantee>,
    /// The engine of another make that has its newest attempt, and the attempt's name there.
    pub sent_as: Option<(Arc<str>, Arc<str>)>,
    /// First observation of abandonment anywhere, and its cause.
    pub(crate) abandoned: Option<(Time, Cause)>,
    /// What was computed, and for whom.
    pub meter: WasteMeter,
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Of them, those from the prefix index.
    pub cached_prompt: u64,
    pub blocks: BlocksView,
    pub superseded: Vec<Cause>,
    pub graces: Graces,
    preempted_once: bool,
    /// A step that dropped rows, not counted yet: other rows of the run may have been computed in it.
    dropped: Option<StepId>,
    last_step: Option<StepId>,
    /// Layers that steps computed for rows which they then dropped.
    pub(crate) layers_dropped: u64,
    /// Tokens computed after the cancel had arrived at the worker.
    pub(crate) after_receipt: u64,
    last_token: Option<Time>,
    /// As the last record left it.
    pub(crate) stands: Stands,
    /// Since when it is in one of the tables of what somebody waits for.
    pub(crate) waits: [Option<Time>; Waiting::KINDS],
    /// How wrong the times of its workers may be against the others.
    pub(crate) clock_error: Duration,
}

impl Run {
    pub(crate) fn new(key: RunKey, seq: u64, opened: Time) -> Run {
        Run {
            key,
            seq,
            opened,
            model: None,
            stamps: Milestones::default(),
            observed: None,
            attempts: Vec::with_capacity(1),
            outcome: None,
            delivery_ended: None,
            told: None,
            proven: false,
            proof: None,
            sent_as: None,
            abandoned: None,
            meter: WasteMeter::default(),
            prompt: 0,
            cached_prompt: 0,
            blocks: BlocksView::default(),
            superseded: Vec::new(),
            graces: Graces::default(),
            preempted_once: false,
            dropped: None,
            last_step: None,
            after_receipt: 0,
            layers_dropped: 0,
            last_token: None,
            stands: Stands { state: RunState::Queued, over: false, awaits: false, orphans: 0 },
            waits: [None; Waiting::KINDS],
            clock_error: Duration::ZERO,
        }
    }

    pub(crate) fn current(&self) -> Option<&AttemptFold> {
        self.attempts.last()
    }

    /// Whether no attempt of it is on a worker.
    fn is_idle(&self) -> bool {
        self.current().is_none_or(|a| a.released || a.void)
    }

    /// Never with a void attempt, whatever became of those after it.
    pub(crate) fn is_released(&self) -> bool {
        (self.current().is_some_and(|a| a.released && !(a.handed_back && self.outcome.is_none())) && !self.is_voided()) || self.proven
    }

    fn is_voided(&self) -> bool {
        self.attempts.iter().any(|a| a.void)
    }

    pub(crate) fn state(&self) -> RunState {
        // A worker without a gateway in its process never learns the outcome: there the attempt's end is all there is.
        let decided = self.outcome.is_some() || (!self.has(Milestone::Accepted) && self.current().is_some_and(|a| a.ended.is_some()));
        if self.is_settled() || (decided && self.is_idle()) {
            return RunState::Ended;
        }
        let Some(attempt) = self.current() else { return RunState::Queued };
        if (attempt.void || attempt.handed_back) && !decided {
            // It waits for another worker.
            return RunState::Queued;
        }
        if decided || attempt.stopping || attempt.ended.is_some() || attempt.released {
            return RunState::Stopping;
        }
        if attempt.suspended {
            return RunState::Suspended;
        }
        match attempt.progress {
            Progress::Queued => RunState::Queued,
            Progress::Prefilling => RunState::Prefilling,
            Progress::Decoding => RunState::Decoding,
            Progress::Preempted => RunState::Preempted,
        }
    }

    pub(crate) fn delivery(&self) -> Delivery {
        let so_far = if self.meter.waste().delivered > 0 { Delivery::Partial } else { Delivery::None };
        self.delivery_ended.unwrap_or(so_far)
    }

    pub(crate) fn guarantee(&self) -> Option<Guarantee> {
        if self.is_released() {
            Some(Guarantee::Confirmed)
        } else if self.is_settled() || (self.outcome.is_some() && self.is_voided() && self.is_idle()) {
            Some(self.proof.unwrap_or(Guarantee::BestEffort))
        } else {
            None
        }
    }

    /// The most that can still be computed in vain; `None` while the run is live, and where nothing bounds it that is known.
    // contract: C-28
    pub(crate) fn waste_bound(&self) -> Option<u64> {
        match self.guarantee()? {
            Guarantee::Confirmed | Guarantee::Observed => Some(0),
            _ => self.attempts.iter().filter(|a| !a.released).map(|a| a.bound.or(a.ahead.map(|ahead| ahead.tokens()))).sum(),
        }
    }

    /// Whether nothing more is to be told of it but late news, so that it may be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.is_settled() || (!self.has(Milestone::Accepted) && self.state() == RunState::Ended)
    }

    /// Whether a cancel was sent whose effect nobody has confirmed yet.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        self.has(Milestone::CancelSent) && !self.has(Milestone::CancelAcknowledged) && !self.is_settled() && !self.is_idle()
    }

    /// Whether a worker that has no gateway in its process has released this attempt, and with it all that it knew of the run.
    pub(crate) fn has_released(&self, attempt: u32) -> bool {
        !self.has(Milestone::Accepted) && self.is_over() && self.attempts.iter().any(|a| a.number == attempt && a.released)
    }

    pub(crate) fn known(&self, number: u32) -> Option<AttemptKnown> {
        let attempt = self.attempts.iter().find(|a| a.number == number)?;
        Some(AttemptKnown { queued: attempt.queued, ended: attempt.ended.is_some(), released: attempt.released })
    }

    /// Attempts that no gateway claims and that are not released.
    pub(crate) fn orphans(&self) -> u64 {
        self.attempts.iter().filter(|a| a.orphaned && !a.released && !a.void).count() as u64
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.has(Milestone::Settled)
    }

    fn has(&self, milestone: Milestone) -> bool {
        self.stamps.get(milestone).is_some()
    }

    /// Folds one record.
    pub(crate) fn fold(&mut self, record: &Record, totals: &mut Totals) {
        self.open_attempt(record);
        self.fold_gateway(record, totals);
        self.fold_worker(record, totals);
        self.fold_stages(record);
    }

    /// A number above the current one is a new attempt: what was said of the old one's release no longer holds for the run.
    fn open_attempt(&mut self, record: &Record) {
        let number = record.attempt;
        if number == 0 || self.attempts.iter().any(|a| a.number == number) {
            return;
        }
        let place = self.attempts.partition_point(|a| a.number < number);
        if place == self.attempts.len() && place > 0 {
            self.stamps = unreleased(&self.stamps);
        }
        self.attempts.insert(place, AttemptFold::new(number));
    }

    fn fold_gateway(&mut self, record: &Record, totals: &mut Totals) {
        let at = record.at;
        match &record.event {
            Event::Accepted { model, on_disconnect, .. } => {
                if !self.stamps.mark(Milestone::Accepted, at) {
                    return totals.defect(Defect::AcceptedTwice);
                }
                self.model = Some(model.clone());
                self.graces.policy = Some(*on_disconnect);
            }
            Event::AbandonmentObserved { cause } => {
                self.observed.get_or_insert(at);
                self.abandon(at, *cause, self.phase());
            }
            Event::Dispatched { tokens_max } => self.ahead(record.attempt, |ahead| ahead.dispatched(*tokens_max)),
            Event::CancelSent { count, .. } => {
                self.reached(Milestone::CancelSent, at, totals);
                self.mark_stopping(record.attempt);
                totals.cancels_sent += 1;
                totals.cancels_repeated += u64::from(*count > 1);
            }
            Event::CancelAcknowledged => {
                self.reached(Milestone::CancelAcknowledged, at, totals);
            }
            Event::Delivered { tokens } => {
                self.meter.deliver(*tokens);
                totals.work.delivered += u64::from(*tokens);
                if self.delivery_ended.is_some() {
                    totals.defect(Defect::DeliveredAfterEnd);
                }
            }
            Event::DeliveryEnded { delivery } => match self.delivery_ended {
                Some(_) => totals.defect(Defect::DeliveryEndedTwice),
                None => self.delivery_ended = Some(*delivery),
            },
            Event::Dismissed { cause } => match self.told {
                Some(_) => totals.defect(Defect::DismissedTwice),
                None => self.told = Some(*cause),
            },
            Event::OutcomeSet { outcome } => match self.outcome {
                Some(_) => totals.defect(Defect::OutcomeTwice),
                None => {
                    self.outcome = Some(outcome.clone());
                    totals.outcome(outcome.cause);
                }
            },
            // The engine and the gateway may both say that a cause lost: it lost once.
            Event::Superseded { cause, .. } if !self.superseded.contains(cause) => {
                self.superseded.push(*cause);
                totals.superseded(*cause);
            }
            Event::WorkerClock { error } => self.clock_error = self.clock_error.max(*error),
            Event::HandedBack => self.handed_back(record.attempt),
            Event::Settled { proven } => {
                if !self.reached(Milestone::Settled, at, totals) {
                    return totals.defect(Defect::SettledTwice);
                }
                self.proven = *proven;
                totals.settled_as(self.outcome.as_ref().map(Outcome::kind), self.guarantee(), &self.meter.waste());
                totals.left.settled(self.outcome.as_ref(), self.sent_as.as_ref().map(|(upstream, _)| upstream), self.guarantee());
            }
            _ => self.fold_grace(record, totals),
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

    fn ahead(&mut self, number: u32, change: impl FnOnce(&mut Ahead)) {
        if let Some(attempt) = self.attempt_mut(number) {
            change(attempt.ahead.get_or_insert_default());
        }
    }

    fn mark_stopping(&mut self, number: u32) {
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.stopping = true;
        }
    }

    /// Notes an observation of abandonment. From the first one on, what is computed is waste.
    fn abandon(&mut self, at: Time, cause: Cause, phase: Phase) {
        let expired = cause.outcome() == OutcomeKind::Expired;
        self.stamps.mark(if expired { Milestone::DeadlineFired } else { Milestone::DisconnectObserved }, at);
        if self.meter.abandon(phase) {
            self.abandoned = Some((at, cause));
        }
    }

    /// Where the run is now, in the words of C-24.
    fn phase(&self) -> Phase {
        // The stamps are those of the first attempt; a later one begins anew.
        if let Some(current) = self.current().filter(|_| self.is_voided()) {
            return match current.progress {
                _ if current.void => Phase::Queued,
                Progress::Queued => Phase::Queued,
                Progress::Prefilling => Phase::Prefill,
                Progress::Decoding | Progress::Preempted => Phase::Decode,
            };
        }
        let prompt_left = self.meter.waste().prompt + self.cached_prompt < self.prompt;
        if self.has(Milestone::FirstToken) {
            Phase::Decode
        } else if !self.has(Milestone::PrefillStart) {
            Phase::Queued
        } else if prompt_left {
            Phase::Prefill
        } else {
            Phase::BeforeFirstToken
        }
    }
}
