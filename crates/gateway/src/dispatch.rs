//! Taking a run on: its id, its place in the table, its submit; and what the worker sends back.
//!
//! Between the first byte of the table's knowledge and the submit nothing is awaited, so no caller can leave in between unseen.
//!
//! Invariant: an id in the table or the journal is never given to a second run; a submit's number is above every earlier one's.
// contract: C-1 C-2 C-3

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lifecycle::event::Event;
use lifecycle::message::{DeadlineLeft, Delta, Down, From, Prompt, Snapshot, Submit, Up, Usage};
use lifecycle::params::Params;
use lifecycle::{AttemptId, Call, CallEvent, CallState, Cause, OutcomeKind, RunId, RunKey, Tenant, Time};
use tokio::sync::{mpsc, oneshot, watch};

use crate::calls::{Calls, Entry, Table};
use crate::conn::ConnState;
use crate::feed::{FeedEnd, Item, Reader};
use crate::joining::Joining;
use crate::seats::{SeatId, Seats};

/// Runs that may ask for one id and still get a name made of it; further ones get a fresh id.
const SAME_ID_MAX: u32 = 100;

/// What a handler asks for.
pub(crate) struct Order {
    pub(crate) tenant: Tenant,
    /// The id that the caller gave.
    pub(crate) requested: Option<RunId>,
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
        let key = self.free_key(&table, order.tenant.clone(), order.requested.clone());
        let (model, n, stream) = (self.model.id.clone(), order.params.n, order.stream);
        self.journal.record(Some(&key), 0, Event::Accepted { model, n, stream });
        tracing::info!(run = %key.run, n, stream, "accepted");
        let mut entry = self.entry(&key, &order);
        let seat = entry.seats.join(conn, self.config.stream_buffer_events, self.now());
        let Some(seat) = seat else { unreachable!("the first reader always finds a seat") };
        let created = entry.created;
        let waiting = table.entries.values().filter(|e| e.call.state() == CallState::Dispatched).count();
        if table.entries.len() >= self.config.calls_max || waiting >= self.config.queue_max {
            self.apply(&mut entry, CallEvent::Want(Cause::QueueFull));
        } else {
            table.last_number += 1;
            entry.number = table.last_number;
            self.dispatch(&mut entry, order);
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

    fn entry(&self, key: &RunKey, order: &Order) -> Entry {
        let now = self.now();
        let client = order.timeout.map(|left| (order.arrived.after(left), Cause::ClientDeadline));
        let own = (order.arrived.after(self.config.gateway_deadline), Cause::GatewayDeadline);
        Entry {
            key: key.clone(),
            call: Call::new(),
            number: 0,
            seats: Seats::new(order.joining.as_ref().map(|_| self.config.replay_events_max)),
            joining: order.joining.clone(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            ended: None,
            usage: Usage::default(),
            observed: None,
            accepted: false,
            acknowledged: false,
            deadlines: client.into_iter().chain([own]).collect(),
            repeat: (now, self.config.cancel_repeat),
            released: watch::Sender::new(false),
        }
    }

    // contract: C-22
    fn dispatch(&self, entry: &mut Entry, order: Order) {
        self.apply(entry, CallEvent::Dispatch);
        // Before the prompt is tokenised, all that is known is that no sequence outgrows the context.
        let tokens_max = u64::from(order.params.n) * u64::from(self.model.context);
        self.note(entry, Event::Dispatched { tokens_max });
        let now = self.now();
        let mut deadlines: Vec<DeadlineLeft> =
            entry.deadlines.iter().map(|(at, cause)| DeadlineLeft { left: at.since(now), cause: *cause }).collect();
        deadlines.push(DeadlineLeft { left: self.config.queue_deadline, cause: Cause::QueueDeadline });
        let attempt = AttemptId { key: entry.key.clone(), attempt: entry.call.attempt() };
        let (worker, number) = (self.worker, entry.number);
        let submit = Submit { attempt, worker, number, prompt: order.prompt, params: order.params, deadlines };
        // A link that is closed has told the driver, which ends this run with the others.
        let _ = self.send(Down::Submit(Box::new(submit)));
    }

    /// Takes in what the worker sends, until it is gone. Never waits for a reader.
    pub(crate) async fn pump(&self, mut up: mpsc::Receiver<From<Up>>) {
        while let Some(message) = up.recv().await {
            self.take_in(message);
        }
        self.lose_worker();
    }

    fn take_in(&self, message: From<Up>) {
        // contract: C-3
        if message.incarnation != self.worker {
            self.foreign.fetch_add(1, Ordering::Relaxed);
            return tracing::warn!(from = %message.incarnation, "a message of another incarnation");
        }
        match message.message {
            Up::Accepted { attempt, prompt_tokens } => self.at(&attempt, |entry| {
                entry.usage.prompt = prompt_tokens;
                self.taken_on(entry);
            }),
            Up::Step { deltas, .. } => deltas.into_iter().for_each(|delta| self.delta(delta)),
            Up::CancelAcknowledged { attempt, .. } => self.at(&attempt, |entry| {
                if !std::mem::replace(&mut entry.acknowledged, true) {
                    self.note(entry, Event::CancelAcknowledged);
                }
            }),
            Up::Ended { attempt, outcome, usage } => self.at(&attempt, |entry| {
                if outcome.kind() == OutcomeKind::Completed {
                    self.taken_on(entry);
                }
                entry.usage = usage;
                let cause = outcome.cause;
                entry.ended = Some(outcome);
                self.apply(entry, CallEvent::WorkerEnded { attempt: attempt.attempt, cause });
            }),
            Up::Released { attempt, .. } => self.at(&attempt, |entry| {
                self.apply(entry, CallEvent::WorkerReleased { attempt: attempt.attempt });
            }),
            Up::DeviceLost { why } => {
                tracing::error!(worker = %self.worker, %why, "the worker's device is lost");
                // The first reason stands.
                let _ = self.device_lost.set(why);
            }
            Up::Ask { attempts } => self.asked(attempts),
            Up::Draining => tracing::info!(worker = %self.worker, "the worker drains"),
            Up::Snapshot { ask, snapshot } => {
                if let Some(asker) = self.lock().asks.remove(&ask) {
                    let _ = asker.send(snapshot);
                }
            }
        }
    }

    /// Says of each attempt whether it is one of ours.
    // contract: C-23
    fn asked(&self, attempts: Vec<AttemptId>) {
        let table = self.lock();
        let ours = |id: &AttemptId| table.entries.get(&id.key).is_some_and(|e| e.call.attempt() == id.attempt && !e.call.is_released());
        let (claimed, disclaimed): (Vec<_>, Vec<_>) = attempts.into_iter().partition(ours);
        // A link that is closed has told the driver.
        if !claimed.is_empty() {
            let _ = self.send(Down::Claim { attempts: claimed });
        }
        if !disclaimed.is_empty() {
            let _ = self.send(Down::Disclaim { attempts: disclaimed });
        }
    }

    /// Changes the run of an attempt, if that attempt is the current one.
    fn at(&self, attempt: &AttemptId, change: impl FnOnce(&mut Entry)) {
        let found = self.with(&attempt.key, |entry| {
            let current = entry.call.attempt() == attempt.attempt;
            if current {
                change(entry);
            }
            current
        });
        if found != Some(true) {
            tracing::debug!(run = %attempt.key.run, attempt = attempt.attempt, "a message about an attempt that is not live here");
        }
    }

    /// The worker has taken the run on, whether it says so or shows it.
    fn taken_on(&self, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.accepted, true) {
            self.apply(entry, CallEvent::WorkerAccepted);
            entry.seats.send(&Item::Accepted, self.now());
        }
    }

    // field: F-80
    fn delta(&self, delta: Delta) {
        let attempt = delta.attempt.clone();
        let mut stalled = Vec::new();
        self.at(&attempt, |entry| {
            self.taken_on(entry);
            stalled = entry.seats.push(delta, self.now());
            for (seat, _) in &stalled {
                self.leave(entry, *seat, Cause::ClientStalled);
            }
        });
        stalled.iter().for_each(|(_, conn)| self.close_if_idle(conn));
    }

    /// Closes the connection of a caller that does not read: at once, or when the other runs on it are delivered.
    pub(crate) fn close_if_idle(&self, conn: &ConnState) {
        if self.is_delivering(conn.id) { conn.doom() } else { conn.close() }
    }

    /// Whether any run is being delivered on a connection.
    pub(crate) fn is_delivering(&self, connection: u64) -> bool {
        self.lock().entries.values().any(|e| e.seats.reads_on(connection))
    }

    /// One cut of the worker's state; `None` if it does not answer in time.
    pub(crate) async fn snapshot(&self, blocks: bool) -> Option<Box<Snapshot>> {
        let (ask, answer) = {
            let mut table = self.lock();
            if table.asks.len() >= self.config.asks_max || self.lost.load(Ordering::Acquire) {
                return None;
            }
            table.last_ask += 1;
            let (send, answer) = oneshot::channel();
            let ask = table.last_ask;
            table.asks.insert(ask, send);
            (ask, answer)
        };
        let asked = Forget { calls: self, ask };
        self.send(Down::Snapshot { ask, blocks }).ok()?;
        let answer = tokio::time::timeout(self.config.ask_timeout, answer).await;
        drop(asked);
        answer.ok()?.ok()
    }
}

/// Takes a question out of the table when its asker no longer waits, however it stopped waiting.
struct Forget<'a> {
    calls: &'a Calls,
    ask: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.calls.lock().asks.remove(&self.ask);
    }
}

#[cfg(test)]
mod tests;
