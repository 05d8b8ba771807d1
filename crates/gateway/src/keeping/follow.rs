//! Reading a run's events from the store, from any number on, while it runs here or elsewhere or when it has long ended.
//!
//! A stream waits for a store that is away, as it waits for events; what cannot be read ends it. Whoever wants to know what is there now is
//! told either. An event that comes costs one read; how the run stands is looked at only where something came that is no event.
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
    /// All that there was at the last look is read: the next look is worth it only after news.
    drained: bool,
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
        // In its turn: behind the word that somebody reads it here, so that its gateway hears of both or of neither.
        keeper.ask(Write::Follow { run: key.clone() }, Survives::Process, true).await?;
        let until = Instant::now() + keeper.config.poll * ANSWER_POLLS;
        loop {
            news.borrow_and_update();
            match keeper.store.glance(key).await? {
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
        let (calls, key, ready) = (self.clone(), key.clone(), VecDeque::new());
        Some(Follow { calls, key, after, ready, news, drained: false, over: false, attendance: None })
    }
}

impl Follow {
    /// The same for one of the run's readers, where the run's gateway is told so.
    pub(crate) fn attending(mut self, attendance: Option<Attendance>) -> Follow {
        self.attendance = attendance;
        self
    }

    /// The next event; `None` after the last, or where one cannot be read. Whoever asks has taken the one before.
    pub(crate) async fn next(&mut self) -> Option<(u64, Said)> {
        self.attendance.iter().for_each(Attendance::taken);
        loop {
            if let Some(event) = self.take() {
                self.attendance.iter().for_each(Attendance::sent);
                return Some(event);
            }
            if self.over {
                return None;
            }
            if std::mem::take(&mut self.drained) {
                let poll = self.calls.keeper.as_ref()?.config.poll;
                // News may be lost, so it is looked for as well. A hub that is gone is a gateway that is gone.
                let _ = tokio::time::timeout(poll, self.news.changed()).await;
            }
            self.news.borrow_and_update();
            match self.read().await {
                Ok(()) => {}
                Err(StoreError::Unavailable(_)) => self.drained = true,
                Err(why) => {
                    tracing::error!(run = %self.key.run, %why, "its events cannot be read: a stream of them ends");
                    self.over = true;
                }
            }
        }
    }

    /// The next event that is in the store now; `None` if there is none. Waits for nothing but the store's answer.
    ///
    /// # Errors
    /// The store is not there, or the event cannot be read.
    pub(crate) async fn stored(&mut self) -> Result<Option<(u64, Said)>, StoreError> {
        if self.ready.is_empty() && !self.over {
            self.page().await?;
        }
        Ok(self.take())
    }

    fn take(&mut self) -> Option<(u64, Said)> {
        let (number, said) = self.ready.pop_front()?;
        self.after = number;
        self.over = matches!(said, Said::End { .. });
        Some((number, said))
    }

    /// Looks for more. A run that has ended and has nothing more is over.
    async fn read(&mut self) -> Result<(), StoreError> {
        self.page().await?;
        let Some(keeper) = &self.calls.keeper else { return Ok(()) };
        if !self.ready.is_empty() {
            return Ok(());
        }
        if keeper.store.glance(&self.key).await?.is_some_and(|run| run.outcome.is_none()) {
            return Ok(());
        }
        // It may have ended between the two looks.
        self.page().await?;
        self.over = self.ready.is_empty();
        Ok(())
    }

    async fn page(&mut self) -> Result<(), StoreError> {
        let Some(keeper) = &self.calls.keeper else { return Ok(()) };
        let events = keeper.store.events(&self.key, self.after, PAGE).await?;
        self.drained = events.len() < PAGE;
        for event in events {
            let said = kept::read_said(&event.body).map_err(|e| StoreError::Unreadable(e.to_string()))?;
            self.ready.push_back((event.number, said));
        }
        Ok(())
    }
}
