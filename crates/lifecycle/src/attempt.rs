//! The worker's view of one attempt: where it is, and what each event does to it.
//!
//! One enum, one event enum, one total match. While an attempt is live its engine is the only decider of how it ends (C-4): the first `End`
//! that is applied wins, every later one is answered with what won. The whole table is in `snapshots/attempt.txt`.
//!
//! Invariant: an attempt that has ended is never live again, its cause never changes, and it is released once.

use crate::{Cause, Phase};

/// Where an attempt was when it was suspended, and where it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Resumable {
    /// Its prompt is being rendered and tokenised.
    Tokenising,
    /// It waits for its first step.
    Queued,
    /// Its prompt is being computed.
    Prefilling,
    /// Its tokens are being generated.
    Decoding,
    /// Its blocks were taken away; it waits to be recomputed.
    Preempted,
}

/// Where an attempt is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AttemptState {
    /// Its submit has not come.
    #[default]
    Unknown,
    /// Its end came before its submit.
    Tombstoned {
        /// What ended it.
        cause: Cause,
    },
    /// Its prompt is being rendered and tokenised.
    Tokenising,
    /// It waits for its first step.
    Queued,
    /// Its prompt is being computed, for the first time or again after a preemption.
    Prefilling,
    /// Its tokens are being generated.
    Decoding,
    /// Its blocks were taken away; it waits to be recomputed.
    Preempted,
    /// Its gateway's session is lost: it is not scheduled and keeps its blocks (C-10).
    Suspended {
        /// Where it goes on.
        was: Resumable,
    },
    /// Its end is decided; blocks or per-run state may be left.
    Stopping {
        /// What ended it.
        cause: Cause,
    },
    /// It owns no block and no per-run state is left.
    Released {
        /// What ended it.
        cause: Cause,
    },
}

/// What can happen to an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AttemptEvent {
    /// The gateway's submit arrived.
    Submit,
    /// The prompt is tokenised.
    Tokenised,
    /// It goes into a step, first or again after a preemption: the computation of its prompt begins.
    Scheduled,
    /// Its prompt is computed and a token is there.
    FirstToken,
    /// Its blocks were taken away to make room.
    Preempt,
    /// Its gateway's session is lost.
    Suspend,
    /// A session of its gateway attached to it.
    Attach,
    /// Something ends it: a cancel, a deadline, a stop, the length, a device error, a rejection. The first that is applied wins.
    End(Cause),
    /// It owns no block and no per-run state any more.
    Drained,
}

/// What an event did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Applied {
    /// The state changed.
    Moved,
    /// A repeated or late event; nothing changed.
    NoOp,
    /// A cause that came after another; no state changed.
    Superseded {
        /// The cause that has precedence. Equal to the event's own cause where the event is a repetition of the winner.
        won: Cause,
    },
    /// An impossible event; nothing changed.
    Defect(Defect),
}

/// An event that cannot happen in the state it met. Whoever sees one reports a fault of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{machine}: {event} cannot happen in state {state}")]
pub struct Defect {
    /// Which machine: `attempt` or `call`.
    pub machine: &'static str,
    /// The state that the event met.
    pub state: &'static str,
    /// The event.
    pub event: &'static str,
}

