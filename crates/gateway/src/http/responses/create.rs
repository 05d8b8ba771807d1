//! `POST /v1/responses`: from a request to a run, and from a run to a response or a stream of its events.
//!
//! An interactive response is read by whoever asked for it, as a chat is. A background one is kept before it is answered, and read by nobody:
//! even who streams it from the beginning only follows.
//!
//! Invariant: a rejection keeps its status: an interactive response is begun only after a worker took it on.
// contract: C-6 C-13 C-25

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::message::Prompt;
use lifecycle::{OnDisconnect, OutcomeKind, RunId, Said, Tenant};
use tokio::sync::watch;

use super::asked::Asked;
use super::fold::Fold;
use super::object::Head;
use super::parse::{Request, Retention, parse};
use super::stored::{DOOR, Found, head, show};
use super::stream::Events;
use super::{chain, comments, followed, words};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Closed, Opened, Order};
use crate::feed::{Item, Reader};
use crate::http::error::ApiError;
use crate::http::fields::{self, Fields};
use crate::http::generate::{JOINED, closed, first, joining, read, sse, timeout};
use crate::http::leaving::{self, Route};
use crate::http::stream::Whole;
use crate::http::{name, ok, serving, tools};
use crate::keeping::now_ms;
use crate::keys::Caller;
use crate::otlp;

/// What is asked for, and by whom.
pub(super) struct Asking {
    pub(super) calls: Arc<Calls>,
    pub(super) conn: Arc<ConnState>,
    pub(super) caller: Caller,
    pub(super) requested: Option<RunId>,
    pub(super) headers: HeaderMap,
    /// Becomes true when no stream may stay open any more.
    pub(super) stop: watch::Receiver<bool>,
}

/// Answers a request.
pub(super) async fn create(asking: Asking, body: Body) -> Result<Response, ApiError> {
    let arrived = asking.calls.now();
    serving(&asking.calls)?;
    let body = read(&asking.calls, body, 0).await?;
    let mut fields = Fields::parse(&body)?;
    let model = fields::model(&mut fields, &asking.calls.named())?;
    let tools = tools::take(&mut fields, &asking.calls.config)?;
    let forwards = asking.calls.forwards(&model);
    let request = parse(fields, retention(&asking.calls), forwards)?;
    let joining = joining(DOOR, &asking.headers, &body)?;
    let on_disconnect = policy(&asking, &request, joining.is_some())?;
    drop(body);
    let prompt = prompt(&asking.calls, &asking.caller.tenant, &request, forwards).await?;
    let expires = expires(&asking.calls, &request.asked, joining.is_some());
    tools::check(&tools, on_disconnect, asking.calls.keeper.is_some())?;
    let order = Order {
        caller: asking.caller.clone(),
        requested: asking.requested.clone(),
        model,
        prompt,
        params: request.params,
        arrived,
        timeout: timeout(&asking.calls, &asking.headers, request.timeout)?,
        stream: request.stream,
        joining,
        door: DOOR,
        on_disconnect,
        stored: request.asked.store,
        request: request.asked.store.then(|| request.asked.encode()),
        expires,
        tools,
        trace: otlp::incoming(&asking.headers),
    };
    let plan = Plan { asked: request.asked, stream: request.stream, on_disconnect };
    if plan.asked.background { background(asking, order, plan.stream).await } else { interactive(asking, order, plan).await }
}

/// What an answer needs beside its run.
struct Plan {
    asked: Asked,
    stream: bool,
    on_disconnect: OnDisconnect,
}

/// What the model continues: instructions, what came before, and the input.
async fn prompt(calls: &Arc<Calls>, tenant: &Tenant, request: &Request, forwards: bool) -> Result<Prompt, ApiError> {
    let asked = &request.asked;
    let mut items: Vec<_> = chain::instructed(asked).into_iter().collect();
    if let Some(previous) = &asked.previous_response_id {
        items.extend(chain::items(calls, tenant, previous, calls.config.body_bytes_max).await?);
    }
    items.extend(chain::said(asked, Vec::new()));
    words::prompt(items, asked, request.params.sampling.logprobs.is_some(), forwards)
}

/// How long responses are kept here.
fn retention(calls: &Calls) -> Retention {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let config = &calls.config.keep;
    let usual = calls.keeper.as_ref().map(|_| seconds(config.retention));
    Retention { now: now_ms().div_euclid(1000), usual, max: seconds(config.retention_max) }
}

