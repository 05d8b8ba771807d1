//! Outcomes that are set here and not yet in the store: whoever looks at such a run waits for the store as its readers do.
//!
//! Invariant: an outcome is in here before the journal shows it, and until the store has it.
// contract: C-5

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::RunKey;
use tokio::sync::watch;

/// Whether it is a background run's; and what closes when the store has it.
type End = (bool, watch::Sender<()>);

/// Ends by run.
#[derive(Default)]
pub(crate) struct Ending {
    runs: Mutex<HashMap<RunKey, End>>,
}

impl Ending {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunKey, End>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run's outcome is set.
    pub(super) fn begin(&self, key: &RunKey, is_background: bool) {
        self.lock().insert(key.clone(), (is_background, watch::Sender::default()));
    }

    /// The store has it.
    pub(super) fn kept(&self, key: &RunKey) {
        self.lock().remove(key);
    }

    /// Whether a run's outcome may be told to somebody who looks: at once if the store has it, else when it does, within `patience`. Of a run that
    /// somebody waits for it is told then in any case, as to its readers; of one that goes on without them, never before.
    pub(crate) async fn may_be_told(&self, key: &RunKey, patience: Duration) -> bool {
        let Some((is_background, mut kept)) = self.lock().get(key).map(|(is_background, kept)| (*is_background, kept.subscribe())) else {
            return true;
        };
        // Nothing is ever sent: it closes.
        let is_kept = tokio::time::timeout(patience, kept.changed()).await.is_ok();
        is_kept || !is_background
    }
}
