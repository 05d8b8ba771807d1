//! Reading a run's events from the store, from any number on, while it runs here or elsewhere or when it has long ended.
//!
//! Invariant: every event once, in the order of their numbers; a follower that does not attend holds nothing of a run.
// contract: C-26

use std::collections::VecDeque;
use std::sync::Arc;

use lifecycle::{RunKey, Said};
use protocol::kept;
use store::{StoreError, StoredRun, Survives, Write};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Attendance;
use crate::calls::Calls;

/// Events that are read at once.
const PAGE: usize = 256;
/// How often it is looked for the answer of the gateway that has a run, which itself looks once in a poll if it hears nothing.
const ANSWER_POLLS: u32 = 4;

/// Somebody who reads a run's events.
pub(crate) struct Follow {
    calls: Arc<Calls>,
    key: RunKey,
    after: u64,
    ready: VecDeque<(u64, Said)>,
    news: watch::Receiver<u64>,
    over: bool,
    /// What says at the run's gateway that this is one of its readers.
    attendance: Option<Attendance>,
}

impl Calls {
    /// What is known of a run in the store. `None` if there is no such run, or no store.
    ///
    /// # Errors
    /// The store is not there.
    pub(crate) async fn known(&self, key: &RunKey) -> Result<Option<StoredRun>, StoreError> {
        match &self.keeper {
            Some(keeper) => keeper.store.run(key).await,
            None => Ok(None),
        }
    }

    /// Asks the gateway that has a live run to keep its events, of which it keeps none, from the first on. Whether they are kept.
    ///
    /// # Errors
    /// The store is not there, or nobody answers.
    pub(crate) async fn ask_for_events(&self, key: &RunKey) -> Result<bool, StoreError> {
        let Some(keeper) = &self.keeper else { return Ok(false) };
        let mut news = keeper.hub.subscribe(key);
        keeper.store.commit(vec![Write::Follow { run: key.clone() }], Survives::Process).await?;
        let until = Instant::now() + keeper.config.poll * ANSWER_POLLS;
        loop {
            news.borrow_and_update();
            match keeper.store.run(key).await? {
                Some(run) if run.keeps => return Ok(true),
                Some(run) if run.followed && run.outcome.is_none() => {}
                _ => return Ok(false),
            }
            if Instant::now() >= until {
                return Err(StoreError::Unavailable("the gateway that has the run does not answer".to_owned()));
            }
            let look_again = until.min(Instant::now() + keeper.config.poll);
            let _ = tokio::time::timeout_at(look_again, news.changed()).await;
        }
    }

    /// Reads a run's events from the one after `after` on. `None` if there is no such run, or no store.
    ///
    /// # Errors
    /// The store is not there.
    pub(crate) async fn follow(self: &Arc<Self>, key: &RunKey, after: u64) -> Result<Option<Follow>, StoreError> {
        let known = self.known(key).await?;
        Ok(known.and_then(|_| self.follow_known(key, after)))
    }

    /// The same for a run that is known to be in the store, which need not be there for it now. `None` without a store.
    pub(crate) fn follow_known(self: &Arc<Self>, key: &RunKey, after: u64) -> Option<Follow> {
        // Before the first look, so that nothing falls between it and the first wait.
        let news = self.keeper.as_ref()?.hub.subscribe(key);
        Some(Follow { calls: self.clone(), key: key.clone(), after, ready: VecDeque::new(), news, over: false, attendance: None })
    }
}

impl Follow {
    /// The same for one of the run's readers, where the run's gateway is told so.
    pub(crate) fn attending(mut self, attendance: Option<Attendance>) -> Follow {
        self.attendance = attendance;
        self
    }

    /// The next event; `None` after the last. Whoever asks has taken the one before.
    pub(crate) async fn next(&mut self) -> Option<(u64, Said)> {
        self.attendance.iter().for_each(Attendance::taken);
        loop {
            if let Some((number, said)) = self.ready.pop_front() {
                self.attendance.iter().for_each(Attendance::sent);
                self.after = number;
                self.over = matches!(said, Said::End { .. });
                return Some((number, said));
            }
            if self.over {
                return None;
            }
            self.news.borrow_and_update();
            match self.read().await {
                Ok(true) => {}
                Ok(false) if self.over => return None,
                // Nothing new, or no store: news may be lost, so it is looked for as well.
                Ok(false) | Err(_) => {
                    let poll = self.calls.keeper.as_ref()?.config.poll;
                    // A hub that is gone is a gateway that is gone.
                    let _ = tokio::time::timeout(poll, self.news.changed()).await;
                }
            }
        }
    }

    /// Whether there was anything. A run that has ended and has nothing more is over.
    async fn read(&mut self) -> Result<bool, StoreError> {
        if self.page().await? {
            return Ok(true);
        }
        let Some(keeper) = &self.calls.keeper else { return Ok(false) };
        if keeper.store.run(&self.key).await?.is_some_and(|run| run.outcome.is_none()) {
            return Ok(false);
        }
        // It may have ended between the two looks.
        let last = self.page().await?;
        self.over = !last;
        Ok(last)
    }

    async fn page(&mut self) -> Result<bool, StoreError> {
        let Some(keeper) = &self.calls.keeper else { return Ok(false) };
        let events = keeper.store.events(&self.key, self.after, PAGE).await?;
        for event in events {
            let said = kept::read_said(&event.body).map_err(|e| StoreError::Unreadable(e.to_string()))?;
            self.ready.push_back((event.number, said));
        }
        Ok(!self.ready.is_empty())
    }
}
