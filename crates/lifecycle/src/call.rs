//! The gateway's view of a run: one register for its outcome, and three facts that are kept apart (C-6): outcome, delivery, release.
//!
//! Before dispatch the call decides by itself how the run ends; after it the engine does, and the call only wants (C-4). A cancel is
//! repeated until the worker says `released` or is lost (C-9). A lost attempt may be followed by another one (C-7): then the run waits for a
//! worker as it did at first, and what is said of the lost attempt changes nothing. So may one that a stopping worker gave back, once that
//! worker has said `released`. The whole table is in `snapshots/call.txt`.
//!
//! Invariant: the outcome is set once and never changes; the run settles once, when it is released or void and its delivery is over; it is
//! proven only if no attempt of it is void.

mod words;

pub use words::{CallEffect, CallEvent, CallState};

use crate::attempt::{Applied, Defect};
use crate::register::Register;
use crate::{Cause, Delivery};

/// A run at its gateway.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Call {
    state: CallState,
    register: Register,
    /// Every cause that was wanted, once, in order of coming; the first is the one that is sent. At most as many as there are causes.
    wanted: Vec<Cause>,
    cancels_sent: u32,
    delivery: Option<Delivery>,
    /// An attempt of it is void: nobody can say that nothing is left of it.
    voided: bool,
}

impl Call {
    /// A run that was just accepted.
    pub fn new() -> Call {
        Call::default()
    }

    /// A run that another gateway had, where this attempt was its current one. It waits for a further one, and nobody can say that nothing is
    /// left of that attempt.
    // contract: C-5 C-20
    pub const fn taken_over(attempt: u32) -> Call {
        let register = Register::at(attempt);
        Call { state: CallState::Accepted, register, wanted: Vec::new(), cancels_sent: 0, delivery: None, voided: attempt > 0 }
    }

    /// Where it is.
    pub const fn state(&self) -> CallState {
        self.state
    }

    /// Its register: current attempt and outcome.
    pub const fn register(&self) -> Register {
        self.register
    }

    /// The current attempt, from 1; 0 before the first dispatch.
    pub const fn attempt(&self) -> u32 {
        self.register.attempt()
    }

    /// Why the run ended; `None` while it has not.
    pub const fn outcome(&self) -> Option<Cause> {
        self.register.outcome()
    }

    /// The first cause that somebody wanted the run to end for.
    pub fn wanted(&self) -> Option<Cause> {
        self.wanted.first().copied()
    }

    /// Every cause that was wanted, in order of coming.
    pub fn wanted_all(&self) -> &[Cause] {
        &self.wanted
    }

