//! `POST /v1/responses`: from a request to a run, and from a run to a response or a stream of its events.
//!
//! An interactive response is read by whoever asked for it, as a chat is. A background one is kept before it is answered, and read by nobody:
//! even who streams it from the beginning only follows.
//!
//! Invariant: a rejection keeps its status: an interactive response is begun only after a worker took it on.
// contract: C-6 C-13 C-25

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::message::{ChatMessage, Prompt};
use lifecycle::{OnDisconnect, OutcomeKind, RunId, Said, Tenant};

use super::asked::Asked;
use super::chain;
use super::fold::Fold;
use super::object::Head;
use super::parse::{Request, parse};
use super::stream::Events;
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Opened, Order};
use crate::feed::{Item, Reader};
use crate::http::error::ApiError;
use crate::http::fields::{self, Fields};
use crate::http::generate::{JOINED, closed, first, joining, read, timeout};
use crate::http::stream::Whole;
use crate::http::{name, serving};
use crate::keys::Caller;

/// What a caller's leaving means, in a header.
const ON_DISCONNECT: HeaderName = HeaderName::from_static("x-on-disconnect");

/// What is asked for, and by whom.
pub(super) struct Asking {
    pub(super) calls: Arc<Calls>,
    pub(super) conn: Arc<ConnState>,
    pub(super) caller: Caller,
    pub(super) requested: Option<RunId>,
    pub(super) headers: HeaderMap,
}

/// Answers a request.
pub(super) async fn create(asking: Asking, body: Body) -> Result<Response, ApiError> {
    let arrived = asking.calls.now();
    serving(&asking.calls)?;
    let body = read(&asking.calls, body, 0).await?;
    let mut fields = Fields::parse(&body)?;
    let model = fields::model(&mut fields, &asking.calls.models())?;
    let request = parse(fields, calendar_s())?;
    let on_disconnect = policy(&request, &asking.headers)?;
    let prompt = prompt(&asking.calls, &asking.caller.tenant, &request.asked).await?;
    let joining = joining("responses", &asking.headers, &body)?;
    drop(body);
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
    };
    let plan = Plan { asked: request.asked, stream: request.stream, on_disconnect };
    if plan.asked.background { background(asking, order, plan).await } else { interactive(asking, order, plan).await }
}

/// What an answer needs beside its run.
struct Plan {
    asked: Asked,
    stream: bool,
    on_disconnect: OnDisconnect,
}

/// The turns that the model continues: instructions, what came before, and the input.
async fn prompt(calls: &Arc<Calls>, tenant: &Tenant, asked: &Asked) -> Result<Prompt, ApiError> {
    let mut turns: Vec<ChatMessage> = chain::instructed(asked).into_iter().collect();
    if let Some(previous) = &asked.previous_response_id {
        turns.extend(chain::turns(calls, tenant, previous, calls.config.body_bytes_max).await?);
    }
    turns.extend(chain::said(asked, None));
    Ok(Prompt::Chat(turns))
}

/// What the caller's leaving means: the body's word before the header's.
// contract: C-25
fn policy(request: &Request, headers: &HeaderMap) -> Result<OnDisconnect, ApiError> {
    if request.asked.background {
        return Ok(OnDisconnect::Continue);
    }
    if let Some(policy) = request.on_disconnect {
        return Ok(policy);
    }
    let Some(value) = headers.get(ON_DISCONNECT) else { return Ok(OnDisconnect::Cancel) };
    let bad = |why: String| ApiError::field("X-On-Disconnect", why);
    value.to_str().map_err(|_| bad("must be visible ASCII".to_owned()))?.trim().parse().map_err(|e| bad(format!("{e}")))
}

/// A response that its caller waits for or reads.
async fn interactive(asking: Asking, order: Order, plan: Plan) -> Result<Response, ApiError> {
    let Asking { calls, conn, requested, .. } = asking;
    let model = order.model.clone();
    let Opened { mut reader, created, joined } = calls.open(order, &conn).map_err(closed)?;
    let id = reader.key.run.clone();
    let created = i64::try_from(created).unwrap_or(i64::MAX);
    let head = Head { run: id.clone(), model, created, on_disconnect: plan.on_disconnect, asked: plan.asked };
    let fold = Fold::new(Arc::new(head));
    let mut response = match first(&mut reader).await {
        Err(outcome) => ApiError::of_outcome(&outcome).into_response(),
        Ok(()) if plan.stream => {
            let comments = reader.comment_after();
            stream(Body::new(Events::new(reader, fold, &[Said::Accepted], None, comments)))
        }
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
            Item::Delta(delta) => tokens = tokens.saturating_add(delta.tokens.len() as u32),
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
async fn background(asking: Asking, order: Order, plan: Plan) -> Result<Response, ApiError> {
    let _ = (asking, order, plan);
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "this server keeps no runs").code("store_unavailable"))
}

/// A stream of events.
pub(super) fn stream(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // A proxy that buffers a stream makes it useless and hides a reader's leaving.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

fn calendar_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_secs()).unwrap_or(i64::MAX))
}