/// How long this one is kept; `None` for as long as runs are. What is not to be stored and has a key is kept for whoever asks again with it, and
/// not longer.
fn expires(calls: &Calls, asked: &Asked, is_keyed: bool) -> Option<Duration> {
    let keep = &calls.config.keep;
    let until_joined = || calls.config.gateway_deadline.saturating_add(keep.rejoin).min(keep.retention);
    let asked_for = asked.expires_at.map(|at| Duration::from_secs(at.abs_diff(asked.created_at)));
    asked_for.or_else(|| (!asked.store && is_keyed).then(until_joined))
}

/// What the caller's leaving means. What is not kept does not go on, for nobody could fetch it.
// contract: C-25
fn policy(asking: &Asking, request: &Request, is_keyed: bool) -> Result<OnDisconnect, ApiError> {
    let stated = leaving::stated(&asking.headers, request.on_disconnect)?;
    match asking.calls.config.policy(Route::Responses, stated, is_keyed) {
        OnDisconnect::Continue if !request.asked.store && stated.is_some() => {
            Err(ApiError::field(leaving::FIELD, "may be continue only with store: true: nobody could fetch what is not kept"))
        }
        OnDisconnect::Continue if !request.asked.store => Ok(OnDisconnect::Cancel),
        policy => Ok(policy),
    }
}

/// A response that its caller waits for or reads.
async fn interactive(asking: Asking, order: Order, plan: Plan) -> Result<Response, ApiError> {
    let Asking { calls, conn, requested, .. } = asking;
    let model = order.model.clone();
    let Opened { mut reader, joined, .. } = calls.accept(order, &conn).await.map_err(closed)?;
    let id = reader.key.run.clone();
    let own = Head { run: id.clone(), model, on_disconnect: plan.on_disconnect, asked: plan.asked };
    // What an earlier request began is told as that asked for it.
    let first_asked = if joined { calls.known(&reader.key).await.ok().flatten() } else { None };
    let head = first_asked.map(|run| head(&run)).transpose()?.flatten().unwrap_or_else(|| Arc::new(own));
    let fold = Fold::new(head);
    let mut response = match first(&mut reader).await {
        Err(outcome) => ApiError::of_outcome(&outcome).into_response(),
        Ok(()) if plan.stream => sse(Body::new(Events::new(reader, fold, &[Said::Accepted], None, comments(&calls)))),
        Ok(()) => collect(reader, fold).await,
    };
    name(response.headers_mut(), &id, requested.as_ref());
    if joined {
        response.headers_mut().insert(JOINED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Reads the whole answer, then answers at once.
async fn collect(mut reader: Reader, mut fold: Fold) -> Response {
    // Its events are a stream's; here they are only counted.
    fold.take(&Said::Accepted);
    let mut tokens: u32 = 0;
    loop {
        let said = reader.next().await;
        fold.take(&said);
        match said {
            Item::Accepted => {}
            Item::Delta(delta) => tokens = tokens.saturating_add(delta.count()),
            Item::End { outcome, .. } if outcome.kind() == OutcomeKind::Completed => {
                let body = Whole::new(reader, &fold.object(None), tokens);
                return ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], Body::new(body)).into_response();
            }
            Item::End { outcome, .. } => {
                reader.finish(false);
                return ApiError::of_outcome(&outcome).into_response();
            }
        }
    }
}

/// A response that nobody has to wait for.
// contract: C-25
async fn background(asking: Asking, order: Order, is_stream: bool) -> Result<Response, ApiError> {
    let Asking { calls, conn, requested, stop, .. } = asking;
    let run = calls.accept_background(order).await.map_err(|why| match why {
        Closed::NoStore => {
            let why = "a response can be left in the background only where runs are kept, and this server has no run store";
            ApiError::field("background", why).code("no_run_store")
        }
        why => closed(why),
    })?;
    let unkept = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "the response is not kept as it was asked for");
    let found = Found { head: head(&run)?.ok_or_else(unkept)?, run };
    let id = found.run.key.run.clone();
    let mut response = if is_stream { followed(&calls, conn, stop, found, None)? } else { ok(&show(&calls, &found).await?) };
    name(response.headers_mut(), &id, requested.as_ref());
    Ok(response)
}
