//! How far the word has come that nobody wants a run any more.
//!
//! Invariant: the boundary that is named is the first one that no stamp shows to be crossed.
// contract: C-24

use lifecycle::{Boundary, Milestone, Time};

use super::Run;
use crate::diagnose::LeftRun;

impl Run {
    /// How it stands, if nobody wants it. In a grace somebody may.
    pub(crate) fn left(&self, now: Time) -> Option<LeftRun> {
        let (left, cause) = self.abandoned.filter(|_| !self.graces.is_open())?;
        let left = self.asked_to_end(left);
        let at = |milestone| self.stamps.get(milestone);
        let ended = at(Milestone::FenceCompleted).or(at(Milestone::CancelApplied)).or(at(Milestone::CancelAcknowledged));
        // Without a cancel it may have ended by itself.
        let ended = ended.or_else(|| self.current().and_then(|attempt| attempt.ended.as_ref()).map(|_| left));
        let (boundary, since) = match (ended, at(Milestone::CancelReceived), at(Milestone::CancelSent)) {
            (Some(since), ..) => (Boundary::EngineAllocator, since),
            (None, Some(since), _) => (Boundary::WorkerEngine, since),
            (None, None, Some(since)) => (Boundary::GatewayWorker, since),
            (None, None, None) => (Boundary::ClientGateway, left),
        };
        let ms = |since: Time| u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
        Some(LeftRun {
            tenant: self.key.tenant.as_str().to_owned(),
            run: self.key.run.as_str().to_owned(),
            state: self.stands.state.as_str().to_owned(),
            cause: cause.as_str().to_owned(),
            worker: None,
            left_ms: ms(left),
            boundary: boundary.as_str().to_owned(),
            waits_ms: ms(since),
            ended: ended.is_some(),
            tokens_after: self.meter.waste().after.total(),
            blocks: self.blocks.held,
        })
    }
}
