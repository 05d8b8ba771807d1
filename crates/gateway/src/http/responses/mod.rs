//! OpenAI's Responses API: a run as a response, which can be waited for, streamed, left in the background, fetched, followed from any event
//! on, cancelled and deleted. docs/responses.md says what of it is here.
//!
//! `parse`, `input`, `words`, `asked`, `object`, `grown` and `fold` are pure; `create` and `stored` do what is asked; `stream` carries events.
//!
//! Invariant: the events of a response are a fold of what its run says, the same at every gateway and for every reader.
// contract: C-26

mod asked;
mod chain;
mod create;
mod fold;
mod grown;
mod input;
mod object;
mod parse;
mod runs;
mod stored;
mod stream;
mod words;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use lifecycle::RunId;
use tokio::sync::watch;

use self::fold::Fold;
use self::stored::{Found, Page};
use self::stream::{Events, Follower};
use super::error::ApiError;
use super::generate::sse;
use super::{Requested, Segment, name, named, ok};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::grpc::Until;
use crate::keys::Caller;

/// Items of the input in one answer, where the caller names no number; this and the next are OpenAI's.
const PAGE: usize = 20;
/// Most items of the input in one answer.
const PAGE_MAX: usize = 100;

type Params = Result<Query<HashMap<String, String>>, QueryRejection>;

/// Becomes true when no stream may stay open any more.
#[derive(Clone)]
struct Stop(watch::Receiver<bool>);

/// The routes.
pub(super) fn routes(stop: &watch::Receiver<bool>) -> axum::Router<Arc<Calls>> {
    axum::Router::new()
        .route("/v1/responses", post(create))
        .route("/v1/responses/{id}", get(show).delete(delete))
        .route("/v1/responses/{id}/cancel", post(cancel))
        .route("/v1/responses/{id}/input_items", get(input_items))
        .layer(Extension(Stop(stop.clone())))
}

/// `POST /v1/responses`
async fn create(
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(Stop(stop)): Extension<Stop>,
    Extension(caller): Extension<Caller>,
    Extension(Requested(requested)): Extension<Requested>,
    request: Request,
) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    create::create(create::Asking { calls, conn, caller, requested, headers: head.headers, stop }, body).await
}

/// `GET /v1/responses/{id}`, with `stream=true` as events from the first on, or from the one behind `starting_after`.
async fn show(
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(Stop(stop)): Extension<Stop>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let look = Look::read(&params(query)?)?;
    let found = stored::find(&calls, &caller.tenant, &id).await?;
    let run = found.run.key.run.clone();
    let response = match look {
        Look::Now => ok(&stored::show(&calls, &found).await?),
        Look::Follow { after } => match calls.come_back(&found.run.key, &conn) {
            // To read what is live here is to be one of its readers: whoever comes back within its grace keeps it going.
            Some(reader) => sse(Body::new(Events::new(reader?, Fold::new(found.head), &[], after, comments(&calls)))),
            None => followed(&calls, conn, stop, found, after)?,
        },
    };
    Ok(about(response, &run, &requested))
}

/// `POST /v1/responses/{id}/cancel`: idempotent, before and after the end.
async fn cancel(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    known(&params(query)?, &[])?;
    let found = stored::find(&calls, &caller.tenant, &id).await?;
    let run = found.run.key.run.clone();
    let response = stored::cancel(&calls, found, calls.config.cancel_wait, calls.config.answer_grace).await?;
    Ok(about(ok(&response), &run, &requested))
}

/// `DELETE /v1/responses/{id}`: one that has ended.
async fn delete(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let run = stored::deletable(&calls, &caller.tenant, &id).await?;
    let answer = stored::delete(&calls, &run).await;
    Ok(about(answer.map_or_else(IntoResponse::into_response, |deleted| ok(&deleted)), &run.key.run, &requested))
}

