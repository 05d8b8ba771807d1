//! What goes into a dispatch and what comes out of it.
//!
//! Invariant: a word names no run by itself; the attempt that it is about stands beside it.

use std::time::Duration;

use crate::event::Event;
use crate::message::{Delta, Down, ModelInfo, Prompt, Up, Usage};
use crate::params::Params;
use crate::workers::WorkerIndex;
use crate::{AttemptId, Guarantee, Incarnation, Outcome};

/// The waits and policies of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DispatchConfig {
    /// First wait before a cancel is repeated; doubles up to `cancel_repeat_max`. Default 250 ms.
    pub cancel_repeat: Duration,
    /// Longest wait before a cancel is repeated. Default 2 s.
    pub cancel_repeat_max: Duration,
    /// How long a caller whose run was cancelled or expired waits for the worker's word before it is told. Default 2 s.
    pub answer_grace: Duration,
    /// How long a run may wait to be scheduled, here and at the worker together; again from the start after a lost worker. Default 5 min.
    pub queue_deadline: Duration,
    /// How often a run whose worker was lost, or gave it back, is dispatched again, if nothing of it was delivered. 0 for never. Default 1.
    pub redispatch_max: u32,
    /// How often one that its worker gave back without having begun it is dispatched again beside that: each may go to a worker that is not
    /// known yet to be away. Default 8.
    pub unbegun_max: u32,
}

impl Default for DispatchConfig {
    fn default() -> Self {
        DispatchConfig {
            cancel_repeat: Duration::from_millis(250),
            cancel_repeat_max: Duration::from_secs(2),
            answer_grace: Duration::from_secs(2),
            queue_deadline: Duration::from_secs(300),
            redispatch_max: 1,
            unbegun_max: 8,
        }
    }
}

/// What is to be done, for whichever worker does it. Never logged.
#[derive(Clone, PartialEq, Debug)]
pub struct Work {
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub params: Params,
}

/// Where an attempt goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which worker.
    pub worker: WorkerIndex,
    /// Its life.
    pub incarnation: Incarnation,
    /// The submit's number, above every earlier one's (C-2).
    pub number: u64,
    /// What it says of its model.
    pub model: ModelInfo,
}

/// What a worker says of one attempt.
#[derive(Clone, PartialEq, Debug)]
pub enum Word {
    /// It is taken on and tokenised.
    Accepted {
        /// Tokens of its prompt.
        prompt_tokens: u32,
    },
    /// A step added to it.
    Delta(Delta),
    /// A cancel was applied, or came too late.
    CancelAcknowledged,
    /// Its end is decided.
    Ended {
        /// How.
        outcome: Outcome,
        /// Its counts.
        usage: Usage,
    },
    /// It owns no block any more, and no state of it is left.
    Released,
    /// It has ended, and nobody can say that it is released.
    LetGo(Guarantee),
}

impl Word {
    /// Takes a message apart: each word with its attempt goes to `each`. What is about no attempt comes back.
    pub fn each(message: Up, mut each: impl FnMut(AttemptId, Word)) -> Option<Up> {
        match message {
            Up::Accepted { attempt, prompt_tokens } => each(attempt, Word::Accepted { prompt_tokens }),
            Up::Step { deltas, .. } => deltas.into_iter().for_each(|delta| each(delta.attempt.clone(), Word::Delta(delta))),
            Up::CancelAcknowledged { attempt, .. } => each(attempt, Word::CancelAcknowledged),
            Up::Ended { attempt, outcome, usage } => each(attempt, Word::Ended { outcome, usage }),
            Up::Released { attempt, .. } => each(attempt, Word::Released),
            Up::LetGo { attempt, guarantee } => each(attempt, Word::LetGo(guarantee)),
            other @ (Up::Records { .. }
            | Up::DeviceLost { .. }
            | Up::Ask { .. }
            | Up::Draining
            | Up::Snapshot { .. }
            | Up::Reported { .. }) => {
                return Some(other);
            }
        }
        None
    }
}

/// What the readers of a run are told.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    /// A worker has taken the run on.
    Accepted,
    /// A piece of the answer.
    Delta(Delta),
    /// Nothing follows. Once a run.
    End {
        /// How the run ended; of one that is dismissed, how it will end as far as is known.
        outcome: Outcome,
        /// Its counts.
        usage: Usage,
    },
}

/// What the shell must do. The order in a list is the order of doing.
#[derive(Clone, Debug)]
pub enum DispatchEffect {
    /// Send to a worker.
    Send {
        /// Which.
        worker: WorkerIndex,
        /// What.
        message: Down,
    },
    /// Write to the journal.
    Journal {
        /// The attempt that it is about.
        attempt: u32,
        /// What happened.
        event: Event,
    },
    /// Tell every reader.
    Tell(Said),
    /// The run waits for a worker: one is to be chosen for it as soon as there is one.
    Wait,
    /// Let go of everything but the record. Once a run.
    Settle,
}
