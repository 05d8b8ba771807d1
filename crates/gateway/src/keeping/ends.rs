//! Outcomes that are decided and not written yet. Whoever looks at a run waits a moment for them, and is told none that a crash could undo.
//!
//! Invariant: an outcome that a view of a run shows is in the store, but of a run that nobody needs later while the store is away.
// contract: C-5 C-6

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use lifecycle::{RunKey, Tenant, Time};
use observe::{RunFilter, RunPage, RunState, RunView};
use store::Survives;

use super::Keeper;
use super::recorder::After;
use crate::calls::Calls;

/// A decided end: whether the run is a background one, and since when.
type Waiting = (bool, Time);

/// Ends on their way to the store; as many at most as writes that wait for it.
#[derive(Default)]
pub(crate) struct Ends(Mutex<HashMap<RunKey, Waiting>>);

impl Ends {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunKey, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run's end is decided, and is not written yet.
    pub(super) fn decided(&self, key: &RunKey, is_background: bool, now: Time) {
        self.lock().insert(key.clone(), (is_background, now));
    }

    /// The store has it.
    pub(super) fn kept(&self, key: &RunKey) {
        self.lock().remove(key);
    }

    fn waiting(&self, key: &RunKey) -> Option<Waiting> {
        self.lock().get(key).copied()
    }

    /// Ends that wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Keeper {
    /// Waits until all that was decided so far is written, no longer than an interactive run would.
    pub(super) async fn all_kept(&self) {
        let (reply, answer) = tokio::sync::oneshot::channel();
        self.send(Vec::new(), Survives::Process, After::Passed(reply));
        // Whether it was in time is seen at the run.
        let _ = tokio::time::timeout(self.config.patience, answer).await;
    }
}

impl Calls {
    /// A run as this process knows it.
    pub(crate) async fn look(&self, key: &RunKey) -> Option<RunView> {
        let run = self.journal.run(key)?;
        match &self.keeper {
            Some(keeper) if run.outcome.is_some() && keeper.ends.waiting(key).is_some() => {
                keeper.all_kept().await;
                self.look_now(key)
            }
            _ => Some(run),
        }
    }

    /// The same without waiting.
    pub(crate) fn look_now(&self, key: &RunKey) -> Option<RunView> {
        // In this order: what the journal has is on its way to the store, or there.
        let mut run = self.journal.run(key)?;
        self.only_kept(key, &mut run);
        Some(run)
    }

    /// A page of a tenant's runs. `None` if the run that it is to begin behind is not known.
    pub(crate) async fn list(&self, tenant: &Tenant, filter: &RunFilter) -> Option<RunPage> {
        if let Some(keeper) = self.keeper.as_ref().filter(|keeper| keeper.ends.len() > 0) {
            keeper.all_kept().await;
        }
        let mut page = self.journal.runs(tenant, filter)?;
        for run in &mut page.data {
            if let Ok(id) = lifecycle::RunId::parse(&run.id) {
                self.only_kept(&RunKey { tenant: tenant.clone(), run: id }, run);
            }
        }
        Some(page)
    }

    /// Leaves out an outcome that the store does not have: the run is stopping.
    fn only_kept(&self, key: &RunKey, run: &mut RunView) {
        let Some(keeper) = self.keeper.as_ref().filter(|_| run.outcome.is_some()) else { return };
        let Some((is_background, since)) = keeper.ends.waiting(key) else { return };
        // The readers of an interactive run are told then, too.
        if is_background || self.now() < since.after(keeper.config.patience) {
            (run.outcome, run.state, run.settled) = (None, RunState::Stopping, false);
        }
    }
}
