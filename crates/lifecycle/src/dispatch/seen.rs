//! What a dispatch tells of its current attempt: whose words count, what it has to do, since when; and when to look at it again.
//!
//! Invariant: nothing is changed here.

use super::Dispatch;
use crate::message::Usage;
use crate::rules::Rules;
use crate::workers::{Load, WorkerIndex};
use crate::{CallState, Incarnation, Time};

impl<R: Rules> Dispatch<R> {
    /// Its counts, as far as they are known.
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Whether it wants this attempt to stay on this life of this worker (C-23).
    pub fn claims(&self, worker: WorkerIndex, life: Incarnation, attempt: u32) -> bool {
        self.is_at(worker, life) && self.call.attempt() == attempt && self.call.is_at_worker()
    }

    /// Whether this life of this worker has this attempt, so that its words about it count.
    pub fn hears(&self, worker: WorkerIndex, life: Incarnation, attempt: u32) -> bool {
        self.is_at(worker, life) && self.call.attempt() == attempt
    }

    /// Whether nobody needs to wait for its release any more: it is there, or nobody can say it.
    pub fn is_released_or_void(&self) -> bool {
        matches!(self.call.state(), CallState::Released { .. } | CallState::Void { .. } | CallState::Settled { .. })
    }

    /// Answers asked for, and the cap on each at the worker that has it.
    pub fn asked(&self) -> (u32, u32) {
        let (n, cap) = self.asked;
        let limits = self.place.as_ref().map_or((u32::MAX, u32::MAX), |place| (place.model.default_max_tokens, place.model.context));
        (n, cap.unwrap_or(limits.0).min(limits.1))
    }

    /// When the current attempt was sent.
    pub const fn placed_at(&self) -> Time {
        self.placed
    }

    /// When a cancel of the current attempt was first sent.
    pub const fn cancelled_at(&self) -> Option<Time> {
        self.cancelled
    }

    /// The worker that has it, and what it has to do there at most.
    pub fn load(&self) -> Option<(WorkerIndex, Load)> {
        let place = self.place.as_ref().filter(|_| self.call.is_at_worker())?;
        let (n, each) = self.asked();
        let left = if self.call.outcome().is_some() { 0 } else { u64::from(n) * u64::from(each) };
        Some((place.worker, Load { tokens: left.saturating_sub(u64::from(self.usage.generated)), runs: 1, newest: place.number }))
    }

    /// When it has to be looked at again; `None` if nothing of it waits for a time.
    pub fn due(&self) -> Option<Time> {
        let repeat = self.call.needs_retry().then_some(self.repeat.0);
        let is_open = self.call.outcome().is_none();
        let queue = self.is_waiting().then_some(self.queue.at());
        let deadlines = self.deadlines.iter().filter(|_| is_open).map(|deadline| deadline.at());
        [repeat, self.answer_ends(), queue, self.grace_until()].into_iter().flatten().chain(deadlines).min()
    }
}
