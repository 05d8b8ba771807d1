//! What the links to the workers say: who is here, who is silent, who is lost, and every word about a run.
//!
//! Invariant: words of a life that is not the current one of its worker change nothing; a run that waits gets the next worker that is here,
//! those that came first before the others, and between what makes room and the choice of who gets it the lock is not given up.
// contract: C-3 C-7 C-23 C-30

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use lifecycle::event::Event;
use lifecycle::message::{Delta, Down, From, Up};
use lifecycle::{AttemptId, Cause, Incarnation, Need, RunKey, StepId, Word, WorkerIndex};
use tokio::sync::mpsc;

use crate::calls::{Calls, Entry, Table};
use crate::conn::ConnState;
use crate::ear::Ear;
use crate::reason::Reason;
use crate::{Here, LinkEvent, SendDown};

/// Where a link's events come from.
pub(crate) enum Events {
    /// A worker in this process: it is here until its channel ends.
    Thread(mpsc::Receiver<From<Up>>),
    /// A worker elsewhere.
    Wire(mpsc::Receiver<LinkEvent>),
    /// An engine that others wrote.
    Engine(Ear),
}

/// Who records what happens at a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Journals {
    /// It writes to this gateway's journal.
    Here,
    /// It has one of its own, and says what is in it.
    There,
    /// It has none: what its words and the sending show has to do.
    Nowhere,
}

/// The way to one worker.
pub(crate) struct LinkEnd {
    pub(crate) send: SendDown,
    /// What its worker is called here until it says so itself, and an engine of another make always.
    pub(crate) name: Arc<str>,
    /// Who records what happens there.
    pub(crate) journals: Journals,
    /// The link is over; the driver has it yet to apply, or has.
    pub(crate) closed: AtomicBool,
}

impl LinkEnd {
    pub(crate) fn new(name: Arc<str>, send: SendDown, journals: Journals) -> LinkEnd {
        LinkEnd { send, name, journals, closed: AtomicBool::new(false) }
    }
}

impl Events {
    pub(crate) const fn whose(&self) -> Journals {
        match self {
            Events::Thread(_) => Journals::Here,
            Events::Wire(_) => Journals::There,
            Events::Engine(_) => Journals::Nowhere,
        }
    }
}

impl Calls {
    /// Takes in what a link says, until it is over. Never waits for a reader.
    pub(crate) async fn pump(self: &Arc<Self>, worker: WorkerIndex, events: Events) {
        match events {
            Events::Thread(mut up) => {
                while let Some(message) = up.recv().await {
                    self.take_in(worker, message);
                }
            }
            Events::Wire(mut events) => {
                while let Some(event) = events.recv().await {
                    self.hear(worker, event);
                }
            }
            Events::Engine(ear) => {
                let _open = ear.open(self, worker);
                std::future::pending::<()>().await;
            }
        }
        self.link_over(worker);
    }

    pub(crate) fn hear(&self, worker: WorkerIndex, event: LinkEvent) {
        match event {
            LinkEvent::Up(message) => self.take_in(worker, message),
            LinkEvent::Here(Here { incarnation, offer, name }) => {
                let models = offer.models.iter().map(|model| &*model.id).collect::<Vec<_>>().join(" ");
                tracing::info!(worker = %name, life = %incarnation, %models, "a worker is here");
                let mut table = self.lock();
                if let Some(former) = table.workers.here(worker, incarnation, offer, name) {
                    self.lose(&mut table, worker, former);
                }
                self.place_waiting(&mut table);
                self.refuse_unserved(&mut table);
            }
            LinkEvent::Refused { incarnation } => {
                let mut table = self.lock();
                if table.workers.refused(worker, incarnation) {
                    tracing::warn!(life = %incarnation, "nobody listens where a worker was");
                    for entry in table.entries.values_mut() {
                        self.act(entry, |dispatch, now| dispatch.worker_refused(worker, incarnation, now));
                    }
                }
            }
            LinkEvent::Offers(offer) => {
                let mut table = self.lock();
                table.workers.offers(worker, offer);
                self.place_waiting(&mut table);
                self.refuse_unserved(&mut table);
            }
            LinkEvent::Silent => self.lock().workers.heard(worker, false),
            LinkEvent::Back => {
                let mut table = self.lock();
                table.workers.heard(worker, true);
                self.place_waiting(&mut table);
            }
            LinkEvent::Trial => {
                let mut table = self.lock();
                let newest = table.last_number;
                table.workers.tried(worker, newest);
                self.place_waiting(&mut table);
            }
            LinkEvent::Lost { incarnation, why } => {
                let mut table = self.lock();
                if table.workers.lost(worker, incarnation) {
                    tracing::error!(life = %incarnation, %why, "a worker is lost");
                    self.lose(&mut table, worker, incarnation);
                    self.place_waiting(&mut table);
                }
            }
            // contract: C-3
            LinkEvent::Stale => self.journal.record(None, 0, Event::StaleMessage),
            LinkEvent::Clock(clock) => self.lock().workers.clock(worker, clock),
        }
    }

