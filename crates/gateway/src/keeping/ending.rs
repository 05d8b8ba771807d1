//! Outcomes that are set here and not yet in the store: whoever looks at such a run waits for the store as its readers do.
//!
//! Invariant: an outcome is in here before the journal shows it, and until the store has it.
// contract: C-5

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::RunKey;
use tokio::sync::watch;
use tokio::time::Instant;

/// An outcome that is not in the store yet.
struct End {
    /// Its run goes on without readers.
    is_background: bool,
    since: Instant,
    /// Closes when the store has it.
    kept: watch::Sender<()>,
}

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
        let end = End { is_background, since: Instant::now(), kept: watch::Sender::default() };
        self.lock().insert(key.clone(), end);
    }

    /// The store has it.
    pub(super) fn kept(&self, key: &RunKey) {
        self.lock().remove(key);
    }

    /// Whether a run's outcome may be told to somebody who looks: at once if the store has it, else when it does, within `patience`. Of a run that
    /// somebody waits for it is told then in any case, as to its readers; of one that goes on without them, never before.
    pub(crate) async fn may_be_told(&self, key: &RunKey, patience: Duration) -> bool {
        let Some((is_background, mut kept)) = self.lock().get(key).map(|end| (end.is_background, end.kept.subscribe())) else {
            return true;
        };
        // Nothing is ever sent: it closes.
        let is_kept = tokio::time::timeout(patience, kept.changed()).await.is_ok();
        is_kept || !is_background
    }

    /// The same, for somebody who looks again and does not wait.
    pub(crate) fn may_be_told_now(&self, key: &RunKey, patience: Duration) -> bool {
        self.lock().get(key).is_none_or(|end| !end.is_background && end.since.elapsed() >= patience)
    }
}
