//! The simulated store's past: a server that crashes comes back with what its disk had at a moment; and what is deleted when it is old.
//!
//! Invariant: what belongs to a run goes with it.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use lifecycle::RunKey;

use super::{Memory, State};
use crate::StoredRun;

/// What a store has at a moment.
pub struct Moment(State);

impl Memory {
    /// What it has now.
    pub fn moment(&self) -> Moment {
        Moment(self.state.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// As when a server crashes and comes back with what its disk had at that moment.
    pub fn crash_back_to(&self, moment: &Moment) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = moment.0.clone();
        self.connected.fetch_add(1, Ordering::SeqCst);
    }
}

impl State {
    /// Deletes up to `limit` runs that `over` gives a time of, the oldest such time first.
    pub(super) fn delete(&mut self, limit: usize, over: impl Fn(&StoredRun) -> Option<i64>) -> usize {
        let mut old: Vec<(i64, RunKey)> = self.runs.iter().filter_map(|kept| Some((over(&kept.run)?, kept.run.key.clone()))).collect();
        old.sort_by_key(|(at, _)| *at);
        old.truncate(limit);
        for (_, key) in &old {
            self.runs.retain(|kept| kept.run.key != *key);
            self.keys.retain(|name| name.run != *key);
            self.readers.retain(|(_, run)| run != key);
            self.hooks.retain(|there| !there.over || there.hook.run != *key);
        }
        old.len()
    }
}
