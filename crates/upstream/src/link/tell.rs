//! Telling an engine of a cancel by the names that it has for a request, beside the close.
//!
//! Invariant: nobody waits for it, and nothing follows from what it answers.
// contract: C-8 C-29

use std::sync::Arc;

use lifecycle::message::Prompt;

use super::{Shared, Task, ask};
use crate::abort::{Asks, RequestName};
use crate::client::Limits;

/// What was asked for, by which the engine's names for it go. Only a cancel asks, so a body is read for it only then.
pub(super) fn asks(path: &str, prompt: &Prompt) -> Asks {
    match (path, prompt) {
        ("/v1/chat/completions", _) => Asks::Chat,
        ("/v1/completions", Prompt::Forward(forward)) => Asks::Completions { prompts: ask::prompts(&forward.body) },
        ("/v1/completions", _) => Asks::Completions { prompts: 1 },
        _ => Asks::Other,
    }
}

impl Shared {
    /// Asks the engine to cancel by id, where it knows that, beside the close.
    pub(super) fn tell_engine(self: &Arc<Self>, name: RequestName, asks: impl FnOnce() -> Asks, limits: Limits) {
        let (shared, aborter) = (self.clone(), self.aborter());
        if !aborter.enabled() {
            return;
        }
        let asks = asks();
        if aborter.request(name, asks).is_none() {
            return;
        }
        let task = Task::begin(self);
        tokio::spawn(async move {
            let _task = task;
            let told = aborter.send(&shared.client, name, asks, limits).await;
            tracing::debug!(upstream = %shared.config.name, ?told, "asked to cancel by id");
        });
    }
}
