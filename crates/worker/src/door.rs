//! The way to a worker's engine thread for whatever carries sessions: gRPC, or a test.
//!
//! Invariant: owns no state of any gateway or attempt; every answer is the engine thread's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use lifecycle::Incarnation;
use lifecycle::message::{Down, Snapshot};
use lifecycle::session::{Frame, Hello, Refused, Welcome};
use observe::Clock;
use protocol::Drained;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::mail::Mail;
use crate::sessions::{Outlet, SessionsCut};
use crate::start::Closed;

/// Says that the engine thread is gone, however it went.
#[derive(Clone, Default)]
pub(crate) struct Ended {
    flag: Arc<AtomicBool>,
}

impl Ended {
    fn is_set(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.flag.store(true, Ordering::Release);
    }
}

/// A session that is open; dropped, it is over. The engine thread makes it, so that none can be open of which nobody knows.
pub struct Session {
    mailbox: Sender<Mail>,
    clock: Clock,
    gateway: Arc<str>,
    connection: u64,
}

impl Session {
    pub(crate) fn new(mailbox: Sender<Mail>, clock: Clock, gateway: Arc<str>, connection: u64) -> Session {
        Session { mailbox, clock, gateway, connection }
    }

    /// A frame came in. `room` is given back when the engine thread has taken it.
    ///
    /// # Errors
    /// The worker is gone.
    pub fn frame(&self, frame: Frame<Down>, room: OwnedSemaphorePermit) -> Result<(), Closed> {
        let (frame, arrived) = (Box::new(frame), self.clock.now());
        let (gateway, connection) = (self.gateway.clone(), self.connection);
        self.mailbox.send(Mail::Frame { gateway, connection, frame, arrived, _room: room }).map_err(|_| Closed)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Of a worker that is gone nobody needs to know.
        let _ = self.mailbox.send(Mail::Closed { gateway: self.gateway.clone(), connection: self.connection });
    }
}

/// Speaks with a worker's engine thread.
#[derive(Clone)]
pub struct Door {
    incarnation: Incarnation,
    mailbox: Sender<Mail>,
    ended: Ended,
}

impl Door {
    pub(crate) fn new(incarnation: Incarnation, mailbox: Sender<Mail>, ended: Ended) -> Door {
        Door { incarnation, mailbox, ended }
    }

    /// The worker's life.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Whether the worker is gone.
    pub fn has_ended(&self) -> bool {
        self.ended.is_set()
    }

    /// Opens a session: frames go to `outlet` from now on, behind the welcome. A frame for which it has no room is dropped; it comes again.
    ///
    /// # Errors
    /// The worker is gone; or, within, it does not take the session.
    pub async fn hello(&self, hello: Hello, outlet: Outlet) -> Result<Result<(Welcome, Session), Refused>, Closed> {
        self.ask(|reply| Mail::Hello { hello, outlet, reply }).await
    }

    /// The account, with every block if `blocks`.
    ///
    /// # Errors
    /// The worker is gone.
    pub async fn snapshot(&self, blocks: bool) -> Result<Snapshot, Closed> {
        self.ask(|reply| Mail::Snapshot { blocks, reply }).await
    }

    /// Its gateways, and how much lies in the sessions' tables.
    ///
    /// # Errors
    /// The worker is gone.
    pub async fn sessions(&self) -> Result<SessionsCut, Closed> {
        self.ask(|reply| Mail::Sessions { reply }).await
    }

    /// Tells it to stop: no further attempt is taken, those that wait are handed back, those that run have `limit`. Ready when the last one is
    /// released. A further call joins the first; the earlier end counts.
    ///
    /// # Errors
    /// The worker is gone.
    pub async fn drain(&self, limit: Duration) -> Result<Drained, Closed> {
        self.ask(|reply| Mail::Drain { limit, reply }).await
    }

    /// Ready when every gateway with an open session has acknowledged all that was said to it, at the latest after `within`.
    ///
    /// # Errors
    /// The worker is gone.
    pub async fn flush(&self, within: Duration) -> Result<(), Closed> {
        self.ask(|reply| Mail::Flush { within, reply }).await
    }

    async fn ask<T>(&self, mail: impl FnOnce(oneshot::Sender<T>) -> Mail) -> Result<T, Closed> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(mail(reply)).map_err(|_| Closed)?;
        answer.await.map_err(|_| Closed)
    }
}
