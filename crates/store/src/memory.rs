//! A run store that is simulated in memory: the naive reference that the real ones are compared with, and what other crates' tests run on.
//!
//! Everything is a list that is searched; nothing outlives it, whatever a commit was told to survive.
//!
//! Invariant: what it answers is what the trait says, in the plainest words that say it.

mod crash;
mod outside;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, RunKey, Tenant};
use tokio::sync::broadcast;

use crate::sql::accept::{joinable, names};
use crate::sql::db::storable;
use crate::{
    Effect, Hook, HookQuery, HookState, NewRun, RunQuery, RunStore, StoreConfig, StoreError, StoredEvent, StoredRun, Survives, Wake, Write,
    Wrote,
};

pub use crash::Moment;

#[derive(Clone)]
struct Kept {
    fresh: String,
    run: StoredRun,
    events: Vec<StoredEvent>,
    effects: Vec<Effect>,
}

#[derive(Clone)]
struct Key {
    tenant: Tenant,
    name: String,
    digest: [u8; 32],
    run: RunKey,
}

#[derive(Clone)]
struct Outbox {
    hook: Hook,
    over: bool,
}

#[derive(Clone, Default)]
struct State {
    /// In the order of their acceptance.
    runs: Vec<Kept>,
    keys: Vec<Key>,
    hooks: Vec<Outbox>,
    lives: Vec<(Incarnation, u64)>,
    readers: BTreeSet<(Incarnation, RunKey)>,
}

/// The store.
pub struct Memory {
    state: Mutex<State>,
    config: StoreConfig,
    exclusive: bool,
    away: Mutex<bool>,
    connected: AtomicU64,
    wakes: broadcast::Sender<Wake>,
}

impl Memory {
    /// An empty store. `exclusive` is what [`RunStore::is_exclusive`] says.
    pub fn new(config: StoreConfig, exclusive: bool) -> Arc<Memory> {
        let (wakes, _) = broadcast::channel(config.wakes_max.max(1));
        Arc::new(Memory { state: Mutex::default(), config, exclusive, away: Mutex::new(false), connected: AtomicU64::new(0), wakes })
    }

