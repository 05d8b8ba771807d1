//! A worker on the network: `kvit.worker.v1` over gRPC, with the health and reflection services that every tool asks for first.
//!
//! ```text
//!   stream down ──reader──► mailbox ──► engine thread ──outlet──► writer ──► stream up
//! ```
//! It carries frames and decides nothing: a stream that breaks, a frame that is dropped and one that comes twice are all the same to it.
//!
//! Invariant: of one peer there is at most so much in memory: a share of the mailbox, an outlet's frames, one message of either way.
// contract: C-3, C-10

mod incoming;
mod service;
mod session;

use std::time::Duration;

use lifecycle::message::ModelInfo;
use lifecycle::session::SessionConfig;
use protocol::limits;
use protocol::worker_v1::worker_server::WorkerServer;
use tonic::transport::Server;

use crate::door::Door;
use incoming::Incoming;
pub use incoming::Listener;
use service::Service;

/// The limits of a worker's gRPC server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrpcConfig {
    /// Open connections; further ones wait in the kernel's backlog. Default 256.
    pub connections_max: usize,
    /// Open sessions, those included whose hello has not come: a gateway that connects again has two for a while. Default 128.
    pub sessions_max: usize,
    /// Snapshots and drains that are answered at once. Default 16.
    pub questions_max: usize,
    /// How long a connection may take to begin, and a stream may be open before its hello. Default 5 s.
    pub hello_timeout: Duration,
    /// Frames of one session that wait for the engine thread; each counts once more for every 16 KiB of it. Default 1024.
    pub inbox_max: u32,
    /// Frames for one session that wait for its connection; what is more is dropped, and comes again. Default 1024.
    pub outlet_max: usize,
    /// How often an idle connection is asked whether anybody is there, and how long it may take to answer; one that takes nothing of what is
    /// sent to it is closed after twice as long. Default 5 s.
    pub keepalive: Duration,
    /// How long, after it was told to stop, connections may take to end. Default 1 s.
    pub closing: Duration,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        GrpcConfig {
            connections_max: 256,
            sessions_max: 128,
            questions_max: 16,
            hello_timeout: Duration::from_millis(limits::HELLO_TIMEOUT_MS.default),
            inbox_max: 1024,
            outlet_max: 1024,
            keepalive: Duration::from_secs(5),
            closing: Duration::from_secs(1),
        }
    }
}

/// Why a worker's server ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket, or the server over it.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
    /// The descriptors in this program cannot be read.
    #[error("the descriptors of kvit.worker.v1 cannot be read: {0}")]
    Descriptors(String),
}

/// Serves sessions until `stop` is ready. `draining` is ready when the worker takes no further attempt: health says so from then on.
///
/// # Errors
/// The socket fails.
pub async fn serve(
    door: Door,
    listener: impl Listener,
    config: GrpcConfig,
    session: SessionConfig,
    model: ModelInfo,
    draining: impl Future<Output = ()> + Send + 'static,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<WorkerServer<Service>>().await;
    let says = tokio::spawn(async move {
        draining.await;
        health.set_not_serving::<WorkerServer<Service>>().await;
    });
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(protocol::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|why| ServeError::Descriptors(why.to_string()))?;
    let frame_bytes_max = limits::FRAME_BYTES_MAX.default as usize;
    let worker = WorkerServer::new(Service::new(door, config, session, model))
        .max_decoding_message_size(frame_bytes_max)
        .max_encoding_message_size(limits::SNAPSHOT_BYTES_MAX.default as usize);
    let (told, mut tell) = (tokio::sync::Notify::new(), std::pin::pin!(stop));
    let server = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive))
        .http2_keepalive_timeout(Some(config.keepalive))
        .max_concurrent_streams(Some(config.sessions_max as u32))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(worker)
        .serve_with_incoming_shutdown(Incoming::new(listener, config), told.notified());
    let mut server = std::pin::pin!(server);
    let served = tokio::select! {
        served = &mut server => served,
        () = &mut tell => {
            told.notify_one();
            // Streams that nobody ends are cut.
            tokio::time::timeout(config.closing, server).await.unwrap_or(Ok(()))
        }
    };
    says.abort();
    Ok(served?)
}
