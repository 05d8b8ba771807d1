//! A run whose attempt is over and which goes on with another one.
//!
//! Invariant: what belonged to the former attempt's end is no part of the run's.
// contract: C-5

use lifecycle::{Milestone, Milestones};

use super::Run;

impl Run {
    /// A worker that stops gave it back: nobody has left, and what that worker's stop looked like is no part of the run's end.
    pub(super) fn handed_back(&mut self, number: u32) {
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.handed_back = true;
        }
        self.stamps = without(&self.stamps, &[Milestone::CancelReceived, Milestone::CancelApplied]);
        // In a grace somebody has left, whatever the worker does.
        if self.observed.is_none() {
            self.abandoned = None;
            self.meter.wanted_again();
            self.stamps = without(&self.stamps, &[Milestone::DisconnectObserved]);
        }
    }
}

/// The same stamps without those that say that a former attempt was released.
pub(super) fn unreleased(stamps: &Milestones) -> Milestones {
    without(stamps, &[Milestone::FenceCompleted, Milestone::Released])
}

pub(super) fn without(stamps: &Milestones, these: &[Milestone]) -> Milestones {
    let mut kept = Milestones::default();
    for (milestone, at) in stamps.iter() {
        if let (Some(at), false) = (at, these.contains(&milestone)) {
            kept.mark(milestone, at);
        }
    }
    kept
}
