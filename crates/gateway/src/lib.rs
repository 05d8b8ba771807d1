//! HTTP and gRPC front door and call table: callers on one side, the workers' messages on the other, and in between every run's `Dispatch`.
//!
//! The life of a run lives in the table (`calls`), not in a handler's future: a connection's watcher (`conn`) tells the table that a caller
//! left, whatever hyper is doing; the cancel driver (`cancel`) sees the cancel through; the pumps (`links`) take in what the workers send
//! and never wait for a reader (`feed`).
//!
//! Invariant: cannot see `engine`, `kv`, `model` or `worker`; speaks with workers through `lifecycle::message` only.

mod ahead;
mod alarm;
mod asks;
mod beginning;
mod calls;
mod cancel;
mod config;
mod conn;
mod dispatch;
mod ear;
mod feed;
mod grpc;
mod http;
mod idle;
mod joining;
mod keeping;
mod keys;
mod links;
mod look;
mod moments;
mod otlp;
mod outside;
mod places;
mod pulse;
mod quiet;
mod reason;
mod records;
mod replay;
mod seats;
mod serve;
mod shares;
mod socket;
mod threads;
mod vitals;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};

use lifecycle::message::{Down, From, Up};
use lifecycle::session::ClockSample;
use lifecycle::{Incarnation, Offer, WorkerIndex, Workers};
use observe::Journal;
use tokio::sync::mpsc;

pub use alarm::Alarm;
pub use config::{GatewayConfig, KeepConfig, OutsideConfig};
pub use ear::Ear;
pub use http::forward::prompts;
pub use http::mended::mended;
pub use keys::{KEYS_MAX, Key, Keys, SECRET_MAX_LEN, SECRET_MIN_LEN, SecretDigest};
pub use moments::MomentsConfig;
pub use otlp::{OtlpConfig, OtlpEndpoint, OtlpHeaders, OtlpProtocol};
pub use outside::{HookEvent, UrlPrefixes, Webhook, Webhooks};
pub use reason::Reason;
pub use wire::{Connecting, Identity, Network, System, WireConfig, drain, link, link_over};

/// The worker's side of the link is closed: it takes no message any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker's side of the link is closed")]
pub struct LinkClosed;

/// How messages get to the worker: in order, without waiting.
pub type SendDown = Box<dyn Fn(From<Down>) -> Result<(), LinkClosed> + Send + Sync>;

/// A life of a worker that answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Here {
    /// The worker's life; messages of another one change nothing.
    pub incarnation: Incarnation,
    /// What it has.
    pub offer: Offer,
    /// What it is called.
    pub name: Arc<str>,
}

/// What a link tells of its worker.
#[derive(Clone, Debug)]
pub enum LinkEvent {
    /// A life of it answers, for the first time or after a loss. Runs that wait may go to it.
    Here(Here),
    /// It says something.
    Up(From<Up>),
    /// It has not been heard for a while. It gets no new runs; what it has goes on.
    Silent,
    /// Nobody listens where it was. It gets no new runs, and no caller waits for it; what it has is not over (C-9).
    Refused {
        /// Which life was there.
        incarnation: Incarnation,
    },
    /// What it offers from now on: the same link has another engine behind it than before, or that has other models.
    Offers(Offer),
    /// It is heard again.
    Back,
    /// It failed run after run, and may have mended: it gets one run at a time, until it is heard as before.
    Trial,
    /// A life of it is over for good: a newer one has answered, or its lease is over. Its attempts are void.
    Lost {
        /// Which life.
        incarnation: Incarnation,
        /// Why, for the log.
        why: String,
    },
    /// Its clock was compared with this process's.
    Clock(ClockSample),
    /// A word of another life or tenure of it came. It changed nothing, and is counted (C-3).
    Stale,
}

/// The way to one worker, and what is heard of it. It need not be there yet, and may come back after a loss, as another life.
pub struct Link {
    /// What the worker is called until it says so itself.
    name: Arc<str>,
    /// Sends down. Must not block and must not call back into the gateway.
    send: SendDown,
    /// The life that is here from the beginning.
    here: Option<Here>,
    /// What it is said to have before it was met.
    expects: Option<Offer>,
    events: links::Events,
}

