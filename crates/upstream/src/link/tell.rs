//! Telling an engine of a cancel by the names that it has for a request: beside the close, or, where a close takes the name along, before it.
//!
//! Invariant: no caller waits for it, nothing follows from what it answers, and it ends within a bound.
// contract: C-8 C-29

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::Prompt;

use super::{Shared, Task, ask};
use crate::abort::{Asks, RequestName, Told};
use crate::client::Limits;

/// How long a request stays open at most while its engine is told of it.
const HELD: Duration = Duration::from_secs(2);
/// First wait until it is told again; doubles.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest.
const AGAIN_MAX: Duration = Duration::from_millis(400);
/// Tries where the connection is closed already, and somebody answers that it did not work.
const TRIES: u32 = 3;

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
    /// Whether the engine has to be told of a cancel by id before a connection is closed.
    pub(super) fn forgets_closed(&self) -> bool {
        self.aborter().enabled() && self.capabilities().is_some_and(|met| met.capabilities.forgets_closed)
    }

    /// Asks such an engine to cancel by id, again and again, until the answer that is read in `calling` ends, which is given back, or it has been
    /// held open for long enough: it may not have taken the request in yet.
    pub(super) async fn tell_first<T>(&self, name: RequestName, asks: Asks, calling: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let aborter = self.aborter();
        let telling = async {
            let mut again = AGAIN;
            loop {
                let told = aborter.send(&self.client, name, asks, self.limits()).await;
                tracing::debug!(upstream = %self.config.name, ?told, "asked to cancel by id, and not closed yet");
                if matches!(told, Told::NotThere | Told::NoId) {
                    return;
                }
                tokio::time::sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
            }
        };
        let either = async {
            tokio::select! {
                () = telling => None,
                end = calling => Some(end),
            }
        };
        tokio::time::timeout(HELD, either).await.ok().flatten()
    }

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
            for tried in 1..=TRIES {
                let told = aborter.send(&shared.client, name, asks, limits).await;
                tracing::debug!(upstream = %shared.config.name, ?told, tried, "asked to cancel by id");
                if !matches!(told, Told::Failed(_) | Told::Refused(500..)) {
                    return;
                }
                tokio::time::sleep(AGAIN * tried).await;
            }
        });
    }
}
