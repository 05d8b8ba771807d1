//! Telling an engine of a cancel by the names that it has for a request: beside the close, or, where a close takes the name along, before it.
//!
//! Invariant: no caller waits for it, nothing follows from what it answers, and it ends within a bound.
// contract: C-8 C-29

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::{Prompt, Submit};

use super::{Shared, Task, ask};
use crate::abort::{Asks, RequestName, Told};
use crate::client::{Answer, CallError, Limits};

/// A request as far as it has come. Dropped, it closes its connection.
pub(super) enum Held<'a> {
    /// It is over, or was closed.
    Nothing,
    /// Its answer has not begun.
    Asking(Pin<Box<dyn Future<Output = Result<Answer, CallError>> + Send + 'a>>),
    /// Its answer is read.
    Reading(Box<Answer>),
}

impl Held<'_> {
    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Held::Nothing)
    }

    /// Reads what comes, for nobody, to its end.
    async fn drain(mut self) {
        loop {
            self = match self {
                Held::Nothing => return,
                Held::Asking(asking) => asking.await.map_or(Held::Nothing, |answer| Held::Reading(Box::new(answer))),
                Held::Reading(mut answer) => match answer.next().await {
                    Ok(Some(_)) => Held::Reading(answer),
                    Ok(None) | Err(_) => return,
                },
            };
        }
    }
}

/// First wait until it is told again; doubles.
const AGAIN: Duration = Duration::from_millis(50);
/// Longest.
const AGAIN_MAX: Duration = Duration::from_millis(400);
/// Tries where the connection is closed already, and somebody answers that it did not work.
const TRIES: u32 = 3;

/// What was asked for, by which the engine's names for it go. A body is read for it only where an engine is named or told something by it.
pub(super) fn asks(path: &str, submit: &Submit) -> Asks {
    let n = submit.params.n;
    match (path, &submit.prompt) {
        ("/v1/chat/completions", _) => Asks::Chat { n },
        ("/v1/completions", Prompt::Forward(forward)) => Asks::Completions { prompts: ask::prompts(&forward.body), n },
        ("/v1/completions", _) => Asks::Completions { prompts: 1, n },
        _ => Asks::Other,
    }
}

impl Shared {
    /// What is asked of an engine that has to be told of a cancel by id before a connection is closed; `None` of any other.
    pub(super) fn told_first(&self, name: RequestName, asks: impl FnOnce() -> Asks) -> Option<Asks> {
        let aborter = self.aborter();
        if !aborter.enabled() || !self.capabilities().is_some_and(|met| met.capabilities.forgets_closed) {
            return None;
        }
        let asks = asks();
        aborter.request(name, asks).map(|_| asks)
    }

    /// Asks such an engine to cancel by id, again and again, until the answer ends or the request has been held open for long enough: it may not
    /// have taken the request in yet. Then it is closed.
    pub(super) async fn tell_first(&self, name: RequestName, asks: Asks, held: Held<'_>) {
        let aborter = self.aborter();
        let telling = async {
            let mut again = AGAIN;
            loop {
                let told = aborter.send(&self.client, name, asks, self.limits()).await;
                tracing::debug!(upstream = %self.config.name, ?told, "asked to cancel by id, and not closed yet");
                if let Told::Refused(status @ (401 | 403)) = told {
                    tracing::warn!(upstream = %self.config.name, status, "refuses cancels by id, and is told by closing alone from now on");
                }
                if matches!(told, Told::NotThere | Told::NoId | Told::Refused(400..500)) {
                    return;
                }
                tokio::time::sleep(again).await;
                again = (again * 2).min(AGAIN_MAX);
            }
        };
        let either = async {
            tokio::select! {
                () = telling => {}
                () = held.drain() => {}
            }
        };
        let _ = tokio::time::timeout(self.config.hold, either).await;
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
