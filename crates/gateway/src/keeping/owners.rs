//! Whose runs are whose: this life of the gateway says that it lives, sees which others no longer do, and takes their runs over.
//!
//! A background run goes on as a further attempt; any other ends, for nobody who read it is here. Which attempts its last owner began is not
//! certain to be written, so the next one here is above all that it can have begun.
//!
//! Invariant: a run is taken over from a life that is over, by one gateway, once: by compare-and-set on its owner. Nobody's clock is compared.
// contract: C-2 C-5 C-7

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Deadline, Incarnation, OnDisconnect, Outcome, RunKey, Time};
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

/// What is known between two looks.
#[derive(Default)]
struct House {
    /// What was seen of another life: the number of its beat, and since when.
    seen: HashMap<Incarnation, (u64, Time)>,
    /// Runs whose take-over was begun, and that neither go on here nor are somebody else's: the store may have done it and not said so, or been
    /// away right after.
    taking: HashSet<RunKey>,
}

impl Calls {
    /// Beats, watches the others, takes over, deletes what is over; for as long as the gateway serves.
    pub(crate) async fn keep_house(self: &Arc<Self>, keeper: &Keeper, name: &str) {
        let mut house = House::default();
        let mut expire = self.now();
        loop {
            if let Err(why) = self.look_after(keeper, name, &mut house).await {
                // What was not seen while the store was away proves nothing.
                house.seen.clear();
                tracing::debug!(%why, "the run store cannot be looked after");
            }
            if expire <= self.now() {
                expire = self.now().after(EXPIRE_EVERY);
                while keeper.store.expire(now_ms(), EXPIRE_MAX).await.is_ok_and(|n| n as usize == EXPIRE_MAX) {}
            }
            tokio::time::sleep(keeper.config.lease / BEATS).await;
        }
    }

    /// The life ends in good order: what it leaves may be taken over at once.
    pub(crate) async fn leave_store(&self, keeper: &Keeper) {
        let leave = Write::Leave { owner: self.incarnation };
        let left = tokio::time::timeout(self.config.settle, keeper.ask(leave, Survives::Machine, true)).await;
        if !matches!(left, Ok(Ok(_))) {
            tracing::warn!(waiting = keeper.waiting(), "the run store was not there at the end: what it was not given is lost");
        }
    }

    async fn look_after(self: &Arc<Self>, keeper: &Keeper, name: &str, house: &mut House) -> Result<(), StoreError> {
        let beat = Write::Beat { owner: self.incarnation, name: name.to_owned() };
        keeper.store.commit(vec![beat], Survives::Process).await?;
        let owners: HashMap<Incarnation, u64> = keeper.store.owners().await?.into_iter().collect();
        for key in house.taking.clone() {
            let run = keeper.store.run(&key).await?;
            if let Some(run) = run.filter(|run| run.owner == self.incarnation && run.outcome.is_none() && !self.is_live(&key)) {
                self.go_on(keeper, run).await?;
            }
            house.taking.remove(&key);
        }
        house.seen.retain(|life, _| owners.contains_key(life));
        for (life, beat) in owners.into_iter().filter(|(life, _)| *life != self.incarnation) {
            let since = match house.seen.get(&life) {
                Some((before, since)) if *before == beat => *since,
                _ => self.now(),
            };
            house.seen.insert(life, (beat, since));
            // Nobody's: its owner left in good order. Exclusive: no other process can live.
            let is_over = life == Incarnation(0) || keeper.store.is_exclusive();
            if is_over || self.now().since(since) >= keeper.config.lease {
                self.take_over(keeper, house, life).await?;
            }
        }
        Ok(())
    }

    async fn take_over(self: &Arc<Self>, keeper: &Keeper, house: &mut House, from: Incarnation) -> Result<(), StoreError> {
        loop {
            let runs = keeper.store.owned(from, TAKE_MAX).await?;
            let count = runs.len();
            for run in runs {
                if self.has_no_room(&self.lock()) {
                    // It stays where it is until there is room here, or at another gateway.
                    return Ok(());
                }
                let key = run.key.clone();
                house.taking.insert(key.clone());
                let take = Write::TakeOver { run: run.key.clone(), from, to: self.incarnation };
                let wrote = keeper.store.commit(vec![take], Survives::Process).await?.pop();
                if let Some(Wrote::Taken(run)) = wrote {
                    self.go_on(keeper, *run).await?;
                }
                house.taking.remove(&key);
            }
            if count < TAKE_MAX {
                return Ok(());
            }
        }
    }

    /// A run that is this gateway's from now on: it goes on, or it ends.
    async fn go_on(self: &Arc<Self>, keeper: &Keeper, run: StoredRun) -> Result<(), StoreError> {
        let work = log::work(&run).filter(|_| run.on_disconnect == OnDisconnect::Continue && run.wanted.is_none());
        let Some(work) = work else {
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
        let attempt = run.attempt.saturating_add(self.config.redispatch_max).max(1);
        tracing::info!(run = %run.key.run, attempt, events = events.len(), "taken over");
        let age = Duration::from_millis(u64::try_from(now_ms() - run.created_ms).unwrap_or(0));
        let left = keeper.config.background_deadline.saturating_sub(age);
        let deadline = Deadline::from_left(self.now(), left, Cause::GatewayDeadline);
        let ending = Ending::of(&run);
        self.open_again(Again {
            model: run.model.as_str().into(),
            created: u64::try_from(run.created_ms / 1000).unwrap_or(0),
            key: run.key,
            attempt,
            begun: run.attempt,
            work,
            deadline,
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
        tracing::info!(run = %run.key.run, cause = %outcome.cause, "its gateway is gone");
        let attempt = AttemptId { key: run.key.clone(), attempt: run.attempt };
        let said = log::end(run, &outcome);
        let last = run.keeps.then(|| log::event(&attempt, run.last_event + 1, &said));
        let is_background = run.on_disconnect == OnDisconnect::Continue;
        let hooks = if is_background { self.hooks_of_end(&run.key, &Ending::of(run), &outcome) } else { Vec::new() };
        let end = Write::End { attempt, owner: self.incarnation, outcome, usage: Usage::default(), last, hooks, now_ms: now_ms() };
        keeper.write(end, Survives::Process);
    }
}
