//! The two endpoints that generate: from a request to a run, and from a run to an answer.
//!
//! Everything before `open` is a check that leaves no trace; `open` is one synchronous step; after it this future only reads. So it may be
//! dropped at every await: the `Reader` in it, or in the body that it returns, tells the table.
//!
//! Invariant: a rejection keeps its status: no 200 is sent before the worker took the run on.
// contract: C-6 C-13
// field: F-03 F-05 F-17

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use lifecycle::message::Usage;
use lifecycle::{Outcome, OutcomeKind, RunId, Time};

use super::error::ApiError;
use super::fields::{self, Fields};
use super::leaving::{self, Route};
use super::openai::{Answer, Kind, Shape};
use super::stream::{Events, Whole};
use super::{Requested, chat as chat_wire, completions as text_wire, forward, name, serving};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Closed, Opened, Order};
use crate::feed::{Item, Reader};
use crate::joining::{Joining, KEY_MAX_LEN};
use crate::keys::Caller;
use crate::otlp;

/// The header that gives a deadline, in milliseconds from arrival.
const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// The header by which a request that is sent again finds its run.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that the answer is that of an earlier request's run.
pub(crate) const JOINED: HeaderName = HeaderName::from_static("x-kvit-joined");

/// `POST /v1/chat/completions`
pub(crate) async fn chat(
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(caller): Extension<Caller>,
    Extension(Requested(id)): Extension<Requested>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(Kind::Chat, calls, conn, (caller, id), request).await
}

/// `POST /v1/completions`
pub(crate) async fn completions(
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(caller): Extension<Caller>,
    Extension(Requested(id)): Extension<Requested>,
    request: Request,
) -> Result<Response, ApiError> {
    generate(Kind::Text, calls, conn, (caller, id), request).await
}

async fn generate(
    kind: Kind,
    calls: Arc<Calls>,
    conn: Arc<ConnState>,
    (caller, requested): (Caller, Option<RunId>),
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = calls.now();
    serving(&calls)?;
    let (head, body) = request.into_parts();
    let body = read(&calls, body, 0).await?;
    let fields = Fields::parse(&body)?;
    let named = fields.peek("model").and_then(serde_json::Value::as_str).map(str::to_owned);
    if let Ok(model) = fields::model_named(named, &calls.named())
        && calls.forwards(&model)
    {
        let (path, route) = match kind {
            Kind::Chat => ("/v1/chat/completions", Route::Chat),
            Kind::Text => ("/v1/completions", Route::Completions),
        };
        let came = forward::Arrived { path, route, headers: &head.headers, body: &body, arrived };
        return forward::answer(&calls, &conn, (caller, requested), (fields, model), came).await;
    }
    let (order, mut shape) = order(kind, &calls, (caller, requested.clone(), arrived), &head.headers, (fields, &body))?;
    drop(body);
    let (n, stream) = (order.params.n, order.stream);
    let Opened { mut reader, created, joined } = calls.accept(order, &conn).await.map_err(closed)?;
    shape.created = created;
    let id = reader.key.run.clone();
    shape.id = format!("{}-{id}", if kind == Kind::Chat { "chatcmpl" } else { "cmpl" });
    let mut response = match first(&mut reader).await {
        Err(outcome) => ApiError::of_outcome(&outcome).into_response(),
        Ok(()) if stream => sse(Body::new(Events::chunks(reader, shape, n))),
        Ok(()) => collect(reader, &shape, n).await,
    };
    name(response.headers_mut(), &id, requested.as_ref());
    if joined {
        response.headers_mut().insert(JOINED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Why there is no run for a request.
pub(crate) fn closed(why: Closed) -> ApiError {
    let key = |status, message, code| ApiError::field_with(status, "Idempotency-Key", message).code(code);
    match why {
        // A shutdown may have begun while the body came in.
        Closed::ShuttingDown => ApiError::shutting_down(),
        Closed::OtherBody => {
            key(StatusCode::UNPROCESSABLE_ENTITY, "was used with another body; use a new key for a new request", "idempotency_key_reused")
        }
        Closed::Full => ApiError::of_outcome(&Outcome::of(lifecycle::Cause::QueueFull)),
        Closed::StoreDown => ApiError::store_down(),
        Closed::NoStore => {
            let why = "a run goes on without its caller only where runs are kept, and this server has no run store";
            ApiError::field("on_disconnect", why).code("no_run_store")
        }
        // OpenAI's SDKs ask again after it, and then may find the run over.
        Closed::InUse => key(
            StatusCode::CONFLICT,
            "names a run that is live and cannot be joined: it has too many readers or has said too much; wait for its end",
            "idempotency_key_in_use",
        ),
    }
}

/// What lets this request join a run: its key, if it has one, and what it asks for.
pub(crate) fn joining(endpoint: &str, headers: &HeaderMap, body: &[u8]) -> Result<Option<Joining>, ApiError> {
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=KEY_MAX_LEN).contains(&text.len()) && given.next().is_none());
    let bad = || ApiError::field("Idempotency-Key", format!("must be given once, with 1 to {KEY_MAX_LEN} visible ASCII characters"));
    text.map(|key| Some(Joining::new(key, endpoint, body))).ok_or_else(bad)
}

/// Reads the body within its limits of size and time; `frame` bytes of it are not the request's own.
pub(crate) async fn read(calls: &Calls, body: Body, frame: usize) -> Result<Bytes, ApiError> {
    let max = calls.config.body_bytes_max;
    match tokio::time::timeout(calls.config.body_timeout, Limited::new(body, max.saturating_add(frame)).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            let message = format!("the body has more than {max} bytes");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", message).code("body_too_large"))
        }
        Ok(Err(_)) => Err(ApiError::bad("the body broke off")),
        Err(_) => {
            let message = format!("the body did not arrive within {} ms", calls.config.body_timeout.as_millis());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message).code("body_timeout"))
        }
    }
}

