//! What can become of a request but a whole answer.
//!
//! Invariant: no text of a request or an answer is in any of it, so it can be logged.
// contract: C-28

use std::io;
use std::time::Duration;

use super::conn::Failed;

/// Why no byte of a request was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSent {
    /// Its name has no address.
    #[error("no such host: {0}")]
    NoHost(String),
    /// Nobody takes a connection there.
    #[error("no connection: {0}")]
    NoConnection(io::ErrorKind),
    /// There was no connection in time.
    #[error("no connection in time")]
    ConnectTimeout,
    /// The connection could not be made a secure one.
    #[error("no secure connection: {0}")]
    Tls(String),
    /// The connection was closed before it had taken a byte.
    #[error("the connection was closed before it took a byte")]
    Closed,
    /// It took no byte in time.
    #[error("the connection took no byte in time")]
    SendTimeout,
    /// What was to be sent is no request.
    #[error("no request can be made of it: {0}")]
    Request(String),
}

impl NotSent {
    /// Whether nobody listens there: whoever did is over, or about to be.
    pub fn is_refused(&self) -> bool {
        matches!(self, NotSent::NoConnection(io::ErrorKind::ConnectionRefused))
    }
}

/// What happened to a request that may have arrived.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// The head of the answer did not come in time.
    #[error("no head of an answer came in time")]
    HeadTimeout,
    /// No byte of the body came for too long.
    #[error("no byte came for {} ms", .0.as_millis())]
    IdleTimeout(Duration),
    /// The connection was closed before an answer.
    #[error("the connection was closed before an answer")]
    Closed,
    /// The connection broke off within the answer.
    #[error("the connection broke off within the answer")]
    BrokeOff,
    /// The answer is no HTTP.
    #[error("the answer is no HTTP: {0}")]
    NotHttp(String),
    /// The head of the answer is too large.
    #[error("the head of the answer is larger than head_bytes_max")]
    HeadTooLarge,
    /// The body of the answer is too large.
    #[error("the answer is longer than answer_bytes_max, {0} bytes")]
    TooLong(u64),
    /// The body is compressed, though nobody asked for that.
    #[error("the answer is compressed, though nothing but plain text was asked for")]
    Encoded,
}

/// Why a request has no whole answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// Nothing can have had an effect: it may be sent elsewhere.
    #[error("nothing was sent: {0}")]
    NotSent(NotSent),
    /// It may have arrived.
    #[error("{0}")]
    Lost(Lost),
}

impl From<Failed> for CallError {
    fn from(failed: Failed) -> CallError {
        match failed {
            Failed::NotSent(why) => CallError::NotSent(why),
            Failed::Lost(why) => CallError::Lost(why),
        }
    }
}
