//! The mailbox: everything that can happen to a worker, in the order in which the engine thread will see it.

use engine::{Flag, StepDone};
use lifecycle::message::{Down, From};
use lifecycle::{AttemptId, Outcome, Time};

/// One item of the mailbox.
pub(crate) enum Mail {
    /// From a gateway, and when it arrived.
    Down(From<Down>, Time),
    /// A prompt is ready.
    Tokenised {
        /// Whose.
        attempt: AttemptId,
        /// The tokens, or why there are none.
        result: Result<Vec<u32>, Outcome>,
    },
    /// A step's fence.
    StepDone(StepDone),
    /// End everything and leave.
    Stop,
}

/// A prompt to be tokenised, off the engine thread.
pub(crate) struct Job {
    pub attempt: AttemptId,
    pub prompt: lifecycle::message::Prompt,
    /// Set when nobody wants the result any more.
    pub unwanted: Flag,
}
