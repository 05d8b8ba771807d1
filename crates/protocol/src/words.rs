//! The contract's words as numbers on the wire, both ways. 0 is no word, and a number that is not known is an error.
//!
//! Invariant: each match is total, so a word that is added to the contract and not to the .proto file does not compile.

use crate::{Error, runs_v1, worker_v1};

/// Reads a word: `W` is the wire's enum, `T` the contract's.
pub(crate) fn word<W: TryFrom<i32> + Into<Option<T>>, T>(value: i32, field: &'static str) -> Result<T, Error> {
    if value == 0 {
        return Err(Error::Missing { field });
    }
    W::try_from(value).ok().and_then(Into::into).ok_or(Error::UnknownValue { field, value })
}

macro_rules! same {
    ($module:ident::$name:ident: $($word:ident)+) => {
        impl From<lifecycle::$name> for $module::$name {
            fn from(word: lifecycle::$name) -> Self {
                match word { $(lifecycle::$name::$word => $module::$name::$word),+ }
            }
        }
        impl From<$module::$name> for Option<lifecycle::$name> {
            fn from(word: $module::$name) -> Self {
                match word {
                    $module::$name::Unspecified => None,
                    $($module::$name::$word => Some(lifecycle::$name::$word)),+
                }
            }
        }
    };
}

macro_rules! causes {
    ($module:ident) => {
        same! { $module::Cause:
            Stop Length ClientClosed ClientReset ClientLost ClientStalled CancelRequested EdgeTimeout Orphaned Shutdown ClientDeadline
            GatewayDeadline WorkerDeadline QueueDeadline WorkerError DeviceError WorkerLost UpstreamError Invalid OverLimit QueueFull CannotFit
            DeadlineUnreachable
        }
        same! { $module::OutcomeKind: Completed Cancelled Expired Failed Rejected }
    };
}

causes! { worker_v1 }
causes! { runs_v1 }
same! { runs_v1::Delivery: None Partial Complete }
same! { runs_v1::Guarantee: Confirmed Observed BestEffort Unsupported }
same! { worker_v1::Phase: Queued Prefill BeforeFirstToken Decode }
same! { runs_v1::Phase: Queued Prefill BeforeFirstToken Decode }

/// The API's word for a block's state in a cut.
const BLOCK_STATES: [(worker_v1::BlockState, &str); 5] = [
    (worker_v1::BlockState::Free, "free"),
    (worker_v1::BlockState::Active, "active"),
    (worker_v1::BlockState::Cached, "cached"),
    (worker_v1::BlockState::Draining, "draining"),
    (worker_v1::BlockState::Quarantined, "quarantined"),
];

/// The API's word for an attempt's state in a cut.
const ATTEMPT_STATES: [(worker_v1::AttemptState, &str); 7] = [
    (worker_v1::AttemptState::Queued, "queued"),
    (worker_v1::AttemptState::Prefilling, "prefilling"),
    (worker_v1::AttemptState::Decoding, "decoding"),
    (worker_v1::AttemptState::Preempted, "preempted"),
    (worker_v1::AttemptState::Suspended, "suspended"),
    (worker_v1::AttemptState::Stopping, "stopping"),
    (worker_v1::AttemptState::Ended, "ended"),
];

fn number<W: Copy + Into<i32>>(table: &[(W, &str)], word: &'static str, field: &'static str) -> Result<i32, Error> {
    table.iter().find(|row| row.1 == word).map(|row| row.0.into()).ok_or(Error::UnknownWord { field, word })
}

fn text<W: Copy + Into<i32>>(table: &[(W, &'static str)], value: i32, field: &'static str) -> Result<&'static str, Error> {
    if value == 0 {
        return Err(Error::Missing { field });
    }
    table.iter().find(|row| row.0.into() == value).map(|row| row.1).ok_or(Error::UnknownValue { field, value })
}

pub(crate) fn block_state_number(word: &'static str) -> Result<i32, Error> {
    number(&BLOCK_STATES, word, "BlockCut.state")
}

pub(crate) fn block_state_word(value: i32) -> Result<&'static str, Error> {
    text(&BLOCK_STATES, value, "BlockCut.state")
}

pub(crate) fn attempt_state_number(word: &'static str) -> Result<i32, Error> {
    number(&ATTEMPT_STATES, word, "AttemptCut.state")
}

pub(crate) fn attempt_state_word(value: i32) -> Result<&'static str, Error> {
    text(&ATTEMPT_STATES, value, "AttemptCut.state")
}
