//! Whether a run goes on with a further attempt, and when.
//!
//! Invariant: nothing of a run that begins anew was delivered, and it begins no oftener than the policy allows, those attempts apart that no worker
//! began.
// contract: C-2

use super::{Dispatch, DispatchEffect, Effects};
use crate::message::Usage;
use crate::rules::Rules;
use crate::{Cause, Deadline, Outcome, Time};

impl<R: Rules> Dispatch<R> {
    /// Whether the policy allows an attempt after this one.
    pub(super) fn may_follow(&self, attempt: u32) -> bool {
        attempt.saturating_sub(self.first).saturating_sub(self.unbegun) <= self.config.redispatch_max
    }

    /// Whether one more that was never begun costs none of the attempts that the policy allows.
    pub(super) fn is_free(&self) -> bool {
        self.unbegun < self.config.unbegun_max
    }

    /// Whether a further attempt could take the place of this one: nothing was delivered, and the policy allows it.
    pub(super) fn may_begin_anew(&self) -> bool {
        self.is_untouched() && self.may_follow(self.call.attempt())
    }

    /// Whether nothing of it was delivered, so that another worker could begin it anew.
    pub(super) fn is_untouched(&self) -> bool {
        !self.told && !self.dismissed && self.work.is_some()
    }

    /// It is turned away for this, if it waits and no worker has begun it.
    pub fn refuse(&mut self, outcome: Outcome, now: Time) -> Effects {
        if !self.is_waiting() || self.call.attempt() != self.unbegun {
            return Vec::new();
        }
        let cause = outcome.cause;
        self.ended = Some(outcome);
        self.want(cause, now)
    }

    /// An attempt is over and the run is not.
    pub(super) fn wait_if_it_does(&mut self, now: Time, effects: &mut Effects) {
        if self.is_waiting() && self.place.take().is_some() {
            self.usage = Usage::default();
            self.ended = None;
            self.queue = Deadline::from_left(now, self.config.queue_deadline, Cause::QueueDeadline);
            effects.push(DispatchEffect::Wait);
        }
    }
}
