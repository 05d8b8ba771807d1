//! The routes, and what every request passes through: its id in, its caller, its id out, and OpenAI's error shape for whatever goes wrong.
//!
//! Invariant: every response carries `X-Request-Id`: its run's id where it is about one run, else one of its own; no handler owns a run.

pub(crate) mod alerts;
pub(crate) mod caller;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod console;
pub(crate) mod diagnose;
pub(crate) mod effects;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod fields;
pub(crate) mod forward;
pub(crate) mod generate;
pub(crate) mod kv;
pub(crate) mod leaving;
pub(crate) mod mended;
pub(crate) mod metrics;
pub(crate) mod moments;
pub(crate) mod openai;
pub(crate) mod passing;
pub(crate) mod responses;
pub(crate) mod runs;
pub(crate) mod stored;
pub(crate) mod stream;
pub(crate) mod tools;
pub(crate) mod workers;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, patch, post};
use lifecycle::RunId;
use lifecycle::message::ModelInfo;
use serde_json::{Value, json};
use tokio::sync::watch;

use self::error::ApiError;
use crate::calls::Calls;
use crate::dispatch::fresh_id;
use crate::keys::with_caller;

/// The run's id: what the caller asks for, and what it got.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The id that the caller asked for, where it was taken.
pub(crate) const REQUESTED_ID: HeaderName = HeaderName::from_static("x-kvit-requested-id");

/// A path's part that names something, if it can be read.
pub(crate) type Segment = Result<Path<String>, PathRejection>;

/// The name in it.
pub(crate) fn named(segment: Segment) -> Result<String, ApiError> {
    segment.map(|Path(name)| name).map_err(|e| ApiError::bad(format!("the path cannot be read: {}", e.body_text())))
}

/// The id that a request asks for, if any. An extension of every request.
#[derive(Clone)]
pub(crate) struct Requested(pub(crate) Option<RunId>);

/// All routes. `stop` becomes true when no stream may stay open any more.
pub(crate) fn router(calls: Arc<Calls>, stop: &watch::Receiver<bool>) -> Router {
    Router::new()
        .merge(crate::grpc::routes(&calls, stop))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .merge(forwarded())
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .merge(responses::routes(stop))
        .route("/v1/runs", get(runs::list))
        .route("/v1/runs/{id}", get(runs::show))
        .route("/v1/runs/{id}/cancel", post(runs::cancel))
        .route("/v1/runs/{id}/steps", get(runs::steps))
        .route("/v1/runs/{id}/events", get(events::events))
        .route("/v1/runs/{id}/effects", get(effects::show).post(effects::create))
        .route("/v1/runs/{id}/effects/{key}", patch(effects::change))
        .route("/v1/kv", get(kv::account))
        .route("/v1/kv/blocks", get(kv::blocks))
        .route("/v1/kv/blocks/{block}", get(moments::block))
        .route("/v1/kv/moments", get(moments::moments))
        .route("/v1/kv/map", get(moments::map))
        .route("/v1/workers", get(workers::list))
        .route("/v1/caller", get(caller::show))
        .merge(console::routes())
        .route("/v1/alerts", get(alerts::alerts))
        .route("/v1/waste", get(alerts::waste))
        .route("/v1/diagnose", get(diagnose::diagnose))
        .route("/health", get(ready))
        .route("/health/live", get(live))
        .route("/health/ready", get(ready))
        .route("/metrics", get(metrics::page))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(calls.clone(), with_caller))
        .layer(from_fn_with_state(calls.clone(), with_id))
        .with_state(calls)
}

/// A JSON answer.
pub(crate) fn ok(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(e) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", e.to_string()).into_response(),
    }
}

/// Says which run this is, and which id was asked for if it is another.
// contract: C-1
pub(crate) fn name(headers: &mut HeaderMap, id: &RunId, requested: Option<&RunId>) {
    let value = |id: &RunId| HeaderValue::from_str(id.as_str()).ok();
    if let Some(value) = value(id) {
        headers.insert(REQUEST_ID, value);
    }
    if let Some(value) = requested.filter(|wish| *wish != id).and_then(value) {
        headers.insert(REQUESTED_ID, value);
    }
}

