//! The call table: every live run of this gateway, each with its `Call` machine. Handlers, bodies and connections only point into it.
//!
//! One plain mutex, never held across an await; every decision is the machine's, this file carries out its effects. Messages to the worker
//! are sent under the lock, so their order is the order of the decisions.
//!
//! Invariant: a run leaves the table when its machine has settled, and for no other reason.
// contract: C-4 C-6 C-20

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use lifecycle::event::Event;
use lifecycle::message::{Down, From, ModelInfo, Snapshot, Usage};
use lifecycle::{Applied, AttemptId, Call, CallEffect, CallEvent, Cause, Delivery, Incarnation, Outcome, OutcomeKind, RunKey, Time};
use observe::Journal;
use tokio::sync::{Notify, oneshot, watch};

use crate::config::GatewayConfig;
use crate::feed::Item;
use crate::joining::{JoinKey, Joining};
use crate::seats::{SeatId, Seats};
use crate::{LinkClosed, SendDown};

/// A run in the table.
pub(crate) struct Entry {
    pub(crate) key: RunKey,
    pub(crate) call: Call,
    /// The submit's number.
    pub(crate) number: u64,
    /// Who reads the answer.
    pub(crate) seats: Seats,
    /// What lets a further request join it.
    pub(crate) joining: Option<Joining>,
    /// When it was accepted, in seconds of the calendar: a part of its answer.
    pub(crate) created: u64,
    /// What the worker said of the end, reason included.
    pub(crate) ended: Option<Outcome>,
    pub(crate) usage: Usage,
    /// When somebody first no longer wanted it.
    pub(crate) observed: Option<Time>,
    /// Whether the reader was told that the worker has taken it on.
    pub(crate) accepted: bool,
    pub(crate) acknowledged: bool,
    /// Deadlines that this side enforces.
    pub(crate) deadlines: Vec<(Time, Cause)>,
    /// When the cancel is due again, and the wait after that.
    pub(crate) repeat: (Time, std::time::Duration),
    /// Becomes true when the worker holds nothing of it, or is lost. Closed when the run is settled.
    pub(crate) released: watch::Sender<bool>,
}

/// What the mutex guards.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) entries: HashMap<RunKey, Entry>,
    /// The live run of each `Idempotency-Key`; as many at most as there are entries.
    pub(crate) joinable: HashMap<JoinKey, RunKey>,
    pub(crate) asks: HashMap<u64, oneshot::Sender<Box<Snapshot>>>,
    pub(crate) last_number: u64,
    pub(crate) last_ask: u64,
}

/// The table and what its effects need.
pub(crate) struct Calls {
    pub(crate) config: GatewayConfig,
    pub(crate) journal: Journal,
    pub(crate) model: ModelInfo,
    pub(crate) worker: Incarnation,
    pub(crate) incarnation: Incarnation,
    send: SendDown,
    table: Mutex<Table>,
    /// Wakes the cancel driver.
    pub(crate) wake: Notify,
    /// Runs in the table.
    pub(crate) live: watch::Sender<usize>,
    pub(crate) lost: AtomicBool,
    /// Why the worker's device takes no more steps, once it does not.
    pub(crate) device_lost: OnceLock<String>,
    /// Set under the table's lock, so that no run is taken on after it.
    draining: AtomicBool,
    /// Messages of another incarnation than the worker's: they changed nothing (C-3).
    pub(crate) foreign: AtomicU64,
}

