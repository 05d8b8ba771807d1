//! Cancelling: by name, by deadline, at shutdown; and the driver that repeats a cancel until the worker has let go.
//!
//! The driver belongs to the gateway, not to a request: it goes on when the handler, the body and the connection are long gone.
//!
//! Invariant: a run whose cancel was sent is looked at again until it is released or its worker is lost.
// contract: C-9 C-28

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::{Cause, RunKey, Time};
use tokio::sync::watch;

use crate::calls::Calls;

/// How long the driver sleeps at most while runs are live.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Calls {
    /// Cancels a live run by name. `None` if it is not in the table; else whether it is released can be waited for.
    pub(crate) fn cancel(&self, key: &RunKey) -> Option<watch::Receiver<bool>> {
        self.with(key, |entry| {
            let released = entry.released.subscribe();
            self.want(entry, Cause::CancelRequested);
            released
        })
    }

    /// Cancels by name and waits for the release, at most as long; before and after the end (C-8).
    pub(crate) async fn cancel_and_wait(&self, key: &RunKey, wait: Duration) {
        if let Some(mut released) = self.cancel(key) {
            // A closed channel is a run that has settled meanwhile; both are what was waited for.
            let _ = tokio::time::timeout(wait, released.wait_for(|released| *released)).await;
        } else {
            self.cancel_too_late(key);
        }
    }

    /// A cancel by name for a run that has settled: it changes nothing, and that it came is recorded.
    // contract: C-4
    fn cancel_too_late(&self, key: &RunKey) {
        let run = self.journal.run(key);
        let won = run.and_then(|run| run.outcome).and_then(|outcome| Cause::parse(outcome.cause));
        if let Some(won) = won.filter(|won| *won != Cause::CancelRequested) {
            self.journal.record(Some(key), 0, Event::Superseded { cause: Cause::CancelRequested, won });
        }
    }

    /// Cancels everything that is live.
    pub(crate) fn cancel_all(&self, cause: Cause) {
        self.each(|entry| entry.dispatch.call().outcome().is_none(), |entry| self.want(entry, cause));
    }

    /// Repeats cancels, fires deadlines and ends what nobody reads, for as long as the gateway serves.
    pub(crate) async fn drive(&self) {
        loop {
            match self.tick() {
                Some(wait) => drop(tokio::time::timeout(wait, self.wake.notified()).await),
                None => self.wake.notified().await,
            }
        }
    }

    /// Looks at every link and every run once; the time until the next look, `None` if there is no run.
    fn tick(&self) -> Option<Duration> {
        self.apply_closed_links();
        let now = self.now();
        let mut next = now.after(LOOK_AGAIN);
        let mut stalled = Vec::new();
        self.each(
            |_| true,
            |entry| {
                self.act(entry, lifecycle::Dispatch::tick);
                for seat in entry.seats.late(now) {
                    if entry.seats.open() == 1 {
                        self.act(entry, |dispatch, _| dispatch.told(Cause::ClientDeadline));
                    }
                    self.leave(entry, seat, Cause::ClientDeadline);
                }
                let ended = entry.dispatch.call().outcome().is_some();
                if ended {
                    // They read it from the store, however long they take.
                    self.read_elsewhere(entry, 0);
                }
                for (seat, conn) in entry.seats.unread(ended, self.config.unread_max, now) {
                    stalled.push(conn);
                    self.leave(entry, seat, Cause::ClientStalled);
                }
                let unread = entry.seats.due(self.config.unread_max, now);
                let end = self.tell_late_end(entry, now);
                next = [entry.dispatch.due(), unread, end].into_iter().flatten().fold(next, Time::min);
            },
        );
        stalled.iter().for_each(|conn| self.close_if_idle(conn));
        (*self.live.borrow() > 0).then(|| next.since(now).max(Duration::from_millis(1)))
    }
}
