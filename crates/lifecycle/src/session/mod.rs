//! A session between a gateway and a worker: what both sides know of each other, as two pure machines.
//!
//! Between one life of a gateway and one life of a worker there is a *tenure*: two numbered lanes of messages. A connection only carries
//! frames, and any frame may be lost, doubled, late or out of order; the lanes heal all of that in one place, so everything above them
//! sees each message once and in order. When a connection breaks, the next one goes on where the lanes stand (C-10).
//!
//! ```text
//!   GatewaySide ── Frame<Down> ──►  WorkerSide ── submit, cancel, suspend, attach, orphan ──► engine
//!        ▲ ◄────── Frame<Up> ─────      ▲ ◄────────────────── what it says ────────────────────┘
//!    one a worker                  one a process, for all its gateways
//! ```
//!
//! **The lease needs no common clock.** Each frame carries its sender's stamp and the newest stamp it has heard of its peer. A worker's lease
//! for a gateway runs from the newest of its *own* stamps that came back. The gateway heard that stamp after it was made; so once the
//! gateway has heard nothing for the lease and its clock's error, the worker's lease is over (C-9).
//!
//! Invariant: a message is delivered once and in order, or its tenure is over; an attempt ends by its gateway's word, by the lease, by the
//! worker's own decision, and by nothing else.

mod frame;
mod gateway_side;
mod lane;
mod leases;
mod peer;
mod refusals;
mod saying;
mod worker_io;
mod worker_side;

use std::time::Duration;

pub use frame::{ClockSample, Echo, Frame, Hello, Refused, Welcome};
pub use gateway_side::{GatewayEffect, GatewaySide, LinkState};
pub use lane::Lane;
pub use worker_io::{PeerCut, PeerState, WorkerEffect};
pub use worker_side::WorkerSide;

/// What both sides go by. Gateway and worker should agree on `lease`: each states it when a session opens, and the longer
/// one counts, up to the worker's `lease_max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// Pause between two frames when there is nothing else to say. Default 50 ms.
    pub heartbeat: Duration,
    /// How long a gateway may be silent before its attempts are no longer scheduled (C-10). Default 250 ms.
    pub suspend_after: Duration,
    /// How long after a gateway's last sign of life its attempts end (C-9). Default 10 s.
    pub lease: Duration,
    /// How long a worker's host must have refused new connections, again and again and without any other answer, before the gateway lets no
    /// caller wait for that worker; 0 for never. It ends no attempt (C-9). Default 1 s.
    pub refused_after: Duration,
    /// Longest lease that a gateway can ask a worker for. Default 5 min.
    pub lease_max: Duration,
    /// How long a message may be unacknowledged before it is sent again. Default 200 ms.
    pub resend_after: Duration,
    /// Shortest pause between two repetitions that the peer asked for. Default 10 ms.
    pub resend_pause: Duration,
    /// Messages on their way at once, each way. Default 512.
    pub window: u64,
    /// Messages that came before their turn and are kept until then, each way. Default 64.
    pub early_max: usize,
    /// Messages that a worker keeps for a gateway that does not acknowledge them; with more, its attempts are suspended. Default 8192.
    pub outbox_max: usize,
    /// Gateways that a worker serves at once, those included whose lease is over and that are not forgotten yet. Default 64.
    pub gateways_max: usize,
    /// Cancels for attempts that have not come, kept for each gateway. Default 1024.
    pub tombstones_max: usize,
    /// How long such a cancel is kept, whatever becomes of the gateway that sent it. Longer than a run may wait to be sent. Default 15 min.
    pub tombstone_keep: Duration,
    /// How often a worker asks a gateway which attempts it claims. Default 5 s.
    pub ask_every: Duration,
    /// Attempts in one such question. Default 1024.
    pub ask_max: usize,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            heartbeat: Duration::from_millis(50),
            suspend_after: Duration::from_millis(250),
            lease: Duration::from_secs(10),
            refused_after: Duration::from_secs(1),
            lease_max: Duration::from_secs(300),
            resend_after: Duration::from_millis(200),
            resend_pause: Duration::from_millis(10),
            window: 512,
            early_max: 64,
            outbox_max: 8192,
            gateways_max: 64,
            tombstones_max: 1024,
            tombstone_keep: Duration::from_secs(900),
            ask_every: Duration::from_secs(5),
            ask_max: 1024,
        }
    }
}

impl SessionConfig {
    /// What the gateway adds to a lease before it concludes: two clocks that drift apart by at most one per cent, and a millisecond for
    /// their resolution.
    // contract: C-9
    pub fn clock_error(lease: Duration) -> Duration {
        lease / 100 + Duration::from_millis(1)
    }
}

#[cfg(test)]
mod tests;