    /// Causes that lost: to the outcome if it is set, else to the cause that was sent.
    pub fn superseded(&self) -> impl Iterator<Item = Cause> + '_ {
        let won = self.outcome().or(self.wanted());
        self.wanted.iter().copied().filter(move |cause| Some(*cause) != won)
    }

    /// How often a cancel was sent.
    pub const fn cancels_sent(&self) -> u32 {
        self.cancels_sent
    }

    /// What the caller was sent, once its answer is over.
    pub const fn delivery(&self) -> Option<Delivery> {
        self.delivery
    }

    /// Whether the worker said `released`, or none ever held anything. Never after a void.
    pub const fn is_released(&self) -> bool {
        matches!(self.state, CallState::Released { .. } | CallState::Settled { .. }) && !self.voided
    }

    /// Whether a worker has it, or had it and has not said `released`.
    pub const fn is_at_worker(&self) -> bool {
        use CallState as S;
        matches!(self.state, S::Dispatched | S::Live | S::HandedBack | S::Stopping { .. } | S::Ended { .. })
    }

    /// Whether an attempt of it is void, so that its release is proven no more.
    pub const fn is_voided(&self) -> bool {
        self.voided
    }

    /// Whether nothing is held but the record.
    pub const fn is_settled(&self) -> bool {
        matches!(self.state, CallState::Settled { .. })
    }

    /// Whether the cancel driver has to go on: a cancel was sent and its release is neither confirmed nor void.
    // contract: C-9
    pub const fn needs_retry(&self) -> bool {
        self.cancels_sent > 0 && matches!(self.state, CallState::Stopping { .. } | CallState::Ended { .. })
    }

    /// The API's word for its state; `live` is the worker's word ([`crate::AttemptState::name`]), which counts while the run is live.
    pub const fn name(&self, live: &'static str) -> &'static str {
        match self.state {
            CallState::Accepted | CallState::Dispatched | CallState::HandedBack => "queued",
            CallState::Live => live,
            // The outcome of an ended run is told by its own field; until the blocks are back its state is "stopping".
            CallState::Stopping { .. } | CallState::Ended { .. } => "stopping",
            CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. } => "ended",
        }
    }

    /// Applies one event. A defect or a no-op changes nothing; what else is to be done comes as effects.
    // contract: C-4, C-6, C-7, C-8, C-9
    pub fn apply(&mut self, event: CallEvent) -> (Applied, Vec<CallEffect>) {
        use CallEvent as E;
        let mut effects = Vec::new();
        let applied = match event {
            E::Dispatch { after } => self.dispatch(after),
            E::Want(cause) => self.want(cause, &mut effects),
            E::WorkerEnded { attempt, .. }
            | E::WorkerHandedBack { attempt, .. }
            | E::WorkerReleased { attempt }
            | E::WorkerAccepted { attempt }
            | E::WorkerLost { attempt, .. }
                if attempt != self.attempt() =>
            {
                if attempt < self.attempt() {
                    Applied::NoOp
                } else {
                    self.defect(event)
                }
            }
            E::WorkerAccepted { .. } => self.worker_accepted(event),
            E::WorkerEnded { cause, .. } => self.worker_ended(cause, event, &mut effects),
            E::WorkerHandedBack { cause, .. } => self.worker_handed_back(cause, event, &mut effects),
            E::WorkerReleased { .. } => self.worker_released(event, &mut effects),
            E::WorkerLost { again, .. } => self.worker_lost(again, &mut effects),
            E::Delivered(delivery) => self.delivered(delivery),
            E::Retry if self.needs_retry() => self.send_cancel(&mut effects),
            E::Retry => Applied::NoOp,
        };
        self.settle(&mut effects);
        (applied, effects)
    }

    // contract: C-5
    fn dispatch(&mut self, after: u32) -> Applied {
        // A run that ended before its dispatch must not reach a worker: the register refuses, and the shell sends nothing on a no-op.
        if self.state != CallState::Accepted || !self.register.next_attempt(after) {
            return Applied::NoOp;
        }
        self.state = CallState::Dispatched;
        Applied::Moved
    }

    fn worker_accepted(&mut self, event: CallEvent) -> Applied {
        match self.state {
            CallState::Dispatched => {
                self.state = CallState::Live;
                Applied::Moved
            }
            _ if self.attempt() == 0 => self.defect(event),
            _ => Applied::NoOp,
        }
    }

    fn want(&mut self, cause: Cause, effects: &mut Vec<CallEffect>) -> Applied {
        let is_new = !self.wanted.contains(&cause);
        if is_new {
            self.wanted.push(cause);
        }
        match self.state {
            // No worker has it: this call is the decider, and there is nothing to release. What a lost worker held stays void.
            CallState::Accepted => {
                self.set_outcome(cause, effects);
                self.state = if self.voided { CallState::Void { cause } } else { CallState::Released { cause } };
                Applied::Moved
            }
            CallState::Dispatched | CallState::Live => {
                self.state = CallState::Stopping { cause };
                self.send_cancel(effects)
            }
            // The worker's part is decided: the run is this call's again, and only the release is waited for.
            CallState::HandedBack => {
                self.set_outcome(cause, effects);
                self.state = CallState::Ended { cause };
                Applied::Moved
            }
            // The engine has not decided: what lost is written when it has.
            CallState::Stopping { cause: won } => Applied::Superseded { won },
            CallState::Ended { cause: won }
            | CallState::Released { cause: won }
            | CallState::Void { cause: won }
            | CallState::Settled { cause: won, .. } => {
                if is_new && cause != won {
                    effects.push(CallEffect::Superseded { cause, won });
                }
                Applied::Superseded { won }
            }
        }
    }

    fn send_cancel(&mut self, effects: &mut Vec<CallEffect>) -> Applied {
        if let Some(&cause) = self.wanted.first() {
            self.cancels_sent = self.cancels_sent.saturating_add(1);
            effects.push(CallEffect::SendCancel { attempt: self.attempt(), cause, count: self.cancels_sent });
        }
        Applied::Moved
    }

    fn worker_ended(&mut self, cause: Cause, event: CallEvent, effects: &mut Vec<CallEffect>) -> Applied {
        match self.state {
            // The last words of a lost worker, or the same words again, about a run that waits for another.
            CallState::Accepted | CallState::HandedBack if self.attempt() > 0 => Applied::NoOp,
            CallState::Accepted | CallState::HandedBack => self.defect(event),
            CallState::Dispatched | CallState::Live | CallState::Stopping { .. } => {
                self.set_outcome(cause, effects);
                self.state = CallState::Ended { cause };
                Applied::Moved
            }
            // The last words of a worker that was given up: the gateway has decided meanwhile (C-4, C-9).
            CallState::Void { cause: won } | CallState::Settled { cause: won, proven: false } => Applied::Superseded { won },
            CallState::Ended { cause: won } | CallState::Released { cause: won } | CallState::Settled { cause: won, .. } => {
                // An engine decides once. A second, other answer about the same attempt is its fault.
                if won == cause && self.attempt() > 0 { Applied::NoOp } else { self.defect(event) }
            }
        }
    }

    // contract: C-5, C-7
    fn worker_handed_back(&mut self, cause: Cause, event: CallEvent, effects: &mut Vec<CallEffect>) -> Applied {
        match self.state {
            CallState::Dispatched | CallState::Live if self.delivery.is_none() => {
                effects.push(CallEffect::HandedBack);
                self.state = CallState::HandedBack;
                Applied::Moved
            }
            _ => self.worker_ended(cause, event, effects),
        }
    }

    fn worker_released(&mut self, event: CallEvent, effects: &mut Vec<CallEffect>) -> Applied {
        match self.state {
            // Waits for another worker, and nothing is left of this attempt: what is proven stays so.
            CallState::HandedBack if self.delivery.is_none() => {
                self.state = CallState::Accepted;
                Applied::Moved
            }
            // Its caller has an answer that is over: nobody waits for another worker.
            CallState::HandedBack => {
                self.set_outcome(Cause::Shutdown, effects);
                let cause = Cause::Shutdown;
                self.state = if self.voided { CallState::Void { cause } } else { CallState::Released { cause } };
                Applied::Moved
            }
            CallState::Ended { cause } => {
                self.state = CallState::Released { cause };
                Applied::Moved
            }
            CallState::Accepted if self.attempt() > 0 => Applied::NoOp,
            // In a session the end comes before the release, so a release without an end is a fault.
            CallState::Accepted | CallState::Dispatched | CallState::Live | CallState::Stopping { .. } => self.defect(event),
            _ if self.attempt() == 0 => self.defect(event),
            // contract: C-20. After a void the late word changes nothing: the record keeps saying that it is unproven.
            CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. } => Applied::NoOp,
        }
    }

    fn worker_lost(&mut self, again: bool, effects: &mut Vec<CallEffect>) -> Applied {
        let cause = match self.state {
            // contract: C-7. In these states nobody wants it to end, and what was delivered is the caller's to say.
            CallState::Dispatched | CallState::Live | CallState::HandedBack if again && self.delivery.is_none() => {
                effects.push(CallEffect::Void);
                self.voided = true;
                self.state = CallState::Accepted;
                return Applied::Moved;
            }
            // contract: C-7. No silence: what was asked for, else that the worker is lost.
            CallState::Dispatched | CallState::Live | CallState::Stopping { .. } => {
                let cause = self.wanted().unwrap_or(Cause::WorkerLost);
                self.set_outcome(cause, effects);
                cause
            }
            // As that worker said.
            CallState::HandedBack => {
                self.set_outcome(Cause::Shutdown, effects);
                Cause::Shutdown
            }
            CallState::Ended { cause } => cause,
            // No worker holds anything of it.
            CallState::Accepted | CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. } => return Applied::NoOp,
        };
        effects.push(CallEffect::Void);
        self.voided = true;
        self.state = CallState::Void { cause };
        Applied::Moved
    }

    fn delivered(&mut self, delivery: Delivery) -> Applied {
        if self.delivery.is_some() {
            return Applied::NoOp;
        }
        self.delivery = Some(delivery);
        Applied::Moved
    }

    /// Every transition that sets an outcome comes through here, so the register decides and the losers are written with it.
    fn set_outcome(&mut self, cause: Cause, effects: &mut Vec<CallEffect>) {
        if self.register.set_outcome(self.register.attempt(), cause) {
            effects.push(CallEffect::OutcomeSet { cause });
            let lost = self.wanted.iter().filter(|wanted| **wanted != cause);
            effects.extend(lost.map(|&lost| CallEffect::Superseded { cause: lost, won: cause }));
        }
    }

    fn settle(&mut self, effects: &mut Vec<CallEffect>) {
        let (cause, proven) = match self.state {
            CallState::Released { cause } | CallState::Void { cause } => (cause, !self.voided),
            _ => return,
        };
        if self.delivery.is_some() {
            self.state = CallState::Settled { cause, proven };
            effects.push(CallEffect::Settle { proven });
        }
    }

    fn defect(&self, event: CallEvent) -> Applied {
        Applied::Defect(Defect { machine: "call", state: self.state.label(), event: event.label() })
    }
}