fn order(
    kind: Kind,
    calls: &Calls,
    (caller, requested, arrived): (Caller, Option<RunId>, Time),
    headers: &HeaderMap,
    (mut fields, body): (Fields, &[u8]),
) -> Result<(Order, Shape), ApiError> {
    let model = fields::model(&mut fields, &calls.named())?;
    let tools = super::tools::take(&mut fields, &calls.config)?;
    let (prompt, common) = match kind {
        Kind::Chat => chat_wire::parse(fields)?,
        Kind::Text => text_wire::parse(fields)?,
    };
    let timeout = timeout(calls, headers, common.timeout)?;
    let stated = leaving::stated(headers, common.on_disconnect)?;
    let joining = joining(if kind == Kind::Chat { "chat" } else { "text" }, headers, body)?;
    let shape = Shape {
        kind,
        id: String::new(),
        model: model.clone(),
        created: 0,
        fingerprint: concat!("kvit-", env!("CARGO_PKG_VERSION")),
        logprobs: common.params.sampling.logprobs.is_some(),
        include_usage: common.include_usage,
    };
    let route = if kind == Kind::Chat { Route::Chat } else { Route::Completions };
    let on_disconnect = calls.config.policy(route, stated, joining.is_some());
    super::tools::check(&tools, on_disconnect, calls.keeper.is_some())?;
    let order = Order {
        caller,
        requested,
        model,
        prompt,
        params: common.params,
        arrived,
        timeout,
        stream: common.stream,
        joining,
        door: if kind == Kind::Chat { "chat" } else { "text" },
        on_disconnect,
        stored: false,
        request: None,
        expires: None,
        tools,
        trace: otlp::incoming(headers),
    };
    Ok((order, shape))
}

/// The caller's deadline: the nearer one of header and body.
pub(crate) fn timeout(calls: &Calls, headers: &HeaderMap, body: Option<Duration>) -> Result<Option<Duration>, ApiError> {
    let bad = || ApiError::field("X-Request-Timeout-Ms", "must be a whole number of milliseconds above 0");
    let header = match headers.get(TIMEOUT) {
        None => None,
        Some(value) => {
            let ms = value.to_str().ok().and_then(|v| v.trim().parse::<u64>().ok()).filter(|ms| *ms > 0).ok_or_else(bad)?;
            Some(Duration::from_millis(ms))
        }
    };
    let max = calls.config.client_deadline_max;
    match header.into_iter().chain(body).min() {
        Some(left) if left > max => Err(ApiError::field("timeout_ms", format!("must be at most {} ms", max.as_millis()))),
        left => Ok(left),
    }
}

/// Waits until the worker took the run on, or it ended before that. The table sends no piece of an answer before `Accepted`.
pub(crate) async fn first(reader: &mut Reader) -> Result<(), Outcome> {
    match reader.next().await {
        Item::Accepted | Item::Delta(_) => Ok(()),
        Item::End { outcome, .. } => {
            reader.finish(false);
            Err(outcome)
        }
    }
}

/// A stream of server-sent events.
pub(crate) fn sse(body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        // A proxy that buffers a stream makes it useless and hides a reader's leaving.
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

/// Reads the whole answer, then answers at once.
async fn collect(mut reader: Reader, shape: &Shape, n: u32) -> Response {
    let mut answers: Vec<Answer> = (0..n).map(|_| Answer::default()).collect();
    let mut tokens: u32 = 0;
    loop {
        match reader.next().await {
            Item::Accepted => {}
            Item::Delta(delta) => {
                tokens = tokens.saturating_add(delta.count());
                if let Some(answer) = answers.get_mut(delta.sequence as usize) {
                    answer.text.push_str(&delta.text);
                    answer.logprobs.extend(delta.logprobs);
                    answer.finish = answer.finish.or(delta.finish);
                }
            }
            Item::End { outcome, usage } if outcome.kind() == OutcomeKind::Completed => {
                return whole(reader, shape, &answers, &usage, tokens);
            }
            Item::End { outcome, .. } => {
                reader.finish(false);
                return ApiError::of_outcome(&outcome).into_response();
            }
        }
    }
}

fn whole(reader: Reader, shape: &Shape, answers: &[Answer], usage: &Usage, tokens: u32) -> Response {
    let body = Whole::new(reader, &shape.whole(answers, usage), tokens);
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], Body::new(body)).into_response()
}
