//! Taking a run on: its id, its place in the table, and its submit, if a worker is here.
//!
//! Between the first byte of the table's knowledge and the submit nothing is awaited, so no caller can leave in between unseen.
//!
//! Invariant: an id in the table or the journal is never given to a second run; a submit's number is above every earlier one's.
// contract: C-1 C-2

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lifecycle::event::Event;
use lifecycle::message::Prompt;
use lifecycle::params::Params;
use lifecycle::{Affinity, Cause, Deadline, Dispatch, Need, OnDisconnect, RunId, RunKey, Tenant, Time, Work};
use observe::otlp::Incoming;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::beginning;
use crate::calls::{Calls, Entry, Table};
use crate::conn::ConnState;
use crate::feed::{FeedEnd, Reader};
use crate::joining::Joining;
use crate::keeping::Log;
use crate::keys::Caller;
use crate::outside::{Ending, Tool};
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
    /// The front door that it came by.
    pub(crate) door: &'static str,
    /// What its caller's leaving means.
    pub(crate) on_disconnect: OnDisconnect,
    /// Its answer is to be there later.
    pub(crate) stored: bool,
    /// What the front door itself wants to know later of what was asked.
    pub(crate) request: Option<Vec<u8>>,
    /// How long it is kept; `None` for the operator's default.
    pub(crate) expires: Option<Duration>,
    /// What is called once its answer is complete.
    pub(crate) tools: Vec<Tool>,
    /// What its caller says of the trace that it belongs to.
    pub(crate) trace: Option<Incoming>,
}

impl Order {
    /// Whether its events go to the store.
    pub(crate) fn keeps(&self) -> bool {
        self.stored || self.joining.is_some() || self.is_background()
    }

    /// Whether what was asked goes to the store, too: where it is shown later, or may have to be computed again. Joining needs the answer alone.
    pub(crate) fn keeps_request(&self) -> bool {
        self.stored || self.is_background()
    }

    /// Whether it goes on without readers.
    pub(crate) fn is_background(&self) -> bool {
        self.on_disconnect == OnDisconnect::Continue
    }
}

/// A run that goes on here, having begun at a gateway that is over.
pub(crate) struct Again {
    pub(crate) key: RunKey,
    pub(crate) model: Arc<str>,
    pub(crate) created: u64,
    /// The highest attempt that may have begun.
    pub(crate) attempt: u32,
    pub(crate) work: Work,
    pub(crate) deadlines: Vec<Deadline>,
    /// What was said of it.
    pub(crate) log: Log,
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
    /// No further run has a place, so none is written down for later either.
    Full,
    /// The run store is not there, and this run must be in it before it is answered.
    StoreDown,
    /// A background run is asked for, and nothing is kept here.
    NoStore,
}

/// Whether all places are taken.
struct Full {
    /// In the call table.
    calls: bool,
    /// In the queue.
    queue: bool,
}

/// A fresh id, ordered by time.
pub(crate) fn fresh_id() -> RunId {
    let id = uuid::Uuid::now_v7().to_string();
    match RunId::parse(&id) {
        Ok(id) => id,
        Err(e) => unreachable!("a UUID is a run id: {e}"),
    }
}

impl Entry {
    /// What it needs of a worker.
    pub(crate) fn need(&self) -> Need<'_> {
        Need { model: &self.model, forwarded: self.forwarded, affinity: self.affinity }
    }
}

impl Calls {
    /// Joins the run of the request's key, or accepts one of its own and sends its submit. A run that is turned away says so through its
    /// reader.
    pub(crate) fn open(self: &Arc<Self>, order: Order, conn: &Arc<ConnState>) -> Result<Opened, Closed> {
        match self.join_live(&order, conn) {
            Some(joined) => joined,
            None => self.open_as(None, order, conn),
        }
    }

    /// A seat at the live run of this request's key, if there is one.
    pub(crate) fn join_live(self: &Arc<Self>, order: &Order, conn: &Arc<ConnState>) -> Option<Result<Opened, Closed>> {
        let joined = self.join(&mut self.lock(), order, conn)?;
        Some(joined.map(|(key, seat, created)| {
            // It may have a deadline of its own.
            self.wake.notify_one();
            self.opened(key, seat, conn, (created, true))
        }))
    }

