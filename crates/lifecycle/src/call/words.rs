//! The call machine's states, events and effects.
//!
//! Invariant: what a worker says or suffers names the attempt that it is about, so that it can be compared with the current one.

use crate::{Cause, Delivery};

/// Where a run is, seen from its gateway.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CallState {
    /// Taken on; no worker has it. Either none knows of it, or all that did are lost.
    #[default]
    Accepted,
    /// The submit is sent.
    Dispatched,
    /// The worker took it on.
    Live,
    /// The worker stops and gave the attempt back; it may still hold blocks. Nobody wants the run to end.
    HandedBack,
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
        /// Whether no block can be left: the worker said `released`, or the run never reached one. False if an attempt is void.
        proven: bool,
    },
}

/// What can happen to a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallEvent {
    /// The submit of a further attempt is about to be sent.
    Dispatch {
        /// The attempt that it follows; 0 for the first. If that is not the current one any more, nothing is dispatched.
        after: u32,
    },
    /// The worker took an attempt on.
    WorkerAccepted {
        /// Which attempt.
        attempt: u32,
    },
    /// Somebody no longer wants the run, or the gateway turns it away: a disconnect, a cancel by name, a deadline, a shutdown, a limit.
    Want(Cause),
    /// The worker decided how an attempt ends.
    WorkerEnded {
        /// Which attempt.
        attempt: u32,
        /// Why.
        cause: Cause,
    },
    /// The worker stops, and ended an attempt for that alone. Nothing of it was delivered, and the policy allows a further one. If somebody
    /// wants the run to end, this is the worker's word that it did.
    WorkerHandedBack {
        /// Which attempt.
        attempt: u32,
        /// Why it ended there.
        cause: Cause,
    },
    /// The worker holds nothing of an attempt any more.
    WorkerReleased {
        /// Which attempt.
        attempt: u32,
    },
    /// The worker of an attempt is gone for good: a new incarnation answered, or its lease ran out.
    WorkerLost {
        /// Which attempt.
        attempt: u32,
        /// Nothing was delivered, and the policy allows a further attempt. It is only made if nobody wants the run to end.
        again: bool,
    },
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
    /// Write that the worker gave the attempt back. Once an attempt.
    HandedBack,
    /// Write that the attempt's worker is lost and its release unproven. Once an attempt.
    Void,
    /// Let go of everything but the record. Once a run.
    Settle {
        /// As [`CallState::Settled`]'s `proven`.
        proven: bool,
    },
}

impl CallState {
    /// The state's own name, one for each variant.
    pub const fn label(self) -> &'static str {
        match self {
            CallState::Accepted => "accepted",
            CallState::Dispatched => "dispatched",
            CallState::Live => "live",
            CallState::HandedBack => "handed_back",
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
            CallEvent::Dispatch { .. } => "dispatch",
            CallEvent::WorkerAccepted { .. } => "worker_accepted",
            CallEvent::Want(_) => "want",
            CallEvent::WorkerEnded { .. } => "worker_ended",
            CallEvent::WorkerHandedBack { .. } => "worker_handed_back",
            CallEvent::WorkerReleased { .. } => "worker_released",
            CallEvent::WorkerLost { .. } => "worker_lost",
            CallEvent::Delivered(_) => "delivered",
            CallEvent::Retry => "retry",
        }
    }
}
