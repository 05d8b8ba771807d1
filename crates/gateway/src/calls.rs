//! The call table: every live run of this gateway, each with its `Dispatch` machine. Handlers, bodies and connections only point into it.
//!
//! One plain mutex, never held across an await; every decision is the machine's, this file carries out its effects. Messages to workers
//! are sent under the lock, so their order is the order of the decisions.
//!
//! Invariant: a run leaves the table when its machine has settled, and for no other reason.
// contract: C-4 C-6 C-20

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lifecycle::event::Event;
use lifecycle::message::{Down, From, ModelInfo, Snapshot};
use lifecycle::{Affinity, Cause, Dispatch, DispatchEffect, Incarnation, Outcome, RunKey, Said, Time, WorkerIndex, Workers};
use observe::Journal;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};

use crate::LinkClosed;
use crate::config::GatewayConfig;
use crate::conn::ConnState;
use crate::feed::Item;
use crate::joining::{JoinKey, Joining};
use crate::keeping::{Keeper, Log};
use crate::links::{Journals, LinkEnd};
use crate::otlp::{Exporter, Traced};
use crate::outside::Outside;
use crate::records::{Kept, log};
use crate::seats::{SeatId, Seats};
use crate::shares::Shares;

/// The models that a request may name.
pub(crate) struct Models {
    /// Those that are known.
    pub(crate) known: Vec<ModelInfo>,
    /// A worker that nobody has met may have any other.
    pub(crate) may_be_others: bool,
}

/// A run in the table.
pub(crate) struct Entry {
    pub(crate) key: RunKey,
    pub(crate) dispatch: Dispatch,
    /// The model that was asked for.
    pub(crate) model: Arc<str>,
    /// Its request goes on as it came.
    pub(crate) forwarded: bool,
    /// The beginning of its prompt, where several workers could have computed it.
    pub(crate) affinity: Option<Affinity>,
    /// What was recorded of it for a worker elsewhere.
    pub(crate) kept: Kept,
    /// Its place among those that wait for a worker.
    pub(crate) order: u64,
    /// Its events' numbers, and what of them goes to the store.
    pub(crate) log: Log,
    /// Where its first reader is served: what an engine says of it is best heard there. `None` for one that nobody read when it began.
    pub(crate) home: Option<Handle>,
    /// Who reads the answer.
    pub(crate) seats: Seats,
    /// Connections of readers that had no room for a piece; to be closed.
    pub(crate) stalled: Vec<Arc<ConnState>>,
    /// Its place in its caller's trace, if it has one.
    pub(crate) traced: Option<Box<Traced>>,
    /// What lets a further request join it.
    pub(crate) joining: Option<Joining>,
    /// When it was accepted, in seconds of the calendar: a part of its answer.
    pub(crate) created: u64,
    /// Becomes true when the worker holds nothing of it, or is lost. Closed when the run is settled.
    pub(crate) released: watch::Sender<bool>,
}

/// What the mutex guards.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) entries: observe::ByRun<Entry>,
    /// The live run of each `Idempotency-Key`; as many at most as there are entries.
    pub(crate) joinable: HashMap<JoinKey, RunKey>,
    /// Questions that a worker was sent and has not answered.
    pub(crate) asks: HashMap<u64, (WorkerIndex, oneshot::Sender<Box<Snapshot>>)>,
    pub(crate) workers: Workers,
    /// Whose turn it is, where runs wait for a place.
    pub(crate) shares: Shares,
    pub(crate) last_number: u64,
    pub(crate) last_ask: u64,
    pub(crate) last_order: u64,
}

/// The table and what its effects need.
pub(crate) struct Calls {
    pub(crate) config: GatewayConfig,
    pub(crate) journal: Journal,
    pub(crate) incarnation: Incarnation,
    /// In the order of the table's workers.
    pub(crate) links: Vec<LinkEnd>,
    table: Mutex<Table>,
    /// Where runs are kept; `None` if they end with the process.
    pub(crate) keeper: Option<Arc<Keeper>>,
    /// What is done outside for runs.
    pub(crate) outside: Outside,
    /// What exports runs' spans; `None` where nobody wants them.
    pub(crate) exporter: Option<Arc<Exporter>>,
    /// Where its tasks are.
    runtimes: OnceLock<Vec<Handle>>,
    /// Wakes the cancel driver.
    pub(crate) wake: Notify,
    /// Runs in the table.
    pub(crate) live: watch::Sender<usize>,
    /// Set under the table's lock, so that no run is taken on after it.
    draining: AtomicBool,
    /// Messages of another incarnation than the worker's: they changed nothing (C-3).
    pub(crate) foreign: AtomicU64,
    /// What the workers' blocks were over the last minutes.
    pub(crate) films: Mutex<crate::moments::Films>,
}

impl Calls {
    pub(crate) fn new(config: GatewayConfig, journal: Journal, incarnation: Incarnation, links: Vec<LinkEnd>, workers: Workers) -> Calls {
        let outside = Outside::new(config.outside.sends_max);
        let exporter = Exporter::new(&config.otlp, incarnation).map(Arc::new);
        Calls {
            config,
            journal,
            incarnation,
            links,
            table: Mutex::new(Table { workers, ..Table::default() }),
            keeper: None,
            outside,
            exporter,
            runtimes: OnceLock::new(),
            wake: Notify::new(),
            live: watch::Sender::new(0),
            draining: AtomicBool::new(false),
            foreign: AtomicU64::new(0),
            films: Mutex::default(),
        }
    }