    /// Whether a further run of this tenant would be turned away: there is no place left, or none of those that one tenant may have.
    // contract: C-30
    pub(crate) fn has_no_room(&self, table: &Table, tenant: &Tenant) -> bool {
        let full = self.full(table, tenant);
        full.calls || full.queue
    }

    /// Which places are all taken, for a further run of this tenant.
    fn full(&self, table: &Table, tenant: &Tenant) -> Full {
        let (mut all, mut theirs) = ((0, 0), (0, 0));
        for entry in table.entries.values() {
            let queued = usize::from(Calls::is_in_queue(table, entry));
            all = (all.0 + 1, all.1 + queued);
            if entry.key.tenant == *tenant {
                theirs = (theirs.0 + 1, theirs.1 + queued);
            }
        }
        let is_shared = self.config.keys.have_several_tenants();
        let part = |max: usize| max.saturating_mul(self.config.tenant_percent as usize).div_ceil(100);
        let is_full = |all: usize, theirs: usize, max: usize| all >= max || (is_shared && theirs >= part(max));
        Full { calls: is_full(all.0, theirs.0, self.config.calls_max), queue: is_full(all.1, theirs.1, self.config.queue_max) }
    }

    /// Whether it waits: here, or at a worker of kvit that has not answered yet. An engine that others wrote has a slot for each that it is sent,
    /// and says nothing of one that is not streamed before its end.
    fn is_in_queue(table: &Table, entry: &Entry) -> bool {
        let is_engine = |worker| table.workers.get(worker).is_some_and(|known| known.offer.forwards);
        let at_engine = || entry.dispatch.load().is_some_and(|(worker, _)| is_engine(worker));
        entry.dispatch.is_queued() && (entry.dispatch.is_waiting() || !at_engine())
    }

    /// Accepts a run, under this id if it has one already, with its first reader.
    pub(crate) fn open_as(self: &Arc<Self>, key: Option<RunKey>, order: Order, conn: &Arc<ConnState>) -> Result<Opened, Closed> {
        let whereto = self.whereto(&order.prompt);
        let mut table = self.lock();
        if self.is_draining() {
            return Err(Closed::ShuttingDown);
        }
        let key = key.unwrap_or_else(|| self.free_key(&table, order.caller.tenant.clone(), order.requested.clone()));
        let mut entry = self.accepted(&mut table, &key, order, whereto);
        let seat = entry.seats.join(conn, self.config.stream_buffer_events, self.now());
        entry.home = Handle::try_current().ok();
        let Some(seat) = seat else { unreachable!("the first reader always finds a seat") };
        let created = entry.created;
        self.begin(table, entry);
        Ok(self.opened(key, seat, conn, (created, false)))
    }

    /// Accepts a run that nobody reads, under an id that the store gave it.
    pub(crate) fn open_background(&self, key: &RunKey, order: Order) -> Result<(), Closed> {
        let whereto = self.whereto(&order.prompt);
        let mut table = self.lock();
        if self.is_draining() {
            return Err(Closed::ShuttingDown);
        }
        let mut entry = self.accepted(&mut table, key, order, whereto);
        entry.dispatch = entry.dispatch.nobody_reads();
        self.begin(table, entry);
        Ok(())
    }

    /// Goes on with a run that another life of a gateway had.
    pub(crate) fn open_again(&self, again: Again) {
        let Again { key, model, created, attempt, work, deadlines, log } = again;
        let (n, was_accepted) = (work.params.n, log.was_accepted());
        let (forwarded, affinity) = self.whereto(&work.prompt);
        // Whoever called for it is not known here: a trace of its own.
        let traced = self.traced(None, (&work.prompt, &work.params), false);
        let mut table = self.lock();
        self.journal.record(
            Some(&key),
            0,
            Event::Accepted { model: model.clone(), n, stream: false, on_disconnect: OnDisconnect::Continue },
        );
        table.last_order += 1;
        let (config, now) = (self.config.dispatch_background(), self.now());
        let dispatch = Dispatch::taken_over(key.clone(), work, deadlines, config, attempt, now);
        let dispatch = dispatch.on_disconnect(OnDisconnect::Continue).nobody_reads();
        let dispatch = if was_accepted { dispatch.accepted_before() } else { dispatch };
        let mut log = log;
        log.begun = attempt;
        let order = table.last_order;
        let mut entry = self.entry_of(key, dispatch, model, (log, order, created));
        (entry.forwarded, entry.affinity, entry.traced) = (forwarded, affinity, traced);
        self.act(&mut entry, |dispatch, _| dispatch.former());
        self.begin(table, entry);
    }