    /// As long as it is away everything is [`StoreError::Unavailable`] and changes nothing.
    pub fn set_away(&self, away: bool) {
        *self.away.lock().unwrap_or_else(PoisonError::into_inner) = away;
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, StoreError> {
        if *self.away.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(StoreError::Unavailable("it is away".to_owned()));
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn kept(&self, key: &RunKey) -> Option<&Kept> {
        self.runs.iter().find(|kept| kept.run.key == *key)
    }

    fn kept_mut(&mut self, key: &RunKey) -> Option<&mut Kept> {
        self.runs.iter_mut().find(|kept| kept.run.key == *key)
    }

    fn stands(&self, key: &RunKey) -> Wrote {
        self.kept(key).map_or(Wrote::Absent, |kept| Wrote::Stands(Box::new(kept.run.clone())))
    }

    /// The run, if this owner may write to this attempt.
    fn current(&mut self, attempt: &AttemptId, owner: Incarnation) -> Option<&mut Kept> {
        let holds = |kept: &&mut Kept| kept.run.attempt == attempt.attempt && kept.run.owner == owner && kept.run.outcome.is_none();
        self.kept_mut(&attempt.key).filter(holds)
    }

    fn apply(&mut self, write: Write, wakes: &mut Vec<Wake>) -> Wrote {
        match write {
            Write::Accept(new) => self.accept(*new),
            Write::Disown { new, outcome, now_ms } => {
                let named = |run| RunKey { tenant: new.tenant.clone(), run };
                let own = names(&new).map(named).find(|key| self.kept(key).is_some_and(|kept| kept.fresh == new.fresh.as_str()));
                let Some(key) = own else { return Wrote::Absent };
                let (attempt, usage) = (AttemptId { key, attempt: 0 }, lifecycle::message::Usage::default());
                self.apply(Write::End { attempt, owner: new.owner, outcome, usage, last: None, hooks: Vec::new(), now_ms }, wakes)
            }
            Write::Begin { run, from, owner } => {
                let attempt = AttemptId { key: run, attempt: from };
                let has_next = |kept: &&mut Kept| kept.run.attempt < u32::MAX;
                let Some(kept) = self.current(&attempt, owner).filter(has_next) else { return self.stands(&attempt.key) };
                kept.run.attempt += 1;
                Wrote::Done
            }
            Write::Append { attempt, owner, events } => self.append(attempt, owner, events, wakes),
            Write::End { attempt, owner, outcome, usage, last, hooks, now_ms } => {
                self.end((attempt, owner), (outcome, usage), (last, hooks), (now_ms, wakes))
            }
            Write::Record { run, owner, delivery, record } => match self.kept_mut(&run).filter(|kept| kept.is_ended_at(owner)) {
                None => self.stands(&run),
                Some(kept) => {
                    kept.run.delivery = Some(delivery);
                    kept.run.record = Some(record).filter(|_| !kept.run.erased);
                    Wrote::Done
                }
            },
            Write::Want { run, cause } => match self.kept_mut(&run).filter(|kept| kept.run.outcome.is_none()) {
                None => self.stands(&run),
                Some(kept) => {
                    kept.run.wanted.get_or_insert(cause);
                    wakes.push(Wake::Wanted(run));
                    Wrote::Done
                }
            },
            Write::Follow { run } => match self.kept_mut(&run).filter(|kept| kept.run.outcome.is_none() && !kept.run.keeps) {
                None => self.stands(&run),
                Some(kept) => {
                    kept.run.followed = true;
                    wakes.push(Wake::Wanted(run));
                    Wrote::Done
                }
            },
            Write::Attend { run, by } => match self.kept(&run).filter(|kept| kept.run.outcome.is_none()) {
                None => self.stands(&run),
                Some(_) => {
                    self.readers.insert((by, run.clone()));
                    wakes.push(Wake::Wanted(run));
                    Wrote::Done
                }
            },
            Write::Depart { run, by } => {
                if self.readers.remove(&(by, run.clone())) {
                    wakes.push(Wake::Wanted(run));
                }
                Wrote::Done
            }
            Write::Keep { run, owner, keeps } => match self.kept_mut(&run).filter(|kept| kept.is_followed_at(owner)) {
                None => self.stands(&run),
                Some(kept) => {
                    (kept.run.keeps, kept.run.followed) = (keeps, false);
                    wakes.push(Wake::Moved(run));
                    Wrote::Done
                }
            },
            Write::TakeOver { run, from, to, skip } => {
                let held = |kept: &&mut Kept| kept.run.owner == from && kept.run.outcome.is_none();
                let Some(kept) = self.kept_mut(&run).filter(held) else { return self.stands(&run) };
                kept.run.owner = to;
                kept.run.attempt = kept.run.attempt.saturating_add(skip);
                wakes.push(Wake::Moved(run));
                Wrote::Taken(Box::new(kept.run.clone()))
            }
            Write::Beat { owner, .. } => {
                match self.lives.iter_mut().find(|(life, _)| *life == owner) {
                    Some((_, beat)) => *beat += 1,
                    None => self.lives.push((owner, 1)),
                }
                Wrote::Done
            }
            Write::Leave { owner } => {
                self.lives.retain(|(life, _)| *life != owner);
                self.readers.retain(|(life, _)| *life != owner);
                self.runs
                    .iter_mut()
                    .map(|kept| &mut kept.run)
                    .filter(|r| r.owner == owner && r.outcome.is_none())
                    .for_each(|r| r.owner = Incarnation(0));
                Wrote::Done
            }
            Write::Erase { run } => self.erase(&run),
            Write::Intend { run, effect, max } => self.intend(&run, effect, max),
            Write::Move { run, key, from, to, detail, now_ms } => self.move_effect((&run, &key), &from, (to, detail), now_ms),
            Write::Hook(hook) => {
                self.hook(hook);
                Wrote::Done
            }
            Write::HookTaken { id, from_ms, due_ms } => self.hook_taken(&storable(&id), from_ms, due_ms),
            Write::HookTried { id, due_ms, last } => self.hook_tried(&storable(&id), due_ms, &last),
        }
    }

    fn append(&mut self, attempt: AttemptId, owner: Incarnation, events: Vec<StoredEvent>, wakes: &mut Vec<Wake>) -> Wrote {
        let Some(kept) = self.current(&attempt, owner) else { return self.stands(&attempt.key) };
        let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
        let expected: Vec<u64> = (kept.run.last_event + 1..).take(events.len()).collect();
        if events.is_empty() || numbers != expected {
            return self.stands(&attempt.key);
        }
        kept.run.last_event += events.len() as u64;
        kept.events.extend(events);
        wakes.push(Wake::Moved(attempt.key));
        Wrote::Done
    }

    fn end(
        &mut self,
        (attempt, owner): (AttemptId, Incarnation),
        (outcome, usage): (Outcome, lifecycle::message::Usage),
        (last, hooks): (Option<StoredEvent>, Vec<Hook>),
        (now_ms, wakes): (i64, &mut Vec<Wake>),
    ) -> Wrote {
        let Some(kept) = self.current(&attempt, owner) else { return self.stands(&attempt.key) };
        if last.as_ref().is_some_and(|last| last.number != kept.run.last_event + 1) {
            return self.stands(&attempt.key);
        }
        let reason = outcome.reason.as_deref().map(storable);
        kept.run.outcome = Some(Outcome { cause: outcome.cause, reason });
        (kept.run.usage, kept.run.ended_ms) = (usage, Some(now_ms));
        kept.run.last_event += last.iter().len() as u64;
        kept.events.extend(last);
        kept.begin_no_effect(outcome.kind(), now_ms);
        wakes.push(Wake::Moved(attempt.key));
        hooks.into_iter().for_each(|hook| self.hook(hook));
        Wrote::Done
    }

    fn accept(&mut self, new: NewRun) -> Wrote {
        let name = new.joining.as_ref().map(|(name, _)| storable(name));
        let before = self.keys.iter().find(|key| key.tenant == new.tenant && Some(&key.name) == name.as_ref());
        let before = before.and_then(|key| Some((key.digest, self.kept(&key.run)?)));
        if let (Some((digest, kept)), Some((_, asked))) = (before, &new.joining) {
            match (kept.fresh == new.fresh.as_str(), joinable(&kept.run), digest == *asked) {
                (true, _, _) => return Wrote::Accepted(kept.run.key.run.clone()),
                (_, true, true) => return Wrote::Joined(Box::new(kept.run.clone())),
                (_, _, false) if !kept.run.erased => return Wrote::OtherBody,
                _ => {}
            }
        }
        let named = |run| RunKey { tenant: new.tenant.clone(), run };
        let Some(first) = names(&new).next() else { return Wrote::Absent };
        if self.kept(&named(first)).is_some() {
            let again = names(&new).filter_map(|name| self.kept(&named(name))).find(|kept| kept.fresh == new.fresh.as_str());
            if let Some(again) = again {
                return Wrote::Accepted(again.run.key.run.clone());
            }
        }
        let free = names(&new).find(|name| self.kept(&named(name.clone())).is_none());
        let Some(run) = free else { return self.stands(&named(new.fresh.clone())) };
        if let (Some(name), Some((_, digest))) = (name, &new.joining) {
            self.keys.retain(|key| key.tenant != new.tenant || key.name != name);
            self.keys.push(Key { tenant: new.tenant.clone(), name, digest: *digest, run: named(run.clone()) });
        }
        let texts = (storable(&new.door), storable(&new.model), storable(&new.caller));
        let stored = StoredRun { door: texts.0, model: texts.1, caller: texts.2, ..new.accepted(run.clone()) };
        self.runs.push(Kept { fresh: new.fresh.as_str().to_owned(), run: stored, events: Vec::new(), effects: Vec::new() });
        Wrote::Accepted(run)
    }
}

#[async_trait]
impl RunStore for Memory {
    async fn commit(&self, writes: Vec<Write>, _: Survives) -> Result<Vec<Wrote>, StoreError> {
        let mut wakes = Vec::new();
        let mut state = self.state()?;
        let wrote = writes.into_iter().map(|write| state.apply(write, &mut wakes)).collect();
        drop(state);
        wakes.into_iter().filter(|_| self.config.notify).for_each(|wake| drop(self.wakes.send(wake)));
        Ok(wrote)
    }

    async fn run(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        Ok(self.state()?.kept(key).map(|kept| kept.run.clone()))
    }

    async fn glance(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        Ok(self.state()?.kept(key).map(|kept| StoredRun { request: None, record: None, ..kept.run.clone() }))
    }

    async fn runs(&self, tenant: &Tenant, query: &RunQuery) -> Result<Vec<StoredRun>, StoreError> {
        let state = self.state()?;
        let theirs: Vec<&StoredRun> = state.runs.iter().map(|kept| &kept.run).filter(|run| run.key.tenant == *tenant).collect();
        let older = match &query.after {
            None => theirs.len(),
            Some(after) => theirs.iter().position(|run| run.key.run == *after).unwrap_or(0),
        };
        let cause = |run: &StoredRun| run.outcome.as_ref().map(|outcome| outcome.cause);
        let asked = |run: &&&StoredRun| {
            query.outcome.is_none_or(|kind| cause(run).map(Cause::outcome) == Some(kind))
                && query.cause.is_none_or(|c| cause(run) == Some(c))
                && (!query.ended || run.outcome.is_some())
        };
        Ok(theirs[..older].iter().rev().filter(asked).take(query.limit).map(|run| StoredRun { request: None, ..(*run).clone() }).collect())
    }

    async fn events(&self, key: &RunKey, after: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        let state = self.state()?;
        let events = state.kept(key).map(|kept| kept.events.as_slice()).unwrap_or_default();
        Ok(events.iter().filter(|event| event.number > after).take(limit).cloned().collect())
    }

    async fn effects(&self, key: &RunKey) -> Result<Vec<Effect>, StoreError> {
        Ok(self.state()?.kept(key).map(|kept| kept.effects.clone()).unwrap_or_default())
    }

    async fn owned(&self, owner: Incarnation, limit: usize) -> Result<Vec<StoredRun>, StoreError> {
        let state = self.state()?;
        let open = state.runs.iter().map(|kept| &kept.run).filter(|run| run.owner == owner && run.outcome.is_none());
        Ok(open.take(limit).cloned().collect())
    }

    async fn wanted(&self, owner: Incarnation) -> Result<Vec<(RunKey, Cause)>, StoreError> {
        let open = self.owned(owner, usize::MAX).await?;
        Ok(open.into_iter().filter_map(|run| Some((run.key, run.wanted?))).collect())
    }

    async fn followed(&self, owner: Incarnation) -> Result<Vec<RunKey>, StoreError> {
        let open = self.owned(owner, usize::MAX).await?;
        Ok(open.into_iter().filter(|run| run.followed).map(|run| run.key).collect())
    }

    async fn attended(&self, owner: Incarnation) -> Result<Vec<(RunKey, Incarnation, u64)>, StoreError> {
        let open = self.owned(owner, usize::MAX).await?;
        Ok(self.state()?.attended(owner, &open))
    }

    async fn owners(&self) -> Result<Vec<(Incarnation, u64)>, StoreError> {
        let state = self.state()?;
        let mut owners: Vec<Incarnation> = state.runs.iter().filter(|kept| kept.run.outcome.is_none()).map(|kept| kept.run.owner).collect();
        owners.sort();
        owners.dedup();
        let beat = |owner| state.lives.iter().find(|(life, _)| *life == owner).map_or(0, |(_, beat)| *beat);
        Ok(owners.into_iter().map(|owner| (owner, beat(owner))).collect())
    }

    async fn due_hooks(&self, query: &HookQuery) -> Result<Vec<Hook>, StoreError> {
        Ok(self.state()?.due_hooks(query))
    }

    async fn hooks(&self, key: &RunKey) -> Result<Vec<HookState>, StoreError> {
        let state = self.state()?;
        let theirs = state.hooks.iter().filter(|there| there.hook.run == *key);
        let shown = theirs.map(|Outbox { hook, over }| HookState {
            id: hook.id.clone(),
            url: hook.url.clone(),
            due_ms: Some(hook.due_ms).filter(|_| !over),
            tries: hook.tries,
            last: hook.last.clone(),
        });
        Ok(shown.collect())
    }

    async fn expire(&self, now_ms: i64, limit: usize) -> Result<u64, StoreError> {
        let retention = i64::try_from(self.config.retention.as_millis()).unwrap_or(i64::MAX);
        let mut state = self.state()?;
        let said = |run: &StoredRun| run.expires_ms.filter(|at| run.ended_ms.is_some() && *at <= now_ms);
        let default = |run: &StoredRun| run.ended_ms.filter(|at| run.expires_ms.is_none() && *at <= now_ms.saturating_sub(retention));
        let deleted = state.delete(limit, said);
        Ok((deleted + state.delete(limit - deleted, default)) as u64)
    }

    fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.wakes.subscribe()
    }

    fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn connected(&self) -> u64 {
        self.connected.load(Ordering::SeqCst)
    }
}
