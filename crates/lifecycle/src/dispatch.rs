//! One run at its gateway, as a pure machine: the `Call`, the worker that has it, its deadlines, and the cancel that is repeated until the
//! worker has let go.
//!
//! It waits in the gateway until it is placed on a worker. From then on that worker's words are taken in, and no other's. When the worker is
//! lost, the run ends, or, if nobody was told anything of it yet, waits for another worker. The shell keeps the readers, carries
//! effects out and says what time it is.
//!
//! Invariant: a run whose cancel was sent is looked at again until its worker says `released` or is lost; a word of another worker, of another
//! life or about another attempt than the current one changes nothing.
// contract: C-3 C-7 C-8 C-9 C-22

mod anew;
mod dismissed;
mod fingerprint;
mod leaving;
mod seen;
mod taken_over;
mod words;

use std::marker::PhantomData;
use std::time::Duration;

use leaving::Unread;
pub use words::{DispatchConfig, DispatchEffect, Place, Said, Word, Work};

use crate::event::Event;
use crate::message::{Down, Submit, Usage};
use crate::policy::OnDisconnect;
use crate::rules::{Rules, Sound};
use crate::workers::WorkerIndex;
use crate::{
    Applied, AttemptId, Call, CallEffect, CallEvent, CallState, Cause, Deadline, Delivery, Incarnation, Outcome, OutcomeKind, RunKey, Time,
};

type Effects = Vec<DispatchEffect>;

/// One run at its gateway.
#[derive(Clone, Debug)]
pub struct Dispatch<R: Rules = Sound> {
    key: RunKey,
    config: DispatchConfig,
    call: Call,
    /// What a further attempt needs; gone once there can be none.
    work: Option<Work>,
    /// Answers asked for, and the cap on each.
    asked: (u32, Option<u32>),
    /// Where the current attempt is, or was until it was released.
    place: Option<Place>,
    /// Since when.
    placed: Time,
    /// Deadlines of the whole run.
    deadlines: Vec<Deadline>,
    /// When waiting for a step is over, wherever it waits.
    queue: Deadline,
    /// When the cancel is due again, and the wait after that.
    repeat: (Time, Duration),
    /// When a cancel of the current attempt was first sent.
    cancelled: Option<Time>,
    /// When somebody first no longer wanted it.
    observed: Option<Time>,
    /// What the worker said of the end, reason included.
    ended: Option<Outcome>,
    usage: Usage,
    /// Whether the readers know that a worker has taken it on.
    accepted: bool,
    acknowledged: bool,
    /// Whether a piece of the answer was given to anybody.
    told: bool,
    /// The readers were told an end before the outcome: nothing more is for them.
    dismissed: bool,
    /// What its last reader's leaving means.
    policy: OnDisconnect,
    /// That nobody reads it, and what follows from that.
    unread: Option<Unread>,
    /// The attempt that was current when it came to this gateway; 0 for a run of its own.
    first: u32,
    /// Attempts that a worker gave back without having begun them.
    unbegun: u32,
    rules: PhantomData<R>,
}

impl<R: Rules> Dispatch<R> {
    /// A run that was accepted at `now` and waits for a worker.
    pub fn new(key: RunKey, work: Work, deadlines: Vec<Deadline>, config: DispatchConfig, now: Time) -> Dispatch<R> {
        Dispatch {
            key,
            config,
            call: Call::new(),
            asked: (work.params.n, work.params.max_tokens),
            work: Some(work),
            place: None,
            placed: now,
            deadlines,
            queue: Deadline::from_left(now, config.queue_deadline, Cause::QueueDeadline),
            repeat: (now, config.cancel_repeat),
            cancelled: None,
            observed: None,
            ended: None,
            usage: Usage::default(),
            accepted: false,
            acknowledged: false,
            told: false,
            dismissed: false,
            policy: OnDisconnect::Cancel,
            unread: None,
            first: 0,
            unbegun: 0,
            rules: PhantomData,
        }
    }

    /// Its machine.
    pub const fn call(&self) -> &Call {
        &self.call
    }

