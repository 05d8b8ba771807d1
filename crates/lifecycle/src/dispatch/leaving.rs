//! What a run does when its last reader leaves: by its policy it ends, waits for somebody to come back, or goes on.
//!
//! A grace is one more deadline of the run, whose cause is the leaving: until it passes, the cancel is not applied and whoever comes back
//! finds the run as it was. Once the cancel is applied nobody can come back: the leaving has won (C-4).
//!
//! Invariant: while a grace runs the caller's answer is not over, so a lost worker may still be followed by another; whatever else ends the
//! run ends the grace with it; a run that nobody reads settles without a reader.
// contract: C-25

use super::{Dispatch, Effects};
use crate::event::Event;
use crate::policy::OnDisconnect;
use crate::rules::Rules;
use crate::{Cause, Deadline, Delivery, OutcomeKind, Time};

/// Nobody reads the run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Unread {
    /// What the reader that left last had.
    pub(super) delivery: Delivery,
    /// Until when somebody may come back before the leaving counts, and its cause. `None`: it is not for its readers that the run goes on.
    pub(super) grace: Option<Deadline>,
}

impl<R: Rules> Dispatch<R> {
    /// The same run with this policy; without it, `cancel`.
    #[must_use]
    pub fn on_disconnect(mut self, policy: OnDisconnect) -> Dispatch<R> {
        self.policy = policy;
        self
    }

    /// The same run, which was accepted with nobody to read it: a background run (`continue`).
    #[must_use]
    pub fn nobody_reads(mut self) -> Dispatch<R> {
        self.unread = Some(Unread { delivery: Delivery::None, grace: None });
        self
    }

    /// What a disconnect means for it.
    pub const fn policy(&self) -> OnDisconnect {
        self.policy
    }

    /// Until when somebody may come back to a run that was left, if it waits for that.
    pub fn grace_until(&self) -> Option<Time> {
        self.grace().map(Deadline::at)
    }

    /// Whether a reader may take a seat: somebody wants the run still, and its answer is not over.
    pub fn is_joinable(&self) -> bool {
        let is_well = self.call.outcome().is_none_or(|cause| cause.outcome() == OutcomeKind::Completed);
        self.call.wanted().is_none() && is_well && self.call.delivery().is_none()
    }

    /// The last reader left, having been sent so much.
    pub fn abandoned(&mut self, cause: Cause, delivery: Delivery, now: Time) -> Effects {
        let mut effects = Vec::new();
        // Nobody was there who could leave.
        if self.unread.is_some() {
            return effects;
        }
        match self.policy {
            // Its own outcome is what it goes on for; a reader's leaving is no cause of anything.
            OnDisconnect::Continue => self.left_running(cause, delivery, now, &mut effects),
            // A caller whose deadline is over has said itself that it does not come back.
            OnDisconnect::Grace(grace) if !grace.is_zero() && cause.is_disconnect() && self.is_joinable() => {
                self.begin_grace(Deadline::from_left(now, grace, cause), delivery, now, &mut effects);
            }
            OnDisconnect::Grace(_) | OnDisconnect::Cancel => {
                self.wanted(cause, now, &mut effects);
                self.end_delivery(delivery, now, &mut effects);
            }
        }
        effects
    }

    /// A reader is there, again or for the first time. Whether the run is there for it: not if its end is wanted already.
    pub fn returned(&mut self) -> (bool, Effects) {
        let mut effects = Vec::new();
        if !self.is_joinable() {
            return (false, effects);
        }
        if self.unread.take().is_some_and(|unread| unread.grace.is_some()) {
            // The cancel was not applied, so nothing but a grace has set it.
            self.observed = None;
            self.note(Event::AbandonmentWithdrawn, &mut effects);
        }
        (true, effects)
    }

    /// Nobody can come back any more, for no reader is let in: a grace that runs is over.
    pub fn no_return(&mut self, now: Time) -> Effects {
        let mut effects = Vec::new();
        if let Some(grace) = self.grace() {
            self.wanted(grace.cause(), now, &mut effects);
        }
        effects
    }

    fn left_running(&mut self, cause: Cause, delivery: Delivery, now: Time, effects: &mut Effects) {
        if self.call.delivery().is_none() {
            self.note(Event::LeftRunning { cause }, effects);
            self.unread = Some(Unread { delivery, grace: None });
            self.settle_unread(now, effects);
        }
    }

    fn begin_grace(&mut self, grace: Deadline, delivery: Delivery, now: Time, effects: &mut Effects) {
        // After the outcome nothing is computed for nobody: only the answer is kept.
        if self.call.outcome().is_none() {
            self.observed = Some(now);
            self.note(Event::AbandonmentObserved { cause: grace.cause() }, effects);
        }
        self.note(Event::GraceBegun { grace: grace.left(now) }, effects);
        self.unread = Some(Unread { delivery, grace: Some(grace) });
    }

    /// The grace that runs.
    pub(super) fn grace(&self) -> Option<Deadline> {
        self.unread?.grace
    }

    /// Nobody came back. Returns what the leaving's cause was, if a grace ran.
    pub(super) fn end_grace(&mut self, effects: &mut Effects) -> Option<Cause> {
        let grace = self.unread.as_mut()?.grace.take()?;
        self.note(Event::GraceRanOut, effects);
        Some(grace.cause())
    }

    /// A run that nobody reads has no answer to wait for once its end is decided or wanted. Only one that completed in its grace is kept for
    /// whoever comes back.
    pub(super) fn settle_unread(&mut self, now: Time, effects: &mut Effects) {
        let Some(unread) = self.unread.filter(|_| self.call.delivery().is_none()) else { return };
        let is_kept = |cause: Cause| unread.grace.is_some() && cause.outcome() == OutcomeKind::Completed;
        if self.call.wanted().is_some() || self.call.outcome().is_some_and(|cause| !is_kept(cause)) {
            self.end_grace(effects);
            self.end_delivery(unread.delivery, now, effects);
        }
    }
}
