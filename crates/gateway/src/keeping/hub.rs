//! Who waits for news of which run.
//!
//! Invariant: a run that nobody waits for has no entry, but for the moment until the next news of it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lifecycle::RunKey;
use tokio::sync::watch;

/// News counters by run.
#[derive(Default)]
pub(crate) struct Hub {
    runs: Mutex<HashMap<RunKey, watch::Sender<u64>>>,
}

impl Hub {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunKey, watch::Sender<u64>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, news of this run is seen.
    pub(super) fn subscribe(&self, key: &RunKey) -> watch::Receiver<u64> {
        self.lock().entry(key.clone()).or_default().subscribe()
    }

    /// There is news of this run.
    pub(super) fn moved(&self, key: &RunKey) {
        let mut runs = self.lock();
        if let Some(news) = runs.get(key) {
            news.send_modify(|n| *n += 1);
            if news.is_closed() {
                runs.remove(key);
            }
        }
    }

    /// There may be news of any run.
    pub(super) fn all_moved(&self) {
        self.lock().retain(|_, news| {
            news.send_modify(|n| *n += 1);
            !news.is_closed()
        });
    }

    /// Runs that somebody waits for.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}
