//! `/v1/runs`: what became of runs, and cancelling one by name.
//!
//! Invariant: whoever asks sees and cancels its own tenant's runs only; everything else does not exist for it (C-30). An answer about one
//! run carries that run's id in `X-Request-Id`.
// contract: C-1 C-8 C-30

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::{IntoResponse, Response};
use lifecycle::{Cause, OutcomeKind, RunId, RunKey};
use observe::{Recall, RunFilter, RunState};

use super::error::ApiError;
use super::{Requested, Segment, name, named, ok};
use crate::calls::Calls;
use crate::keys::Caller;

pub(super) type Params = Result<Query<HashMap<String, String>>, QueryRejection>;

/// The query's parameters; one that is not known is refused by name.
pub(super) fn params(query: Params, known: &[&str]) -> Result<HashMap<String, String>, ApiError> {
    let Query(map) = query.map_err(|e| ApiError::bad(format!("the query cannot be read: {}", e.body_text())))?;
    match map.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(ApiError::field(name, format!("is not known here; known are {}", known.join(", ")))),
        None => Ok(map),
    }
}

/// One of the words for it, or an error that lists them.
fn word<T: Copy>(map: &HashMap<String, String>, name: &str, all: &[T], as_str: impl Fn(T) -> &'static str) -> Result<Option<T>, ApiError> {
    let Some(text) = map.get(name) else { return Ok(None) };
    let found = all.iter().copied().find(|value| as_str(*value) == text);
    let words = || all.iter().map(|value| as_str(*value)).collect::<Vec<_>>().join(", ");
    found.map(Some).ok_or_else(|| ApiError::field(name, format!("must be one of {}", words())))
}

/// `GET /v1/runs?state=&outcome=&cause=&limit=&after=`
pub(crate) async fn list(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    query: Params,
) -> Result<Response, ApiError> {
    let map = params(query, &["state", "outcome", "cause", "limit", "after"])?;
    let mut filter = RunFilter {
        state: word(&map, "state", &RunState::ALL, RunState::as_str)?,
        outcome: word(&map, "outcome", OutcomeKind::ALL, OutcomeKind::as_str)?,
        cause: word(&map, "cause", Cause::ALL, Cause::as_str)?,
        ..RunFilter::default()
    };
    if let Some(text) = map.get("limit") {
        filter.limit = text.parse().ok().filter(|n| *n > 0).ok_or_else(|| ApiError::field("limit", "must be a whole number above 0"))?;
    }
    if let Some(text) = map.get("after") {
        filter.after = Some(RunId::parse(text).map_err(|e| ApiError::field("after", e))?);
    }
    let unknown = || ApiError::field("after", "is no run that is still known");
    calls.journal.runs(&caller.tenant, &filter).map(|page| ok(&page)).ok_or_else(unknown)
}

/// The run's key, in its asker's tenant. What cannot be an id is no run.
pub(super) fn key(caller: &Caller, segment: Segment) -> Result<RunKey, ApiError> {
    let id = named(segment)?;
    let run = RunId::parse(&id).map_err(|_| ApiError::no_run(&id.chars().take(lifecycle::id::RUN_ID_MAX_LEN).collect::<String>()))?;
    Ok(RunKey { tenant: caller.tenant.clone(), run })
}

/// The run as this process knows it, else as the store has it.
async fn view(calls: &Calls, key: &RunKey) -> Result<Response, ApiError> {
    let run = calls.known_here(key);
    if run.as_ref().is_some_and(|run| run.outcome.is_some()) && !calls.may_tell_outcome(key).await {
        return Err(ApiError::store_down());
    }
    if let Some(run) = run {
        let Ok(mut object) = serde_json::to_value(&run) else { return Ok(ok(&run)) };
        super::effects::add(calls, key, &mut object).await;
        return Ok(ok(&object));
    }
    let not_held = || ApiError::not_held(key.run.as_str(), calls.journal.recall(key), calls.journal.limits());
    let stored = calls.known(key).await.map_err(ApiError::store)?.ok_or_else(not_held)?;
    let mut object = super::stored::view(&stored);
    super::effects::add(calls, key, &mut object).await;
    Ok(ok(&object))
}

/// Puts the run's id on an answer about it, whatever id the question was given. Of a run that never was, an answer has only its own.
fn of_run(calls: &Calls, key: &RunKey, requested: &Requested, answer: Result<Response, ApiError>) -> Response {
    let mut response = answer.into_response();
    if matches!(calls.journal.recall(key), Recall::Held | Recall::Evicted) {
        name(response.headers_mut(), &key.run, requested.0.as_ref());
    }
    response
}

/// `GET /v1/runs/{id}`
pub(crate) async fn show(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
) -> Result<Response, ApiError> {
    let key = key(&caller, id)?;
    let answer = view(&calls, &key).await;
    Ok(of_run(&calls, &key, &requested, answer))
}

/// `POST /v1/runs/{id}/cancel?wait_ms=`: idempotent, before and after the end. Says what is true when the wait is over.
pub(crate) async fn cancel(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let key = key(&caller, id)?;
    let answer = cancelled(&calls, &key, query).await;
    Ok(of_run(&calls, &key, &requested, answer))
}

async fn cancelled(calls: &Arc<Calls>, key: &RunKey, query: Params) -> Result<Response, ApiError> {
    let map = params(query, &["wait_ms"])?;
    let max = calls.config.cancel_wait_max;
    let wait =
        match map.get("wait_ms") {
            None => calls.config.cancel_wait,
            Some(text) => text.parse().ok().map(Duration::from_millis).filter(|wait| *wait <= max).ok_or_else(|| {
                ApiError::field("wait_ms", format!("must be a whole number of milliseconds from 0 to {}", max.as_millis()))
            })?,
        };
    calls.cancel_anywhere(key, wait).await.map_err(ApiError::store)?;
    view(calls, key).await
}