    /// Serving has begun, on these.
    pub(crate) fn is_served_on(&self, runtimes: Vec<Handle>) {
        let _ = self.runtimes.set(runtimes);
    }

    /// What it is served on.
    pub(crate) fn runtimes(&self) -> &[Handle] {
        self.runtimes.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn now(&self) -> Time {
        self.journal.clock().now()
    }

    /// Every change of an entry is complete before anything that may panic, so a poisoned table is still a table.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends to a worker; a closed link means that it is lost, which the driver then applies to every run.
    pub(crate) fn send(&self, worker: WorkerIndex, message: Down) -> Result<(), LinkClosed> {
        let link = self.links.get(worker.0 as usize).ok_or(LinkClosed)?;
        (link.send)(From { incarnation: self.incarnation, message }).inspect_err(|LinkClosed| self.link_over(worker))
    }

    /// Whether a worker has another journal than this gateway.
    pub(crate) fn is_remote(&self, worker: WorkerIndex) -> bool {
        self.links.get(worker.0 as usize).is_some_and(|link| link.journals != Journals::Here)
    }

    /// The way to it, if nothing is recorded where it is.
    fn wordless(&self, worker: WorkerIndex) -> Option<&LinkEnd> {
        self.links.get(worker.0 as usize).filter(|link| link.journals == Journals::Nowhere)
    }

    /// The models that are known.
    pub(crate) fn models(&self) -> Vec<ModelInfo> {
        self.lock().workers.models().into_iter().cloned().collect()
    }

    /// What a request may name.
    pub(crate) fn named(&self) -> Models {
        let engines = self.links.iter().filter(|link| link.journals == Journals::Nowhere).count();
        let table = self.lock();
        let known: Vec<ModelInfo> = table.workers.models().into_iter().cloned().collect();
        // Whose a request is that names an unknown model, so that it is read as one or goes on as it came, is known where all are of one sort.
        let is_one_sort = engines == 0 || engines == self.links.len();
        Models { may_be_others: known.is_empty() || (is_one_sort && table.workers.may_have_others()), known }
    }

    /// Whether requests for this model go on as they come.
    pub(crate) fn forwards(&self, model: &str) -> bool {
        let engines_only = || !self.links.is_empty() && self.links.iter().all(|link| link.journals == Journals::Nowhere);
        let table = self.lock();
        // Of engines that nobody has met yet it is not known what they have; what comes for them is not kvit's to read.
        table.workers.forwards(model) || (table.workers.may_have_others() && engines_only())
    }

    /// From now on no run is taken on.
    pub(crate) fn begin_drain(&self) {
        let mut table = self.lock();
        self.draining.store(true, Ordering::Release);
        // contract: C-25. Nobody who comes back is let in.
        table.entries.values_mut().for_each(|entry| self.act(entry, Dispatch::no_return));
        self.sweep(&mut table);
    }

    /// Whether a shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A link is over. The driver applies it.
    pub(crate) fn link_over(&self, worker: WorkerIndex) {
        if let Some(link) = self.links.get(worker.0 as usize) {
            link.closed.store(true, Ordering::Release);
        }
        self.wake.notify_one();
    }

    /// Changes one run, if it is in the table, and lets go of it if that settled it.
    pub(crate) fn with<T>(&self, key: &RunKey, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(key)?;
        let result = change(entry);
        if entry.dispatch.call().is_settled() {
            self.sweep_one(&mut table, key);
        }
        Some(result)
    }

    pub(crate) fn sweep_one(&self, table: &mut Table, key: &RunKey) {
        if table.entries.get(key).is_some_and(|e| e.dispatch.call().is_settled()) {
            if let Some(entry) = table.entries.remove(key) {
                table.forget(&entry);
                self.keep_record(&entry);
                self.export(&entry);
            }
            self.live.send_replace(table.entries.len());
        }
    }

    /// Changes every run that `wanted` picks.
    pub(crate) fn each(&self, wanted: impl Fn(&Entry) -> bool, mut change: impl FnMut(&mut Entry)) {
        let mut table = self.lock();
        table.entries.values_mut().filter(|e| wanted(e)).for_each(&mut change);
        self.sweep(&mut table);
    }

    /// Lets go of every run that has settled.
    pub(crate) fn sweep(&self, table: &mut Table) {
        let settled: Vec<Entry> = table.entries.extract_if(|_, e| e.dispatch.call().is_settled()).map(|(_, e)| e).collect();
        for entry in &settled {
            table.forget(entry);
            self.keep_record(entry);
            self.export(entry);
        }
        self.live.send_replace(table.entries.len());
    }

    /// Puts something to a run's machine and carries out what it says, in its order.
    pub(crate) fn act(&self, entry: &mut Entry, change: impl FnOnce(&mut Dispatch, Time) -> Vec<DispatchEffect>) {
        let effects = change(&mut entry.dispatch, self.now());
        for effect in effects {
            self.carry_out(entry, effect);
        }
        if entry.dispatch.is_released_or_void() {
            entry.released.send_replace(true);
        }
    }

    fn carry_out(&self, entry: &mut Entry, effect: DispatchEffect) {
        match effect {
            DispatchEffect::Send { worker, message } => {
                let begins = match &message {
                    Down::Submit(submit) => self.wordless(worker).map(|link| (link.name.clone(), submit.request_name())),
                    _ => None,
                };
                let _home = entry.home.as_ref().filter(|_| begins.is_some()).map(Handle::enter);
                // A link that is closed has told the driver; the run is then void.
                let _ = self.send(worker, message);
                if let Some((upstream, request)) = begins {
                    self.keep_sent(entry, upstream, request);
                }
                // A cancel is to be repeated, a submit has deadlines.
                self.wake.notify_one();
            }
            DispatchEffect::Journal { attempt, event } => {
                if matches!(event, Event::Dispatched { .. }) {
                    self.keep_begin(entry);
                }
                if let Event::OutcomeSet { outcome } = &event {
                    self.keep_end(entry, outcome);
                }
                log(entry, &event);
                self.journal.record(Some(&entry.key), attempt, event);
            }
            DispatchEffect::Tell(said) => self.say(entry, said),
            // Whoever told it of the lost worker looks for another.
            DispatchEffect::Wait => {
                tracing::info!(run = %entry.key.run, "its worker is lost or stops, and nothing was delivered; waits for another")
            }
            DispatchEffect::Settle => entry.seats.close(),
        }
    }

    /// Tells every reader.
    // field: F-80
    pub(crate) fn tell(&self, entry: &mut Entry, said: Said) {
        let Said::Delta(delta) = said else { return entry.seats.send(&said, self.now()) };
        for (seat, conn) in entry.seats.push(delta, self.now()) {
            self.leave(entry, seat, Cause::ClientStalled);
            entry.stalled.push(conn);
        }
    }

    /// Somebody no longer wants the run, for this cause.
    pub(crate) fn want(&self, entry: &mut Entry, cause: Cause) {
        self.act(entry, |dispatch, now| dispatch.want(cause, now));
    }

    /// A reader is gone.
    // contract: C-26
    pub(crate) fn leave(&self, entry: &mut Entry, seat: SeatId, cause: Cause) {
        entry.seats.leave(seat, &Item::End { outcome: Outcome::of(cause), usage: entry.dispatch.usage() });
        self.left(entry, cause);
    }

    /// Somebody has left. If that was the last, the run's policy says what it means.
    // contract: C-25
    pub(crate) fn left(&self, entry: &mut Entry, cause: Cause) {
        if entry.seats.open() == 0 {
            let delivery = entry.seats.delivery();
            self.act(entry, |dispatch, now| dispatch.abandoned(cause, delivery, now));
        }
    }

    /// A reader has a seat. Whether the run is there for it.
    // contract: C-25
    pub(crate) fn returned(&self, entry: &mut Entry) -> bool {
        let mut is_there = false;
        self.act(entry, |dispatch, _| {
            let (there, effects) = dispatch.returned();
            is_there = there;
            effects
        });
        is_there
    }

    // --- what readers and connections say ---

    /// hyper took a frame. What it takes after the delivery was over counts no more.
    pub(crate) fn taken(&self, key: &RunKey, seat: SeatId, tokens: u32) {
        self.with(key, |entry| {
            let tokens = entry.seats.take(seat, tokens, self.now());
            let call = entry.dispatch.call();
            if tokens > 0 && call.delivery().is_none() {
                self.journal.record(Some(&entry.key), call.attempt(), Event::Delivered { tokens });
            }
        });
    }

    /// hyper took a part of a whole answer.
    pub(crate) fn taken_part(&self, key: &RunKey, seat: SeatId) {
        self.with(key, |entry| entry.seats.take_part(seat, self.now()));
    }

    /// A reader came to the end of the answer; `complete` if it got all of it.
    pub(crate) fn delivery_ended(&self, key: &RunKey, seat: SeatId, complete: bool) {
        self.with(key, |entry| {
            // One that left before has had its say.
            if entry.seats.finish(seat, complete) && entry.seats.open() == 0 {
                let delivery = entry.seats.delivery();
                self.act(entry, |dispatch, now| dispatch.delivered(delivery, now));
            }
        });
    }

    /// A reader of one run is gone. One whose answer was over does not leave a second time.
    pub(crate) fn caller_gone(&self, key: &RunKey, seat: SeatId, cause: Cause) {
        self.with(key, |entry| {
            if entry.seats.is_open(seat) {
                self.leave(entry, seat, cause);
            }
        });
    }

    /// A connection's caller is gone, and with it the readers of all its runs.
    pub(crate) fn connection_gone(&self, connection: u64, cause: Cause) {
        self.each(
            |entry| entry.seats.has(connection),
            |entry| {
                for seat in entry.seats.on(connection) {
                    self.leave(entry, seat, cause);
                }
            },
        );
    }
}
