//! Effects outside: what a run does to the world beyond it (a payment, a mail), as one machine, and who may move it.
//!
//! An effect is noted before it is sent (`intended`, then `submitted`) and after (`committed`, `failed`), so that whatever stops in between,
//! the note says what may have happened. Nothing here undoes anything: what was sent was sent. The whole table is in `snapshots/effect.txt`.
//!
//! Invariant: a committed effect stays committed, a failed one failed; nothing that may have been sent is sent again, unless it is declared
//! safe to repeat; what nobody can say is `unknown` until somebody found out.
// contract: C-27

use crate::OutcomeKind;

/// Where an effect stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum EffectState {
    /// Somebody means to do it; nothing was sent.
    Intended,
    /// It may have been sent.
    Submitted,
    /// It is done.
    Committed,
    /// It was not done.
    Failed,
    /// Nobody can say.
    Unknown,
}

/// What can happen to an effect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EffectEvent {
    /// It is meant once more, under the key that it has: a request that is sent again, a further attempt of its run.
    Intend,
    /// It is about to be sent.
    Submit {
        /// Whoever receives it makes no difference between once and twice, if the key is the same.
        safe_to_repeat: bool,
    },
    /// The other side says that it is done, or somebody found out.
    Commit,
    /// It is certain that it was not done.
    Fail,
    /// It was sent, and no answer says what became of it.
    Lose,
    /// The run was cancelled, or ended other than completed: nothing is begun any more.
    RunOver,
    /// Whoever sent it is gone, or was waited for long enough after the run was over.
    WaitOver,
}

/// What an event does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// The effect moves there.
    Moved(EffectState),
    /// Nothing changes: it is repeated, late, or without meaning there. What stands is the answer.
    Stands,
    /// It must not happen there.
    Refused,
}

/// Who does an effect, and who says what became of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Party {
    /// The run's caller, with means of its own.
    Caller,
    /// kvit, for the run's caller.
    Kvit,
}

impl EffectState {
    /// Every state, in the contract's order.
    pub const ALL: [EffectState; 5] =
        [EffectState::Intended, EffectState::Submitted, EffectState::Committed, EffectState::Failed, EffectState::Unknown];

    /// The contract's word.
    pub const fn as_str(self) -> &'static str {
        match self {
            EffectState::Intended => "intended",
            EffectState::Submitted => "submitted",
            EffectState::Committed => "committed",
            EffectState::Failed => "failed",
            EffectState::Unknown => "unknown",
        }
    }

    /// The state with this word.
    pub fn parse(word: &str) -> Option<EffectState> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Whether an effect that is noted in this state is yet to be done, and not only told of.
    pub const fn is_begun(self) -> bool {
        matches!(self, EffectState::Intended | EffectState::Submitted)
    }

    /// The event that is meant by whoever asks for an effect of a caller's own to be in this state.
    pub const fn asked(self) -> EffectEvent {
        match self {
            EffectState::Intended => EffectEvent::Intend,
            // A caller that has to send it again, and may, knows without asking.
            EffectState::Submitted => EffectEvent::Submit { safe_to_repeat: false },
            EffectState::Committed => EffectEvent::Commit,
            EffectState::Failed => EffectEvent::Fail,
            EffectState::Unknown => EffectEvent::Lose,
        }
    }

    /// What an event does to an effect that stands like this.
    pub const fn meets(self, event: EffectEvent) -> Fate {
        use EffectEvent as E;
        use EffectState as S;
        match (self, event) {
            // Under its key it is the same effect, wherever it stands.
            (_, E::Intend) => Fate::Stands,

            (S::Intended, E::Submit { .. }) => Fate::Moved(S::Submitted),
            (S::Intended, E::Fail | E::RunOver) => Fate::Moved(S::Failed),
            // Nothing was sent that could be done or lost.
            (S::Intended, E::Commit | E::Lose) => Fate::Refused,
            (S::Intended, E::WaitOver) => Fate::Stands,

            (S::Submitted, E::Submit { safe_to_repeat: true }) => Fate::Stands,
            (S::Submitted, E::Submit { safe_to_repeat: false }) => Fate::Refused,
            (S::Submitted, E::Commit) => Fate::Moved(S::Committed),
            (S::Submitted, E::Fail) => Fate::Moved(S::Failed),
            (S::Submitted, E::Lose | E::WaitOver) => Fate::Moved(S::Unknown),
            // It is waited for.
            (S::Submitted, E::RunOver) => Fate::Stands,

            (S::Committed, E::Commit | E::RunOver | E::WaitOver) => Fate::Stands,
            // Done is done, however safe it would be to do it again.
            (S::Committed, E::Submit { .. } | E::Fail | E::Lose) => Fate::Refused,

            (S::Failed, E::Fail | E::RunOver | E::WaitOver) => Fate::Stands,
            (S::Failed, E::Submit { .. } | E::Commit | E::Lose) => Fate::Refused,

            (S::Unknown, E::Submit { safe_to_repeat: true }) => Fate::Moved(S::Submitted),
            (S::Unknown, E::Submit { safe_to_repeat: false }) => Fate::Refused,
            (S::Unknown, E::Commit) => Fate::Moved(S::Committed),
            (S::Unknown, E::Fail) => Fate::Moved(S::Failed),
            (S::Unknown, E::Lose | E::RunOver | E::WaitOver) => Fate::Stands,
        }
    }

    /// The states in which an event moves an effect: what a compare-and-set may find.
    pub fn that_move(event: EffectEvent) -> Vec<EffectState> {
        Self::ALL.into_iter().filter(|state| matches!(state.meets(event), Fate::Moved(_))).collect()
    }

    /// Whether `by` may say this of an effect of `whose` that stands like this.
    pub const fn may(self, event: EffectEvent, by: Party, whose: Party) -> bool {
        use EffectEvent as E;
        match (event, by, whose) {
            (E::RunOver | E::WaitOver, Party::Kvit, _) => true,
            (E::RunOver | E::WaitOver, Party::Caller, _) => false,
            (_, Party::Caller, Party::Caller) | (_, Party::Kvit, Party::Kvit) => true,
            // What a caller does itself only the caller knows.
            (_, Party::Kvit, Party::Caller) => false,
            // What kvit does it notes itself. What it cannot say somebody may have found out.
            (E::Commit | E::Fail, Party::Caller, Party::Kvit) => matches!(self, EffectState::Unknown),
            (E::Intend | E::Submit { .. } | E::Lose, Party::Caller, Party::Kvit) => false,
        }
    }
}

/// Whether an effect of a run may begin: be intended anew, or be sent. Once somebody wants the run to end none may, whoever wins; nor of a run
/// that ended other than completed.
pub const fn may_begin(outcome: Option<OutcomeKind>, is_wanted: bool) -> bool {
    !is_wanted && matches!(outcome, None | Some(OutcomeKind::Completed))
}

/// What is noted of an effect that was intended and will not be begun.
pub const fn not_begun(outcome: Option<OutcomeKind>) -> &'static str {
    match outcome {
        None | Some(OutcomeKind::Cancelled | OutcomeKind::Completed) => "not begun: the run was cancelled",
        Some(OutcomeKind::Expired) => "not begun: the run expired",
        Some(OutcomeKind::Failed) => "not begun: the run failed",
        Some(OutcomeKind::Rejected) => "not begun: the run was rejected",
    }
}