impl Link {
    /// A worker elsewhere, at `name` until it says how it is called. The end of `events` means that it can never come back. `send` must not
    /// block and must not call back into the gateway; it is called only between a `Here` and the `Lost` of the same life.
    pub fn new(name: Arc<str>, send: SendDown, events: mpsc::Receiver<LinkEvent>) -> Link {
        Link { name, send, here: None, expects: None, events: links::Events::Wire(events) }
    }

    /// An engine that others wrote, which keeps no record of its runs: as [`Link::new`], and what its words and the sending show is recorded.
    /// What happens there is told to a clone of `ear`.
    /// `expects` is what it is said to have, if that is known before it was met: runs for that wait for it.
    pub fn engine(name: Arc<str>, send: SendDown, ear: Ear, expects: Option<Offer>) -> Link {
        Link { name, send, here: None, expects, events: links::Events::Engine(ear) }
    }

    /// A worker in this process, which is here until `up` ends. `send` must not block and must not call back into the gateway.
    pub fn thread(here: Here, send: SendDown, up: mpsc::Receiver<From<Up>>) -> Link {
        Link { name: here.name.clone(), send, here: Some(here), expects: None, events: links::Events::Thread(up) }
    }
}

/// What serving can end with.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// `serve` was called a second time: each worker is heard by one.
    #[error("this gateway serves already")]
    AlreadyServing,
    /// No worker can be at this address.
    #[error("`{address}` is no worker's address: {why}")]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// A worker did not do what it was told.
    #[error("the worker at {address}: {why}")]
    Worker {
        /// Where it is.
        address: String,
        /// What it answered.
        why: String,
    },
    /// A key that cannot be one, or not beside the others. What it says never has the secret in it.
    #[error("{why}")]
    Key {
        /// What is wrong with it.
        why: String,
    },
    /// The system gives no thread to serve connections on.
    #[error("cannot start a thread for connections: {0}; fewer `connection_threads` need less")]
    Threads(#[source] std::io::Error),
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

/// What is heard of each worker, and what is written to the store, until serving begins.
type Heard = (Vec<(WorkerIndex, links::Events)>, Option<keeping::Jobs>);

/// The front door. A clone is the same front door.
#[derive(Clone)]
pub struct Gateway {
    calls: Arc<calls::Calls>,
    heard: Arc<Mutex<Option<Heard>>>,
    /// What this gateway is called, where others are told of it.
    name: Arc<str>,
}

impl Gateway {
    /// A front door for these workers that writes to `journal`. Nothing of a run is kept longer than the process. Nothing happens before `serve`.
    pub fn new(config: GatewayConfig, links: Vec<Link>, journal: Journal, incarnation: Incarnation) -> Gateway {
        Gateway::keeping(config, links, journal, (incarnation, "gateway"), None)
    }

    /// A front door that keeps runs in a store, as this life of the gateway of this name.
    pub fn keeping(
        config: GatewayConfig,
        links: Vec<Link>,
        journal: Journal,
        (incarnation, name): (Incarnation, &str),
        store: Option<Arc<dyn store::RunStore>>,
    ) -> Gateway {
        let mut workers = Workers::default();
        let (mut ends, mut heard) = (Vec::new(), Vec::new());
        for Link { name, send, here, expects, events } in links {
            let worker = workers.add(name.clone());
            expects.into_iter().for_each(|offer| workers.expects(worker, offer));
            if let Some(here) = here {
                // The first life of it: none is over by that.
                let _ = workers.here(worker, here.incarnation, here.offer, here.name);
            }
            ends.push(links::LinkEnd::new(name, send, events.whose()));
            heard.push((worker, events));
        }
        let mut calls = calls::Calls::new(config, journal, incarnation, ends, workers);
        let jobs = store.map(|store| {
            let (keeper, jobs) = keeping::Keeper::new(store, calls.config.keep.clone());
            calls.keeper = Some(Arc::new(keeper));
            jobs
        });
        Gateway { calls: Arc::new(calls), heard: Arc::new(Mutex::new(Some((heard, jobs)))), name: name.into() }
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
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(GatewayError::AlreadyServing)?;
        serve::serve(&self.calls, heard, &self.name, listener, (shutdown, at_once)).await
    }
}
