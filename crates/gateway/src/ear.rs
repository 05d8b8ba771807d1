//! How an engine's link is heard: by whoever has something to say, there and then, with no queue and no task between.
//!
//! A token of such an engine is read by a task of its own. To take it in costs less than to hand it to another task, and what it says of its
//! run is in order anyway. What is said before the gateway serves is kept until it does.
//!
//! Invariant: words are heard in the order in which one task says them, and none after serving is over.
// contract: C-7 C-28

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use axum::http::{HeaderName, HeaderValue};
use lifecycle::{AttemptId, WorkerIndex};

use crate::LinkEvent;
use crate::calls::Calls;

/// Most words that are kept before the gateway serves: of an engine that is met, lost and met again.
const EARLY_MAX: usize = 64;

/// Says to the gateway what happens at an engine. A clone says it to the same one.
#[derive(Clone, Default)]
pub struct Ear(Arc<Inner>);

#[derive(Default)]
struct Inner {
    listens: OnceLock<(Weak<Calls>, WorkerIndex)>,
    over: AtomicBool,
    /// What was said before anybody listened.
    early: Mutex<Vec<LinkEvent>>,
}

impl Ear {
    /// Tells the gateway. Must not be called from where a message is sent down. A gateway that is over hears nothing.
    pub fn tell(&self, event: LinkEvent) {
        if self.0.listens.get().is_none() {
            let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
            if self.0.listens.get().is_none() {
                if early.len() < EARLY_MAX {
                    early.push(event);
                }
                return;
            }
        }
        if let Some((calls, worker)) = self.0.listens.get().filter(|_| !self.0.over.load(Ordering::Acquire))
            && let Some(calls) = calls.upgrade()
        {
            calls.hear(*worker, event);
        }
    }

    /// What the engine is told of the trace that an attempt belongs to, beside its request. Not to be called from where a message is sent down.
    pub fn trace_headers(&self, attempt: &AttemptId) -> Vec<(HeaderName, HeaderValue)> {
        let calls = self.0.listens.get().and_then(|(calls, _)| calls.upgrade());
        calls.map_or_else(Vec::new, |calls| calls.trace_headers(attempt))
    }

    /// Hears what was said so far, and from now on everything, until what is returned is dropped.
    pub(crate) fn open(&self, calls: &Arc<Calls>, worker: WorkerIndex) -> Open {
        let mut early = self.0.early.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *early).into_iter().for_each(|event| calls.hear(worker, event));
        let _ = self.0.listens.set((Arc::downgrade(calls), worker));
        drop(early);
        Open(self.0.clone())
    }
}

/// An ear that listens.
pub(crate) struct Open(Arc<Inner>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
    }
}
