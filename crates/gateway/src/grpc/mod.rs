//! The gRPC front door, on the same listener as HTTP's: a call is an HTTP/2 stream, so the connection's watchers, the limits and the call
//! table are the same. Beside `kvit.v1.Runs` it answers gRPC's health and reflection services.
//!
//! Invariant: whatever asks in gRPC is answered in gRPC; no call owns a run.
// contract: C-6 C-10 C-28

mod deadline;
mod generate;
mod health;
mod runs;
mod status;
mod until;
mod view;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Version, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use lifecycle::Time;
use protocol::runs_v1::runs_server::{RunsServer, SERVICE_NAME as RUNS};
use tokio::sync::watch as signal;
use tonic::Status;
use tonic_health::pb::health_server::{HealthServer, SERVICE_NAME as HEALTH};

pub(crate) use self::until::Until;
use crate::calls::Calls;
use crate::http::error::ApiError;
use crate::http::generate::read;

/// Bytes before each message: whether it is compressed, and how long it is.
const FRAME_HEAD: usize = 5;
/// What gRPC's requests say they are. A server that takes other encodings says so by further words.
const TYPES: [&str; 2] = ["application/grpc", "application/grpc+proto"];
/// Largest message that health and reflection take: a name and little more. Default 16 KiB.
const NAME_MESSAGE_BYTES_MAX: usize = 16 << 10;

/// When a call's head arrived. An extension of every call of `Runs`.
#[derive(Clone, Copy)]
struct Arrived(Time);

/// All services.
pub(crate) fn routes(calls: &Arc<Calls>, stop: &signal::Receiver<bool>) -> Router<Arc<Calls>> {
    let watches = watch::Watches::new(&calls.config, stop.clone());
    let runs = runs::Service { calls: calls.clone(), watches: watches.clone() };
    let runs = RunsServer::new(runs).max_decoding_message_size(calls.config.body_bytes_max);
    let health = HealthServer::new(health::Service { calls: calls.clone(), watches }).max_decoding_message_size(NAME_MESSAGE_BYTES_MAX);
    Router::new()
        .route_service(&format!("/{RUNS}/{{method}}"), runs)
        .layer(from_fn_with_state(calls.clone(), whole))
        .merge(Router::new().route_service(&format!("/{HEALTH}/{{method}}"), health))
        .merge(reflection(stop))
        .layer(from_fn(only_grpc))
}

/// What may be called here, for tools that ask. Its stream stays open for as long as its caller wants, but not beyond the shutdown.
fn reflection(stop: &signal::Receiver<bool>) -> Router<Arc<Calls>> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(protocol::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The session between gateway and worker is described in the same set and not served here.
            .with_service_name(RUNS)
            .with_service_name(HEALTH)
    };
    let (new, old) = (
        builder().with_service_name("grpc.reflection.v1.ServerReflection").build_v1(),
        builder().with_service_name("grpc.reflection.v1alpha.ServerReflection").build_v1alpha(),
    );
    let mut router = Router::new();
    match (new, old) {
        (Ok(new), Ok(old)) => {
            let (new, old) = (new.max_decoding_message_size(NAME_MESSAGE_BYTES_MAX), old.max_decoding_message_size(NAME_MESSAGE_BYTES_MAX));
            router = router
                .route_service("/grpc.reflection.v1.ServerReflection/{method}", new)
                .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", old);
        }
        // The descriptors are made when this is built, and a test asks for them.
        (Err(e), _) | (_, Err(e)) => tracing::error!(error = %e, "no reflection: the descriptors cannot be read"),
    }
    let stop = stop.clone();
    router.layer(from_fn(move |request: Request, next: Next| {
        let stop = stop.clone();
        next.run(request.map(|body| Body::new(Until::new(body, stop))))
    }))
}

/// Whether a request asks in gRPC's words.
pub(crate) fn is_asked(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| TYPES.iter().any(|known| value.as_bytes() == known.as_bytes()))
}

/// Whether a path is the health service's, which probes without a key may ask.
pub(crate) fn is_health(path: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.strip_prefix(HEALTH)).is_some_and(|rest| rest.starts_with('/'))
}

/// An error as the answer to a call.
pub(crate) fn refused(error: ApiError) -> Response {
    status::of_error(&error).into_http()
}

/// The answer to a call of something that is not here.
pub(crate) fn unknown(message: String) -> Response {
    Status::unimplemented(message).into_http()
}

/// Turns away what comes to a service's path and is no gRPC call.
async fn only_grpc(request: Request, next: Next) -> Response {
    let error = |status, message: &str| ApiError::new(status, "invalid_request_error", message).into_response();
    if request.method() != Method::POST {
        error(StatusCode::METHOD_NOT_ALLOWED, "a gRPC call is a POST")
    } else if !is_asked(request.headers()) {
        error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "this is a gRPC service: the content type must be application/grpc")
    } else if request.version() != Version::HTTP_2 {
        error(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2: connect to this port with prior knowledge")
    } else {
        next.run(request).await
    }
}

/// Reads a call's one message within the limits of size and time that a body has over HTTP.
async fn whole(State(calls): State<Arc<Calls>>, request: Request, next: Next) -> Response {
    let arrived = Arrived(calls.now());
    let (mut head, body) = request.into_parts();
    match read(&calls, body, FRAME_HEAD).await {
        Ok(body) => {
            head.extensions.insert(arrived);
            next.run(Request::from_parts(head, Body::from(body))).await
        }
        Err(error) => refused(error),
    }
}
