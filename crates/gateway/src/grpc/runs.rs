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

/// The same, not before the store has the outcome that it shows.
async fn kept_look(calls: &Calls, key: &RunKey) -> Result<wire::Run, Status> {
    let run = look(calls, key)?;
    match calls.may_tell_outcome(key).await {
        true => Ok(run),
        false => Err(status::of_error(&ApiError::store_down())),
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
        // A run that is not here is not found below, whatever the store says.
        let _ = self.calls.cancel_anywhere(&key, wait).await;
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
        let (calls, watched) = (self.calls.clone(), key.clone());
        let changes = self.watches.open(move || match look(&calls, &watched) {
            Ok(run) if run.settled => Look::Last(run),
            Ok(run) => Look::Now(run),
            Err(status) => Look::Gone(status),
        })?;
        Ok(named(changes, &key.run, asked.as_ref()))
    }
}
