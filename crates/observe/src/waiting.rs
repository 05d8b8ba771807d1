//! Who has waited longest for something that should not take long: a cancel's acknowledgement, an orphan's reaping.
//!
//! Invariant: a run stands in a table exactly while it waits, with the time at which it began to; to ask for the oldest costs a look at one
//! end, and a record that changes nothing costs nothing here.

use std::collections::BTreeSet;

use lifecycle::Time;

use crate::fold::Run;

/// The tables, one for each thing that is waited for.
#[derive(Default)]
pub(crate) struct Waiting([BTreeSet<(Time, u64)>; Waiting::KINDS]);

impl Waiting {
    /// What is waited for: see [`Waiting::unacknowledged`] and [`Waiting::orphan`].
    pub(crate) const KINDS: usize = 2;

    /// With what happened at `at` the run waits for these and no others.
    pub(crate) fn follow(&mut self, run: &mut Run, waits: [bool; Self::KINDS], at: Time) {
        for (kind, waits) in waits.into_iter().enumerate() {
            match (run.waits[kind], waits) {
                (None, true) => {
                    run.waits[kind] = Some(at);
                    self.0[kind].insert((at, run.seq));
                }
                (Some(_), false) => self.leave(run, kind),
                _ => {}
            }
        }
    }

    /// The run is forgotten.
    pub(crate) fn forget(&mut self, run: &mut Run) {
        (0..Self::KINDS).for_each(|kind| self.leave(run, kind));
    }

    fn leave(&mut self, run: &mut Run, kind: usize) {
        if let Some(since) = run.waits[kind].take() {
            self.0[kind].remove(&(since, run.seq));
        }
    }

    /// Since when the oldest cancel is not acknowledged.
    pub(crate) fn unacknowledged(&self) -> Option<Time> {
        self.0[0].first().map(|(since, _)| *since)
    }

    /// Since when the oldest orphan is not reaped.
    pub(crate) fn orphan(&self) -> Option<Time> {
        self.0[1].first().map(|(since, _)| *since)
    }
}
