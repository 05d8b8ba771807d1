//! Requests and answers that pass unchanged between a caller and an engine that is no worker of kvit's own.
//!
//! Invariant: nothing here is looked into, changed or logged.

use std::sync::Arc;

use bytes::Bytes;

/// A request that goes on as it came, whatever is in it. Never logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Forward {
    /// Where to: `/v1/chat/completions`, …
    pub path: Arc<str>,
    /// What.
    pub body: Bytes,
    /// Whether its answer is a stream of server-sent events.
    pub stream: bool,
}

/// A piece of an answer that is passed on unchanged. Never logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Tokens that it shows, whose ids nobody said.
    pub tokens: u32,
    /// The piece.
    pub piece: Piece,
}

/// See [`Passed`].
#[derive(Clone, PartialEq, Eq)]
pub enum Piece {
    /// The beginning of an answer to a forwarded request.
    Head {
        /// HTTP's status.
        status: u16,
        /// Its `Content-Type`.
        content_type: Option<Arc<str>>,
        /// Further headers that say something to the caller, each by its name in small letters.
        headers: Arc<[(Arc<str>, Arc<str>)]>,
    },
    /// Bytes of the answer's body: whole server-sent events, or a part of a body that is none.
    Body(Bytes),
    /// The same with the stream's own end in it. It is given to a reader with the run's end: whoever has read it may close.
    Tail(Bytes),
    /// Nothing but what the delta itself says: the request was not a forwarded one.
    Said,
}

impl std::fmt::Debug for Piece {
    /// Says sizes only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Piece::Head { status, .. } => write!(f, "Head({status})"),
            Piece::Body(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Piece::Tail(bytes) => write!(f, "Tail({} bytes)", bytes.len()),
            Piece::Said => write!(f, "Said"),
        }
    }
}
