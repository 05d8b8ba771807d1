//! Readers who are told an end before the run's outcome is decided: the worker's word did not come in time, or is not to be expected.
//!
//! How the run ends is still its decider's to say (C-4). What was told is written down beside it, so that a record shows both.
//!
//! Invariant: readers are told one end and nothing after it; to tell one early decides nothing.
// contract: C-6 C-7 C-9

use super::{Dispatch, DispatchEffect, Effects, Said};
use crate::event::Event;
use crate::rules::Rules;
use crate::workers::WorkerIndex;
use crate::{CallState, Cause, Incarnation, Outcome, Time};

impl<R: Rules> Dispatch<R> {
    /// Nobody listens where the worker was that has it. That does not prove its attempt over, so nothing is decided and nothing dispatched again.
    /// But where no further attempt may follow, nobody need wait: the run is wanted to end, by a cancel that is repeated as any other, and its
    /// readers are told so at once. If the worker lives after all, its engine decides; else its next life or the lease's end shows it lost.
    // contract: C-7 C-9
    pub fn worker_refused(&mut self, worker: WorkerIndex, life: Incarnation, now: Time) -> Effects {
        let mut effects = Vec::new();
        if !self.is_at(worker, life) {
            return effects;
        }
        match self.call.state() {
            CallState::Dispatched | CallState::Live if !self.may_begin_anew() => {
                self.observe(Cause::WorkerLost, now, &mut effects);
                self.wanted(Cause::WorkerLost, now, &mut effects);
            }
            // Its readers wait for a word that is not to be expected.
            CallState::Stopping { .. } => {}
            _ => return effects,
        }
        self.dismiss(&mut effects);
        effects
    }

    /// The last of its readers was told this end, its own, and reads no further.
    pub fn told(&mut self, cause: Cause) -> Effects {
        let mut effects = Vec::new();
        if self.has_waiting_readers() {
            self.dismissed = true;
            self.note(Event::Dismissed { cause }, &mut effects);
        }
        effects
    }

    /// Tells the readers why the run is wanted to end, and nothing after it.
    pub(super) fn dismiss(&mut self, effects: &mut Effects) {
        let Some(cause) = self.call.wanted().filter(|_| self.has_waiting_readers()) else { return };
        self.dismissed = true;
        self.note(Event::Dismissed { cause }, effects);
        effects.push(DispatchEffect::Tell(Said::End { outcome: Outcome::of(cause), usage: self.usage }));
    }

    /// Whether the readers were told an end.
    pub(super) fn is_over_for_readers(&self) -> bool {
        self.dismissed || self.call.outcome().is_some()
    }

    /// Whether somebody may still wait to be told one.
    fn has_waiting_readers(&self) -> bool {
        !self.is_over_for_readers() && self.call.delivery().is_none()
    }

    /// Until when readers wait for the worker's word on a run that is wanted to end.
    pub(super) fn answer_ends(&self) -> Option<Time> {
        // A grace has observed a leaving, and wants nothing yet.
        let since = self.observed.filter(|_| self.call.wanted().is_some() && self.has_waiting_readers())?;
        Some(since.after(self.config.answer_grace))
    }
}
