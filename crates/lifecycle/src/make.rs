//! What a worker is and how it is told of a cancel, for people to read.

/// What a worker is, and how it is told of a cancel: the API's words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Make {
    /// `worker` for one that speaks kvit's own protocol, else the kind of engine behind a URL.
    pub kind: &'static str,
    /// `id_with_proof`, `id`, `close` or `none`.
    pub cancel: &'static str,
}

impl Make {
    /// A worker of kvit's own: it says what it has released.
    pub const WORKER: Make = Make { kind: "worker", cancel: "id_with_proof" };
}
