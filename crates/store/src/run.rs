//! What is kept of a run, and how it is asked for.

use lifecycle::message::Usage;
use lifecycle::{Cause, Delivery, EffectState, Incarnation, OnDisconnect, Outcome, OutcomeKind, RunId, RunKey};

/// A run as it is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct StoredRun {
    /// Whose, and its id.
    pub key: RunKey,
    /// The front door that it came by: `chat`, `text`, `responses`, `grpc`.
    pub door: String,
    /// The model asked for.
    pub model: String,
    /// Who asked, within its tenant: the name of the key that was used.
    pub caller: String,
    /// What its caller's leaving means.
    pub on_disconnect: OnDisconnect,
    /// Whether its events are kept.
    pub keeps: bool,
    /// They are not, and somebody at another gateway than its owner asks for them.
    pub followed: bool,
    /// The life of the gateway that has it.
    pub owner: Incarnation,
    /// The current attempt; 0 before the first.
    pub attempt: u32,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Why somebody asked for its end at another gateway than its owner.
    pub wanted: Option<Cause>,
    /// Its counts, when it has ended.
    pub usage: Usage,
    /// What its caller was sent, when that is over.
    pub delivery: Option<Delivery>,
    /// The number of its newest event; 0 for none.
    pub last_event: u64,
    /// Milliseconds of the calendar.
    pub created_ms: i64,
    /// When its outcome was set.
    pub ended_ms: Option<i64>,
    /// When it is deleted, once it has ended; `None` for the operator's default.
    pub expires_ms: Option<i64>,
    /// What was asked for, where that is kept. Encrypted at rest if the store has a key; erased with the run.
    pub request: Option<Vec<u8>>,
    /// The run's JSON as its gateway had it when it settled.
    pub record: Option<Vec<u8>>,
    /// Its content was deleted; what is left is that it was and how it ended.
    pub erased: bool,
}

/// One event of a run: a piece of its answer, or its end. Numbered from 1 without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredEvent {
    /// Its number.
    pub number: u64,
    /// What it says, as its gateway wrote it. Encrypted at rest if the store has a key.
    pub body: Vec<u8>,
}

/// Which runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunQuery {
    /// With an outcome only.
    pub ended: bool,
    /// With such an outcome only.
    pub outcome: Option<OutcomeKind>,
    /// With this cause only.
    pub cause: Option<Cause>,
    /// Older than this one.
    pub after: Option<RunId>,
    /// At most so many.
    pub limit: usize,
}

/// Which webhooks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookQuery {
    /// Due by then, in milliseconds of the calendar.
    pub now_ms: i64,
    /// To these URLs, of which none has a space.
    pub urls: Vec<String>,
    /// And to any other, if they have been due since then: nobody has taken them who knows their URL.
    pub any_since_ms: i64,
    /// At most so many.
    pub limit: usize,
}

impl HookQuery {
    /// Whatever is due by then.
    pub fn any(now_ms: i64, limit: usize) -> HookQuery {
        HookQuery { now_ms, urls: Vec::new(), any_since_ms: now_ms, limit }
    }
}

/// Something that a run did to the outside world, or meant to.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// Its `Idempotency-Key`, unique within the run.
    pub key: String,
    /// What kind, in its recorder's words.
    pub kind: String,
    /// What, for a person. Encrypted at rest if the store has a key.
    pub description: String,
    /// Where it stands.
    pub state: EffectState,
    /// The attempt that it was intended in.
    pub attempt: u32,
    /// What is known of its result. Encrypted at rest if the store has a key.
    pub detail: Option<Vec<u8>>,
    /// Milliseconds of the calendar.
    pub created_ms: i64,
    /// When its state last changed.
    pub updated_ms: i64,
}

/// A webhook that is to be sent.
#[derive(Clone, PartialEq, Debug)]
pub struct Hook {
    /// Its id, the same for every try.
    pub id: String,
    /// The run.
    pub run: RunKey,
    /// Where to.
    pub url: String,
    /// The body to be signed and sent. Encrypted at rest if the store has a key.
    pub body: Vec<u8>,
    /// When it is due, in milliseconds of the calendar.
    pub due_ms: i64,
    /// How often it was tried.
    pub tries: u32,
    /// What came of the last try, in a word.
    pub last: Option<String>,
}

/// What became of a webhook so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HookState {
    /// Its id.
    pub id: String,
    /// Where to.
    pub url: String,
    /// When it is due; `None` once it is over.
    pub due_ms: Option<i64>,
    /// How often it was tried.
    pub tries: u32,
    /// What came of the last try, in a word.
    pub last: Option<String>,
}
