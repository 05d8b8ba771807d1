//! What can be wrong with a message, and the gRPC status that says so to the peer.
//!
//! Invariant: an error names fields, lengths and numbers, never what a prompt, an answer or a name holds.

use lifecycle::id::IdError;
use lifecycle::params::ParamError;
use lifecycle::policy::NoPolicy;
use lifecycle::session::Refused;
use lifecycle::{Cause, OutcomeKind};
use tonic::{Code, Status};

use crate::limits::Limit;
use crate::version::NoCommonVersion;

/// Why a message is none. `field` is `Message.field`, as in the .proto file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A required field is absent.
    #[error("{field} is missing")]
    Missing {
        /// Which.
        field: &'static str,
    },
    /// An enum's value that this side does not know: the peer may be newer.
    #[error("{field} has the value {value}, which this side does not know")]
    UnknownValue {
        /// Which field.
        field: &'static str,
        /// The number on the wire.
        value: i32,
    },
    /// A kind of message that this side does not know: the peer may be newer.
    #[error("{frame}: message {number} is of a kind that this side does not know")]
    UnknownMessage {
        /// `DownFrame` or `UpFrame`.
        frame: &'static str,
        /// Its number in its lane.
        number: u64,
    },
    /// Kept bytes of a form that this version does not know, or damaged ones.
    #[error("a kept {what} has a form that this version does not know, or is damaged")]
    Form {
        /// What should have been there.
        what: &'static str,
    },
    /// An incarnation that has not 16 bytes.
    #[error("{field} has {len} bytes, and an incarnation has 16")]
    Incarnation {
        /// Which field.
        field: &'static str,
        /// Bytes found.
        len: usize,
    },
    /// A name or an id that cannot be one.
    #[error("{field} {problem}")]
    Id {
        /// Which field.
        field: &'static str,
        /// Why.
        problem: IdError,
    },
    /// A text that is no policy.
    #[error("{field} {problem}")]
    Policy {
        /// Which field.
        field: &'static str,
        /// Why.
        problem: NoPolicy,
    },
    /// A list that is too long.
    #[error("{field} has {len} entries; {} allows {}", limit.name, limit.default)]
    TooMany {
        /// Which field.
        field: &'static str,
        /// Entries found.
        len: usize,
        /// The limit.
        limit: Limit,
    },
    /// A frame that its receiver would not take.
    #[error("a frame of {bytes} bytes; frame_bytes_max is {frame_bytes_max}")]
    TooLarge {
        /// Its bytes, encoded.
        bytes: u64,
        /// What the worker takes.
        frame_bytes_max: u64,
    },
    /// A number outside its range.
    #[error("{field} must be {allowed}")]
    Range {
        /// Which field.
        field: &'static str,
        /// The range in words.
        allowed: &'static str,
    },
    /// A parameter that a caller gave is outside its range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// The peer's table of causes and outcomes is not this side's.
    #[error("Outcome.kind is {kind}, and {cause} gives {}", cause.outcome())]
    OutcomeKind {
        /// The cause.
        cause: Cause,
        /// The kind that came with it.
        kind: OutcomeKind,
    },
    /// A frame with a message must have a number.
    #[error("{frame}: a message without a number")]
    Unnumbered {
        /// `DownFrame` or `UpFrame`.
        frame: &'static str,
    },
    /// A message that is a call of its own and has no place in a session.
    #[error("{message} is no message of a session")]
    NotInSession {
        /// Which.
        message: &'static str,
    },
    /// A state's word for which the wire has no number.
    #[error("{field} has a word that the wire does not know: {word}")]
    UnknownWord {
        /// Which field.
        field: &'static str,
        /// The word.
        word: &'static str,
    },
    /// The worker does not take the session.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The two sides have no version in common.
    #[error(transparent)]
    Versions(#[from] NoCommonVersion),
}

impl Error {
    /// The status code that ends a call because of it.
    pub const fn code(&self) -> Code {
        match self {
            Error::Versions(_) => Code::FailedPrecondition,
            Error::Refused(Refused::OldGateway { .. } | Refused::OldSession { .. }) => Code::Aborted,
            Error::Refused(Refused::TooManyGateways { .. }) => Code::ResourceExhausted,
            Error::TooLarge { .. } => Code::OutOfRange,
            // These two are this side's own fault.
            Error::NotInSession { .. } | Error::UnknownWord { .. } => Code::Internal,
            _ => Code::InvalidArgument,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        Status::new(error.code(), error.to_string())
    }
}