/// `GET /v1/responses/{id}/input_items?limit=&order=&after=`
async fn input_items(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let id = named(id)?;
    let page = page(&params(query)?)?;
    let found = stored::find(&calls, &caller.tenant, &id).await?;
    Ok(about(ok(&stored::input_items(&found, &page)?), &found.run.key.run, &requested))
}

/// The events of a response behind `after`, out of the store; of one that another gateway has and that is not in the background, as one of
/// its readers.
fn followed(
    calls: &Arc<Calls>,
    conn: Arc<ConnState>,
    stop: watch::Receiver<bool>,
    found: Found,
    after: Option<u64>,
) -> Result<Response, ApiError> {
    let gone = || stored::no_response(&object::response_id(&found.run.key.run));
    // Not by way of the store: one that is away by now would make a refusal of a run that was accepted.
    let follow = calls.follow_known(&found.run.key, 0).ok_or_else(gone)?.attending(calls.attend(&found.run));
    let events = Events::new(Follower::new(follow, Some(conn)), Fold::new(found.head), &[], after, comments(calls));
    Ok(sse(Body::new(Until::new(Body::new(events), stop))))
}

/// How long a stream may be silent before a comment is sent.
fn comments(calls: &Calls) -> Option<Duration> {
    Some(calls.config.keepalive_comment).filter(|after| !after.is_zero())
}

/// Puts the run's id on an answer about it.
// contract: C-1
fn about(mut response: Response, run: &RunId, requested: &Requested) -> Response {
    name(response.headers_mut(), run, requested.0.as_ref());
    response
}

fn params(query: Params) -> Result<HashMap<String, String>, ApiError> {
    query.map(|Query(map)| map).map_err(|e| ApiError::bad(format!("the query cannot be read: {}", e.body_text())))
}

/// Refuses a parameter that is not known, by name.
fn known(map: &HashMap<String, String>, all: &[&str]) -> Result<(), ApiError> {
    match map.keys().find(|name| !all.contains(&name.as_str())) {
        Some(name) if name.trim_end_matches("[]") == "include" => Err(ApiError::field("include", "nothing can be included by this server")),
        Some(name) => Err(ApiError::field(name, "is not known here")),
        None => Ok(()),
    }
}

/// How a response is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Look {
    /// As it is.
    Now,
    /// As events behind this one.
    Follow { after: Option<u64> },
}

impl Look {
    fn read(map: &HashMap<String, String>) -> Result<Look, ApiError> {
        known(map, &["stream", "starting_after", "include_obfuscation"])?;
        parse::no_obfuscation(truth(map, "include_obfuscation")?, "include_obfuscation")?;
        let whole = |text: &String| text.parse::<u64>().map_err(|_| ApiError::field("starting_after", "must be a whole number from 0"));
        let after = map.get("starting_after").map(whole).transpose()?;
        match (truth(map, "stream")?.unwrap_or(false), after) {
            (true, after) => Ok(Look::Follow { after }),
            (false, None) => Ok(Look::Now),
            (false, Some(_)) => Err(ApiError::field("starting_after", "is allowed only with stream=true")),
        }
    }
}

fn truth(map: &HashMap<String, String>, name: &str) -> Result<Option<bool>, ApiError> {
    let read = |text: &String| text.parse().map_err(|_| ApiError::field(name, "must be true or false"));
    map.get(name).map(read).transpose()
}

fn page(map: &HashMap<String, String>) -> Result<Page, ApiError> {
    known(map, &["limit", "order", "after"])?;
    let limit = match map.get("limit") {
        None => PAGE,
        Some(text) => {
            let read = text.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
            read.ok_or_else(|| ApiError::field("limit", format!("must be a whole number from 1 to {PAGE_MAX}")))?
        }
    };
    let ascending = match map.get("order").map(String::as_str) {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(ApiError::field("order", "must be asc or desc")),
    };
    Ok(Page { limit, ascending, after: map.get("after").cloned() })
}
