//! When what happened to a run: one stamp for each milestone, and three for each boundary that its end had to cross.
//!
//! Stamps are of one process's clock; a boundary's `clock_error` says how far the other side's may be off (C-24).
//!
//! Invariant: a stamp that is there stays, save those of the newest computation and the newest fence, which only move forward.

use std::fmt;
use std::time::Duration;

use crate::cause::words;
use crate::{Phase, Time};

words! {
    /// A moment in a run's life that is stamped.
    // contract: C-24
    Milestone {
        /// The front door took the run on.
        Accepted = "accepted",
        /// It waits at the worker to be scheduled.
        Queued = "queued",
        /// The first blocks were taken for it.
        BlocksAllocated = "blocks_allocated",
        /// Its first prompt chunk went into a step.
        PrefillStart = "prefill_start",
        /// Its first token was there.
        FirstToken = "first_token",
        /// A deadline of it passed.
        DeadlineFired = "deadline_fired",
        /// Its caller's leaving was seen.
        DisconnectObserved = "disconnect_observed",
        /// The first cancel left the gateway.
        CancelSent = "cancel_sent",
        /// A cancel reached the worker.
        CancelReceived = "cancel_received",
        /// The engine made it non-runnable.
        CancelApplied = "cancel_applied",
        /// The gateway learned that.
        CancelAcknowledged = "cancel_acknowledged",
        /// The newest step that computed rows of it was over.
        LastCompute = "last_compute",
        /// The newest step that could touch its blocks was over.
        FenceCompleted = "fence_completed",
        /// It owned no block and no per-run state any more.
        Released = "released",
        /// Its gateway held nothing but the record.
        Settled = "settled",
    }
}

impl Milestone {
    /// Whether the newest stamp counts and not the first.
    pub const fn keeps_newest(self) -> bool {
        matches!(self, Milestone::LastCompute | Milestone::FenceCompleted)
    }
}

/// The stamps of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Milestones {
    stamps: [Option<Time>; Milestone::ALL.len()],
    phase_at_disconnect: Option<Phase>,
}

impl Milestones {
    /// Stamps a milestone. The first stamp stays, except where [`Milestone::keeps_newest`]. Returns whether anything changed.
    pub fn mark(&mut self, milestone: Milestone, at: Time) -> bool {
        let stamp = &mut self.stamps[milestone as usize];
        let changes = match *stamp {
            None => true,
            Some(old) => milestone.keeps_newest() && at > old,
        };
        if changes {
            *stamp = Some(at);
        }
        changes
    }

    /// The stamp of a milestone; `None` if it was not reached.
    pub const fn get(&self, milestone: Milestone) -> Option<Time> {
        self.stamps[milestone as usize]
    }

    /// Milliseconds since `accepted`, as the API shows them; `None` if either is missing.
    pub fn ms(&self, milestone: Milestone) -> Option<f64> {
        Some(self.get(milestone)?.ms_since(self.get(Milestone::Accepted)?))
    }

    /// Every milestone with its stamp, in the contract's order.
    pub fn iter(&self) -> impl Iterator<Item = (Milestone, Option<Time>)> + '_ {
        Milestone::ALL.iter().map(|&milestone| (milestone, self.get(milestone)))
    }

    /// Notes where the run was when abandonment was first observed; the first note stays. Returns whether it was that one.
    pub const fn mark_phase(&mut self, phase: Phase) -> bool {
        let first = self.phase_at_disconnect.is_none();
        if first {
            self.phase_at_disconnect = Some(phase);
        }
        first
    }

    /// Where the run was when abandonment was first observed; `None` if it never was.
    pub const fn phase_at_disconnect(&self) -> Option<Phase> {
        self.phase_at_disconnect
    }
}

words! {
    /// A hop that the wish to end a run must cross.
    Boundary {
        /// From the caller's connection to the gateway.
        ClientGateway = "client-gateway",
        /// From the gateway to the worker's shell.
        GatewayWorker = "gateway-worker",
        /// From the worker's shell to its engine.
        WorkerEngine = "worker-engine",
        /// From the engine to the block pool.
        EngineAllocator = "engine-allocator",
    }
}