    /// Applies the end of links that are over: their workers cannot come back.
    pub(crate) fn apply_closed_links(&self) {
        for (index, _) in (0..).zip(&self.links).filter(|(_, link)| link.closed.load(Ordering::Acquire)) {
            let worker = WorkerIndex(index);
            let mut table = self.lock();
            let Some(known) = table.workers.get(worker).filter(|known| known.presence != lifecycle::Presence::Gone) else { continue };
            tracing::error!(worker = %known.name, "the worker is gone");
            if let Some(life) = table.workers.gone(worker) {
                self.lose(&mut table, worker, life);
            }
            if table.workers.are_gone() {
                table.entries.values_mut().filter(|e| e.dispatch.is_waiting()).for_each(|e| self.want(e, Cause::WorkerLost));
                self.sweep(&mut table);
            }
            self.place_waiting(&mut table);
            self.refuse_unserved(&mut table);
        }
    }

    /// Turns away what waits for a model that nobody has, now that all who may come are known.
    fn refuse_unserved(&self, table: &mut Table) {
        let workers = &table.workers;
        if workers.are_gone() {
            return;
        }
        let waits = table.entries.values_mut().filter(|entry| entry.dispatch.is_waiting());
        for entry in waits.filter(|entry| workers.never_serve(&entry.need())) {
            let outcome = Reason::NoModel(entry.model.to_string()).because(Cause::Invalid);
            self.act(entry, |dispatch, now| dispatch.refuse(outcome, now));
            if entry.dispatch.call().outcome().is_some() {
                tracing::info!(run = %entry.key.run, model = %entry.model, "is turned away: nobody has its model");
            }
        }
        self.sweep(table);
    }

    /// A life of a worker is over: each of its runs hears of it.
    fn lose(&self, table: &mut Table, worker: WorkerIndex, life: Incarnation) {
        let may_wait = !table.workers.are_gone();
        for entry in table.entries.values_mut() {
            self.act(entry, |dispatch, now| dispatch.worker_lost(worker, life, may_wait, now));
        }
        // Its answers will not come.
        table.asks.retain(|_, (asked, _)| *asked != worker);
        self.sweep(table);
        self.wake.notify_one();
    }

    /// Gives runs that wait to the workers that are here: in turns of their tenants.
    fn place_waiting(&self, table: &mut Table) {
        if !table.workers.is_any_here() {
            return;
        }
        let waits = |(key, entry): (&RunKey, &Entry)| entry.dispatch.is_waiting().then(|| (entry.order, key.clone()));
        let waiting: Vec<_> = table.entries.iter().filter_map(waits).collect();
        if waiting.is_empty() {
            return;
        }
        let mut loads = table.loads();
        for key in table.shares.order(waiting) {
            let Some((model, forwarded, affinity)) = table.entries.get(&key).map(|e| (e.model.clone(), e.forwarded, e.affinity)) else {
                continue;
            };
            let need = Need { model: &model, forwarded, affinity };
            let Some(place) = table.choose(&need, self.config.affinity_load_percent, &loads) else { continue };
            table.shares.placed(&key.tenant);
            let Some(entry) = table.entries.get_mut(&key) else { continue };
            self.act(entry, |dispatch, now| dispatch.place(place, now));
            if let Some((worker, load)) = entry.dispatch.load() {
                *loads.entry(worker).or_default() += load;
            }
        }
    }

