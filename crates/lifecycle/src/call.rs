//! The gateway's view of a run: one register for its outcome, and three facts that are kept apart (C-6): outcome, delivery, release.
//!
//! Before dispatch the call decides by itself how the run ends; after it the engine does, and the call only wants (C-4). A cancel is
//! repeated until the worker says `released` or is lost (C-9). The whole table is in `snapshots/call.txt`.
//!
//! Invariant: the outcome is set once and never changes; the run settles once, when it is released or void and its delivery is over.

use crate::attempt::{Applied, Defect};
use crate::register::Register;
use crate::{Cause, Delivery};

/// Where a run is, seen from its gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CallState {
    /// Taken on; no worker knows of it.
    #[default]
    Accepted,
    /// The submit is sent.
    Dispatched,
    /// The worker took it on.
    Live,
    /// A cancel is sent; the worker has not said how it ended.
    Stopping {
        /// The cause that was sent.
        cause: Cause,
    },
    /// The outcome is set; the worker may still hold blocks.
    Ended {
        /// Why it ended.
        cause: Cause,
    },
    /// The worker holds nothing of it; the caller's answer is not over yet.
    Released {
        /// Why it ended.
        cause: Cause,
    },
    /// The worker is lost, nobody can say "released"; the caller's answer is not over yet.
    Void {
        /// Why it ended.
        cause: Cause,
    },
    /// Nothing is held but the record.
    Settled {
        /// Why it ended.
        cause: Cause,
        /// Whether no block can be left: the worker said `released`, or the run never reached one. False after a void.
        proven: bool,
    },
}

/// What can happen to a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallEvent {
    /// The submit is about to be sent.
    Dispatch,
    /// The worker took the current attempt on.
    WorkerAccepted,
    /// Somebody no longer wants the run, or the gateway turns it away: a disconnect, a cancel by name, a deadline, a shutdown, a limit.
    Want(Cause),
    /// The worker decided how an attempt ends.
    WorkerEnded {
        /// Which attempt.
        attempt: u32,
        /// Why.
        cause: Cause,
    },
    /// The worker holds nothing of an attempt any more.
    WorkerReleased {
        /// Which attempt.
        attempt: u32,
    },
    /// The worker is gone for good: a new incarnation answered, or its lease ran out.
    WorkerLost,
    /// The caller's answer is over.
    Delivered(Delivery),
    /// The cancel driver's tick.
    Retry,
}

/// What the shell must do. The order in a list is the order of doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallEffect {
    /// Send a cancel to the attempt's worker.
    SendCancel {
        /// Which attempt.
        attempt: u32,
        /// Why.
        cause: Cause,
        /// 1 for the first.
        count: u32,
    },
    /// Write the outcome. Once a run.
    OutcomeSet {
        /// Why it ended.
        cause: Cause,
    },
    /// Write that a cause lost. Once a cause.
    Superseded {
        /// The one that lost.
        cause: Cause,
        /// The one that won.
        won: Cause,
    },
    /// Write that the worker is lost and the release unproven.
    Void,
    /// Let go of everything but the record. Once a run.
    Settle {
        /// As [`CallState::Settled`]'s `proven`.
        proven: bool,
    },
}

/// A run at its gateway.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Call {
    state: CallState,
    register: Register,
    /// Every cause that was wanted, once, in order of coming; the first is the one that is sent. At most as many as there are causes.
    wanted: Vec<Cause>,
    cancels_sent: u32,
    delivery: Option<Delivery>,
}

impl Call {
    /// A run that was just accepted.
    pub fn new() -> Call {
        Call::default()
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

    /// Whether the worker said `released`, or never held anything.
    pub const fn is_released(&self) -> bool {
        matches!(self.state, CallState::Released { .. } | CallState::Settled { proven: true, .. })
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
            CallState::Accepted | CallState::Dispatched => "queued",
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
            E::Dispatch => self.dispatch(),
            E::WorkerAccepted => self.worker_accepted(event),
            E::Want(cause) => self.want(cause, &mut effects),
            E::WorkerEnded { attempt, .. } | E::WorkerReleased { attempt } if attempt < self.attempt() => Applied::NoOp,
            E::WorkerEnded { attempt, .. } | E::WorkerReleased { attempt } if attempt > self.attempt() => self.defect(event),
            E::WorkerEnded { cause, .. } => self.worker_ended(cause, event, &mut effects),
            E::WorkerReleased { .. } => self.worker_released(event),
            E::WorkerLost => self.worker_lost(&mut effects),
            E::Delivered(delivery) => self.delivered(delivery),
            E::Retry if self.needs_retry() => self.send_cancel(&mut effects),
            E::Retry => Applied::NoOp,
        };
        self.settle(&mut effects);
        (applied, effects)
    }

    fn dispatch(&mut self) -> Applied {
        // A run that ended before its dispatch must not reach a worker: the register refuses, and the shell sends nothing on a no-op.
        if self.state != CallState::Accepted || !self.register.next_attempt(0) {
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
            // No worker knows of it: this call is the decider, and there is nothing to release.
            CallState::Accepted => {
                self.set_outcome(cause, effects);
                self.state = CallState::Released { cause };
                Applied::Moved
            }
            CallState::Dispatched | CallState::Live => {
                self.state = CallState::Stopping { cause };
                self.send_cancel(effects)
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
            CallState::Accepted => self.defect(event),
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

    fn worker_released(&mut self, event: CallEvent) -> Applied {
        match self.state {
            CallState::Ended { cause } => {
                self.state = CallState::Released { cause };
                Applied::Moved
            }
            // In a session the end comes before the release, so a release without an end is a fault.
            CallState::Accepted | CallState::Dispatched | CallState::Live | CallState::Stopping { .. } => self.defect(event),
            _ if self.attempt() == 0 => self.defect(event),
            // contract: C-20. After a void the late word changes nothing: the record keeps saying that it is unproven.
            CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. } => Applied::NoOp,
        }
    }

    fn worker_lost(&mut self, effects: &mut Vec<CallEffect>) -> Applied {
        let cause = match self.state {
            // contract: C-7. No silence: what was asked for, else that the worker is lost.
            CallState::Dispatched | CallState::Live | CallState::Stopping { .. } => {
                let cause = self.wanted().unwrap_or(Cause::WorkerLost);
                self.set_outcome(cause, effects);
                cause
            }
            CallState::Ended { cause } => cause,
            // No worker holds anything of it.
            CallState::Accepted | CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. } => return Applied::NoOp,
        };
        effects.push(CallEffect::Void);
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
            CallState::Released { cause } => (cause, true),
            CallState::Void { cause } => (cause, false),
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

impl CallState {
    /// The state's own name, one for each variant.
    pub const fn label(self) -> &'static str {
        match self {
            CallState::Accepted => "accepted",
            CallState::Dispatched => "dispatched",
            CallState::Live => "live",
            CallState::Stopping { .. } => "stopping",
            CallState::Ended { .. } => "ended",
            CallState::Released { .. } => "released",
            CallState::Void { .. } => "void",
            CallState::Settled { .. } => "settled",
        }
    }
}

impl CallEvent {
    /// The event's name.
    pub const fn label(self) -> &'static str {
        match self {
            CallEvent::Dispatch => "dispatch",
            CallEvent::WorkerAccepted => "worker_accepted",
            CallEvent::Want(_) => "want",
            CallEvent::WorkerEnded { .. } => "worker_ended",
            CallEvent::WorkerReleased { .. } => "worker_released",
            CallEvent::WorkerLost => "worker_lost",
            CallEvent::Delivered(_) => "delivered",
            CallEvent::Retry => "retry",
        }
    }
}
