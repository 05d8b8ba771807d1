//! The link to a worker in another process: `kvit.worker.v1` over gRPC, one task a worker.
//!
//! ```text
//!   Calls ──send──► core (GatewaySide) ──frames──► stream down ──► worker
//!   Calls ◄─events── task ◄── core ◄── stream up ◄────────────────┘
//! ```
//! What is true of the session is decided by `lifecycle::session::GatewaySide`. Here it gets its frames, its time and its connections: the
//! core stands behind a mutex that is never held across an await, so that to send never waits.
//!
//! Invariant: a connection that ends, is slow or carries nothing ends no run: only what the core says is said to the gateway.
// contract: C-3, C-9, C-10

mod core;
mod network;
mod open;
mod task;

use std::sync::Arc;
use std::time::Duration;

use lifecycle::Incarnation;
use lifecycle::session::SessionConfig;
use observe::Clock;
use protocol::Drained;
use protocol::limits;
use protocol::worker_v1 as wire;
use tokio::sync::mpsc;

use self::core::Shared;
use crate::{GatewayError, Link, LinkClosed, LinkEvent, SendDown};

pub use network::{Connecting, Network, System};

/// What a gateway is called at its workers.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Its name, the same through all its lives.
    pub name: Arc<str>,
    /// This life.
    pub incarnation: Incarnation,
}

/// The limits of a link.
#[derive(Clone, Copy, Debug)]
pub struct WireConfig {
    /// What the session goes by.
    pub session: SessionConfig,
    /// How long a connection may take to come about. Default 2 s.
    pub connect_timeout: Duration,
    /// How long the worker may take to answer a hello, and a mute connection a ping; a hello that goes on with runs has at most a quarter of
    /// the lease. Default 5 s.
    pub hello_timeout: Duration,
    /// First wait before a connection is tried again; doubles up to `retry_max`, each with a jitter of half. Default 20 ms.
    pub retry: Duration,
    /// Longest wait before a connection is tried again. Default 1 s.
    pub retry_max: Duration,
    /// Wait before a worker that speaks no common version is tried again. Default 10 s.
    pub refused_retry: Duration,
    /// How long a connection may carry nothing, either way, before another one is made: what was cut off without a word comes back by that.
    /// Default 1 s.
    pub quiet_max: Duration,
    /// Frames that wait for the connection; what is more is dropped, and comes again. Default 1024.
    pub frames_max: usize,
    /// Events that wait for the gateway's pump, which never waits for a caller. Default 1024.
    pub events_max: usize,
    /// How long the worker may take to answer a question. Default 1 s.
    pub ask_timeout: Duration,
}

impl Default for WireConfig {
    fn default() -> Self {
        WireConfig {
            session: SessionConfig::default(),
            connect_timeout: Duration::from_secs(2),
            hello_timeout: Duration::from_millis(limits::HELLO_TIMEOUT_MS.default),
            retry: Duration::from_millis(20),
            retry_max: Duration::from_secs(1),
            refused_retry: Duration::from_secs(10),
            quiet_max: Duration::from_secs(1),
            frames_max: 1024,
            events_max: 1024,
            ask_timeout: Duration::from_secs(1),
        }
    }
}

/// A link to the worker at `address` (`HOST:PORT`), which need not be there yet. Its task lives until the gateway lets go of the link. To be
/// called in a Tokio runtime.
///
/// # Errors
/// No worker can be at that address.
pub fn link(address: &str, who: &Identity, clock: Clock, config: WireConfig) -> Result<Link, GatewayError> {
    let (send, heard) = link_over(System, address, who, clock, config)?;
    Ok(Link::new(address.into(), send, heard))
}

/// The two ends of a link over any network, as [`Link::new`] takes them: what sends down, and what is heard.
///
/// # Errors
/// As [`link`].
pub fn link_over(
    network: impl Network,
    address: &str,
    who: &Identity,
    clock: Clock,
    config: WireConfig,
) -> Result<(SendDown, mpsc::Receiver<LinkEvent>), GatewayError> {
    let endpoint = open::lasting(open::endpoint(address, &config)?, &config);
    let (events, heard) = mpsc::channel(config.events_max.max(1));
    let shared = Arc::new(Shared::new(address.into(), (endpoint, Box::new(network)), who, clock, config));
    tokio::spawn(task::run(shared.clone(), events));
    let send = Box::new(move |message: lifecycle::message::From<_>| if shared.send(message.message) { Ok(()) } else { Err(LinkClosed) });
    Ok((send, heard))
}

/// Tells the worker at `address` to stop within `limit`, and waits until its last attempt is released.
///
/// # Errors
/// It cannot be reached, or does not answer within `limit` and `config.ask_timeout`.
pub async fn drain(address: &str, limit: Duration, config: &WireConfig) -> Result<Drained, GatewayError> {
    let failed = |why: String| GatewayError::Worker { address: address.to_owned(), why };
    let channel = open::endpoint(address, config)?.connect().await.map_err(|e| failed(open::causes(&e)))?;
    let mut client = open::client(channel, limits::FRAME_BYTES_MAX.default);
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    let asked = client.drain(wire::DrainRequest { limit_us });
    let answer = tokio::time::timeout(limit.saturating_add(config.ask_timeout), asked).await;
    let reply = answer.map_err(|_| failed("no answer in time".into()))?.map_err(|status| failed(status.message().to_owned()))?;
    Drained::try_from(reply.into_inner()).map_err(|e| failed(e.to_string()))
}
