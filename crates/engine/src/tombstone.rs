//! Cancels that came before their submit, bounded; forgetting one raises the mark below which submits are refused.
// contract: C-2, C-11

use std::collections::{BTreeMap, HashMap};

use lifecycle::{AttemptId, Outcome};

/// Remembered cancels, and the low-water mark of submit numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tombstones {
    pub(crate) limit: usize,
    pub(crate) mark: u64,
    pub(crate) cancelled: HashMap<AttemptId, (u64, Outcome)>,
    pub(crate) by_number: BTreeMap<u64, AttemptId>,
}

impl Tombstones {
    pub(crate) fn new(limit: u32) -> Tombstones {
        Tombstones { limit: limit as usize, ..Tombstones::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.cancelled.len()
    }

    /// Whether a submit with this number may still come. Below the mark it was executed or given up long ago.
    pub(crate) fn may_come(&self, number: u64) -> bool {
        number > self.mark
    }

    /// Remembers a cancel for a submit that may still come. The first cause wins.
    pub(crate) fn remember(&mut self, attempt: AttemptId, number: u64, outcome: Outcome) {
        if !self.may_come(number) || self.cancelled.contains_key(&attempt) {
            return;
        }
        self.by_number.insert(number, attempt.clone());
        self.cancelled.insert(attempt, (number, outcome));
        while self.cancelled.len() > self.limit {
            let Some((oldest, id)) = self.by_number.pop_first() else { break };
            self.cancelled.remove(&id);
            self.mark = self.mark.max(oldest);
        }
    }

    /// A submit came: `Err` if its number is at or below the mark, else the outcome of a cancel that came before it.
    pub(crate) fn submit(&mut self, attempt: &AttemptId, number: u64) -> Result<Option<Outcome>, ()> {
        if !self.may_come(number) {
            return Err(());
        }
        // A session sends its submits in order, so whatever is below this number and has not come will not come.
        self.mark = number;
        let found = self.cancelled.remove(attempt).map(|(_, outcome)| outcome);
        while self.by_number.first_key_value().is_some_and(|(n, _)| *n <= number) {
            if let Some((_, id)) = self.by_number.pop_first() {
                self.cancelled.remove(&id);
            }
        }
        Ok(found)
    }
}
