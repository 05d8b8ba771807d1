//! `/v1/runs`: what became of runs, and cancelling one by name.
//!
//! Invariant: whoever asks sees and cancels its own tenant's runs only; everything else does not exist for it (C-30), but that an operator
//! may look at the runs of a tenant that it names. An answer about one run carries that run's id in `X-Request-Id`.
// contract: C-1 C-8 C-30

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::{IntoResponse, Response};
use lifecycle::{Cause, OutcomeKind, RunId, RunKey, Tenant};
use observe::{PAGE_MAX, Recall, RunFilter, RunPage, RunState};
use serde_json::{Value, json};
use store::{RunQuery, RunStore, StoreError, StoredRun};

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

/// Every tenant, where an operator lists runs.
const ALL: &str = "*";
/// The word for every state but the last.
const LIVE: &str = "live";

/// Whose runs a question is about: the asker's own tenant's, or, if it is an operator, of the tenant that it names. To everybody else another
/// tenant's do not exist.
// contract: C-30
fn whose(calls: &Calls, caller: &Caller, map: &HashMap<String, String>) -> Result<Option<Tenant>, ApiError> {
    let Some(named) = map.get("tenant") else { return Ok(Some(caller.tenant.clone())) };
    let tenant = Tenant::parse(named).map_err(|e| ApiError::field("tenant", e))?;
    Ok(Some(tenant).filter(|tenant| *tenant == caller.tenant || calls.config.keys.is_operator(caller)))
}

/// `GET /v1/runs?state=&outcome=&cause=&limit=&after=&tenant=`
pub(crate) async fn list(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    query: Params,
) -> Result<Response, ApiError> {
    let map = params(query, &["state", "outcome", "cause", "limit", "after", "tenant"])?;
    let live = map.get("state").is_some_and(|state| state == LIVE);
    let mut filter = RunFilter {
        state: if live { None } else { word(&map, "state", &RunState::ALL, RunState::as_str)? },
        live,
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
    if map.get("tenant").is_some_and(|tenant| tenant == ALL) && calls.config.keys.is_operator(&caller) {
        let no_after =
            filter.after.is_none().then_some(()).ok_or_else(|| ApiError::field("after", "needs one tenant, in whose order it stands"));
        return no_after.map(|()| ok(&calls.journal.runs_of_all(&filter)));
    }
    let Some(tenant) = whose(&calls, &caller, &map)? else {
        return Ok(ok(&RunPage { object: "list", data: Vec::new(), has_more: false }));
    };
    match &calls.keeper {
        // A run that lives is in one of the other states, which only its own gateway knows.
        Some(keeper) if !filter.live && matches!(filter.state, None | Some(RunState::Ended)) => {
            kept(&calls, &*keeper.store, &tenant, &filter).await.map_err(ApiError::store)?.ok_or_else(unknown)
        }
        _ => calls.journal.runs(&tenant, &filter).map(|page| ok(&page)).ok_or_else(unknown),
    }
}

/// A page of the runs in the store, each as this process knows it if it does. `None` if there is no run to begin behind.
async fn kept(calls: &Calls, store: &dyn RunStore, tenant: &Tenant, filter: &RunFilter) -> Result<Option<Response>, StoreError> {
    if let Some(after) = &filter.after
        && store.run(&RunKey { tenant: tenant.clone(), run: after.clone() }).await?.is_none()
    {
        return Ok(None);
    }
    let limit = filter.limit.clamp(1, PAGE_MAX);
    let (outcome, cause) = (filter.outcome, filter.cause);
    let query = RunQuery { ended: filter.state.is_some(), outcome, cause, after: filter.after.clone(), limit: limit + 1 };
    let mut runs = store.runs(tenant, &query).await?;
    let has_more = runs.len() > limit;
    runs.truncate(limit);
    let data: Vec<Value> = runs.iter().map(|run| listed(calls, run)).collect();
    Ok(Some(ok(&json!({"object": "list", "data": data, "has_more": has_more}))))
}

/// A run as this process knows it, but for an outcome that is not in the store yet.
// contract: C-5
fn listed(calls: &Calls, run: &StoredRun) -> Value {
    let here = calls.known_here(&run.key).filter(|here| here.outcome.is_none() || run.outcome.is_some());
    here.and_then(|here| serde_json::to_value(&here).ok()).unwrap_or_else(|| super::stored::view(run))
}

/// The run's key, in its asker's tenant. What cannot be an id is no run.
pub(super) fn key(caller: &Caller, segment: Segment) -> Result<RunKey, ApiError> {
    let id = named(segment)?;
    let run = RunId::parse(&id).map_err(|_| ApiError::no_run(&id.chars().take(lifecycle::id::RUN_ID_MAX_LEN).collect::<String>()))?;
    Ok(RunKey { tenant: caller.tenant.clone(), run })
}

/// The run as this process knows it, else as the store has it.
async fn view(calls: &Calls, key: &RunKey) -> Result<Response, ApiError> {
    if calls.known_here(key).is_some() && !calls.may_tell_outcome(key).await {
        return Err(ApiError::store_down());
    }
    // Behind that wait: the store may have said that another gateway has it.
    if let Some(run) = calls.known_here(key) {
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

/// The key of a run that may be looked at, in the tenant that the query names.
fn seen(calls: &Calls, caller: &Caller, id: Segment, query: Params) -> Result<RunKey, ApiError> {
    let tenant = whose(calls, caller, &params(query, &["tenant"])?)?;
    let key = key(caller, id)?;
    tenant.map(|tenant| RunKey { tenant, ..key.clone() }).ok_or_else(|| ApiError::no_run(key.run.as_str()))
}

/// `GET /v1/runs/{id}?tenant=`
pub(crate) async fn show(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let key = seen(&calls, &caller, id, query)?;
    let answer = view(&calls, &key).await;
    Ok(of_run(&calls, &key, &requested, answer))
}

/// `GET /v1/runs/{id}/steps?tenant=`: what each step computed for it, as far as this gateway's journal goes back.
pub(crate) async fn steps(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let key = seen(&calls, &caller, id, query)?;
    let not_held = || ApiError::not_held(key.run.as_str(), calls.journal.recall(&key), calls.journal.limits());
    let answer = calls.journal.steps(&key).map(|steps| ok(&steps)).ok_or_else(not_held);
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
