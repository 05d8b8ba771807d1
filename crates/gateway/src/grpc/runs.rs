//! `kvit.v1.Runs`: what became of runs, and cancelling one by name. `Generate` is in `generate`.
//!
//! Invariant: whoever asks sees and cancels its own tenant's runs only; everything else does not exist for it (C-30). An answer about one
//! run carries that run's id in `x-request-id`.
// contract: C-1 C-8 C-30

use std::sync::Arc;
use std::time::Duration;

use lifecycle::{RunId, RunKey};
use protocol::runs_v1 as wire;
use protocol::runs_v1::runs_server::Runs;
use tonic::{Extensions, Request, Response, Status, async_trait};

use super::generate::{self, Events};
use super::watch::{Changes, Look, Watches};
use super::{status, view};
use crate::calls::Calls;
use crate::http::error::ApiError;
use crate::http::{Requested, name};
use crate::keys::Caller;

pub(super) struct Service {
    pub(super) calls: Arc<Calls>,
    pub(super) watches: Watches,
}

/// The id that a call asks for by its metadata.
pub(super) fn requested(extensions: &Extensions) -> Option<RunId> {
    extensions.get::<Requested>().and_then(|Requested(id)| id.clone())
}

/// Whose call it is.
pub(super) fn caller(extensions: &Extensions) -> Result<Caller, Status> {
    extensions.get::<Caller>().cloned().ok_or_else(|| Status::internal("no caller"))
}

/// Puts the run's id on an answer about it.
fn named<T>(answer: T, run: &RunId, asked: Option<&RunId>) -> Response<T> {
    let mut response = Response::new(answer);
    name(response.metadata_mut().as_mut(), run, asked);
    response
}

/// The run as it is now. One that is not held: NOT_FOUND, and the word says whether it was evicted.
fn look(calls: &Calls, key: &RunKey) -> Result<wire::Run, Status> {
    let not_held = || ApiError::not_held(key.run.as_str(), calls.journal.recall(key), calls.journal.limits());
    calls.known_here(key).map(|run| view::run(&run)).ok_or_else(|| status::of_error(&not_held()))
}

/// The same, not before the store has the outcome that it shows; and of a run of another gateway, what the store knows.
// contract: C-5
async fn kept_look(calls: &Calls, key: &RunKey) -> Result<wire::Run, Status> {
    if calls.known_here(key).is_some() && !calls.may_tell_outcome(key).await {
        return Err(status::of_error(&ApiError::store_down()));
    }
    // Behind that wait: the store may have said that another gateway has it.
    match look(calls, key) {
        Ok(run) => Ok(run),
        Err(not_held) => match calls.known(key).await {
            Ok(Some(run)) => Ok(view::stored(&run)),
            Ok(None) => Err(not_held),
            Err(error) => Err(status::of_error(&ApiError::store(error))),
        },
    }
}

/// What a watch shows: the run as it is now, and one whose outcome the store does not have yet as it was before.
// contract: C-5
fn watched(calls: &Calls, key: &RunKey, last: &mut Option<wire::Run>) -> Look<wire::Run> {
    let is_open = |run: &wire::Run| run.outcome.is_none();
    let is_told = calls.keeper.as_ref().is_none_or(|keeper| keeper.ending.may_be_told_now(key, keeper.config.patience));
    match look(calls, key) {
        Ok(run) if is_open(&run) || is_told => {
            let look = if run.settled { Look::Last } else { Look::Now };
            *last = Some(run.clone());
            look(run)
        }
        // Its outcome apart, all of it is true.
        Ok(run) => Look::Now(last.clone().unwrap_or(wire::Run { outcome: None, settled: false, ..run })),
        Err(status) => Look::Gone(status),
    }
}

/// The run's key, in its asker's tenant.
fn key(extensions: &Extensions, run: Result<RunId, protocol::Error>) -> Result<RunKey, Status> {
    Ok(RunKey { tenant: caller(extensions)?.tenant, run: run? })
}

#[async_trait]
impl Runs for Service {
    type GenerateStream = Events;

    async fn generate(&self, request: Request<wire::GenerateRequest>) -> Result<Response<Events>, Status> {
        generate::generate(&self.calls, request).await
    }

    async fn cancel(&self, request: Request<wire::CancelRequest>) -> Result<Response<wire::Run>, Status> {
        let asked = requested(request.extensions());
        let key = key(request.extensions(), request.get_ref().run_id())?;
        let request = request.into_inner();
        let max = self.calls.config.cancel_wait_max;
        let wait = request.wait_ms.map_or(self.calls.config.cancel_wait, Duration::from_millis);
        if wait > max {
            let range = format!("must be from 0 to {}", max.as_millis());
            return Err(status::of_error(&ApiError::field("CancelRequest.wait_ms", range)));
        }
        // A run that is not here is not found below.
        self.calls.cancel_anywhere(&key, wait).await.map_err(|error| status::of_error(&ApiError::store(error)))?;
        Ok(named(kept_look(&self.calls, &key).await?, &key.run, asked.as_ref()))
    }

    async fn get(&self, request: Request<wire::GetRequest>) -> Result<Response<wire::Run>, Status> {
        let asked = requested(request.extensions());
        let key = key(request.extensions(), request.get_ref().run_id())?;
        Ok(named(kept_look(&self.calls, &key).await?, &key.run, asked.as_ref()))
    }

    type WatchStream = Changes<wire::Run>;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let asked = requested(request.extensions());
        let key = key(request.extensions(), request.get_ref().run_id())?;
        // So that a run that is not there is a status and no stream.
        look(&self.calls, &key)?;
        let (calls, run, mut last) = (self.calls.clone(), key.clone(), None);
        let changes = self.watches.open(move || watched(&calls, &run, &mut last))?;
        Ok(named(changes, &key.run, asked.as_ref()))
    }
}
