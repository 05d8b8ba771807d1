//! Cancelling a run by name, on whichever gateway it is; and hearing what other gateways want of the runs here.
//!
//! Invariant: a run's end is decided where the run is; another gateway only asks for it, and whoever asked is told what is true.
// contract: C-4 C-8 C-26

use std::sync::Arc;
use std::time::Duration;

use lifecycle::RunKey;
use store::{StoreError, StoredRun, Survives, Wake, Write};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior};

use super::Keeper;
use crate::calls::Calls;

/// How long a cancel waits for the store to say what the run did outside, beside the canceller's own wait.
const EFFECTS_WAIT: Duration = Duration::from_secs(1);

impl Calls {
    /// Cancels by name and waits for the end, at most as long: the run's, and that of its effects in flight. False if there is no such run.
    ///
    /// # Errors
    /// The run is not here, and the store is not there.
    // contract: C-27
    pub(crate) async fn cancel_anywhere(&self, key: &RunKey, wait: Duration) -> Result<bool, StoreError> {
        let until = Instant::now() + wait;
        let is_run = self.cancel_run(key, wait).await?;
        if let Some(keeper) = self.keeper.as_ref().filter(|_| is_run) {
            // What the store cannot say now it says later, to whoever asks: the cancel itself is done.
            let ended = tokio::time::timeout_at(until + EFFECTS_WAIT, self.end_effects(keeper, key, until)).await;
            if !matches!(ended, Ok(Ok(_))) {
                tracing::warn!(run = %key.run, "what a cancelled run did outside is not known now");
            }
        }
        Ok(is_run)
    }

    async fn cancel_run(&self, key: &RunKey, wait: Duration) -> Result<bool, StoreError> {
        let is_here = self.known_here(key).is_some();
        let Some(keeper) = &self.keeper else {
            self.cancel_and_wait(key, wait).await;
            return Ok(is_here);
        };
        if is_here {
            self.cancel_here(keeper, key, wait).await;
            return Ok(true);
        }
        let mut news = keeper.hub.subscribe(key);
        let Some(run) = keeper.store.glance(key).await? else { return Ok(false) };
        if run.outcome.is_some() {
            return Ok(true);
        }
        let write = Write::Want { run: key.clone(), cause: lifecycle::Cause::CancelRequested };
        // Not by way of the recorder: whoever waits wants to know that it is written, and it depends on nothing before it. Nobody here would
        // say it again to a database that crashed.
        keeper.store.commit(vec![write], Survives::Machine).await?;
        let until = Instant::now() + wait;
        loop {
            news.borrow_and_update();
            if keeper.store.glance(key).await?.is_none_or(|run: StoredRun| run.outcome.is_some()) || Instant::now() >= until {
                return Ok(true);
            }
            let look_again = until.min(Instant::now() + keeper.config.poll);
            let _ = tokio::time::timeout_at(look_again, news.changed()).await;
        }
    }

    /// Cancels a run that is here. That its end is wanted is written too, before the answer where the store is there: were this process lost
    /// now, whoever takes the run over must not go on with what its caller has cancelled.
    // contract: C-7
    async fn cancel_here(&self, keeper: &Keeper, key: &RunKey, wait: Duration) {
        let is_open = self.journal.run(key).is_some_and(|run| run.outcome.is_none());
        let want = Write::Want { run: key.clone(), cause: lifecycle::Cause::CancelRequested };
        let written = is_open.then(|| keeper.ask_patiently(want, Survives::Process));
        // The one does not wait for the other.
        tokio::join!(self.cancel_and_wait(key, wait), async {
            if let Some(written) = written {
                written.await;
            }
        });
    }

    /// Hears what happens in the store, for as long as the gateway serves. News may be lost, so everything is also looked at every `poll`.
    pub(crate) async fn hear_store(self: &Arc<Self>, keeper: &Keeper) {
        let mut wakes = keeper.store.wakes();
        let mut poll = tokio::time::interval(keeper.config.poll);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let wake = tokio::select! {
                wake = wakes.recv() => wake,
                _ = poll.tick() => {
                    self.depart_stalled(keeper);
                    Ok(Wake::Lost)
                }
            };
            match wake {
                Ok(Wake::Moved(key)) => keeper.hub.moved(&key),
                Ok(Wake::Wanted(key)) if !self.is_live(&key) => {}
                Ok(Wake::Wanted(_)) => self.apply_wanted(keeper).await,
                Ok(Wake::Lost) | Err(RecvError::Lagged(_)) => {
                    keeper.hub.all_moved();
                    self.apply_wanted(keeper).await;
                }
                // The store sends nothing any more; looking is left.
                Err(RecvError::Closed) => {
                    poll.tick().await;
                    keeper.hub.all_moved();
                    self.apply_wanted(keeper).await;
                }
            }
        }
    }

    /// Whether a run is in the table.
    pub(super) fn is_live(&self, key: &RunKey) -> bool {
        self.lock().entries.contains_key(key)
    }

    /// Ends the runs here that somebody at another gateway wants ended, keeps the events of those that somebody there asks for, and counts
    /// those who read there.
    async fn apply_wanted(&self, keeper: &Keeper) {
        // A store that is away is asked again soon.
        for (key, cause) in keeper.store.wanted(self.incarnation).await.unwrap_or_default() {
            self.with(&key, |entry| {
                if !entry.dispatch.call().wanted_all().contains(&cause) {
                    self.want(entry, cause);
                }
            });
        }
        // Who asks for its events is a reader of it before it has one of them: it may be the last one a moment later.
        let followed = keeper.store.followed(self.incarnation).await.unwrap_or_default();
        self.see_attended(keeper).await;
        for key in followed {
            self.keep_from_now_on(keeper, &key);
        }
    }
}
