//! Where a run goes: what each worker has to do, and which of them gets it.
//!
//! Invariant: decides nothing itself; `lifecycle::workers` does, by what the table has.

use std::collections::HashMap;

use lifecycle::{Load, Need, Place, WorkerIndex};

use crate::calls::Table;

impl Table {
    /// What each worker has to do.
    pub(crate) fn loads(&self) -> HashMap<WorkerIndex, Load> {
        let mut loads: HashMap<WorkerIndex, Load> = HashMap::new();
        for (worker, load) in self.entries.values().filter_map(|entry| entry.dispatch.load()) {
            *loads.entry(worker).or_default() += load;
        }
        loads
    }

    /// Where a run goes now, if there is a worker for it.
    pub(crate) fn choose(&mut self, need: &Need<'_>, percent: u32, loads: &HashMap<WorkerIndex, Load>) -> Option<Place> {
        let worker = self.workers.choose(need, percent, |worker| loads.get(&worker).copied().unwrap_or_default())?;
        let known = self.workers.get(worker)?;
        let (incarnation, model) = (known.life?, known.model(need.model)?.clone());
        self.last_number += 1;
        Some(Place { worker, incarnation, number: self.last_number, model })
    }
}
