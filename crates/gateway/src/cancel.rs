//! Cancelling: by name, by deadline, at shutdown; and the driver that repeats a cancel until the worker has let go.
//!
//! The driver belongs to the gateway, not to a request: it goes on when the handler, the body and the connection are long gone.
//!
//! Invariant: a run whose cancel was sent is looked at again until it is released or its worker is lost.
// contract: C-8 C-9 C-22 C-28

use std::sync::atomic::Ordering;
use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::{CallEvent, Cause, Outcome, RunKey, Time};
use tokio::sync::watch;

use crate::calls::{Calls, Entry};
use crate::feed::Item;

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

    /// A cancel by name for a run that has settled: it changes nothing, and that it came is recorded.
    // contract: C-4
    pub(crate) fn cancel_too_late(&self, key: &RunKey) {
        let run = self.journal.run(key);
        let won = run.and_then(|run| run.outcome).and_then(|outcome| Cause::parse(outcome.cause));
        if let Some(won) = won.filter(|won| *won != Cause::CancelRequested) {
            self.journal.record(Some(key), 0, Event::Superseded { cause: Cause::CancelRequested, won });
        }
    }

    /// Cancels everything that is live.
    pub(crate) fn cancel_all(&self, cause: Cause) {
        self.each(|entry| entry.call.outcome().is_none(), |entry| self.want(entry, cause));
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

    /// Looks at every run once; the time until the next look, `None` if there is no run.
    fn tick(&self) -> Option<Duration> {
        let now = self.now();
        let lost = self.lost.load(Ordering::Acquire);
        let mut next = now.after(LOOK_AGAIN);
        let mut stalled = Vec::new();
        self.each(
            |_| true,
            |entry| {
                if lost {
                    self.apply(entry, CallEvent::WorkerLost);
                }
                self.fire_deadlines(entry, now);
                for seat in entry.seats.late(now) {
                    self.leave(entry, seat, Cause::ClientDeadline);
                }
                if entry.call.needs_retry() && entry.repeat.0 <= now {
                    self.apply(entry, CallEvent::Retry);
                }
                self.tell(entry, now);
                let ended = entry.call.outcome().is_some();
                for (seat, conn) in entry.seats.unread(ended, self.config.unread_max, now) {
                    stalled.push(conn);
                    self.leave(entry, seat, Cause::ClientStalled);
                }
                next = self.due(entry).fold(next, Time::min);
            },
        );
        stalled.iter().for_each(|conn| self.close_if_idle(conn));
        (*self.live.borrow() > 0).then(|| next.since(now).max(Duration::from_millis(1)))
    }

    fn fire_deadlines(&self, entry: &mut Entry, now: Time) {
        if entry.call.outcome().is_some() {
            return entry.deadlines.clear();
        }
        let (passed, left) = std::mem::take(&mut entry.deadlines).into_iter().partition(|(at, _)| *at <= now);
        entry.deadlines = left;
        let mut passed: Vec<(Time, Cause)> = passed;
        passed.sort_by_key(|(at, _)| *at);
        passed.into_iter().for_each(|(_, cause)| self.want(entry, cause));
    }

    /// Tells the caller of a run that is wanted to end, if the worker has not said how it ended in reasonable time. The run itself stays
    /// until it has.
    fn tell(&self, entry: &mut Entry, now: Time) {
        let (Some(cause), Some(since)) = (entry.call.wanted(), entry.observed) else { return };
        if entry.call.outcome().is_none() && now.since(since) >= self.config.answer_grace {
            entry.seats.dismiss(&Item::End { outcome: Outcome::of(cause), usage: entry.usage });
        }
    }

    /// When a run has to be looked at again.
    fn due(&self, entry: &Entry) -> impl Iterator<Item = Time> {
        let repeat = entry.call.needs_retry().then_some(entry.repeat.0);
        let grace = entry.observed.filter(|_| entry.seats.is_fed() && entry.call.outcome().is_none());
        let grace = grace.map(|since| since.after(self.config.answer_grace));
        let unread = entry.seats.due(self.config.unread_max, self.now());
        let deadline = entry.deadlines.iter().map(|(at, _)| *at).min();
        [repeat, grace, unread, deadline].into_iter().flatten()
    }
}
