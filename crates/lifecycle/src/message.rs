//! The messages between gateway and worker. In one process they pass over channels; between processes a wire format converts to these.
//!
//! Order inside one session is the order of sending. `Released` is pushed, never polled. Deadlines travel as time left; the one thing that
//! crosses with times of its sender's clock is a record of what happened (`Up::Records`).

mod passed;
mod reported;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
pub use passed::{Called, Forward, Passed, Piece};
pub use reported::Reported;
pub use snapshot::{AttemptCut, BlockCut, Held, Snapshot};

use crate::event::Record;
use crate::params::Params;
use crate::{AttemptId, Cause, Guarantee, Incarnation, Outcome, StepId};

/// One turn of a conversation.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or whatever the model's template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// What is to be continued. Never logged.
#[derive(Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Turns that the model's own chat template renders.
    Chat(Vec<ChatMessage>),
    /// Plain text.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
    /// A request as its caller wrote it, for an engine that speaks the same HTTP. No worker of kvit's own takes it.
    Forward(Forward),
    /// A chat in the words of OpenAI's HTTP, for an engine that speaks it and whose answer is read here: an object with its `messages`, and with
    /// what kvit's own engine has no word for, as `tools` and `response_format`. No worker of kvit's own takes it.
    Worded(Bytes),
}

impl std::fmt::Debug for Prompt {
    /// Says the size only: prompts are nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Prompt::Chat(turns) => write!(f, "Chat({} turns)", turns.len()),
            Prompt::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Prompt::Tokens(ids) => write!(f, "Tokens({})", ids.len()),
            Prompt::Forward(forward) => write!(f, "Forward({}, {} bytes)", forward.path, forward.body.len()),
            Prompt::Worded(fields) => write!(f, "Worded({} bytes)", fields.len()),
        }
    }
}

/// A message with its sender's incarnation; one from an older incarnation changes nothing (C-3).
#[derive(Clone, Debug)]
pub struct From<M> {
    /// Which life of the sender speaks.
    pub incarnation: Incarnation,
    /// What it says.
    pub message: M,
}

/// One deadline that still has time left, and the cause it ends a run with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlineLeft {
    /// Time left when the message was sent.
    pub left: Duration,
    /// `client_deadline`, `gateway_deadline` or `queue_deadline`.
    pub cause: Cause,
}

/// A request to execute an attempt.
#[derive(Clone, Debug)]
pub struct Submit {
    /// Which attempt. Executed at most once (C-2).
    pub attempt: AttemptId,
    /// The worker's life that is meant; another one refuses.
    pub worker: Incarnation,
    /// The session's sequence number, ascending.
    pub number: u64,
    /// The model that is meant, by its name on the API. Empty for a worker's only one.
    pub model: Arc<str>,
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub params: Params,
    /// The deadlines, each with its time left. The worker enforces them again, in the queue, in prefill and in decode (C-22).
    pub deadlines: Vec<DeadlineLeft>,
}

impl Submit {
    /// What an engine that is no worker of kvit's is told that this is called: another name for every attempt of every life of a link.
    // contract: C-1
    pub fn request_name(&self) -> u128 {
        self.worker.0 ^ u128::from(self.number)
    }
}

/// From gateway to worker.
#[derive(Clone, Debug)]
pub enum Down {
    /// Execute an attempt.
    Submit(Box<Submit>),
    /// End an attempt (C-8): idempotent, valid in every state and before its submit.
    Cancel {
        /// Which attempt.
        attempt: AttemptId,
        /// Why.
        cause: Cause,
        /// The number of the attempt's `Submit`. At or below the worker's mark, an attempt that is not known was released long ago and
        /// needs no tombstone; above it, the submit is still to come.
        number: u64,
        /// How long ago abandonment was first observed when this was sent.
        observed_ago: Duration,
    },
    /// The gateway still wants these attempts (C-23). It says nothing about any other.
    Claim {
        /// Which attempts.
        attempts: Vec<AttemptId>,
    },
    /// The gateway does not know these attempts, or no longer wants them: they are orphaned (C-23). It says nothing about any other.
    Disclaim {
        /// Which attempts.
        attempts: Vec<AttemptId>,
    },
    /// Ask for one consistent cut of account and runs; with the blocks if `blocks`. Between processes a call of its own, outside the session.
    Snapshot {
        /// Chosen by the asker; comes back with the answer.
        ask: u64,
        /// Whether every block is to be listed.
        blocks: bool,
    },
}

/// A token's log-probability and its alternatives.
#[derive(Clone, PartialEq, Debug)]
pub struct TokenLogprob {
    /// The token. [`TokenLogprob::UNNAMED`] where an engine says its text and not its number.
    pub token: u32,
    /// Its bytes, which may be an incomplete UTF-8 sequence.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Alternatives, best first: token, bytes, log-probability.
    pub top: Vec<(u32, Vec<u8>, f32)>,
}

impl TokenLogprob {
    /// The number of a token of which only the text is known.
    pub const UNNAMED: u32 = u32::MAX;
}

