//! Requests that go on as they came, to an engine that speaks OpenAI's HTTP itself, and its answer, which comes back as it came.
//!
//! The gateway reads of a request what it needs to rule the run (model, stream, caps, deadlines, what a disconnect means) and leaves the rest
//! alone, known to it or not. Of an answer it counts tokens and knows the end; every byte is the engine's own, its status and its errors too. The
//! run lives in the table like any other: it waits there for a slot, is cancelled there, and whoever comes back finds it there.
//!
//! Invariant: nothing of the answer is changed or held back but the beginning of a stream, at most until the first keepalive comment, and its
//! last piece, until the run's end is known, which comes right behind it.
// contract: C-6 C-29

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use lifecycle::message::{Delta, Forward, Piece, Prompt, Usage};
use lifecycle::params::{N_MAX, Params};
use lifecycle::{Cause, Outcome, OutcomeKind, RunId, Time};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{self, Fields};
use super::generate::{self, JOINED};
use super::leaving::{self, Route};
use super::stream::{Events, Ready, Telling};
use super::{Requested, name, serving};
use crate::THEIRS;
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Opened, Order};
use crate::feed::{Item, Reader};
use crate::keys::Caller;

/// Fields of a body that are for the gateway and nobody behind it.
const OURS: [&str; 2] = ["timeout_ms", "on_disconnect"];

/// What the gateway has to know of a request that it forwards.
struct Known {
    params: Params,
    stream: bool,
    timeout: Option<std::time::Duration>,
    on_disconnect: Option<lifecycle::OnDisconnect>,
    body: Bytes,
}

/// The fields by which a request bounds what is generated for it; `n_predict` is llama.cpp's, which it heeds before the others.
fn caps(path: &str) -> &'static [&'static str] {
    match path {
        "/v1/chat/completions" => &["max_completion_tokens", "max_tokens", "n_predict"],
        "/v1/completions" => &["max_tokens", "n_predict"],
        _ => &[],
    }
}

/// How many prompts the `prompt` of a completion is: a list of texts, or of lists of ids, is several.
pub fn prompts(prompt: Option<&Value>) -> u32 {
    let list = prompt.and_then(Value::as_array);
    let several = list.filter(|list| list.first().is_some_and(|first| first.is_string() || first.is_array()));
    several.and_then(|list| u32::try_from(list.len()).ok()).unwrap_or(1)
}

/// Reads what rules the run. A field that means nothing here is not looked at, and one of the wrong type is the engine's to refuse.
fn known(path: &str, fields: &mut Fields, body: &Bytes) -> Result<Known, ApiError> {
    let number = |fields: &Fields, name: &str| fields.peek(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    // Engines differ in which of these they heed where there are several: the largest bounds them all. One that is there and is no number that
    // is understood here bounds nothing, and nothing is put in its place.
    let named = caps(path).iter().filter(|name| fields.peek(name).is_some_and(|value| !value.is_null()));
    let cap = named.map(|name| number(fields, name).filter(|cap| *cap > 0).unwrap_or(u32::MAX)).max();
    let n = number(fields, "n").unwrap_or(1).saturating_mul(prompts(fields.peek("prompt"))).clamp(1, N_MAX);
    let params = Params { n, max_tokens: cap, ..Params::default() };
    let stream = fields.peek("stream").and_then(Value::as_bool).unwrap_or(false);
    let has_ours = OURS.iter().any(|name| fields.peek(name).is_some());
    let timeout = fields::timeout(fields)?;
    let on_disconnect = fields::on_disconnect(fields)?;
    let body = if has_ours { Bytes::from(fields.rest()) } else { body.clone() };
    Ok(Known { params, stream, timeout, on_disconnect, body })
}

/// What came of a request.
pub(super) struct Arrived<'a> {
    pub(super) path: &'static str,
    pub(super) route: Route,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Bytes,
    pub(super) arrived: Time,
}