    /// Whether it waits for a worker.
    pub fn is_waiting(&self) -> bool {
        self.call.state() == CallState::Accepted
    }

    /// Whether it waits, here or at a worker that has not answered yet.
    pub fn is_queued(&self) -> bool {
        matches!(self.call.state(), CallState::Accepted | CallState::Dispatched | CallState::HandedBack)
    }

    fn is_at(&self, worker: WorkerIndex, life: Incarnation) -> bool {
        self.place.as_ref().is_some_and(|place| (place.worker, place.incarnation) == (worker, life))
    }

    /// Sends it to a worker, if it waits for one.
    // contract: C-2 C-5 C-22
    pub fn place(&mut self, place: Place, now: Time) -> Effects {
        let mut effects = Vec::new();
        let after = self.call.attempt();
        let Some(work) = self.work.take() else { return effects };
        R::call_meets(self.call.state(), after, CallEvent::Dispatch { after });
        if self.call.apply(CallEvent::Dispatch { after }).0 != Applied::Moved {
            self.work = Some(work);
            return effects;
        }
        let number = self.call.attempt();
        if self.may_follow(number) || self.is_free() {
            self.work = Some(work.clone());
        }
        // Before the prompt is tokenised, all that is known is that no sequence outgrows the context.
        let tokens_max = u64::from(work.params.n) * u64::from(place.model.context);
        effects.push(DispatchEffect::Journal { attempt: number, event: Event::Dispatched { tokens_max } });
        let deadlines = self.deadlines.iter().chain([&self.queue]).map(|deadline| deadline.to_send(now)).collect();
        let attempt = AttemptId { key: self.key.clone(), attempt: number };
        let Work { prompt, params } = work;
        let (worker, model) = (place.incarnation, place.model.id.clone());
        let submit = Submit { attempt, worker, number: place.number, model, prompt, params, deadlines };
        effects.push(DispatchEffect::Send { worker: place.worker, message: Down::Submit(Box::new(submit)) });
        self.repeat = (now, self.config.cancel_repeat);
        (self.place, self.placed) = (Some(place), now);
        effects
    }

    /// Somebody no longer wants it, for this cause, or it is turned away.
    // contract: C-8 C-24
    pub fn want(&mut self, cause: Cause, now: Time) -> Effects {
        let mut effects = Vec::new();
        self.wanted(cause, now, &mut effects);
        effects
    }

    fn wanted(&mut self, cause: Cause, now: Time, effects: &mut Effects) {
        // contract: C-25. What else ends a run ends its grace, at once.
        let left = self.end_grace(effects);
        if matches!(cause.outcome(), OutcomeKind::Cancelled | OutcomeKind::Expired) {
            if left.is_some_and(|left| left != cause) && self.call.outcome().is_none() {
                self.note(Event::AbandonmentObserved { cause }, effects);
            }
            self.observe(cause, now, effects);
        }
        self.apply(CallEvent::Want(cause), now, effects);
    }

    /// From here on whatever is computed of it is for nobody.
    fn observe(&mut self, cause: Cause, now: Time, effects: &mut Effects) {
        if self.observed.is_none() && self.call.outcome().is_none() {
            self.observed = Some(now);
            self.note(Event::AbandonmentObserved { cause }, effects);
        }
    }