impl AttemptState {
    /// Applies one event.
    // contract: C-4, C-10, C-11, C-13
    pub fn apply(&mut self, event: AttemptEvent) -> Applied {
        use AttemptEvent as E;
        use AttemptState as S;
        let next = match (*self, event) {
            (S::Unknown, E::Submit) => S::Tokenising,
            (S::Unknown, E::End(cause)) => S::Tombstoned { cause },
            // A session that attaches to all it knows may name an attempt whose submit was lost with the old session.
            (S::Unknown, E::Attach) => return Applied::NoOp,
            (S::Unknown, E::Tokenised | E::Scheduled | E::FirstToken | E::Preempt | E::Suspend | E::Drained) => return self.defect(event),

            // Computes nothing and owns nothing, so it is released in the moment it becomes known.
            (S::Tombstoned { cause }, E::Submit) => S::Released { cause },
            (S::Tombstoned { .. }, E::Drained) => return self.defect(event),

            (S::Tokenising, E::Tokenised) => S::Queued,
            (S::Queued | S::Preempted, E::Scheduled) => S::Prefilling,
            (S::Prefilling, E::FirstToken) => S::Decoding,
            (S::Prefilling | S::Decoding, E::Preempt) => S::Preempted,
            (S::Prefilling, E::Scheduled) | (S::Decoding, E::FirstToken) | (S::Preempted, E::Preempt) => return Applied::NoOp,
            // The step that was in flight at the preemption may still bring a token; the recomputation brings the same (C-14).
            (S::Preempted, E::FirstToken) => return Applied::NoOp,
            (S::Tokenising, E::Scheduled | E::FirstToken | E::Preempt) => return self.defect(event),
            (S::Queued, E::FirstToken | E::Preempt) => return self.defect(event),
            (S::Decoding, E::Scheduled) => return self.defect(event),
            (S::Queued | S::Prefilling | S::Decoding | S::Preempted, E::Tokenised) => return Applied::NoOp,
            (S::Tokenising, E::Suspend) => S::Suspended { was: Resumable::Tokenising },
            (S::Queued, E::Suspend) => S::Suspended { was: Resumable::Queued },
            (S::Prefilling, E::Suspend) => S::Suspended { was: Resumable::Prefilling },
            (S::Decoding, E::Suspend) => S::Suspended { was: Resumable::Decoding },
            (S::Preempted, E::Suspend) => S::Suspended { was: Resumable::Preempted },

            // What was under way when the session was lost still arrives.
            (S::Suspended { was: Resumable::Tokenising }, E::Tokenised) => S::Suspended { was: Resumable::Queued },
            (S::Suspended { was: Resumable::Prefilling }, E::FirstToken) => S::Suspended { was: Resumable::Decoding },
            (S::Suspended { was: Resumable::Decoding | Resumable::Preempted }, E::FirstToken) => return Applied::NoOp,
            (S::Suspended { .. }, E::Tokenised | E::Suspend) => return Applied::NoOp,
            (S::Suspended { was }, E::Attach) => was.into(),
            // It is not scheduled and its blocks are kept.
            (S::Suspended { .. }, E::Scheduled | E::Preempt | E::FirstToken) => return self.defect(event),

            (S::Tokenising | S::Queued | S::Prefilling | S::Decoding | S::Preempted, E::Attach) => return Applied::NoOp,
            // Never executed twice (C-2).
            (S::Tokenising | S::Queued | S::Prefilling | S::Decoding | S::Preempted | S::Suspended { .. }, E::Submit) => {
                return Applied::NoOp;
            }
            (S::Tokenising | S::Queued | S::Prefilling | S::Decoding | S::Preempted | S::Suspended { .. }, E::End(cause)) => {
                S::Stopping { cause }
            }
            // What may still be scheduled cannot have given everything back.
            (S::Tokenising | S::Queued | S::Prefilling | S::Decoding | S::Preempted | S::Suspended { .. }, E::Drained) => {
                return self.defect(event);
            }

            (S::Stopping { cause }, E::Drained) => S::Released { cause },
            (S::Tombstoned { cause } | S::Stopping { cause } | S::Released { cause }, E::End(_)) => {
                return Applied::Superseded { won: cause };
            }
            // contract: C-20. Released once.
            (S::Released { .. }, E::Drained) => return Applied::NoOp,
            (S::Stopping { .. } | S::Released { .. }, E::Submit) => return Applied::NoOp,
            // What was under way when the end was decided still arrives.
            (
                S::Tombstoned { .. } | S::Stopping { .. } | S::Released { .. },
                E::Tokenised | E::Scheduled | E::FirstToken | E::Preempt | E::Suspend | E::Attach,
            ) => return Applied::NoOp,
        };
        *self = next;
        Applied::Moved
    }

    fn defect(&self, event: AttemptEvent) -> Applied {
        Applied::Defect(Defect { machine: "attempt", state: self.label(), event: event.label() })
    }

