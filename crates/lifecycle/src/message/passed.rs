//! Requests and answers that pass between a caller and an engine that is no worker of kvit's own: unchanged, or, of an answer that is read here,
//! what kvit's own engine has no word for.
//!
//! Invariant: nothing here is logged, and what is passed on is neither looked into nor changed.

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
    /// A part of a call that the model makes, in an answer that is read here and not passed on.
    Called(Box<Called>),
}

/// A part of one call of a function: the first of them names it, and the arguments are those of all parts behind each other. Never logged.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Called {
    /// Which of the answer's calls, from 0.
    pub place: u32,
    /// What the engine calls it.
    pub id: Option<String>,
    /// The function.
    pub name: Option<String>,
    /// A part of its arguments, which are JSON when all parts are there.
    pub arguments: String,
}

impl Called {
    /// Bytes of what it says.
    pub fn bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        text(&self.id) + text(&self.name) + self.arguments.len()
    }
}

impl std::fmt::Debug for Called {
    /// Says the size only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Called({}, {} bytes)", self.place, self.bytes())
    }
}

impl std::fmt::Debug for Piece {
    /// Says sizes only.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Piece::Head { status, .. } => write!(f, "Head({status})"),
            Piece::Body(bytes) => write!(f, "Body({} bytes)", bytes.len()),
            Piece::Tail(bytes) => write!(f, "Tail({} bytes)", bytes.len()),
            Piece::Said => write!(f, "Said"),
            Piece::Called(called) => write!(f, "{called:?}"),
        }
    }
}