/// Answers a request for a model whose engine is forwarded to.
pub(super) async fn answer(
    calls: &Arc<Calls>,
    conn: &Arc<ConnState>,
    (caller, requested): (Caller, Option<RunId>),
    (mut fields, model): (Fields, Arc<str>),
    came: Arrived<'_>,
) -> Result<Response, ApiError> {
    let known = known(came.path, &mut fields, came.body)?;
    let timeout = generate::timeout(calls, came.headers, known.timeout)?;
    let stated = leaving::stated(came.headers, known.on_disconnect)?;
    let joining = generate::joining(came.path, came.headers, came.body)?;
    let on_disconnect = calls.config.policy(came.route, stated, joining.is_some());
    let stream = known.stream;
    let order = Order {
        caller,
        requested: requested.clone(),
        model,
        prompt: Prompt::Forward(Forward { path: came.path.into(), body: known.body, stream }),
        params: known.params,
        arrived: came.arrived,
        timeout,
        stream,
        joining,
        door: "forward",
        on_disconnect,
        stored: false,
        request: None,
        expires: None,
        tools: Vec::new(),
    };
    let Opened { mut reader, joined, .. } = calls.accept(order, conn).await.map_err(generate::closed)?;
    let id = reader.key.run.clone();
    let mut response = match head(&mut reader, stream).await {
        Begun::Over(outcome) => ApiError::of_outcome(&outcome).into_response(),
        Begun::Silent => passing(reader),
        Begun::Answer { status, content_type, headers } => {
            let is_events = content_type.as_deref().is_some_and(|kind| kind.starts_with("text/event-stream"));
            let mut response = match is_events {
                true => passing(reader),
                false => whole(reader).await,
            };
            // A failure after the head is the gateway's own answer.
            if response.status() == StatusCode::OK {
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
                if let Some(kind) = content_type.and_then(|kind| HeaderValue::from_str(&kind).ok()) {
                    response.headers_mut().insert(header::CONTENT_TYPE, kind);
                }
                for (name, value) in headers.iter() {
                    if let (Ok(name), Ok(value)) = (HeaderName::try_from(&**name), HeaderValue::from_str(value)) {
                        response.headers_mut().append(name, value);
                    }
                }
            }
            response
        }
    };
    name(response.headers_mut(), &id, requested.as_ref());
    if joined {
        response.headers_mut().insert(JOINED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// How an answer begins.
enum Begun {
    /// As the engine says.
    Answer { status: u16, content_type: Option<Arc<str>>, headers: Arc<[(Arc<str>, Arc<str>)]> },
    /// Not yet: a stream of which nothing has come for as long as an idle hop may wait.
    Silent,
    /// It ended before it began.
    Over(Outcome),
}

/// Waits for the head of the answer, in a stream no longer than a silence may last.
async fn head(reader: &mut Reader, stream: bool) -> Begun {
    let silence = reader.comment_after().filter(|_| stream);
    let read = async {
        loop {
            match reader.next().await {
                Item::Delta(delta) => {
                    if let Some(Piece::Head { status, content_type, headers }) = delta.passed.map(|passed| passed.piece) {
                        return Begun::Answer { status, content_type, headers };
                    }
                }
                Item::Accepted => {}
                Item::End { outcome, .. } => return Begun::Over(outcome),
            }
        }
    };
    let begun = match silence {
        Some(silence) => tokio::time::timeout(silence, read).await.unwrap_or(Begun::Silent),
        None => read.await,
    };
    if let Begun::Over(_) = begun {
        reader.finish(false);
    }
    begun
}

/// Reads the whole answer, then gives it at once.
async fn whole(mut reader: Reader) -> Response {
    let (mut body, mut tokens) = (BytesMut::new(), 0_u32);
    loop {
        match reader.next().await {
            Item::Accepted => {}
            Item::Delta(delta) => {
                tokens = tokens.saturating_add(delta.count());
                if let Some(Piece::Body(bytes) | Piece::Tail(bytes)) = delta.passed.map(|passed| passed.piece) {
                    body.extend_from_slice(&bytes);
                }
            }
            // An answer that the engine refused is its own; one that broke off is none.
            Item::End { outcome, .. }
                if outcome.kind() == OutcomeKind::Completed || outcome.kind() == OutcomeKind::Rejected || is_theirs(&outcome) =>
            {
                return Body::new(super::stream::Whole::of(reader, body.freeze(), tokens)).into_response();
            }
            Item::End { outcome, .. } => {
                reader.finish(false);
                return ApiError::of_outcome(&outcome).into_response();
            }
        }
    }
}

/// Whether the end is the engine's own answer, told in its own words.
fn is_theirs(outcome: &Outcome) -> bool {
    matches!(outcome.cause, Cause::WorkerError | Cause::UpstreamError)
        && outcome.reason.as_deref().is_some_and(|why| why.starts_with(THEIRS))
}

/// The engine's own events, as they came.
struct Passing {
    /// Nothing was sent of it yet that is no comment.
    fresh: bool,
    /// What waits for the run's end.
    tail: Vec<(Bytes, u32)>,
}

impl Telling for Passing {
    fn delta(&mut self, delta: Delta, ready: &mut Ready) {
        let tokens = delta.count();
        match delta.passed.map(|passed| passed.piece) {
            Some(Piece::Body(bytes)) => ready.push(bytes, tokens),
            // Whoever reads the stream's end closes: so it is not told before the run's own end is known.
            Some(Piece::Tail(bytes)) => self.tail.push((bytes, tokens)),
            // The head of an answer that began in silence. One that is no stream of events cannot be passed on any more.
            Some(Piece::Head { status, content_type, .. }) if self.fresh => {
                let is_events = content_type.as_deref().is_some_and(|kind| kind.starts_with("text/event-stream"));
                if status != StatusCode::OK.as_u16() || !is_events {
                    let message = format!("{THEIRS}{status} to a request for a stream");
                    ready.fail(&ApiError::new(StatusCode::BAD_GATEWAY, "server_error", message).code("upstream_error"));
                }
            }
            _ => {}
        }
        self.fresh = false;
    }

    fn end(&mut self, outcome: &Outcome, _: &Usage, ready: &mut Ready) {
        let is_completed = outcome.kind() == OutcomeKind::Completed;
        // What failed was told in the engine's own words.
        if is_completed || (is_theirs(outcome) && !self.fresh) {
            self.tail.drain(..).for_each(|(bytes, tokens)| ready.push(bytes, tokens));
            ready.end(is_completed);
        } else {
            ready.fail(&ApiError::of_outcome(outcome));
        }
    }
}

fn passing(reader: Reader) -> Response {
    generate::sse(Body::new(Events::of(reader, Passing { fresh: true, tail: Vec::new() })))
}

/// Endpoints that only an engine that is forwarded to has: embeddings, rerank, scores.
pub(super) async fn other(
    path: &'static str,
    State(calls): State<Arc<Calls>>,
    Extension(conn): Extension<Arc<ConnState>>,
    Extension(caller): Extension<Caller>,
    Extension(Requested(requested)): Extension<Requested>,
    request: Request,
) -> Result<Response, ApiError> {
    let arrived = calls.now();
    serving(&calls)?;
    let (head, body) = request.into_parts();
    let body = generate::read(&calls, body, 0).await?;
    let fields = Fields::parse(&body)?;
    let named = fields.peek("model").and_then(Value::as_str).map(str::to_owned);
    let model = fields::model_named(named, &calls.models())?;
    if !calls.forwards(&model) {
        let message = format!("the model `{model}` is served by kvit itself, which has no {path}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("unsupported_endpoint"));
    }
    let came = Arrived { path, route: Route::Chat, headers: &head.headers, body: &body, arrived };
    answer(&calls, &conn, (caller, requested), (fields, model), came).await
}