    /// Takes in what a life of a worker says of an attempt.
    // contract: C-3
    pub fn take_in(&mut self, (worker, life): (WorkerIndex, Incarnation), attempt: u32, word: Word, now: Time) -> Effects {
        let mut effects = Vec::new();
        if !self.hears(worker, life, attempt) {
            return effects;
        }
        match word {
            Word::Accepted { prompt_tokens } => {
                self.usage.prompt = prompt_tokens;
                self.taken_on(now, &mut effects);
            }
            // contract: C-12. Nothing is told behind an end, and what was given back belongs to a further attempt.
            Word::Delta(_) if self.is_over_for_readers() || self.call.state() == CallState::HandedBack => {}
            Word::Delta(delta) => {
                self.taken_on(now, &mut effects);
                // From here on the answer is somebody's, and another worker cannot begin it anew.
                self.told = true;
                self.work = None;
                effects.push(DispatchEffect::Tell(Said::Delta(delta)));
            }
            Word::CancelAcknowledged => {
                if !std::mem::replace(&mut self.acknowledged, true) {
                    self.note(Event::CancelAcknowledged, &mut effects);
                }
                // contract: C-9. It shows that the cancel came, not that the blocks are back.
                if R::acknowledgement_releases() {
                    self.take_for_released(now, &mut effects);
                }
            }
            Word::Ended { outcome, usage } => {
                if outcome.kind() == OutcomeKind::Completed {
                    self.taken_on(now, &mut effects);
                }
                self.usage = usage;
                // Says that it could not even be asked, or another life of it was meant. contract: C-7. If the run was wanted to end, nothing else
                // ended it.
                let unbegun = outcome.cause == Cause::WorkerLost;
                let outcome = self.call.wanted().filter(|_| unbegun).map_or(outcome, Outcome::of);
                let cause = outcome.cause;
                self.ended = Some(outcome);
                // Or a worker stops on its own account.
                let is_free = unbegun && self.is_free();
                let may_follow = is_free || self.may_follow(self.call.attempt());
                let gives_back = (unbegun || cause == Cause::Shutdown) && self.call.wanted().is_none() && self.is_untouched() && may_follow;
                self.unbegun += u32::from(gives_back && is_free);
                let event =
                    if gives_back { CallEvent::WorkerHandedBack { attempt, cause } } else { CallEvent::WorkerEnded { attempt, cause } };
                self.apply(event, now, &mut effects);
            }
            Word::Released => {
                self.apply(CallEvent::WorkerReleased { attempt }, now, &mut effects);
                self.wait_if_it_does(now, &mut effects);
            }
            // contract: C-29. Without an end before it, it is the end of a worker that is lost.
            Word::LetGo(guarantee) => {
                self.note(Event::LetGo { guarantee }, &mut effects);
                self.apply(CallEvent::WorkerLost { attempt, again: false }, now, &mut effects);
            }
        }
        effects
    }

    /// A life of a worker is over for good: it was fenced by a newer one, or by its lease. `may_wait` says that another worker is here or may
    /// still come.
    // contract: C-7 C-20
    pub fn worker_lost(&mut self, worker: WorkerIndex, life: Incarnation, may_wait: bool, now: Time) -> Effects {
        let mut effects = Vec::new();
        let attempt = self.call.attempt();
        if !self.is_at(worker, life) {
            return effects;
        }
        let again = may_wait && self.may_begin_anew();
        self.apply(CallEvent::WorkerLost { attempt, again }, now, &mut effects);
        self.wait_if_it_does(now, &mut effects);
        effects
    }

    /// The caller's answer is over.
    // contract: C-6
    pub fn delivered(&mut self, delivery: Delivery, now: Time) -> Effects {
        let mut effects = Vec::new();
        self.end_delivery(delivery, now, &mut effects);
        effects
    }

    fn end_delivery(&mut self, delivery: Delivery, now: Time, effects: &mut Effects) {
        if self.call.delivery().is_none() {
            self.note(Event::DeliveryEnded { delivery }, effects);
            self.apply(CallEvent::Delivered(delivery), now, effects);
        }
    }

    /// Looks at what is due: deadlines, a grace, a cancel that has to be repeated, readers that have waited for their answer's end.
    // contract: C-9 C-22
    pub fn tick(&mut self, now: Time) -> Effects {
        let mut effects = Vec::new();
        self.fire_deadlines(now, &mut effects);
        // contract: C-23. No timer frees a block.
        if self.cancelled.is_some_and(|since| self.call.needs_retry() && R::time_releases(now.since(since))) {
            self.take_for_released(now, &mut effects);
        }
        if self.call.needs_retry() && self.repeat.0 <= now {
            self.apply(CallEvent::Retry, now, &mut effects);
        }
        if self.answer_ends().is_some_and(|at| at <= now) {
            self.dismiss(&mut effects);
        }
        effects
    }

