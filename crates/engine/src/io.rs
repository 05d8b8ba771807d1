//! What goes into the engine and what comes out of it.

use lifecycle::event::Event;
use lifecycle::message::{Receipt, Usage};
use lifecycle::params::Sampling;
use lifecycle::{AttemptId, Cause, Outcome, Time};

use crate::device::{Sampled, StepDone};

/// An attempt to be executed, as the worker's shell hands it in: stops resolved, deadlines on this process's clock.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Which attempt.
    pub attempt: AttemptId,
    /// The session's number of its submit; at or below the engine's mark it is refused (C-2).
    pub number: u64,
    /// Number of sequences.
    pub n: u32,
    /// Most tokens a sequence; `None` takes the engine's default, cut to what fits.
    pub max_tokens: Option<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens that end a sequence.
    pub stop_tokens: Vec<u32>,
    /// Keeps prefixes of different salts apart.
    pub cache_salt: String,
    /// Smaller runs first.
    pub priority: i32,
    /// When it ends by itself, and with which cause. A `queue_deadline` counts only until it is first scheduled.
    pub deadlines: Vec<(Time, Cause)>,
}

/// What happens to the engine.
#[derive(Debug)]
pub enum Input {
    /// A new attempt; its prompt is being tokenised.
    Submit(Box<Submission>),
    /// Its prompt is there.
    Tokenised {
        /// Which attempt.
        attempt: AttemptId,
        /// The prompt.
        tokens: Vec<u32>,
    },
    /// Its prompt could not be made (`invalid`, `over_limit`).
    Refused {
        /// Which attempt.
        attempt: AttemptId,
        /// Why.
        outcome: Outcome,
    },
    /// Somebody wants it to end.
    End {
        /// Which attempt.
        attempt: AttemptId,
        /// The number of its submit.
        number: u64,
        /// How.
        outcome: Outcome,
    },
    /// A stop string was found in a sequence's text.
    Stop {
        /// Which attempt.
        attempt: AttemptId,
        /// Which sequence.
        sequence: u32,
    },
    /// The session of its gateway is lost: from the next step on it is not scheduled; it keeps its blocks (C-10). Twice is once.
    Suspend {
        /// Which attempt.
        attempt: AttemptId,
    },
    /// A session of its gateway has taken it up: it goes on where it was. Nothing where it is not suspended.
    Attach {
        /// Which attempt.
        attempt: AttemptId,
    },
    /// A step's fence completed, or it failed.
    StepDone(StepDone),
    /// The device refused a plan for good.
    DeviceLost(String),
    /// Time passed: look at the deadlines.
    Tick,
}

/// What the engine wants done, in order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// A record for the journal; `None` concerns the worker as a whole.
    Journal(Option<AttemptId>, Event),
    /// The attempt is taken on.
    Accepted {
        /// Which attempt.
        attempt: AttemptId,
        /// Tokens of its prompt.
        prompt_tokens: u32,
    },
    /// A sequence got a token.
    Token {
        /// Which attempt.
        attempt: AttemptId,
        /// Which sequence.
        sequence: u32,
        /// The token.
        sampled: Sampled,
        /// `stop` (a stop token: not part of the answer) or `length` if it is the last.
        finish: Option<Cause>,
    },
    /// A cancel took effect, or what had won before it.
    CancelAcknowledged {
        /// Which attempt.
        attempt: AttemptId,
        /// What ends it; `None` if the attempt is not known.
        won: Option<Cause>,
    },
    /// The attempt's end is decided.
    Ended {
        /// Which attempt.
        attempt: AttemptId,
        /// How.
        outcome: Outcome,
        /// Its counts.
        usage: Usage,
    },
    /// The attempt owns nothing any more.
    Released {
        /// Which attempt.
        attempt: AttemptId,
        /// What it used.
        receipt: Receipt,
    },
    /// The device is lost, once and for good: everything that is alive ends next, and what comes later is refused. Why.
    DeviceLost(String),
}