impl Calls {
    pub(crate) fn new(
        config: GatewayConfig,
        journal: Journal,
        (model, worker): (ModelInfo, Incarnation),
        incarnation: Incarnation,
        send: SendDown,
    ) -> Calls {
        Calls {
            config,
            journal,
            model,
            worker,
            incarnation,
            send,
            table: Mutex::default(),
            wake: Notify::new(),
            live: watch::Sender::new(0),
            lost: AtomicBool::new(false),
            device_lost: OnceLock::new(),
            draining: AtomicBool::new(false),
            foreign: AtomicU64::new(0),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.journal.clock().now()
    }

    /// Every change of an entry is complete before anything that may panic, so a poisoned table is still a table.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends to the worker; a closed link means that it is lost, which the driver then applies to every run.
    pub(crate) fn send(&self, message: Down) -> Result<(), LinkClosed> {
        (self.send)(From { incarnation: self.incarnation, message }).inspect_err(|LinkClosed| self.lose_worker())
    }

    /// From now on no run is taken on.
    pub(crate) fn begin_drain(&self) {
        let _table = self.lock();
        self.draining.store(true, Ordering::Release);
    }

    /// Whether a shutdown has begun.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The worker is gone for good.
    pub(crate) fn lose_worker(&self) {
        if !self.lost.swap(true, Ordering::AcqRel) {
            tracing::error!(worker = %self.worker, "the worker is gone");
        }
        self.wake.notify_one();
    }

    /// Changes one run, if it is in the table, and lets go of it if that settled it.
    pub(crate) fn with<T>(&self, key: &RunKey, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut table = self.lock();
        let result = change(table.entries.get_mut(key)?);
        self.sweep_one(&mut table, key);
        Some(result)
    }

    fn sweep_one(&self, table: &mut Table, key: &RunKey) {
        if table.entries.get(key).is_some_and(|e| e.call.is_settled()) {
            if let Some(entry) = table.entries.remove(key) {
                table.forget(&entry);
            }
            self.live.send_replace(table.entries.len());
        }
    }

    /// Changes every run that `wanted` picks.
    pub(crate) fn each(&self, wanted: impl Fn(&Entry) -> bool, mut change: impl FnMut(&mut Entry)) {
        let mut table = self.lock();
        table.entries.values_mut().filter(|e| wanted(e)).for_each(&mut change);
        let settled: Vec<Entry> = table.entries.extract_if(|_, e| e.call.is_settled()).map(|(_, e)| e).collect();
        settled.iter().for_each(|entry| table.forget(entry));
        self.live.send_replace(table.entries.len());
    }

    /// Writes to the journal for a run.
    pub(crate) fn note(&self, entry: &Entry, event: Event) {
        self.journal.record(Some(&entry.key), entry.call.attempt(), event);
    }

    /// Applies one event to a run's machine and carries out what it says, in its order.
    pub(crate) fn apply(&self, entry: &mut Entry, event: CallEvent) {
        let (applied, effects) = entry.call.apply(event);
        if let Applied::Defect(defect) = applied {
            tracing::error!(run = %entry.key.run, %defect, "refused");
            self.note(entry, Event::Defect { what: defect.event });
        }
        for effect in effects {
            self.carry_out(entry, effect);
        }
        if entry.call.is_released() || matches!(entry.call.state(), lifecycle::CallState::Void { .. }) {
            entry.released.send_replace(true);
        }
    }

    fn carry_out(&self, entry: &mut Entry, effect: CallEffect) {
        match effect {
            CallEffect::SendCancel { attempt, cause, count } => self.send_cancel(entry, attempt, cause, count),
            CallEffect::OutcomeSet { cause } => {
                let outcome = entry.ended.take().filter(|o| o.cause == cause).unwrap_or(Outcome::of(cause));
                tracing::info!(run = %entry.key.run, outcome = %outcome.kind(), %cause, "ended");
                self.note(entry, Event::OutcomeSet { outcome: outcome.clone() });
                entry.seats.send(&Item::End { outcome, usage: entry.usage }, self.now());
            }
            CallEffect::Superseded { cause, won } => self.note(entry, Event::Superseded { cause, won }),
            CallEffect::Void => self.note(entry, Event::Void),
            CallEffect::Settle { proven } => {
                tracing::info!(run = %entry.key.run, proven, "settled");
                self.note(entry, Event::Settled { proven });
                entry.seats.close();
            }
        }
    }

    fn send_cancel(&self, entry: &mut Entry, attempt: u32, cause: Cause, count: u32) {
        let now = self.now();
        let observed_ago = now.since(entry.observed.unwrap_or(now));
        let wait = entry.repeat.1;
        entry.repeat = (now.after(wait), (wait * 2).min(self.config.cancel_repeat_max));
        tracing::info!(run = %entry.key.run, %cause, count, "cancel sent");
        self.note(entry, Event::CancelSent { cause, count });
        let attempt = AttemptId { key: entry.key.clone(), attempt };
        // A link that broke has told the driver; the run then ends as void.
        let _ = self.send(Down::Cancel { attempt, cause, number: entry.number, observed_ago });
        self.wake.notify_one();
    }

    /// Somebody no longer wants the run, for this cause.
    // contract: C-8 C-24
    pub(crate) fn want(&self, entry: &mut Entry, cause: Cause) {
        let abandons = matches!(cause.outcome(), OutcomeKind::Cancelled | OutcomeKind::Expired);
        if abandons && entry.observed.is_none() && entry.call.outcome().is_none() {
            entry.observed = Some(self.now());
            self.note(entry, Event::AbandonmentObserved { cause });
        }
        self.apply(entry, CallEvent::Want(cause));
    }

    /// A reader is gone. If it was the last, nobody wants the run, and what was taken until now is all that was delivered.
    // contract: C-26
    pub(crate) fn leave(&self, entry: &mut Entry, seat: SeatId, cause: Cause) {
        entry.seats.leave(seat, &Item::End { outcome: Outcome::of(cause), usage: entry.usage });
        if entry.seats.open() == 0 {
            self.want(entry, cause);
            self.end_delivery(entry);
        }
    }

    /// Writes what was delivered, once no reader is left.
    fn end_delivery(&self, entry: &mut Entry) {
        if entry.call.delivery().is_some() || entry.seats.open() > 0 {
            return;
        }
        let delivery = match (entry.seats.is_complete(), entry.seats.has_begun()) {
            (true, _) => Delivery::Complete,
            (false, false) => Delivery::None,
            (false, true) => Delivery::Partial,
        };
        self.note(entry, Event::DeliveryEnded { delivery });
        self.apply(entry, CallEvent::Delivered(delivery));
    }

    // --- what readers and connections say ---

    /// hyper took a frame. What it takes after the delivery was over counts no more.
    pub(crate) fn taken(&self, key: &RunKey, seat: SeatId, tokens: u32) {
        self.with(key, |entry| {
            let tokens = entry.seats.take(seat, tokens, self.now());
            if tokens > 0 && entry.call.delivery().is_none() {
                self.note(entry, Event::Delivered { tokens });
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
            entry.seats.finish(seat, complete);
            self.end_delivery(entry);
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
