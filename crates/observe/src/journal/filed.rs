//! What the journal's files need of it: a place for their counts, and a journal that is folded from records of another time.
//!
//! Invariant: what is read back is folded by the same code as what comes.

use std::sync::{Arc, Mutex, OnceLock};

use lifecycle::event::Record;
use lifecycle::{RunId, RunKey, Time};

use super::{Journal, Limits, Shared, State};
use crate::clock::Clock;
use crate::files::{Counts, Filed};

impl Journal {
    /// Notes what counts its records on their way to files; false if something does already.
    pub(crate) fn begin_filing(&self, counts: Arc<Counts>) -> bool {
        self.0.filed.set(counts).is_ok()
    }

    /// What became of its records on their way to files; `None` where there are none.
    pub(crate) fn filed(&self) -> Option<Filed> {
        self.0.filed.get().map(|counts| counts.cut())
    }

    /// The runs of this id, whosever they are, newest first. It looks at all runs under the lock: for journals that are read back.
    pub fn of_any_tenant(&self, run: &RunId) -> Vec<RunKey> {
        self.lock().order.values().rev().filter(|key| key.run == *run).cloned().collect()
    }
}

/// A journal that is folded from records that are read back.
pub(crate) struct Folding {
    state: State,
    limits: Limits,
    newest: Time,
}

impl Folding {
    pub(crate) fn new(limits: Limits) -> Folding {
        Folding { state: State::new(limits), limits, newest: Time::ZERO }
    }

    pub(crate) fn take(&mut self, record: Record) {
        self.newest = self.newest.max(record.at);
        self.state.take(record, self.limits);
    }

    /// The journal, as it stood behind the newest record. Its clock began at this time since 1970.
    pub(crate) fn end(self, clock_ns: u64) -> Journal {
        let clock = Clock::standing(self.newest, clock_ns);
        Journal(Arc::new(Shared { clock, limits: self.limits, state: Mutex::new(self.state), filed: OnceLock::new() }))
    }
}