    fn take_in(&self, worker: WorkerIndex, message: From<Up>) {
        let life = message.incarnation;
        let mut table = self.lock();
        if !table.workers.is_current(worker, life) {
            drop(table);
            self.foreign.fetch_add(1, Ordering::Relaxed);
            self.journal.record(None, 0, Event::StaleMessage);
            return tracing::warn!(from = %life, "a message of another incarnation");
        }
        if let Up::Step { step, deltas } = message.message {
            let mut after = After::default();
            deltas.into_iter().for_each(|delta| self.step(&mut table, (worker, life), (step, delta), &mut after));
            return self.heard(table, after);
        }
        drop(table);
        if self.is_remote(worker) {
            self.keep_words((worker, life), &message.message);
        }
        let about_itself = Word::each(message.message, |attempt, word| self.word((worker, life), &attempt, word));
        match about_itself {
            Some(Up::Records { records }) if self.is_remote(worker) => self.keep_records((worker, life), records),
            Some(Up::DeviceLost { why }) => {
                tracing::error!(worker = %life, %why, "the worker's device is lost");
                self.lock().workers.device_lost(worker, why);
            }
            Some(Up::Ask { attempts }) => self.asked((worker, life), attempts),
            Some(Up::Draining) => {
                tracing::info!(worker = %life, "the worker drains");
                self.lock().workers.drains(worker);
            }
            Some(Up::Snapshot { ask, snapshot }) => {
                if let Some((_, asker)) = self.lock().asks.remove(&ask) {
                    let _ = asker.send(snapshot);
                }
            }
            // One journal has them already.
            Some(Up::Records { .. } | Up::Reported { .. }) => {}
            Some(
                Up::Accepted { .. }
                | Up::Step { .. }
                | Up::CancelAcknowledged { .. }
                | Up::Ended { .. }
                | Up::Released { .. }
                | Up::LetGo { .. },
            )
            | None => {}
        }
    }

    /// A step has added something to an attempt: the word that comes with every token, and so with one look at the table.
    fn step(&self, table: &mut Table, from: (WorkerIndex, Incarnation), (step, delta): (StepId, Delta), after: &mut After) {
        let clock = table.workers.get(from.0).and_then(|known| known.clock);
        let number = delta.attempt.attempt;
        let Some(entry) = table.entries.get_mut(&delta.attempt.key) else { return elsewhere(&delta.attempt) };
        if entry.dispatch.call().attempt() != number {
            elsewhere(&delta.attempt);
        }
        if delta.count() > 0 && self.is_remote(from.0) && entry.dispatch.hears(from.0, from.1, number) {
            self.of_attempt(entry, number, clock);
            self.keep_tokens(entry, step, &delta);
        }
        self.act(entry, |dispatch, now| dispatch.take_in(from, number, Word::Delta(delta), now));
        after.has_room |= entry.dispatch.is_waiting();
        after.stalled.append(&mut entry.stalled);
        if entry.dispatch.call().is_settled() {
            let key = entry.key.clone();
            self.sweep_one(table, &key);
        }
    }

    /// A word about an attempt. A slot that it gives back is given on under the same lock, so that nobody who comes meanwhile has it before
    /// those that wait.
    // contract: C-30
    fn word(&self, from: (WorkerIndex, Incarnation), attempt: &AttemptId, word: Word) {
        let mut table = self.lock();
        let is_short = table.workers.get(from.0).is_some_and(|known| known.offer.slots.is_some());
        let leaves = is_short && matches!(word, Word::Released | Word::LetGo(_));
        let Some(entry) = table.entries.get_mut(&attempt.key) else { return elsewhere(attempt) };
        if entry.dispatch.call().attempt() != attempt.attempt {
            elsewhere(attempt);
        }
        self.act(entry, |dispatch, now| dispatch.take_in(from, attempt.attempt, word, now));
        let has_room = entry.dispatch.is_waiting() || (leaves && entry.dispatch.load().is_none());
        let after = After { has_room, stalled: std::mem::take(&mut entry.stalled) };
        self.sweep_one(&mut table, &attempt.key);
        self.heard(table, after);
    }

    /// Does what follows from words that were taken in.
    fn heard(&self, mut table: MutexGuard<'_, Table>, after: After) {
        if after.has_room {
            self.place_waiting(&mut table);
        }
        drop(table);
        after.stalled.iter().for_each(|conn| self.close_if_idle(conn));
    }

    /// Says of each attempt whether it is one of ours.
    // contract: C-23
    fn asked(&self, (worker, life): (WorkerIndex, Incarnation), attempts: Vec<AttemptId>) {
        let table = self.lock();
        let ours = |id: &AttemptId| table.entries.get(&id.key).is_some_and(|e| e.dispatch.claims(worker, life, id.attempt));
        let (claimed, disclaimed): (Vec<_>, Vec<_>) = attempts.into_iter().partition(ours);
        // A link that is closed has told the driver.
        if !claimed.is_empty() {
            let _ = self.send(worker, Down::Claim { attempts: claimed });
        }
        if !disclaimed.is_empty() {
            let _ = self.send(worker, Down::Disclaim { attempts: disclaimed });
        }
    }
}

/// What follows from words that were taken in.
#[derive(Default)]
struct After {
    /// A worker gave a run back, or has room for another.
    has_room: bool,
    /// Connections of readers that had no room.
    stalled: Vec<Arc<ConnState>>,
}

fn elsewhere(attempt: &AttemptId) {
    tracing::debug!(run = %attempt.key.run, attempt = attempt.attempt, "a message about an attempt that is not live here");
}
