//! Responses that are there: looked at, followed, cancelled, deleted, and what they were asked.
//!
//! Invariant: whoever asks finds its own tenant's responses only; one that is erased, was asked for with `store: false` or is no response
//! does not exist. To look changes nothing, and to cancel twice is to cancel once.
// contract: C-8 C-26 C-30

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use lifecycle::{RunKey, Said, Tenant};
use serde_json::{Value, json};
use store::StoredRun;

use super::asked::Asked;
use super::fold::Fold;
use super::object::{Head, input_item, response_id, run_of};
use super::runs::{Follows, Runs};
use crate::http::error::ApiError;
use crate::keeping::door_part;

/// The word for the front door that a run came by.
pub(super) const DOOR: &str = "responses";
/// How much of an unknown id is said again.
pub(super) const SHOWN_MAX: usize = 160;

/// OpenAI's answer for a response that is not there.
pub(super) fn no_response(id: &str) -> ApiError {
    let shown: String = id.chars().take(SHOWN_MAX).collect();
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", format!("Response with id '{shown}' not found."))
        .code("response_not_found")
}

/// A response that is kept.
pub(super) struct Found {
    pub(super) run: StoredRun,
    pub(super) head: Arc<Head>,
}

/// Looks a response up.
// contract: C-30
pub(super) async fn find<R: Runs>(runs: &R, tenant: &Tenant, id: &str) -> Result<Found, ApiError> {
    let run = run_of(id).ok_or_else(|| no_response(id))?;
    let run = runs.known(&RunKey { tenant: tenant.clone(), run }).await?.ok_or_else(|| no_response(id))?;
    let head = head(&run)?.ok_or_else(|| no_response(id))?;
    Ok(Found { run, head })
}

/// What never changes of a run, if it is a response and its request is kept.
pub(super) fn head(run: &StoredRun) -> Result<Option<Arc<Head>>, ApiError> {
    // Of a run that is kept for its `Idempotency-Key` alone there is no part of this door.
    let is_kept = run.door == DOOR && !run.erased;
    let Some(request) = door_part(run).filter(|part| is_kept && !part.is_empty()) else { return Ok(None) };
    let asked = Asked::decode(request).map_err(|e| {
        tracing::error!(run = %run.key.run, error = %e, "what was asked for cannot be read");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "what was asked for cannot be read").code("unreadable")
    })?;
    let (model, on_disconnect) = (run.model.as_str().into(), run.on_disconnect);
    Ok(Some(Arc::new(Head { run: run.key.run.clone(), model, on_disconnect, asked })))
}

/// Reads what a run has said: all of it if it is over, else as far as it is known to have come. It waits for nothing that is still to come.
pub(super) async fn told<R: Runs>(runs: &R, found: &Found) -> Result<Fold, ApiError> {
    let run = &found.run;
    let mut fold = begun(found);
    if (run.last_event > 0 || run.outcome.is_some())
        && let Some(mut follow) = runs.follow(&run.key)
    {
        while let Some((number, said)) = follow.stored().await? {
            fold.take(&said);
            if fold.is_over() || (run.outcome.is_none() && number >= run.last_event) {
                break;
            }
        }
    }
    // How it ended is known even where what it said is not kept.
    if let Some(outcome) = &run.outcome {
        fold.take(&Said::End { outcome: outcome.clone(), usage: run.usage });
    }
    Ok(fold)
}

fn begun(found: &Found) -> Fold {
    let mut fold = Fold::new(found.head.clone());
    // Its events were given to whoever follows it; here they count as given.
    let _ = fold.begin();
    fold
}

/// The response as it is.
pub(super) async fn show<R: Runs>(runs: &R, found: &Found) -> Result<Value, ApiError> {
    let fold = told(runs, found).await?;
    Ok(fold.object(found.run.ended_ms.map(|ms| ms.div_euclid(1000))))
}

/// Cancels a response, whichever gateway has it, and says what has become of it: its end if that comes within `wait` and `patience`, and what
/// it did outside. One that is over is cancelled too: its outcome stays, and none of its effects begins any more.
// contract: C-8 C-27
pub(super) async fn cancel<R: Runs>(runs: &R, found: Found, wait: Duration, patience: Duration) -> Result<Value, ApiError> {
    let key = found.run.key.clone();
    let gone = || no_response(&response_id(&key.run));
    if !runs.cancel(&key, wait).await? {
        return Err(gone());
    }
    let mut run = found.run;
    if run.outcome.is_none() {
        run = runs.known(&key).await?.ok_or_else(gone)?;
    }
    if run.outcome.is_none() {
        // Its release is not confirmed yet; its end is told without that after a while.
        let _ = tokio::time::timeout(patience, end(runs, &key)).await;
        run = runs.known(&key).await?.ok_or_else(gone)?;
    }
    let mut object = show(runs, &Found { run, head: found.head }).await?;
    object["kvit"]["effects"] = runs.effects(&key).await;
    Ok(object)
}

/// Waits for a run's end.
async fn end<R: Runs>(runs: &R, key: &RunKey) {
    let Some(mut follow) = runs.follow(key) else { return };
    while follow.next().await.is_some() {}
}

/// Looks up a response of which something is kept, should it be for its `Idempotency-Key` alone, or because another gateway asked for its events.
pub(super) async fn deletable<R: Runs>(runs: &R, tenant: &Tenant, id: &str) -> Result<StoredRun, ApiError> {
    let run = run_of(id).ok_or_else(|| no_response(id))?;
    let run = runs.known(&RunKey { tenant: tenant.clone(), run }).await?.ok_or_else(|| no_response(id))?;
    let is_kept = run.door == DOOR && !run.erased && (run.keeps || run.request.is_some());
    if is_kept { Ok(run) } else { Err(no_response(id)) }
}

/// Deletes a response with all that it said.
pub(super) async fn delete<R: Runs>(runs: &R, run: &StoredRun) -> Result<Value, ApiError> {
    let id = response_id(&run.key.run);
    if run.outcome.is_none() {
        let message = format!("Response with id '{id}' is in progress: cancel it first.");
        return Err(ApiError::new(StatusCode::CONFLICT, "invalid_request_error", message).code("response_in_progress").finally());
    }
    match runs.erase(&run.key).await? {
        true => Ok(json!({"id": id, "object": "response", "deleted": true})),
        false => Err(no_response(&id)),
    }
}

/// Which items of the input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Page {
    pub(super) limit: usize,
    /// From the first to the last; OpenAI's default is the other way round.
    pub(super) ascending: bool,
    pub(super) after: Option<String>,
}

/// The items of a response's own input. Those of the responses before it are listed there.
pub(super) fn input_items(found: &Found, page: &Page) -> Result<Value, ApiError> {
    let items = found.head.asked.input.iter().enumerate();
    let mut items: Vec<Value> = items.map(|(place, item)| input_item(&found.run.key.run, place, item)).collect();
    if !page.ascending {
        items.reverse();
    }
    let from = match &page.after {
        None => 0,
        Some(id) => match items.iter().position(|item| item["id"] == **id) {
            Some(at) => at + 1,
            None => return Err(ApiError::field("after", "is the id of no item of this response's input")),
        },
    };
    let mut rest = items.split_off(from);
    let has_more = rest.len() > page.limit;
    rest.truncate(page.limit);
    let id = |item: Option<&Value>| item.map_or(json!(""), |item| item["id"].clone());
    Ok(json!({"object": "list", "data": rest, "first_id": id(rest.first()), "last_id": id(rest.last()), "has_more": has_more}))
}
