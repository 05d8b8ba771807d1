//! What was seen of a try, by whom: the caller, the taps, the engine's counters, its processor time, the logs.
//!
//! Invariant: nothing here is a conclusion; what was not seen is `null`, never 0.

use serde::{Deserialize, Serialize};

use super::cell::words;

/// What the caller saw.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientSaw {
    /// When its request was sent.
    pub sent_ms: Option<f64>,
    /// When the head of the answer came, and its status.
    pub head_ms: Option<f64>,
    /// See `head_ms`.
    pub status: Option<u16>,
    /// When the first token came.
    pub first_token_ms: Option<f64>,
    /// Tokens that it read, as far as they can be counted: events with something in them.
    pub tokens: u64,
    /// When its answer ended, if it saw that.
    pub end_ms: Option<f64>,
    /// How: `complete`, `error`, `closed`, `reset`.
    pub end: Option<String>,
}

/// What a tap saw of a request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TapSaw {
    /// The tap's name; taps stand in the order of the hops, from the caller on.
    pub name: String,
    /// Requests with this id that passed it. More than one were asked again.
    pub requests: u64,
    /// When the first of them came.
    pub request_ms: Option<f64>,
    /// When the side of the caller closed, and how: `fin` or `rst`.
    pub down_closed_ms: Option<f64>,
    /// See `down_closed_ms`.
    pub down_how: Option<String>,
    /// When the side of the engine closed, and how.
    pub up_closed_ms: Option<f64>,
    /// See `up_closed_ms`.
    pub up_how: Option<String>,
    /// When the answer's last byte passed.
    pub last_byte_ms: Option<f64>,
    /// Bytes and events of the answer that passed after the trigger.
    pub bytes_after: u64,
    /// See `bytes_after`.
    pub events_after: u64,
    /// Whether the answer came to its own end.
    pub complete: bool,
    /// When the head of the answer passed, and its status.
    #[serde(default)]
    pub head_ms: Option<f64>,
    /// See `head_ms`.
    #[serde(default)]
    pub status: Option<u16>,
    /// All bytes and events of the answer.
    #[serde(default)]
    pub bytes: u64,
    /// See `bytes`.
    #[serde(default)]
    pub events: u64,
    /// Bytes and events of the answer that passed after the caller's side had closed.
    #[serde(default)]
    pub bytes_after_close: u64,
    /// See `bytes_after_close`.
    #[serde(default)]
    pub events_after_close: u64,
    /// How wrong its times can be: two clocks were compared.
    #[serde(default)]
    pub clock_error_ms: Option<f64>,
}

impl TapSaw {
    /// Whether an error passed in place of an answer: then it is the word of a hop behind this tap, and nothing that was computed.
    pub fn is_refusal(&self) -> bool {
        self.complete && self.status.is_some_and(|status| status >= 500)
    }
}

/// One look at an engine.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Look {
    /// When it began.
    pub began_ms: f64,
    /// When it was answered.
    pub ended_ms: f64,
    /// Requests that are computed.
    pub running: Option<f64>,
    /// Requests that wait.
    pub waiting: Option<f64>,
    /// Used part of the KV memory, 0 to 1.
    pub kv_used: Option<f64>,
    /// Blocks or positions that requests hold, without what is only cached, where that is told apart.
    pub kv_held: Option<f64>,
    /// Tokens generated since the engine's start.
    pub generated: Option<f64>,
    /// Prompt tokens computed since then.
    pub prompted: Option<f64>,
    /// Steps computed since then.
    pub steps: Option<f64>,
    /// Requests that it was given since then.
    pub asked: Option<f64>,
    /// Entries of what is kept for each request, where that is told.
    pub per_request: Option<f64>,
}

/// What the engine's counters showed of a try.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineSaw {
    /// The last look before the trigger.
    pub before: Option<Look>,
    /// Those after it, in order.
    pub after: Vec<Look>,
    /// The first look, when everything was over.
    pub rest: Option<Look>,
    /// When the request was first not counted any more, by a look that began after the trigger.
    pub gone_ms: Option<f64>,
    /// When it was last looked at and still counted, at a time when it would have been over if nobody had left it.
    pub outlived_ms: Option<f64>,
    /// When the engine first held no more room than before, by a look that began after the trigger, and held no more from then on.
    pub capacity_ms: Option<f64>,
    /// Tokens that had been generated for it at the last look before the trigger, whether its caller had read them or not.
    pub tokens_before: Option<f64>,
    /// Tokens that were generated for it and that its caller did not read before the trigger.
    pub tokens_after: Option<f64>,
    /// Prompt tokens that were computed after the trigger, as far as that can be told.
    pub prompt_after: Option<f64>,
    /// Steps that were computed after it.
    pub steps_after: Option<f64>,
    /// When a slot was free for it, where it had waited.
    pub turn_ms: Option<f64>,
    /// How often the engine was given it.
    pub asked: Option<f64>,
    /// Whether the engine was looked at between the trigger and the end.
    pub polled: bool,
    /// How old what a look shows may be.
    pub stale_ms: f64,
}

/// What the processor time of the engine's processes showed; or the load of its GPUs, which is told as late as [`super::device::LATE_MS`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuSaw {
    /// Busy part of a core before the trigger, with the request at work; of GPUs the greatest that was told of it.
    pub busy: f64,
    /// The same with nothing to do.
    pub idle: f64,
    /// When it had fallen to the idle level for good.
    pub quiet_ms: Option<f64>,
}

/// What a hop's own log said of a request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LogSaw {
    /// The hop.
    pub hop: String,
    /// Its status, termination state or response flag, as it stands there.
    pub said: String,
    /// What that means: `client left`, `upstream failed`, `completed`, …
    pub means: String,
}

words! {
    /// What a neighbour said beside a request that was left.
    NeighbourText {
        /// What it says alone, to the letter.
        Own = "own",
        /// The beginning of that, and then an end.
        Cut = "cut-short",
        /// Something else, though it says its own beside the same request if nobody leaves that.
        Other = "other",
    }
}

/// What became of a neighbour that shared the beginning of its prompt with a request that was left, and was being answered then.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NeighbourSaw {
    /// Tokens that it read.
    pub tokens: u64,
    /// How its answer ended: `complete`, `error`, `closed`.
    pub end: String,
    /// What it said; `None` where it says something else beside others that nobody leaves, too.
    pub text: Option<NeighbourText>,
}
