//! What is kept of one attempt.
//!
//! Invariant: facts as its records said them; what they mean for the run is read off them elsewhere.

use lifecycle::OutcomeKind;

use super::ahead::Ahead;
use super::stages::Stages;

/// What an attempt's records say of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptKnown {
    /// That a worker has it.
    pub queued: bool,
    /// That its end is decided.
    pub ended: bool,
    /// That its worker holds nothing of it.
    pub released: bool,
}

/// How far an attempt has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    Queued,
    Prefilling,
    Decoding,
    Preempted,
}

/// One execution.
#[derive(Clone, Debug)]
pub(crate) struct AttemptFold {
    pub number: u32,
    pub(super) progress: Progress,
    /// Its end is wanted.
    pub(super) stopping: bool,
    /// Its gateway is not heard.
    pub(super) suspended: bool,
    /// No gateway claims it.
    pub(super) orphaned: bool,
    /// Its worker gave it back: another attempt follows.
    pub(crate) handed_back: bool,
    pub(super) queued: bool,
    pub(crate) ended: Option<OutcomeKind>,
    pub(crate) released: bool,
    pub(crate) void: bool,
    /// What it can still compute; `None` if nobody has said what was asked for.
    pub(super) ahead: Option<Ahead>,
    /// When it was where.
    pub(crate) stages: Stages,
    /// The same, as another kvit says it that had the attempt.
    pub(super) bound: Option<u64>,
}

impl AttemptFold {
    pub(super) fn new(number: u32) -> AttemptFold {
        AttemptFold {
            number,
            progress: Progress::Queued,
            stopping: false,
            suspended: false,
            orphaned: false,
            handed_back: false,
            queued: false,
            ended: None,
            released: false,
            void: false,
            ahead: None,
            stages: Stages::default(),
            bound: None,
        }
    }
}
