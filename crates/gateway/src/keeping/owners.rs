//! Whose runs are whose: this life of the gateway says that it lives, sees which others no longer do, and takes their runs over.
//!
//! A background run goes on as a further attempt; any other ends, for nobody who read it is here. Which attempts its last owner began is not
//! certain to be written, so the take-over itself raises the number above all that it can have begun.
//!
//! Invariant: a run is taken over from a life that is over, by one gateway, once: by compare-and-set on its owner. Nobody's clock is compared.
// contract: C-2 C-5 C-7

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::{DeadlineLeft, Usage};
use lifecycle::{AttemptId, Cause, Deadline, Incarnation, OnDisconnect, Outcome, OutcomeKind, RunKey, Time};
use protocol::kept;
use store::{StoreError, StoredRun, Survives, Write, Wrote};

use super::{Keeper, Log, log, now_ms};
use crate::calls::Calls;
use crate::dispatch::Again;
use crate::outside::Ending;

/// Runs that are taken over at once.
const TAKE_MAX: usize = 64;
/// Beats in a lease.
const BEATS: u32 = 3;
/// Runs whose retention is over that are deleted at once.
const EXPIRE_MAX: usize = 500;
/// How often is looked for them.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Events of a run that are read at once.
const PAGE: usize = 1024;

/// What was seen of the others.
#[derive(Default)]
struct Seen {
    /// The number of each life's last beat, and since when it is that.
    beats: HashMap<Incarnation, (u64, Time)>,
    /// Runs that may be this life's by now and are not in the table: what took them over, or what goes on with them, broke off.
    taken: Vec<RunKey>,
}

impl Calls {
    /// Beats, watches the others, takes over, deletes what is over; for as long as the gateway serves. However much there is to take over, it
    /// goes on beating.
    pub(crate) async fn keep_house(self: &Arc<Self>, keeper: &Keeper, name: &str) {
        tokio::join!(self.beat(keeper, name), self.watch_others(keeper));
    }

    async fn beat(&self, keeper: &Keeper, name: &str) {
        let mut last = self.now();
        loop {
            // A store that is away is asked again soon; who watches does not count that time.
            let beat = Write::Beat { owner: self.incarnation, name: name.to_owned() };
            if keeper.store.commit(vec![beat], Survives::Process).await.is_ok() {
                let silent = self.now().since(std::mem::replace(&mut last, self.now()));
                // This process stood still, or was cut off from the store: its runs may be another's.
                if silent >= keeper.config.lease && self.give_up_taken(keeper).await.is_err() {
                    last = Time::ZERO;
                }
            }
            tokio::time::sleep(keeper.config.lease / BEATS).await;
        }
    }

    async fn watch_others(self: &Arc<Self>, keeper: &Keeper) {
        let mut seen = Seen::default();
        let mut expire = self.now();
        loop {
            if let Err(why) = self.look_after(keeper, &mut seen).await {
                // What was not seen while the store was away proves nothing.
                seen.beats.clear();
                tracing::debug!(%why, "the run store cannot be looked after");
            }
            if expire <= self.now() {
                expire = self.now().after(EXPIRE_EVERY);
                while keeper.store.expire(now_ms(), EXPIRE_MAX).await.is_ok_and(|n| n as usize == EXPIRE_MAX) {}
            }
            tokio::time::sleep(keeper.config.lease / BEATS).await;
        }
    }

    /// Lets go of every run here that another gateway has taken over meanwhile. Nothing of it is written here any more, and whoever reads it
    /// here is told how it ended there.
    // contract: C-5
    async fn give_up_taken(&self, keeper: &Keeper) -> Result<(), StoreError> {
        let live: Vec<RunKey> = self.lock().entries.keys().cloned().collect();
        for key in live {
            let Some(run) = keeper.store.run(&key).await?.filter(|run| run.owner != self.incarnation) else { continue };
            tracing::warn!(run = %key.run, owner = %run.owner, "another gateway has taken it over");
            keeper.given_up(&key);
            let cause = run.outcome.map(|outcome| outcome.cause).filter(|cause| cause.outcome() != OutcomeKind::Completed);
            self.with(&key, |entry| {
                if entry.dispatch.call().outcome().is_none() {
                    entry.log.parked = true;
                    self.want(entry, cause.unwrap_or(Cause::WorkerLost));
                }
            });
        }
        Ok(())
    }

    /// The life ends in good order: what it leaves may be taken over at once.
    pub(crate) async fn leave_store(&self, keeper: &Keeper) {
        let leave = Write::Leave { owner: self.incarnation };
        let left = tokio::time::timeout(self.config.settle, keeper.ask(leave, Survives::Machine, false)).await;
        if !matches!(left, Ok(Ok(_))) {
            tracing::warn!(waiting = keeper.waiting(), "the run store was not there at the end: what it was not given is lost");
        }
    }

    async fn look_after(self: &Arc<Self>, keeper: &Keeper, seen: &mut Seen) -> Result<(), StoreError> {
        self.go_on_with_taken(keeper, &mut seen.taken).await?;
        // Before the look: if this process stands still between the two, what it sees then is older than it seems, and nobody is silent for that.
        let now = self.now();
        let owners: HashMap<Incarnation, u64> = keeper.store.owners().await?.into_iter().collect();
        seen.beats.retain(|life, _| owners.contains_key(life));
        for (life, beat) in owners.into_iter().filter(|(life, _)| *life != self.incarnation) {
            let since = match seen.beats.get(&life) {
                Some((before, since)) if *before == beat => *since,
                _ => now,
            };
            seen.beats.insert(life, (beat, since));
            // Nobody's: its owner left in good order. Exclusive: no other process can live.
            let is_over = life == Incarnation(0) || keeper.store.is_exclusive();
            if is_over || now.since(since) >= keeper.config.lease {
                self.take_over(keeper, life, &mut seen.taken).await?;
            }
        }
        Ok(())
    }

