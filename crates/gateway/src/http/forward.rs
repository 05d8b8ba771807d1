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
use lifecycle::message::{Forward, Piece, Prompt};
use lifecycle::params::Params;
use lifecycle::{Cause, Outcome, OutcomeKind, RunId, Time};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{self, Fields};
use super::generate::{self, JOINED};
use super::leaving::{self, Route};
use super::{Requested, name, passing, serving};
use crate::calls::Calls;
use crate::conn::ConnState;
use crate::dispatch::{Opened, Order};
use crate::feed::{Item, Reader};
use crate::keys::Caller;
use crate::otlp;
use crate::reason::Reason;

/// Fields of a body that are for the gateway and nobody behind it.
const OURS: [&str; 2] = ["timeout_ms", "on_disconnect"];

/// What the gateway has to know of a request that it forwards.
struct Known {
    params: Params,
    stream: bool,
    /// The caller wants to be told what a stream took.
    include_usage: bool,
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

/// How many prompts the `prompt` of a completion is, or the `input` of an embedding: a list of texts, of lists of ids or of objects is several.
pub fn prompts(prompt: Option<&Value>) -> u32 {
    let list = prompt.and_then(Value::as_array);
    let several = list.filter(|list| list.first().is_some_and(|first| first.is_string() || first.is_array() || first.is_object()));
    several.map_or(1, |list| u32::try_from(list.len()).unwrap_or(u32::MAX))
}

/// What a rerank or a score compares, under all names that engines have for it. Some compute what is asked beside each of the others.
const COMPARED: [&str; 8] = ["query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2"];

/// How many sequences a request may make an engine compute: each counts its whole prompt and its whole answer.
// contract: C-28
fn sequences(path: &str, fields: &Fields, number: impl Fn(&str) -> Option<u32>) -> u32 {
    // An engine that makes several answers and gives the best has made them all.
    let answers = || number("n").unwrap_or(1).max(number("best_of").unwrap_or(1)).max(1);
    match path {
        "/v1/chat/completions" => answers(),
        "/v1/completions" => answers().saturating_mul(prompts(fields.peek("prompt")).max(1)),
        _ => {
            let compared = COMPARED.iter().filter_map(|name| fields.peek(name)).filter(|value| !value.is_null());
            // A list of parts may stand within an object.
            let list = |value| prompts(Some(Value::get(value, "content").unwrap_or(value)));
            let compared = compared.map(list).fold(0_u32, u32::saturating_add);
            compared.saturating_add(fields.peek("input").map_or(0, |input| prompts(Some(input)))).max(1)
        }
    }
}

/// Reads what rules the run. A field that means nothing here is not looked at, and one of the wrong type is the engine's to refuse.
fn known(path: &str, fields: &mut Fields, body: &Bytes) -> Result<Known, ApiError> {
    let number = |fields: &Fields, name: &str| fields.peek(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    // Engines differ in which of these they heed where there are several: the largest bounds them all. One that is there and is no number that
    // is understood here bounds nothing, and nothing is put in its place.
    let named = caps(path).iter().filter(|name| fields.peek(name).is_some_and(|value| !value.is_null()));
    let cap = named.map(|name| number(fields, name).filter(|cap| *cap > 0).unwrap_or(u32::MAX)).max();
    let n = sequences(path, fields, |name| number(fields, name));
    let params = Params { n, max_tokens: cap, ..Params::default() };
    let stream = fields.peek("stream").and_then(Value::as_bool).unwrap_or(false);
    let options = fields.peek("stream_options");
    let include_usage = options.and_then(|options| options.get("include_usage")).and_then(Value::as_bool).unwrap_or(false);
    let has_ours = OURS.iter().any(|name| fields.peek(name).is_some());
    let timeout = fields::timeout(fields)?;
    let on_disconnect = fields::on_disconnect(fields)?;
    let body = if has_ours { Bytes::from(fields.rest()) } else { body.clone() };
    Ok(Known { params, stream, include_usage, timeout, on_disconnect, body })
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
    let (stream, include_usage) = (known.stream, known.include_usage);
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
        trace: otlp::incoming(came.headers),
    };
    let Opened { mut reader, joined, .. } = calls.accept(order, conn).await.map_err(generate::closed)?;
    let id = reader.key.run.clone();
    let mut response = match head(&mut reader, stream).await {
        Begun::Over(outcome) => ApiError::of_outcome(&outcome).into_response(),
        Begun::Silent => passing::begin(reader, include_usage),
        Begun::Answer { status, content_type, headers } => {
            let mut response = match passing::is_stream(status, content_type.as_deref()) {
                true => passing::begin(reader, include_usage),
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
pub(super) fn is_theirs(outcome: &Outcome) -> bool {
    matches!(outcome.cause, Cause::WorkerError | Cause::UpstreamError) && matches!(Reason::of(outcome), Some(Reason::Theirs(_)))
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
    let model = fields::model_named(named, &calls.named())?;
    if !calls.forwards(&model) {
        let message = format!("the model `{model}` is served by kvit itself, which has no {path}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("unsupported_endpoint"));
    }
    let came = Arrived { path, route: Route::Chat, headers: &head.headers, body: &body, arrived };
    answer(&calls, &conn, (caller, requested), (fields, model), came).await
}
