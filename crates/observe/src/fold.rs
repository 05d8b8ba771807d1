//! What the journal keeps of a run: each record is folded into it as it comes, and into the process's totals in the same breath.
//!
//! A number that both a run's view and a metric show is added in one place here, so the two cannot disagree.
//!
//! Invariant: a run's fold holds ids, stamps and counts, never text or tokens; its size does not grow with the run's length.
// contract: C-20 C-24

use std::sync::Arc;

use lifecycle::event::{Event, Record};
use lifecycle::{Cause, Delivery, Guarantee, Outcome, OutcomeKind, Phase, RunKey, StepId, Time};

use crate::metrics::{Defect, Totals};
use crate::view::{BlocksView, RunState, StepsView, TokensView};

mod worker;

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

    /// Whether nothing more is to be told of it but late news, so that it may be forgotten.
    pub(crate) fn is_over(&self) -> bool {
        self.stamps.settled.is_some() || (self.stamps.accepted.is_none() && self.state() == RunState::Ended)
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
}