/// What a step added to one sequence.
#[derive(Clone, PartialEq, Debug)]
pub struct Delta {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Which of its sequences, from 0.
    pub sequence: u32,
    /// Text that is safe to show: complete characters, no part of a stop string.
    pub text: String,
    /// The tokens behind it; may be non-empty while `text` is still held back.
    pub tokens: Vec<u32>,
    /// One entry a token where log-probabilities were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// `stop` or `length` when the sequence came to its own end.
    pub finish: Option<Cause>,
    /// What an engine that is no worker of kvit's said, as it said it.
    pub passed: Option<Box<Passed>>,
}

impl Delta {
    /// A piece that an engine which is no worker of kvit's said, and nothing else.
    pub fn passed(attempt: AttemptId, tokens: u32, piece: Piece) -> Delta {
        let passed = Some(Box::new(Passed { tokens, piece }));
        Delta { attempt, sequence: 0, text: String::new(), tokens: Vec::new(), logprobs: Vec::new(), finish: None, passed }
    }

    /// Tokens that it adds, with or without their ids.
    pub fn count(&self) -> u32 {
        let ids = u32::try_from(self.tokens.len()).unwrap_or(u32::MAX);
        ids.saturating_add(self.passed.as_ref().map_or(0, |passed| passed.tokens))
    }

    /// Bytes of what it says, as far as they grow with that.
    pub fn bytes(&self) -> usize {
        let body = match self.passed.as_ref().map(|passed| &passed.piece) {
            Some(Piece::Body(bytes) | Piece::Tail(bytes)) => bytes.len(),
            Some(Piece::Called(called)) => called.bytes(),
            _ => 0,
        };
        self.text.len() + size_of_val(&self.tokens[..]) + size_of_val(&self.logprobs[..]) + body
    }
}

/// Token counts of an attempt, final when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Of them, tokens whose K and V came from the prefix index.
    pub cached_prompt: u32,
    /// Tokens generated and handed on, over all sequences.
    pub generated: u32,
}

/// What a worker states when an attempt owns nothing any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Receipt {
    /// Blocks still held: always 0, stated so that it can be checked.
    pub blocks_held: u32,
    /// Most blocks it held at once.
    pub blocks_peak: u32,
    /// Blocks it shared with others at some time.
    pub blocks_shared: u32,
    /// Steps that held rows of it.
    pub steps: u32,
    /// The step whose fence was the last to complete.
    pub fence: StepId,
}

/// From worker to gateway.
#[derive(Clone, Debug)]
pub enum Up {
    /// The attempt is taken on and tokenised.
    Accepted {
        /// Which attempt.
        attempt: AttemptId,
        /// Tokens of its prompt.
        prompt_tokens: u32,
    },
    /// All tokens of one step for this gateway.
    Step {
        /// Which step.
        step: StepId,
        /// One entry a sequence that advanced.
        deltas: Vec<Delta>,
    },
    /// A cancel was applied, or came too late.
    CancelAcknowledged {
        /// Which attempt.
        attempt: AttemptId,
        /// What ends the attempt: the cancel's own cause, or what was there before it. `None` for an attempt that was not known: it
        /// leaves a tombstone (C-11).
        won: Option<Cause>,
    },
    /// The attempt's end is decided; nothing more will be generated for it.
    Ended {
        /// Which attempt.
        attempt: AttemptId,
        /// How.
        outcome: Outcome,
        /// Its counts.
        usage: Usage,
    },
    /// The attempt owns no block and no per-run state of it is left. Once an attempt (C-20).
    Released {
        /// Which attempt.
        attempt: AttemptId,
        /// What it used.
        receipt: Receipt,
    },
    /// The attempt has ended and nobody can say that it owns nothing: an engine that does not acknowledge it. How well its end is proven.
    LetGo {
        /// Which attempt.
        attempt: AttemptId,
        /// By which evidence: `observed` or less.
        guarantee: Guarantee,
    },
    /// What another kvit, which had the attempt as a run of its own, has in its record of it. Before the word on how it let go.
    Reported {
        /// Which attempt.
        attempt: AttemptId,
        /// What it says.
        work: Box<Reported>,
    },
    /// What happened to this gateway's attempts, for the records of their runs, before the words that follow from it. Only between processes,
    /// and with times of the sender's clock until they are converted: in one process there is one journal.
    Records {
        /// Each with its run, in the order of happening.
        records: Vec<Record>,
    },
    /// The device is lost: all attempts have failed, or are about to, and so will every later one. Once a life of the worker, before
    /// the first of those ends.
    DeviceLost {
        /// Why.
        why: String,
    },
    /// Which of these attempts does the gateway claim (C-23)? It answers with `Claim` and `Disclaim`; what it names in neither stays as it is.
    Ask {
        /// Which attempts.
        attempts: Vec<AttemptId>,
    },
    /// The worker is told to stop: it takes no further attempt.
    Draining,
    /// The answer to a `Snapshot`.
    Snapshot {
        /// The asker's number.
        ask: u64,
        /// The cut.
        snapshot: Box<Snapshot>,
    },
}

/// What a worker says of its model when a gateway meets it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelInfo {
    /// The model's name on the API.
    pub id: Arc<str>,
    /// Positions a sequence may have.
    pub context: u32,
    /// The worker's cap on generated tokens a sequence where the caller names none.
    pub default_max_tokens: u32,
    /// Unix seconds when it was loaded.
    pub created: u64,
}
