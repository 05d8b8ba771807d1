//! The truth about who reads a run, and what its policy promises about it.
//!
//! Whoever comes back in a grace finds the run as it was, and that leaving has ended nothing; where nobody comes, it ends the run; a run that goes
//! on without a reader is ended by no leaving.
//!
//! Invariant: it is known from what readers did and from true time, and the processes' clocks are trusted to half a per cent.
// contract: C-25

use lifecycle::{Cause, OnDisconnect};

use super::oracle::Oracle;
use super::scenario::{RunPlan, called};

/// Who reads a run.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    policy: OnDisconnect,
    /// How the last reader left, and when; `None` while one is there.
    left: Option<(Cause, u64)>,
    /// How often one has left.
    leavings: u32,
}

impl Readers {
    pub fn new(plan: &RunPlan) -> Readers {
        Readers { policy: plan.policy, left: None, leavings: 0 }
    }

    /// The last reader left.
    pub fn leave(&mut self, cause: Cause, now: u64) {
        self.left = Some((cause, now));
        self.leavings += 1;
    }

    /// One is there again.
    pub fn come_back(&mut self) {
        self.left = None;
    }

    /// The number of the leaving after which nobody has come back.
    pub fn leaving(&self) -> Option<u32> {
        self.left.map(|_| self.leavings)
    }

    /// When that leaving's grace is over by every clock; `None` if it has none.
    pub fn grace_until(&self) -> Option<u64> {
        let OnDisconnect::Grace(grace) = self.policy else { return None };
        let (_, at) = self.left?;
        Some(at + grace.as_micros() as u64 * 1006 / 1000 + 1000)
    }

    /// Whether the run is not to be ended by the leaving yet, by any clock.
    pub fn may_come_back(&self, now: u64) -> bool {
        let Some((_, at)) = self.left else { return false };
        match self.policy {
            OnDisconnect::Cancel => false,
            OnDisconnect::Grace(grace) => (now - at) * 1006 / 1000 + 1000 < grace.as_micros() as u64,
            OnDisconnect::Continue => true,
        }
    }

    /// Why this cause may not end the run now, if it may not.
    pub fn forbids(&self, cause: Cause, now: u64) -> Option<&'static str> {
        match self.left {
            _ if self.policy == OnDisconnect::Cancel || !cause.is_disconnect() => None,
            None => Some("somebody reads it"),
            Some((left, _)) if left != cause => Some("nobody left it so"),
            Some(_) if self.policy == OnDisconnect::Continue => Some("it goes on without a reader"),
            Some(_) if self.may_come_back(now) => Some("its grace has not passed"),
            Some(_) => None,
        }
    }
}

impl Oracle {
    /// A run's last reader left. Whether that is a cause at once, in a while or never, its policy says.
    pub fn left(&mut self, run: usize, cause: Cause, now: u64) {
        self.runs[run].wanted.insert(cause);
        self.runs[run].readers.leave(cause, now);
    }

    /// A reader is there, and was let in.
    pub fn came_back(&mut self, run: usize) {
        self.runs[run].readers.come_back();
    }

    /// A reader was not let in, and nothing else has ended the run.
    pub fn turned_away(&mut self, run: usize, now: u64) {
        let truth = &self.runs[run];
        if truth.outcome.is_none() && truth.readers.may_come_back(now) {
            self.fail("C-25", || format!("a reader that came back in time to {} was turned away", called(run)));
        }
    }

    /// A run is ended, or asked to end, for this cause.
    pub fn may_end(&mut self, run: usize, cause: Cause, now: u64) {
        if let Some(why) = self.runs[run].readers.forbids(cause, now) {
            self.fail("C-25", || format!("{} is ended by {cause}, though {why}", called(run)));
        }
    }
}