    async fn take_over(self: &Arc<Self>, keeper: &Keeper, from: Incarnation, taken: &mut Vec<RunKey>) -> Result<(), StoreError> {
        loop {
            let runs = keeper.store.owned(from, TAKE_MAX).await?;
            let count = runs.len();
            for run in runs {
                if self.has_no_room(&self.lock(), &run.key.tenant) {
                    // It stays where it is until there is room here, or at another gateway.
                    return Ok(());
                }
                // contract: C-2. What it began is not certain to be written: its first attempt, and as many more as the policy allows.
                let skip = self.config.attempts_max();
                let take = Write::TakeOver { run: run.key.clone(), from, to: self.incarnation, skip };
                // One that goes on must not be its former owner's again because a database crashed.
                let survives = if run.on_disconnect == OnDisconnect::Continue { Survives::Machine } else { Survives::Process };
                taken.push(run.key);
                if let Some(Wrote::Stands(_) | Wrote::Absent) = keeper.store.commit(vec![take], survives).await?.pop() {
                    // Another was quicker, or it ended.
                    taken.pop();
                }
                self.go_on_with_taken(keeper, taken).await?;
            }
            if count < TAKE_MAX {
                return Ok(());
            }
        }
    }

    /// Goes on with what was taken over. What breaks off is done again: a run must not be this gateway's and nowhere.
    async fn go_on_with_taken(self: &Arc<Self>, keeper: &Keeper, taken: &mut Vec<RunKey>) -> Result<(), StoreError> {
        while let Some(key) = taken.last() {
            let run = keeper.store.run(key).await?.filter(|run| run.owner == self.incarnation && run.outcome.is_none());
            if let Some(run) = run.filter(|_| !self.is_live(key)) {
                match self.go_on(keeper, run.clone()).await {
                    Err(StoreError::Unreadable(why)) => {
                        tracing::error!(run = %key.run, %why, "what was said of it cannot be read");
                        self.end_taken(keeper, &run, Outcome::because(Cause::WorkerError, "what was said of it before cannot be read"));
                    }
                    done => done?,
                }
            }
            taken.pop();
        }
        Ok(())
    }

    /// A run that is this gateway's from now on: it goes on, or it ends.
    async fn go_on(self: &Arc<Self>, keeper: &Keeper, run: StoredRun) -> Result<(), StoreError> {
        let work = log::work(&run).filter(|_| run.on_disconnect == OnDisconnect::Continue && run.wanted.is_none());
        let Some((work, asked)) = work else {
            self.end_lost(keeper, &run);
            return Ok(());
        };
        let mut events = Vec::new();
        loop {
            let page = keeper.store.events(&run.key, events.last().map_or(0, |(number, _)| *number), PAGE).await?;
            if page.is_empty() {
                break;
            }
            for event in page {
                let said = kept::read_said(&event.body).map_err(|e| StoreError::Unreadable(e.to_string()))?;
                events.push((event.number, said));
            }
        }
        tracing::info!(run = %run.key.run, attempt = run.attempt, events = events.len(), "taken over");
        let age = Duration::from_millis(u64::try_from(now_ms() - run.created_ms).unwrap_or(0));
        let own = DeadlineLeft { left: keeper.config.background_deadline, cause: Cause::GatewayDeadline };
        let now = self.now();
        let deadlines = asked.into_iter().chain([own]).map(|d| Deadline::from_left(now, d.left.saturating_sub(age), d.cause)).collect();
        let ending = Ending::of(&run);
        self.open_again(Again {
            model: run.model.as_str().into(),
            created: u64::try_from(run.created_ms / 1000).unwrap_or(0),
            key: run.key,
            attempt: run.attempt,
            work,
            deadlines,
            log: Log::after(&events).ending(ending),
        });
        Ok(())
    }

    /// A run that nobody can go on with: its outcome is what was asked for, else that whoever had it is lost.
    fn end_lost(&self, keeper: &Keeper, run: &StoredRun) {
        let outcome = match run.wanted {
            Some(cause) => Outcome::of(cause),
            None => Outcome::because(Cause::WorkerLost, "the gateway that had the run is gone"),
        };
        self.end_taken(keeper, run, outcome);
    }

    fn end_taken(&self, keeper: &Keeper, run: &StoredRun, outcome: Outcome) {
        tracing::info!(run = %run.key.run, cause = %outcome.cause, "its gateway is gone");
        let attempt = AttemptId { key: run.key.clone(), attempt: run.attempt };
        let said = log::end(run, &outcome);
        let last = run.keeps.then(|| log::event(&attempt, run.last_event + 1, &said));
        let is_background = run.on_disconnect == OnDisconnect::Continue;
        let hooks = if is_background { self.hooks_of_end(&run.key, &Ending::of(run), &outcome) } else { Vec::new() };
        let end = Write::End { attempt, owner: self.incarnation, outcome, usage: Usage::default(), last, hooks, now_ms: now_ms() };
        keeper.write(end, if is_background { Survives::Machine } else { Survives::Process });
    }
}
