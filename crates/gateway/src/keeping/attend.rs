//! Readers at another gateway than the one that has the run: each gateway says in the store which runs are read at it, and the one that has a
//! run counts every other gateway at which it is read as one more reader.
//!
//! Said once when the first begins to read and once when the last has left; in between the reading gateway's beat stands for all of them, so
//! that one that is lost is gone with its lease. What is taken there is read from the store and is no part of the run's delivery; when the run
//! has ended, nobody waits for them.
//!
//! Invariant: a reader that has been sent something and takes nothing for `unread_max` is not said to be there.
// contract: C-25

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::{Cause, Incarnation, OnDisconnect, RunKey, Time};
use store::{StoredRun, Survives, Write};
use tokio::time::Instant;

use super::Keeper;
use crate::calls::{Calls, Entry};

/// Who reads what here of other gateways' runs, and what is known of their gateways.
#[derive(Default)]
pub(super) struct Attending {
    last: AtomicU64,
    /// Each reader, and since when it has not taken what it was sent.
    runs: Mutex<HashMap<RunKey, HashMap<u64, Option<Instant>>>>,
    /// The number of each life's last beat, and since when it is that.
    beats: Mutex<HashMap<Incarnation, (u64, Time)>>,
}

impl Attending {
    /// Names a reader.
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, HashMap<u64, Option<Instant>>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a reader was sent something, at this time, or has taken it.
    fn sent(&self, key: &RunKey, reader: u64, at: Option<Instant>) {
        if let Some(since) = self.lock().get_mut(key).and_then(|readers| readers.get_mut(&reader)) {
            *since = at;
        }
    }

    /// Of these lives with their beats, those that are not over: not the same beat for a whole lease.
    fn alive(&self, said: &[(RunKey, Incarnation, u64)], lease: Duration, now: Time) -> HashSet<Incarnation> {
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        let lives: HashMap<Incarnation, u64> = said.iter().map(|(_, life, beat)| (*life, *beat)).collect();
        beats.retain(|life, (beat, _)| lives.get(life) == Some(beat));
        lives
            .into_iter()
            .filter(|(life, beat)| now.since(beats.entry(*life).or_insert((*beat, now)).1) < lease)
            .map(|(life, _)| life)
            .collect()
    }

    /// What was not seen while the store was away proves nothing.
    fn forget_beats(&self) {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A reader here of a run that another gateway has. Dropping it says that it is gone.
pub(crate) struct Attendance {
    calls: Arc<Calls>,
    key: RunKey,
    reader: u64,
}

impl Attendance {
    /// The reader was sent something.
    pub(super) fn sent(&self) {
        self.note(Some(Instant::now()));
    }

    /// It has taken what it was sent.
    pub(super) fn taken(&self) {
        self.note(None);
    }

    fn note(&self, at: Option<Instant>) {
        if let Some(keeper) = &self.calls.keeper {
            keeper.attending.sent(&self.key, self.reader, at);
        }
    }
}

impl Drop for Attendance {
    fn drop(&mut self) {
        if let Some(keeper) = &self.calls.keeper {
            self.calls.depart(keeper, &self.key, self.reader);
        }
    }
}

impl Calls {
    /// Tells the gateway that has a live run that somebody reads it here. `None` if there is nobody to tell: it is here or nobody's, has ended,
    /// or goes on without readers.
    pub(crate) fn attend(self: &Arc<Self>, run: &StoredRun) -> Option<Attendance> {
        let keeper = self.keeper.as_ref()?;
        let is_read = run.outcome.is_none() && run.on_disconnect != OnDisconnect::Continue && run.owner != self.incarnation;
        if !is_read || keeper.is_full() {
            return None;
        }
        let reader = keeper.attending.next();
        let mut runs = keeper.attending.lock();
        let readers = runs.entry(run.key.clone()).or_default();
        readers.insert(reader, None);
        // Under the lock, so that the store hears it in this order.
        if readers.len() == 1 {
            keeper.write(Write::Attend { run: run.key.clone(), by: self.incarnation }, Survives::Process);
        }
        Some(Attendance { calls: self.clone(), key: run.key.clone(), reader })
    }

    fn depart(&self, keeper: &Keeper, key: &RunKey, reader: u64) {
        let mut runs = keeper.attending.lock();
        let is_last = runs.get_mut(key).is_some_and(|readers| readers.remove(&reader).is_some() && readers.is_empty());
        if is_last {
            runs.remove(key);
            keeper.write(Write::Depart { run: key.clone(), by: self.incarnation }, Survives::Process);
        }
    }

    /// Readers that take nothing of what they were sent are no longer said to be here.
    pub(super) fn depart_stalled(&self, keeper: &Keeper) {
        let now = Instant::now();
        let is_stalled = |since: &Option<Instant>| since.is_some_and(|since| now.duration_since(since) >= self.config.unread_max);
        let stalled: Vec<(RunKey, u64)> = {
            let runs = keeper.attending.lock();
            let all = runs.iter().flat_map(|(key, readers)| readers.iter().map(move |(reader, since)| (key, *reader, since)));
            all.filter(|(_, _, since)| is_stalled(since)).map(|(key, reader, _)| (key.clone(), reader)).collect()
        };
        for (key, reader) in stalled {
            tracing::info!(run = %key.run, "a reader here takes nothing; its gateway is told that it is gone");
            self.depart(keeper, &key, reader);
        }
    }

    /// Sees which runs here are read at other gateways.
    pub(super) async fn see_attended(&self, keeper: &Keeper) {
        let Ok(said) = keeper.store.attended(self.incarnation).await else { return keeper.attending.forget_beats() };
        let alive = keeper.attending.alive(&said, keeper.config.lease, self.now());
        let mut elsewhere: HashMap<RunKey, usize> = HashMap::new();
        for (key, ..) in said.into_iter().filter(|(_, life, _)| alive.contains(life)) {
            *elsewhere.entry(key).or_default() += 1;
        }
        let gateways = |entry: &Entry| elsewhere.get(&entry.key).copied().unwrap_or(0);
        self.each(
            |entry| !entry.log.is_background && entry.seats.elsewhere() != gateways(entry),
            |entry| self.read_elsewhere(entry, gateways(entry)),
        );
    }

    /// A run is read at so many other gateways. The first of them is a reader that comes, the last that leaves is one that leaves.
    pub(crate) fn read_elsewhere(&self, entry: &mut Entry, gateways: usize) {
        let had = entry.seats.elsewhere();
        if gateways > had && (entry.dispatch.call().outcome().is_some() || !self.returned(entry)) {
            return;
        }
        entry.seats.set_elsewhere(gateways);
        // After the end nobody leaves: the rest is read from the store, and what was delivered is what was delivered here.
        if gateways == 0 && had > 0 && entry.dispatch.call().outcome().is_some() {
            if entry.seats.open() == 0 {
                let delivery = entry.seats.delivery();
                self.act(entry, |dispatch, now| dispatch.delivered(delivery, now));
            }
        } else if gateways == 0 && had > 0 {
            tracing::info!(run = %entry.key.run, "nobody reads it at another gateway any more");
            self.left(entry, Cause::ClientClosed);
        }
    }
}