    /// A run that was accepted just now, with its record.
    fn accepted(&self, table: &mut Table, key: &RunKey, order: Order, whereto: (bool, Option<Affinity>)) -> Entry {
        let (model, n, stream, on_disconnect) = (order.model.clone(), order.params.n, order.stream, order.on_disconnect);
        self.journal.record(Some(key), 0, Event::Accepted { model, n, stream, on_disconnect });
        tracing::info!(run = %key.run, tenant = %key.tenant, caller = %order.caller.name, n, stream, "accepted");
        table.last_order += 1;
        self.entry(key, order, table.last_order, whereto)
    }

    /// Puts a run into the table, with a worker if there is one for it.
    fn begin(&self, mut table: MutexGuard<'_, Table>, mut entry: Entry) {
        let full = self.full(&table, &entry.key.tenant);
        let loads = table.loads();
        let place = table.choose(&entry.need(), self.config.affinity_load_percent, &loads);
        // An engine that others wrote has a slot for each that it is sent. Whoever gets one waits nowhere, however many wait for others.
        let is_slot = |worker| table.workers.get(worker).is_some_and(|known| known.offer.forwards);
        let waits = place.as_ref().is_none_or(|place| !is_slot(place.worker));
        if full.calls || (full.queue && waits) {
            self.want(&mut entry, Cause::QueueFull);
        } else if let Some(place) = place {
            table.shares.placed(&entry.key.tenant);
            self.act(&mut entry, |dispatch, now| dispatch.place(place, now));
        } else {
            tracing::info!(run = %entry.key.run, "waits: no worker is here for it");
        }
        let key = entry.key.clone();
        table.insert(entry);
        self.sweep_one(&mut table, &key);
        self.live.send_replace(table.entries.len());
        drop(table);
        self.wake.notify_one();
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

    fn entry(&self, key: &RunKey, order: Order, place: u64, whereto: (bool, Option<Affinity>)) -> Entry {
        let is_background = order.is_background();
        let ending = Ending { door: order.door.into(), has_tools: !order.tools.is_empty() };
        let log = Log::new(order.keeps(), is_background).ending(ending);
        let (own, config) = match &self.keeper {
            Some(keeper) if is_background => (keeper.config.background_deadline, self.config.dispatch_background()),
            _ => (self.config.gateway_deadline, self.config.dispatch()),
        };
        let client = order.timeout.map(|left| Deadline::from_left(order.arrived, left, Cause::ClientDeadline));
        let own = Deadline::from_left(order.arrived, own, Cause::GatewayDeadline);
        let traced = self.traced(order.trace, (&order.prompt, &order.params), order.stream);
        let work = Work { prompt: order.prompt, params: order.params };
        let dispatch = Dispatch::new(key.clone(), work, client.into_iter().chain([own]).collect(), config, self.now());
        let dispatch = dispatch.on_disconnect(order.on_disconnect);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut entry = self.entry_of(key.clone(), dispatch, order.model, (log, place, created));
        (entry.joining, entry.traced) = (order.joining, traced);
        (entry.forwarded, entry.affinity) = whereto;
        entry
    }

    /// What a prompt says of where it may go, and where it is best. To be read outside of the table's lock, for a body may be long.
    fn whereto(&self, prompt: &Prompt) -> (bool, Option<Affinity>) {
        let several = self.links.len() > 1;
        let affinity = if several { beginning::of(prompt, self.config.affinity_bytes) } else { None };
        (matches!(prompt, Prompt::Forward(_) | Prompt::Worded(_)), affinity)
    }

    fn entry_of(&self, key: RunKey, dispatch: Dispatch, model: Arc<str>, (log, order, created): (Log, u64, u64)) -> Entry {
        Entry {
            key,
            dispatch,
            model,
            forwarded: false,
            affinity: None,
            home: None,
            kept: Kept::default(),
            order,
            log,
            seats: Seats::new(self.config.replay_events_max, self.config.replay_bytes_max),
            stalled: Vec::new(),
            traced: None,
            joining: None,
            created,
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
