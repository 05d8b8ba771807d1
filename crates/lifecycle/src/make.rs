//! What a worker is, how it is told of a cancel and what can be seen of it, for people to read.

use std::time::Duration;

/// What a worker is, how it is told of a cancel and what can be seen of it: the API's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Make {
    /// `worker` for one that speaks kvit's own protocol, else the kind of engine behind a URL.
    pub kind: &'static str,
    /// `id_with_proof`, `id`, `close` or `none`.
    pub cancel: &'static str,
    /// What can be seen of it.
    pub shows: Shows,
}

impl Make {
    /// A worker of kvit's own: it says what it has released.
    pub const WORKER: Make = Make {
        kind: "worker",
        cancel: "id_with_proof",
        shows: Shows {
            requests: Shown::PerRequest,
            kv_usage: Shown::PerRequest,
            tokens: Shown::PerRequest,
            proves_within: Some(Duration::ZERO),
        },
    };
}

/// What can be seen of a worker.
// contract: C-29
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shows {
    /// Running and waiting requests.
    pub requests: Shown,
    /// How much of the KV memory is used.
    pub kv_usage: Shown,
    /// Tokens that were generated.
    pub tokens: Shown,
    /// How fresh that is: whatever came to it and is not over is shown so much later, or, where a step may take longer, behind a step that began
    /// later. `None` where no such bound is known: what is shown proves nothing.
    pub proves_within: Option<Duration>,
}

impl Shows {
    /// Nothing is shown.
    pub const NOTHING: Shows = Shows { requests: Shown::No, kv_usage: Shown::No, tokens: Shown::No, proves_within: None };
}

/// Whether a quantity is shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shown {
    /// For each request.
    PerRequest,
    /// For all of them together.
    InSum,
    /// Not at all.
    No,
}

impl Shown {
    /// The API's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Shown::PerRequest => "per_request",
            Shown::InSum => "in_sum",
            Shown::No => "none",
        }
    }
}