    /// The API's word: `queued`, `prefilling`, `decoding`, `preempted`, `suspended`, `stopping` or `ended`. An attempt whose submit is still
    /// to come is queued; one that can no longer come is ended.
    pub const fn name(self) -> &'static str {
        match self {
            AttemptState::Unknown | AttemptState::Tokenising | AttemptState::Queued => "queued",
            AttemptState::Prefilling => "prefilling",
            AttemptState::Decoding => "decoding",
            AttemptState::Preempted => "preempted",
            AttemptState::Suspended { .. } => "suspended",
            AttemptState::Stopping { .. } => "stopping",
            AttemptState::Tombstoned { .. } | AttemptState::Released { .. } => "ended",
        }
    }

    /// The state's own name, one for each variant.
    pub const fn label(self) -> &'static str {
        match self {
            AttemptState::Unknown => "unknown",
            AttemptState::Tombstoned { .. } => "tombstoned",
            AttemptState::Tokenising => "tokenising",
            AttemptState::Queued => "queued",
            AttemptState::Prefilling => "prefilling",
            AttemptState::Decoding => "decoding",
            AttemptState::Preempted => "preempted",
            AttemptState::Suspended { .. } => "suspended",
            AttemptState::Stopping { .. } => "stopping",
            AttemptState::Released { .. } => "released",
        }
    }

    /// Whether it was submitted and its end is not decided.
    pub const fn is_live(self) -> bool {
        self.phase().is_some() && !matches!(self, AttemptState::Unknown)
    }

    /// Whether a step may hold rows of it: it is live, tokenised and not suspended.
    pub const fn is_runnable(self) -> bool {
        use AttemptState::*;
        matches!(self, Queued | Prefilling | Decoding | Preempted)
    }

    /// What ended it; `None` while nothing has.
    pub const fn cause(self) -> Option<Cause> {
        use AttemptState::*;
        match self {
            Tombstoned { cause } | Stopping { cause } | Released { cause } => Some(cause),
            _ => None,
        }
    }

    /// Where it stands as far as the state alone tells; `None` once its end is decided. Whoever knows its counts asks [`Self::phase_with`].
    pub const fn phase(self) -> Option<Phase> {
        self.phase_with(false, false)
    }

    /// Where it stands: `prompt_computed` tells the last stretch of a prefill apart, `has_token` a prefill that is a recomputation after a
    /// preemption (which is decoding to the caller). `None` once its end is decided.
    pub const fn phase_with(self, prompt_computed: bool, has_token: bool) -> Option<Phase> {
        use AttemptState as S;
        use Resumable as R;
        match self {
            S::Unknown | S::Tokenising | S::Queued | S::Suspended { was: R::Tokenising | R::Queued } => Some(Phase::Queued),
            S::Decoding | S::Suspended { was: R::Decoding } => Some(Phase::Decode),
            S::Prefilling | S::Preempted | S::Suspended { was: R::Prefilling | R::Preempted } => Some(if has_token {
                Phase::Decode
            } else if prompt_computed {
                Phase::BeforeFirstToken
            } else {
                Phase::Prefill
            }),
            S::Tombstoned { .. } | S::Stopping { .. } | S::Released { .. } => None,
        }
    }
}

impl From<Resumable> for AttemptState {
    fn from(was: Resumable) -> AttemptState {
        match was {
            Resumable::Tokenising => AttemptState::Tokenising,
            Resumable::Queued => AttemptState::Queued,
            Resumable::Prefilling => AttemptState::Prefilling,
            Resumable::Decoding => AttemptState::Decoding,
            Resumable::Preempted => AttemptState::Preempted,
        }
    }
}

impl AttemptEvent {
    /// The event's name.
    pub const fn label(self) -> &'static str {
        match self {
            AttemptEvent::Submit => "submit",
            AttemptEvent::Tokenised => "tokenised",
            AttemptEvent::Scheduled => "scheduled",
            AttemptEvent::FirstToken => "first_token",
            AttemptEvent::Preempt => "preempt",
            AttemptEvent::Suspend => "suspend",
            AttemptEvent::Attach => "attach",
            AttemptEvent::End(_) => "end",
            AttemptEvent::Drained => "drained",
        }
    }
}
