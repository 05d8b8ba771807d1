//! Taking a run on: its id, its place in the table, and its submit, if a worker is here.
//!
//! Between the first byte of the table's knowledge and the submit nothing is awaited, so no caller can leave in between unseen.
//!
//! Invariant: an id in the table or the journal is never given to a second run; a submit's number is above every earlier one's.
// contract: C-1 C-2

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lifecycle::event::Event;
use lifecycle::message::Prompt;
use lifecycle::params::Params;
use lifecycle::{Cause, Deadline, Dispatch, RunId, RunKey, Tenant, Time, Work};
use tokio::sync::watch;

use crate::calls::{Calls, Entry, Table};
use crate::conn::ConnState;
use crate::feed::{FeedEnd, Reader};
use crate::joining::Joining;
use crate::keys::Caller;
use crate::records::Kept;
use crate::seats::{SeatId, Seats};

/// Runs that may ask for one id and still get a name made of it; further ones get a fresh id.
const SAME_ID_MAX: u32 = 100;

/// What a handler asks for.
pub(crate) struct Order {
    /// Whose run it is.
    pub(crate) caller: Caller,
    /// The id that the caller gave.
    pub(crate) requested: Option<RunId>,
    pub(crate) model: Arc<str>,
    pub(crate) prompt: Prompt,
    pub(crate) params: Params,
    /// When its head arrived: deadlines count from there, however long its body took.
    pub(crate) arrived: Time,
    /// The deadline that the caller gave.
    pub(crate) timeout: Option<Duration>,
    pub(crate) stream: bool,
    /// What a further request has to show to join this run, and this one to join an earlier.
    pub(crate) joining: Option<Joining>,
}

/// A run that a request got.
pub(crate) struct Opened {
    pub(crate) reader: Reader,
    pub(crate) created: u64,
    /// It is an earlier request's run.
    pub(crate) joined: bool,
}

/// Why a request gets no run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// A shutdown has begun.
    ShuttingDown,
    /// The key's run was asked for with another body.
    OtherBody,
    /// The key's run is live and cannot be joined.
    InUse,
}

/// A fresh id, ordered by time.
pub(crate) fn fresh_id() -> RunId {
    let id = uuid::Uuid::now_v7().to_string();
    match RunId::parse(&id) {
        Ok(id) => id,
        Err(e) => unreachable!("a UUID is a run id: {e}"),
    }
}

impl Calls {
    /// Joins the run of the request's key, or accepts one of its own and sends its submit. A run that is turned away says so through its
    /// reader.
    pub(crate) fn open(self: &Arc<Self>, order: Order, conn: &Arc<ConnState>) -> Result<Opened, Closed> {
        let mut table = self.lock();
        if self.is_draining() {
            return Err(Closed::ShuttingDown);
        }
        if let Some(joined) = self.join(&mut table, &order, conn) {
            drop(table);
            let (key, seat, created) = joined?;
            // It may have a deadline of its own.
            self.wake.notify_one();
            return Ok(self.opened(key, seat, conn, (created, true)));
        }
        let key = self.free_key(&table, order.caller.tenant.clone(), order.requested.clone());
        let (model, n, stream) = (order.model.clone(), order.params.n, order.stream);
        self.journal.record(Some(&key), 0, Event::Accepted { model, n, stream });
        tracing::info!(run = %key.run, tenant = %key.tenant, caller = %order.caller.name, n, stream, "accepted");
        table.last_order += 1;
        let mut entry = self.entry(&key, order, table.last_order);
        let seat = entry.seats.join(conn, self.config.stream_buffer_events, self.now());
        let Some(seat) = seat else { unreachable!("the first reader always finds a seat") };
        let created = entry.created;
        let queued = table.entries.values().filter(|e| e.dispatch.is_queued()).count();
        if table.entries.len() >= self.config.calls_max || queued >= self.config.queue_max {
            self.want(&mut entry, Cause::QueueFull);
        } else {
            let loads = table.loads();
            match table.choose(&entry.model, &loads) {
                Some(place) => self.act(&mut entry, |dispatch, now| dispatch.place(place, now)),
                None => tracing::info!(run = %key.run, "waits: no worker is here for it"),
            }
        }
        table.insert(entry);
        self.live.send_replace(table.entries.len());
        drop(table);
        self.wake.notify_one();
        Ok(self.opened(key, seat, conn, (created, false)))
    }

    fn opened(self: &Arc<Self>, key: RunKey, seat: (SeatId, FeedEnd), conn: &Arc<ConnState>, (created, joined): (u64, bool)) -> Opened {
        // A caller that left before it had its seat in the table was seen by nobody who knew the run.
        if let Some(cause) = conn.gone() {
            self.caller_gone(&key, seat.0, cause);
        }
        Opened { reader: Reader::new(key, seat, self.clone(), conn.clone()), created, joined }
    }

    /// The id asked for if it is free, else one made of it, else a fresh one.
    // contract: C-1
    // field: F-65
    fn free_key(&self, table: &Table, tenant: Tenant, requested: Option<RunId>) -> RunKey {
        let key = |run| RunKey { tenant: tenant.clone(), run };
        let free = |key: &RunKey| !table.entries.contains_key(key) && self.journal.run(key).is_none();
        let Some(wish) = requested else { return key(fresh_id()) };
        let mut wishes = std::iter::once(wish.clone()).chain((2..=SAME_ID_MAX).map(|k| wish.taken(k))).map(key);
        wishes.find(free).unwrap_or_else(|| key(fresh_id()))
    }

    fn entry(&self, key: &RunKey, order: Order, place: u64) -> Entry {
        let now = self.now();
        let client = order.timeout.map(|left| Deadline::from_left(order.arrived, left, Cause::ClientDeadline));
        let own = Deadline::from_left(order.arrived, self.config.gateway_deadline, Cause::GatewayDeadline);
        let work = Work { prompt: order.prompt, params: order.params };
        Entry {
            key: key.clone(),
            dispatch: Dispatch::new(key.clone(), work, client.into_iter().chain([own]).collect(), self.config.dispatch(), now),
            model: order.model,
            kept: Kept::default(),
            order: place,
            seats: Seats::new(order.joining.as_ref().map(|_| self.config.replay_events_max)),
            stalled: Vec::new(),
            joining: order.joining,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            released: watch::Sender::new(false),
        }
    }

    /// Closes the connection of a caller that does not read: at once, or when the other runs on it are delivered.
    pub(crate) fn close_if_idle(&self, conn: &ConnState) {
        if self.is_delivering(conn.id) { conn.doom() } else { conn.close() }
    }

    /// Whether any run is being delivered on a connection.
    pub(crate) fn is_delivering(&self, connection: u64) -> bool {
        self.lock().entries.values().any(|e| e.seats.reads_on(connection))
    }
}

#[cfg(test)]
mod tests;
