//! A script in place of table and store: runs with what they say, some of which is still to come.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lifecycle::message::Usage;
use lifecycle::{Cause, Delivery, Incarnation, OnDisconnect, Outcome, RunKey, Said};
use serde_json::{Value, json};
use store::StoredRun;
use tokio::sync::watch;

use super::super::asked::Asked;
use super::super::runs::{Follows, Runs};
use crate::http::error::ApiError;

struct Scripted {
    run: StoredRun,
    said: Vec<Said>,
}

/// A request as it is kept: what a worker was asked for, the tools, here neither, and the door's own part.
pub(super) fn kept(door: &[u8]) -> Vec<u8> {
    [&0_u32.to_be_bytes(), &0_u32.to_be_bytes(), door].concat()
}

/// Runs by their keys.
#[derive(Clone)]
pub(super) struct Script {
    runs: Arc<Mutex<HashMap<RunKey, Scripted>>>,
    moved: watch::Sender<u64>,
    /// A cancel is noted and its end does not come by itself.
    pub(super) slow_cancel: bool,
    /// What was said cannot be read now.
    pub(super) away: Arc<AtomicBool>,
    /// Cancels that came.
    pub(super) cancels: Arc<AtomicUsize>,
}

impl Script {
    pub(super) fn new() -> Script {
        Script { runs: Arc::default(), moved: watch::Sender::new(0), slow_cancel: false, away: Arc::default(), cancels: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, Scripted>> {
        self.runs.lock().expect("no panic")
    }

    /// A response that has said this.
    pub(super) fn add(&self, key: &RunKey, asked: &Asked, said: &[Said]) {
        let run = StoredRun {
            key: key.clone(),
            door: "responses".into(),
            model: "tiny".into(),
            caller: "anonymous".into(),
            on_disconnect: if asked.background { OnDisconnect::Continue } else { OnDisconnect::Cancel },
            keeps: true,
            followed: false,
            owner: Incarnation(1),
            attempt: 1,
            outcome: None,
            wanted: None,
            usage: Usage::default(),
            delivery: None::<Delivery>,
            last_event: 0,
            created_ms: 1_700_000_000_999,
            ended_ms: None,
            expires_ms: None,
            request: Some(kept(&asked.encode())),
            record: None,
            erased: false,
        };
        self.lock().insert(key.clone(), Scripted { run, said: Vec::new() });
        said.iter().for_each(|said| self.say(key, said.clone()));
    }

    /// A run says something more.
    pub(super) fn say(&self, key: &RunKey, said: Said) {
        let mut runs = self.lock();
        let it = runs.get_mut(key).expect("a run");
        if let Said::End { outcome, usage } = &said {
            (it.run.outcome, it.run.usage, it.run.ended_ms) = (Some(outcome.clone()), *usage, Some(1_700_000_003_001));
        }
        it.run.last_event += 1;
        it.said.push(said);
        drop(runs);
        self.moved.send_modify(|n| *n += 1);
    }

    pub(super) fn change(&self, key: &RunKey, change: impl FnOnce(&mut StoredRun)) {
        change(&mut self.lock().get_mut(key).expect("a run").run);
    }

    /// Forgets what a run said, and not how it ended.
    pub(super) fn forget(&self, key: &RunKey) {
        self.lock().get_mut(key).expect("a run").said.clear();
    }
}

impl Runs for Script {
    type Follow = Following;

    async fn known(&self, key: &RunKey) -> Result<Option<StoredRun>, ApiError> {
        Ok(self.lock().get(key).map(|it| it.run.clone()))
    }

    fn follow(&self, key: &RunKey) -> Option<Following> {
        let is_there = self.lock().contains_key(key);
        is_there.then(|| Following { script: self.clone(), moved: self.moved.subscribe(), key: key.clone(), after: 0 })
    }

    async fn cancel(&self, key: &RunKey, _: Duration) -> Result<bool, ApiError> {
        self.cancels.fetch_add(1, Ordering::Relaxed);
        let Some(is_over) = self.lock().get(key).map(|it| it.run.outcome.is_some()) else { return Ok(false) };
        if !is_over && !self.slow_cancel {
            let (outcome, usage) = (Outcome::of(Cause::CancelRequested), Usage { prompt: 9, cached_prompt: 0, generated: 2 });
            self.say(key, Said::End { outcome, usage });
        }
        Ok(true)
    }

    async fn effects(&self, _: &RunKey) -> Value {
        json!([])
    }

    async fn erase(&self, key: &RunKey) -> Result<bool, ApiError> {
        let mut runs = self.lock();
        let Some(it) = runs.get_mut(key) else { return Ok(false) };
        (it.run.erased, it.run.request) = (true, None);
        it.said.clear();
        Ok(true)
    }
}

/// Somebody who follows one.
pub(super) struct Following {
    script: Script,
    moved: watch::Receiver<u64>,
    key: RunKey,
    after: u64,
}

impl Follows for Following {
    async fn next(&mut self) -> Option<(u64, Said)> {
        loop {
            self.moved.borrow_and_update();
            let (said, is_over) = {
                let runs = self.script.lock();
                let it = runs.get(&self.key)?;
                (it.said.get(self.after as usize).cloned(), it.run.outcome.is_some())
            };
            if let Some(said) = said {
                self.after += 1;
                return Some((self.after, said));
            }
            if is_over {
                return None;
            }
            self.moved.changed().await.ok()?;
        }
    }
    async fn stored(&mut self) -> Result<Option<(u64, Said)>, ApiError> {
        if self.script.away.load(Ordering::Relaxed) {
            return Err(ApiError::store_down());
        }
        let said = self.script.lock().get(&self.key).and_then(|it| it.said.get(self.after as usize).cloned());
        self.after += u64::from(said.is_some());
        Ok(said.map(|said| (self.after, said)))
    }
}
