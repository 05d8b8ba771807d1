//! How long the word of a run's end took, from boundary to boundary.
//!
//! Invariant: a span is observed when its end is reached for the first time, under the cause that came first; a run that nobody wants to end,
//! or of which it is not clear yet, has none.
// contract: C-24

use lifecycle::{Boundary, Milestone, Time};

use super::Run;
use crate::metrics::Totals;

impl Run {
    /// Marks a milestone on that way. Whether it is reached for the first time.
    pub(super) fn reached(&mut self, milestone: Milestone, at: Time, totals: &mut Totals) -> bool {
        let first = self.stamps.mark(milestone, at);
        if first {
            self.crossed(milestone, at, totals);
        }
        first
    }

    /// Times what ends with this milestone.
    pub(super) fn crossed(&self, milestone: Milestone, at: Time, totals: &mut Totals) {
        // A worker that stops on its own account while somebody may still come back answers no cancel.
        let Some((since, cause)) = self.abandoned.filter(|_| !self.meter.holds()) else { return };
        let (run, asked) = (&self.key.run, self.asked_to_end(since));
        let chain = match milestone {
            Milestone::CancelSent => Some(&mut totals.disconnect_to_sent),
            Milestone::CancelApplied => Some(&mut totals.disconnect_to_cancel),
            Milestone::CancelAcknowledged => Some(&mut totals.disconnect_to_acknowledged),
            Milestone::Released => Some(&mut totals.disconnect_to_released),
            _ => None,
        };
        if let Some(spans) = chain {
            spans.observe(cause, at.since(asked), run, at);
        }
        let from = |milestone| self.stamps.get(milestone);
        // Where each boundary first saw it, where that was passed on, and where its far side held nothing any more.
        let boundaries = [
            (Boundary::ClientGateway, self.observed.map(|_| asked), Milestone::CancelSent, Milestone::Settled),
            (Boundary::GatewayWorker, from(Milestone::CancelSent), Milestone::CancelReceived, Milestone::Released),
            (Boundary::WorkerEngine, from(Milestone::CancelReceived), Milestone::CancelApplied, Milestone::Released),
            (Boundary::EngineAllocator, from(Milestone::CancelApplied), Milestone::FenceCompleted, Milestone::Released),
        ];
        for (boundary, seen, forwarded, acknowledged) in boundaries {
            let Some(seen) = seen else { continue };
            if milestone == forwarded {
                totals.boundary_forwarded[boundary as usize].observe(cause, at.since(seen), run, at);
            }
            if milestone == acknowledged {
                totals.boundary_acknowledged[boundary as usize].observe(cause, at.since(seen), run, at);
            }
        }
    }
}