    fn fire_deadlines(&mut self, now: Time, effects: &mut Effects) {
        if self.call.outcome().is_some() {
            self.deadlines.clear();
        }
        let (mut passed, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.deadlines).into_iter().partition(|d| d.is_over(now));
        self.deadlines = left;
        passed.extend(self.grace().filter(|grace| grace.is_over(now)));
        // At a worker it is the worker that knows whether the run still waits.
        passed.extend(Some(self.queue).filter(|queue| self.is_waiting() && queue.is_over(now)));
        passed.sort();
        for deadline in passed {
            // One that nobody reads and no worker has is settled by the first, and nothing is said behind that.
            if !self.call.is_settled() {
                self.wanted(deadline.cause(), now, effects);
            }
        }
    }

    /// A worker has taken the run on, whether it says so or shows it.
    fn taken_on(&mut self, now: Time, effects: &mut Effects) {
        self.apply(CallEvent::WorkerAccepted { attempt: self.call.attempt() }, now, effects);
        if !std::mem::replace(&mut self.accepted, true) && !self.is_over_for_readers() {
            effects.push(DispatchEffect::Tell(Said::Accepted));
        }
    }

    fn note(&self, event: Event, effects: &mut Effects) {
        effects.push(DispatchEffect::Journal { attempt: self.call.attempt(), event });
    }

    /// Applies one event to the machine and adds what it asks for.
    fn apply(&mut self, event: CallEvent, now: Time, effects: &mut Effects) {
        R::call_meets(self.call.state(), self.call.attempt(), event);
        let (applied, wanted) = self.call.apply(event);
        if let Applied::Defect(defect) = applied {
            self.note(Event::Defect { what: defect.event }, effects);
        }
        for effect in wanted {
            match effect {
                CallEffect::SendCancel { attempt, cause, count } => self.send_cancel(attempt, cause, count, now, effects),
                CallEffect::OutcomeSet { cause } => {
                    self.work = None;
                    let outcome = self.ended.take().filter(|o| o.cause == cause).unwrap_or(Outcome::of(cause));
                    self.note(Event::OutcomeSet { outcome: outcome.clone() }, effects);
                    if !self.dismissed {
                        effects.push(DispatchEffect::Tell(Said::End { outcome, usage: self.usage }));
                    }
                }
                CallEffect::Superseded { cause, won } => self.note(Event::Superseded { cause, won }, effects),
                CallEffect::HandedBack => self.note(Event::HandedBack, effects),
                CallEffect::Void => {
                    let worker = self.place.as_ref().map_or(Incarnation(0), |place| place.incarnation);
                    self.note(Event::Void { worker }, effects);
                }
                CallEffect::Settle { proven } => {
                    self.note(Event::Settled { proven }, effects);
                    effects.push(DispatchEffect::Settle);
                }
            }
        }
        self.settle_unread(now, effects);
    }

    // contract: C-8 C-9
    fn send_cancel(&mut self, number: u32, cause: Cause, count: u32, now: Time, effects: &mut Effects) {
        let Some((worker, submit)) = self.place.as_ref().map(|place| (place.worker, place.number)) else { return };
        self.cancelled.get_or_insert(now);
        let wait = self.repeat.1;
        self.repeat = (now.after(wait), (wait * 2).min(self.config.cancel_repeat_max));
        self.note(Event::CancelSent { cause, count }, effects);
        let attempt = AttemptId { key: self.key.clone(), attempt: number };
        let observed_ago = now.since(self.observed.unwrap_or(now));
        let message = Down::Cancel { attempt, cause, number: submit, observed_ago };
        effects.push(DispatchEffect::Send { worker, message });
        // contract: C-10. That it was sent shows nothing.
        if R::cancel_sent_releases() {
            self.take_for_released(now, effects);
        }
    }

    /// What only an unsound rule asks for: the worker's own words are made up here.
    fn take_for_released(&mut self, now: Time, effects: &mut Effects) {
        let attempt = self.call.attempt();
        let Some(cause) = self.call.wanted() else { return };
        if self.call.outcome().is_none() {
            self.apply(CallEvent::WorkerEnded { attempt, cause }, now, effects);
        }
        self.apply(CallEvent::WorkerReleased { attempt }, now, effects);
    }
}
