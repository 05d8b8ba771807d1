//! What seeds have met, so that a quiet run is seen to be quiet.
//!
//! Invariant: counts only go up, and are told by the oracle or seen in what the gateways write, never when something is planned.

/// What was met on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Met {
    /// Runs that a gateway accepted.
    pub runs: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those whose owner's process died.
    pub ownerless: u64,
    /// Attempts that were suspended.
    pub suspended: u64,
    /// Attempts that were taken up again.
    pub attached: u64,
    /// Attempts that were ended because nobody claimed them.
    pub orphaned: u64,
    /// Lives of workers that a gateway gave up.
    pub lost: u64,
    /// Times at which a worker's host had refused connections for long enough.
    pub refused: u64,
    /// Runs whose readers were told an end before there was an outcome.
    pub dismissed: u64,
    /// Second and later attempts.
    pub again: u64,
    /// Messages of another life or tenure.
    pub stale: u64,
    /// Cancels that overtook their submit.
    pub tombstones: u64,
    /// Readers that came back to a run that was theirs still.
    pub came_back: u64,
    /// Graces in which nobody came back.
    pub ran_out: u64,
    /// Runs that went on when their last reader left, or never had one.
    pub unread: u64,
    /// Tokens that were given to callers.
    pub tokens: u64,
}

impl std::ops::AddAssign for Met {
    fn add_assign(&mut self, more: Met) {
        self.runs += more.runs;
        self.completed += more.completed;
        self.ownerless += more.ownerless;
        self.suspended += more.suspended;
        self.attached += more.attached;
        self.orphaned += more.orphaned;
        self.lost += more.lost;
        self.refused += more.refused;
        self.dismissed += more.dismissed;
        self.again += more.again;
        self.stale += more.stale;
        self.tombstones += more.tombstones;
        self.came_back += more.came_back;
        self.ran_out += more.ran_out;
        self.unread += more.unread;
        self.tokens += more.tokens;
    }
}