/// What happened at one boundary. The near side is the one that the wish comes from.
// contract: C-24
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BoundaryTimes {
    /// Which boundary.
    pub boundary: Boundary,
    /// When abandonment was first observed there.
    pub observed: Option<Time>,
    /// When it was handed on.
    pub forwarded: Option<Time>,
    /// When the far side said that it is done.
    pub acknowledged: Option<Time>,
    /// How far these stamps may be off against the other boundaries'; zero within one process.
    pub clock_error: Duration,
}

impl BoundaryTimes {
    /// A boundary that nothing has crossed.
    pub const fn new(boundary: Boundary, clock_error: Duration) -> BoundaryTimes {
        BoundaryTimes { boundary, observed: None, forwarded: None, acknowledged: None, clock_error }
    }

    /// Notes the first observation. Returns whether it was that one; a later one changes nothing.
    pub fn observe(&mut self, at: Time) -> bool {
        first(&mut self.observed, at)
    }

    /// Notes the first handing on. Returns whether it was that one; a repeated cancel changes nothing.
    pub fn forward(&mut self, at: Time) -> bool {
        first(&mut self.forwarded, at)
    }

    /// Notes the first acknowledgement. Returns whether it was that one.
    pub fn acknowledge(&mut self, at: Time) -> bool {
        first(&mut self.acknowledged, at)
    }
}

fn first(stamp: &mut Option<Time>, at: Time) -> bool {
    let is_first = stamp.is_none();
    stamp.get_or_insert(at);
    is_first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_milestone_keeps_its_first_stamp_but_two() {
        for &milestone in Milestone::ALL {
            let mut all = Milestones::default();
            assert_eq!(all.get(milestone), None);
            assert!(all.mark(milestone, Time(5)));
            assert!(!all.mark(milestone, Time(5)), "{milestone}: the same stamp again changes nothing");
            assert!(!all.mark(milestone, Time(4)), "{milestone}: an older stamp changes nothing");
            let newest = matches!(milestone, Milestone::LastCompute | Milestone::FenceCompleted);
            assert_eq!(all.mark(milestone, Time(9)), newest);
            assert_eq!(all.get(milestone), Some(Time(if newest { 9 } else { 5 })));
            assert_eq!(all.iter().filter(|(_, at)| at.is_some()).count(), 1, "{milestone}: no other one is stamped");
        }
    }

    // contract: C-24
    #[test]
    fn the_words_are_the_api_s() {
        let words: Vec<_> = Milestone::ALL.iter().map(|m| m.as_str()).collect();
        let api = "accepted queued blocks_allocated prefill_start first_token deadline_fired disconnect_observed cancel_sent \
                   cancel_received cancel_applied cancel_acknowledged last_compute fence_completed released settled";
        assert_eq!(words.join(" "), api);
        assert_eq!(Boundary::parse("gateway-worker"), Some(Boundary::GatewayWorker));
        assert_eq!(Milestone::parse("Accepted"), None);
    }

    #[test]
    fn times_are_shown_from_accepted_on() {
        let mut all = Milestones::default();
        all.mark(Milestone::FirstToken, Time(22_500));
        assert_eq!(all.ms(Milestone::FirstToken), None, "without a beginning there is nothing to count from");
        all.mark(Milestone::Accepted, Time(1_000));
        assert_eq!(all.ms(Milestone::FirstToken), Some(21.5));
        assert_eq!(all.ms(Milestone::Accepted), Some(0.0));
        assert_eq!(all.ms(Milestone::Settled), None);
    }

    #[test]
    fn the_phase_is_the_one_of_the_first_observation() {
        let mut all = Milestones::default();
        assert!(all.mark_phase(Phase::Prefill));
        assert!(!all.mark_phase(Phase::Decode));
        assert_eq!(all.phase_at_disconnect(), Some(Phase::Prefill));
    }

    #[test]
    fn a_boundary_keeps_its_first_stamps() {
        let mut hop = BoundaryTimes::new(Boundary::GatewayWorker, Duration::from_micros(100));
        assert!(hop.observe(Time(1)) && hop.forward(Time(2)) && hop.acknowledge(Time(3)));
        assert!(!hop.observe(Time(7)) && !hop.forward(Time(8)) && !hop.acknowledge(Time(9)));
        assert_eq!((hop.observed, hop.forwarded, hop.acknowledged), (Some(Time(1)), Some(Time(2)), Some(Time(3))));
    }
}
