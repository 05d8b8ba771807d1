//! What is put into the outbox with a run's end: its webhooks, and the word that its declared tools are to be called.
//!
//! Invariant: it is written in the commit of the end, if and only if that is the run's end; only of runs that go on without their readers.
// contract: C-27

use std::sync::Arc;

use lifecycle::{Outcome, OutcomeKind, RunKey};
use store::{Hook, StoredRun};

use super::TOOLS;
use super::webhooks::digest;
use crate::calls::Calls;
use crate::keeping::{now_ms, tools};

/// What is known of a run that matters for what is done outside when it ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ending {
    /// The front door that it came by.
    pub(crate) door: Arc<str>,
    /// It has declared tools.
    pub(crate) has_tools: bool,
}

impl Ending {
    /// That of a run as it is kept.
    pub(crate) fn of(run: &StoredRun) -> Ending {
        Ending { door: run.door.as_str().into(), has_tools: !tools(run).is_empty() }
    }
}

impl Calls {
    /// What is to be done outside once a background run has ended like this.
    pub(crate) fn hooks_of_end(&self, run: &RunKey, ending: &Ending, outcome: &Outcome) -> Vec<Hook> {
        let now = now_ms();
        let mut hooks = self.config.outside.webhooks.of_end(run, &ending.door, outcome, now);
        if ending.has_tools && outcome.kind() == OutcomeKind::Completed {
            let id = format!("tools_{}", digest(&[run.tenant.as_str(), run.run.as_str(), &now.to_string()]));
            hooks.push(Hook { id, run: run.clone(), url: TOOLS.to_owned(), body: Vec::new(), due_ms: now, tries: 0, last: None });
        }
        hooks
    }
}