// contract: C-1
async fn with_id(State(calls): State<Arc<Calls>>, mut request: Request, next: Next) -> Response {
    let requested = requested_id(&calls, &request);
    let is_http1 = request.version() < Version::HTTP_2;
    let own = requested.as_ref().ok().cloned().flatten();
    let mut response = match requested {
        Ok(requested) => {
            request.extensions_mut().insert(Requested(requested));
            next.run(request).await
        }
        Err(error) if crate::grpc::is_asked(request.headers()) => crate::grpc::refused(error),
        Err(error) => error.into_response(),
    };
    if !response.headers().contains_key(REQUEST_ID)
        && let Ok(value) = HeaderValue::from_str(own.unwrap_or_else(fresh_id).as_str())
    {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    // A connection that is kept would break off soon, perhaps in the middle of a next request.
    if is_http1 && calls.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

fn requested_id(calls: &Calls, request: &Request) -> Result<Option<RunId>, ApiError> {
    let mut given = request.headers().get_all(REQUEST_ID).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let bad = |what: String| ApiError::field("X-Request-Id", what).code("invalid_request_id");
    if given.next().is_some() {
        return Err(bad("is given more than once".to_owned()));
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|e| bad(format!("has an invalid character at byte {}", e.valid_up_to())))?;
    let max = calls.config.run_id_bytes_max;
    if text.len() > max {
        return Err(bad(format!("has {} bytes, at most {max} are allowed", text.len())));
    }
    RunId::parse(text).map(Some).map_err(|e| bad(e.to_string()))
}

/// Endpoints that only an engine that is forwarded to has.
fn forwarded() -> Router<Arc<Calls>> {
    const PATHS: [&str; 8] =
        ["/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank", "/v1/score", "/score", "/v1/moderations", "/pooling"];
    PATHS.into_iter().fold(Router::new(), |router, path| {
        let answer = move |calls, conn, caller, requested, request| forward::other(path, calls, conn, caller, requested, request);
        router.route(path, post(answer))
    })
}

async fn not_found(uri: Uri, headers: HeaderMap) -> Response {
    let message = format!("there is nothing at {}", uri.path());
    if crate::grpc::is_asked(&headers) {
        return crate::grpc::unknown(message);
    }
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", message).code("unknown_url").into_response()
}

async fn not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message).code("method_not_allowed")
}

fn model_object(model: &ModelInfo) -> Value {
    json!({"id": &*model.id, "object": "model", "created": model.created, "owned_by": "kvit", "max_model_len": model.context})
}

async fn models(State(calls): State<Arc<Calls>>) -> Response {
    let data: Vec<Value> = calls.models().iter().map(model_object).collect();
    ok(&json!({"object": "list", "data": data}))
}

async fn model(State(calls): State<Arc<Calls>>, id: Segment) -> Result<Response, ApiError> {
    let id = named(id)?;
    calls.models().iter().find(|model| *model.id == *id).map(|model| ok(&model_object(model))).ok_or_else(|| fields::no_model(&id))
}

async fn live() -> Response {
    ok(&json!({"status": "live"}))
}

async fn ready(State(calls): State<Arc<Calls>>) -> Response {
    match readiness(&calls) {
        Ok(()) => ok(&json!({"status": "ready"})),
        Err(error) => error.into_response(),
    }
}

/// Whether new runs can be taken on.
pub(crate) fn serving(calls: &Calls) -> Result<(), ApiError> {
    if calls.is_draining() {
        return Err(ApiError::shutting_down());
    }
    if calls.lock().workers.are_gone() {
        return Err(ApiError::unavailable("the worker is gone").code("worker_lost"));
    }
    Ok(())
}

/// Whether a run that comes now is computed: what `/health` says.
pub(crate) fn readiness(calls: &Calls) -> Result<(), ApiError> {
    serving(calls).and_then(|()| computing(calls))
}

/// Whether new runs can be computed now. One that comes anyway is taken on: without a worker it waits for one, and with a lost device it
/// fails with `device_error`, so that it has a record.
fn computing(calls: &Calls) -> Result<(), ApiError> {
    let table = calls.lock();
    if !table.workers.is_any_here() {
        return Err(ApiError::no_worker());
    }
    match table.workers.all_devices_lost() {
        None => Ok(()),
        Some(why) => {
            let message = format!("the worker's device is lost ({why}): every run fails until this server is started again");
            Err(ApiError::unavailable(message).code("device_lost"))
        }
    }
}
