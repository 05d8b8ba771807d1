//! What a leaving means that may be taken back: work in a grace is held until it is clear whether anybody came back.
//!
//! Invariant: what is held is in no count and in no metric; it gets there once, when nobody came back, and never when somebody did.
// contract: C-12 C-25

use lifecycle::event::{Event, Record};
use lifecycle::{Milestone, OnDisconnect, Time};

use super::Run;
use super::again::without;
use crate::metrics::Totals;

/// A run's graces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Graces {
    /// What a disconnect means; `None` where the front door is in another process.
    pub policy: Option<OnDisconnect>,
    pub begun: u32,
    pub resumed: u32,
    /// When the last one was over and nobody had come: from then on somebody wants the run to end.
    ran_out: Option<Time>,
}

impl Graces {
    /// Whether somebody may still come back.
    pub(super) fn is_open(&self) -> bool {
        self.begun > self.resumed && self.ran_out.is_none()
    }
}

impl Run {
    pub(super) fn fold_grace(&mut self, record: &Record, totals: &mut Totals) {
        match &record.event {
            Event::GraceBegun { .. } => {
                self.graces.begun = self.graces.begun.saturating_add(1);
                totals.graces_begun += 1;
                // A worker that knew before had other reasons, and they stay.
                if self.observed.is_some() && self.abandoned.map(|(since, _)| since) == self.observed {
                    self.meter.hold();
                }
            }
            Event::AbandonmentWithdrawn => {
                self.graces.resumed = self.graces.resumed.saturating_add(1);
                totals.graces_resumed += 1;
                self.observed = None;
                if self.meter.give_back() {
                    self.abandoned = None;
                    self.stamps = without(&self.stamps, &[Milestone::DisconnectObserved]);
                }
            }
            Event::GraceRanOut => {
                totals.graces_run_out += 1;
                self.graces.ran_out = Some(record.at);
                let before = self.meter.waste();
                self.meter.count_held();
                totals.work.add(&self.meter.waste().since(&before));
            }
            Event::LeftRunning { .. } => totals.left_running += 1,
            _ => {}
        }
    }

    /// From when the latency of a cancel counts: in a grace nobody asks for one.
    pub(super) fn asked_to_end(&self, abandoned: Time) -> Time {
        self.graces.ran_out.unwrap_or(abandoned)
    }
}
