//! What the links to the workers say: who is here, who is silent, who is lost, and every word about a run.
//!
//! Invariant: words of a life that is not the current one of its worker change nothing; a run that waits gets the next worker that is here,
//! those that came first before the others.
// contract: C-3 C-7 C-23

use std::sync::atomic::Ordering;

use lifecycle::event::Event;
use lifecycle::message::{Down, From, Up};
use lifecycle::{AttemptId, Cause, Incarnation, Need, RunKey, Word, WorkerIndex};
use tokio::sync::mpsc;

use crate::calls::{Calls, Entry, Table};
use crate::{Here, LinkEvent};

/// Where a link's events come from.
pub(crate) enum Events {
    /// A worker in this process: it is here until its channel ends.
    Thread(mpsc::Receiver<From<Up>>),
    /// A worker elsewhere.
    Wire(mpsc::Receiver<LinkEvent>),
    /// An engine that others wrote.
    Engine(mpsc::Receiver<LinkEvent>),
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

impl Events {
    async fn next(&mut self) -> Option<LinkEvent> {
        match self {
            Events::Thread(up) => up.recv().await.map(LinkEvent::Up),
            Events::Wire(events) | Events::Engine(events) => events.recv().await,
        }
    }

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
    pub(crate) async fn pump(&self, worker: WorkerIndex, mut events: Events) {
        while let Some(event) = events.next().await {
            self.hear(worker, event);
        }
        self.link_over(worker);
    }

    fn hear(&self, worker: WorkerIndex, event: LinkEvent) {
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
            LinkEvent::Silent => self.lock().workers.heard(worker, false),
            LinkEvent::Back => {
                let mut table = self.lock();
                table.workers.heard(worker, true);
                self.place_waiting(&mut table);
            }
            LinkEvent::Trial => {
                let mut table = self.lock();
                table.workers.tried(worker);
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
        }
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
        if !self.lock().workers.is_current(worker, life) {
            self.foreign.fetch_add(1, Ordering::Relaxed);
            self.journal.record(None, 0, Event::StaleMessage);
            return tracing::warn!(from = %life, "a message of another incarnation");
        }
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
            Some(Up::Records { .. }) => {}
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

    /// A word about an attempt.
    fn word(&self, from: (WorkerIndex, Incarnation), attempt: &AttemptId, word: Word) {
        let is_short = || self.lock().workers.get(from.0).is_some_and(|known| known.offer.slots.is_some());
        let leaves = matches!(word, Word::Released | Word::LetGo(_)) && is_short();
        let found = self.with(&attempt.key, |entry| {
            let is_current = entry.dispatch.call().attempt() == attempt.attempt;
            self.act(entry, |dispatch, now| dispatch.take_in(from, attempt.attempt, word, now));
            let has_room = entry.dispatch.is_waiting() || (leaves && entry.dispatch.load().is_none());
            (is_current, has_room, std::mem::take(&mut entry.stalled))
        });
        let (is_current, has_room, stalled) = found.unwrap_or_default();
        if has_room {
            // Its worker gave it back, or has room for another.
            let mut table = self.lock();
            self.place_waiting(&mut table);
        }
        stalled.iter().for_each(|conn| self.close_if_idle(conn));
        if !is_current {
            tracing::debug!(run = %attempt.key.run, attempt = attempt.attempt, "a message about an attempt that is not live here");
        }
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
