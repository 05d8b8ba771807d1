//! Asking the workers for a cut of their state, for `/v1/kv` and `/metrics`.
//!
//! Invariant: every question has an end: an answer, its time, or its asker's leaving.

use std::sync::Arc;

use lifecycle::message::{Down, Snapshot};
use lifecycle::{Incarnation, Presence, WorkerIndex, WorkerState};
use observe::WorkerScrape;
use tokio::sync::oneshot;

use crate::calls::Calls;

/// In the number of a question that this gateway asks of itself, to keep how blocks stood. It is nobody's, and comes and goes at rest, too.
const OWN: u64 = 1 << 63;

/// Whether a question with this number is one of a caller's.
pub(crate) const fn is_callers(ask: u64) -> bool {
    ask & OWN == 0
}

/// What a worker answered.
pub(crate) struct Cut {
    /// The worker's name.
    pub(crate) name: Arc<str>,
    /// Its life; `None` if it was never met.
    pub(crate) life: Option<Incarnation>,
    /// `None` if it is not here, or did not answer in time.
    pub(crate) snapshot: Option<Box<Snapshot>>,
    /// It is an engine that others wrote, and takes runs.
    pub(crate) takes_runs: bool,
    /// Runs that it has by this gateway's table, and most of them at once.
    pub(crate) runs: u32,
    pub(crate) slots: Option<u32>,
}

impl Cut {
    /// Its part of the metrics.
    pub(crate) fn scraped(&self) -> WorkerScrape<'_> {
        let Cut { name, snapshot, takes_runs, runs, slots, .. } = self;
        WorkerScrape { name, snapshot: snapshot.as_deref(), takes_runs: *takes_runs, runs: *runs, slots: *slots }
    }
}

impl Calls {
    /// One cut of each worker's state, in the order of the workers. They are asked at the same time, and waited for no longer than for one.
    pub(crate) async fn snapshots(&self, blocks: bool) -> Vec<Cut> {
        self.cuts(blocks, 0).await
    }

    /// The same, asked by this gateway itself.
    pub(crate) async fn own_snapshots(&self, blocks: bool) -> Vec<Cut> {
        self.cuts(blocks, OWN).await
    }

    async fn cuts(&self, blocks: bool, whose: u64) -> Vec<Cut> {
        let known: Vec<_> = {
            let table = self.lock();
            let loads = table.loads();
            let cut = |(worker, known): (WorkerIndex, &WorkerState)| {
                let runs = loads.get(&worker).map_or(0, |load| load.runs);
                let takes_runs = known.offer.forwards && matches!(known.presence, Presence::Here | Presence::Trial { .. });
                let (name, life, slots) = (known.name.clone(), known.life, known.offer.slots);
                (worker, Cut { name, life, snapshot: None, takes_runs, runs, slots })
            };
            table.workers.iter().map(cut).collect()
        };
        let until = tokio::time::Instant::now() + self.config.ask_timeout;
        // All are asked before the first answer is waited for.
        let asked: Vec<_> = known.into_iter().map(|(worker, cut)| (cut, self.ask(worker, blocks, whose))).collect();
        let mut cuts = Vec::with_capacity(asked.len());
        for (cut, asked) in asked {
            let snapshot = match asked {
                Some((_forget, answer)) => tokio::time::timeout_at(until, answer).await.ok().and_then(Result::ok),
                None => None,
            };
            cuts.push(Cut { snapshot, ..cut });
        }
        cuts
    }

    /// Sends a question. `None` if the worker is not here, its link is over, or there are too many questions.
    fn ask(&self, worker: WorkerIndex, blocks: bool, whose: u64) -> Option<(Forget<'_>, oneshot::Receiver<Box<Snapshot>>)> {
        let mut table = self.lock();
        // An engine of another make has no account that it could be asked for.
        let answers = table.workers.get(worker).filter(|known| known.presence == Presence::Here);
        let answers = answers.is_some_and(|known| !known.offer.forwards);
        if !answers || table.asks.len() >= self.config.asks_max {
            return None;
        }
        table.last_ask += 1;
        let ask = table.last_ask | whose;
        self.send(worker, Down::Snapshot { ask, blocks }).ok()?;
        let (send, answer) = oneshot::channel();
        table.asks.insert(ask, (worker, send));
        drop(table);
        Some((Forget { calls: self, ask }, answer))
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
