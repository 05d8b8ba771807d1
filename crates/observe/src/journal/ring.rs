//! The journal's ring, read by those who want records and not views.
//!
//! Invariant: the lock is held for so many records at a time, but where it is said otherwise.

use lifecycle::RunKey;
use lifecycle::event::Record;

use super::Journal;
use crate::steps::SCAN;

impl Journal {
    /// Records from this number on, as far as the ring has them, at most so many: the number of the first, and they. The journal's first record
    /// has number 0.
    pub(crate) fn numbered(&self, from: u64, max: usize) -> (u64, Vec<Record>) {
        let state = self.lock();
        let oldest = state.taken - state.ring.len() as u64;
        let first = from.max(oldest);
        let skip = usize::try_from(first - oldest).unwrap_or(usize::MAX).min(state.ring.len());
        (first, state.ring.range(skip..).take(max).cloned().collect())
    }

    /// A run's records that are still in the ring, oldest first. Looks through the whole ring under the lock: for tests and checks.
    pub fn records(&self, key: &RunKey) -> Vec<Record> {
        self.lock().ring.iter().filter(|r| r.run.as_ref() == Some(key)).cloned().collect()
    }

    /// Shows the ring's records, oldest first, and lets go of the lock now and then: what comes meanwhile is shown, what falls out is not.
    pub(crate) fn scan(&self, mut each: impl FnMut(&Record)) {
        let mut next = 0;
        loop {
            let state = self.lock();
            let oldest = state.taken - state.ring.len() as u64;
            let from = usize::try_from(next.max(oldest) - oldest).unwrap_or(usize::MAX);
            if from >= state.ring.len() {
                return;
            }
            let to = (from + SCAN).min(state.ring.len());
            state.ring.range(from..to).for_each(&mut each);
            next = oldest + to as u64;
        }
    }

    /// How many records in the ring `wanted` picks. For tests and checks; it holds the lock while it looks.
    pub fn count(&self, mut wanted: impl FnMut(&Record) -> bool) -> usize {
        self.lock().ring.iter().filter(|r| wanted(r)).count()
    }
}
