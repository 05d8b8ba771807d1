//! HTTP front door and call table: callers on one side, the worker's messages on the other, and in between every run's `Call`.
//!
//! The life of a run lives in the table (`calls`), not in a handler's future: a connection's watcher (`conn`) tells the table that a caller
//! left, whatever hyper is doing; the cancel driver (`cancel`) sees the cancel through; the pump (`dispatch`) takes in what the worker
//! sends and never waits for a reader (`feed`).
//!
//! Invariant: cannot see `engine`, `kv`, `model` or `worker`; speaks with a worker through `lifecycle::message` only.

mod ahead;
mod calls;
mod cancel;
mod config;
mod conn;
mod dispatch;
mod feed;
mod http;
mod idle;
mod joining;
mod pulse;
mod seats;
mod serve;
mod socket;
mod vitals;

use std::sync::{Arc, Mutex, PoisonError};

use lifecycle::Incarnation;
use lifecycle::message::{Down, From, ModelInfo, Up};
use observe::Journal;
use tokio::sync::mpsc;

pub use config::GatewayConfig;

/// The worker's side of the link is closed: it takes no message any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker's side of the link is closed")]
pub struct LinkClosed;

/// How messages get to the worker: in order, without waiting.
pub type SendDown = Box<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync>;

/// A session with one worker.
pub struct Link {
    /// Sends down. Must not block and must not call back into the gateway.
    pub send: SendDown,
    /// What comes up. Its end means that the worker is lost.
    pub up: mpsc::Receiver<From<Up>>,
    /// What the worker says of its model.
    pub model: ModelInfo,
    /// The worker's life; messages of another one change nothing.
    pub worker: Incarnation,
}

/// What serving can end with.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// `serve` was called a second time: there is one session, and it is in use.
    #[error("this gateway serves already")]
    AlreadyServing,
    /// The listening socket broke.
    #[error("the listening socket failed: {0}")]
    Listener(#[source] std::io::Error),
    /// The shutdown's time is over and runs are left whose release nobody has confirmed.
    #[error("{runs} runs were left unsettled at the end of the shutdown")]
    Unsettled {
        /// How many.
        runs: usize,
    },
}

/// The front door. A clone is the same front door.
#[derive(Clone)]
pub struct Gateway {
    calls: Arc<calls::Calls>,
    up: Arc<Mutex<Option<mpsc::Receiver<From<Up>>>>>,
}

impl Gateway {
    /// A front door for one worker that writes to `journal`. Nothing happens before `serve`.
    pub fn new(config: GatewayConfig, link: Link, journal: Journal, incarnation: Incarnation) -> Gateway {
        let calls = calls::Calls::new(config, journal, (link.model, link.worker), incarnation, link.send);
        Gateway { calls: Arc::new(calls), up: Arc::new(Mutex::new(Some(link.up))) }
    }

    /// Answers on `listener` until `shutdown` is ready; then takes no more runs, lets live ones end for `config.drain` or until `at_once` is
    /// ready, cancels the rest, and returns when all are settled. Until then connections are accepted, so that runs can be watched and
    /// cancelled by name while they drain. `at_once` is not looked at before `shutdown` was ready.
    ///
    /// # Errors
    /// [`GatewayError`]: a second call, a broken listener, or runs that did not settle within `config.settle`.
    pub async fn serve(
        &self,
        listener: tokio::net::TcpListener,
        shutdown: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<(), GatewayError> {
        let up = self.up.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(GatewayError::AlreadyServing)?;
        serve::serve(&self.calls, up, listener, shutdown, at_once).await
    }
}
