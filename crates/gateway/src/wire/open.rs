//! Making a connection: TCP, HTTP/2, hello, welcome.
//!
//! Invariant: a connection is used only after a welcome that was read whole and states a version that both sides speak.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::Down;
use lifecycle::session::Frame;
use protocol::worker_v1::{self as wire, worker_client::WorkerClient};
use protocol::{FromWorker, Opened, Opening, VERSIONS, limits, version};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::WireConfig;
use super::core::Shared;
use crate::GatewayError;

/// So many hellos in a row may stay unanswered within a lease.
const HELLOS_A_LEASE: u32 = 4;

/// A connection that was welcomed.
pub(super) struct Connection {
    pub opened: Opened,
    /// What comes up.
    pub frames: Streaming<wire::Up>,
    /// What goes down.
    pub out: mpsc::Sender<Frame<Down>>,
    /// For questions outside the session.
    pub client: WorkerClient<Channel>,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) struct Failed {
    /// For the log.
    pub why: String,
    /// The worker is there and speaks no common version: another try is of no use until one of the two is replaced.
    pub refused: bool,
    /// Its host answered that nobody listens there.
    pub nobody: bool,
}

impl Failed {
    fn new(why: impl Into<String>) -> Failed {
        Failed { why: why.into(), refused: false, nobody: false }
    }

    fn status(status: &Status) -> Failed {
        let why = if status.message().is_empty() { format!("{:?}", status.code()) } else { status.message().to_owned() };
        Failed { why, refused: status.code() == Code::FailedPrecondition, nobody: false }
    }
}

/// What went wrong, with what caused it: the outermost error alone says "transport error".
pub(super) fn causes(error: &tonic::transport::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// Whether a connection was refused. Of a name with several addresses it is the one that was tried last that says so.
fn is_refusal(error: &tonic::transport::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Where a worker is. No proxy of the system's is asked: the connection goes there directly.
pub(super) fn endpoint(address: &str, config: &WireConfig) -> Result<Endpoint, GatewayError> {
    let bad = |why: String| GatewayError::Address { address: address.to_owned(), why };
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0));
    if !has_port || address.contains('/') {
        return Err(bad("it must be HOST:PORT".into()));
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|e| bad(causes(&e)))?;
    Ok(endpoint.connect_timeout(config.connect_timeout).tcp_nodelay(true))
}

/// The same, of connections on which there is always something to hear: one that is mute is over, even if what was written to it cannot
/// go out and nobody holds it any more. Otherwise it would stay for as long as the kernel tries.
pub(super) fn lasting(endpoint: Endpoint, config: &WireConfig) -> Endpoint {
    let limit = config.hello_timeout;
    endpoint.http2_keep_alive_interval(limit).keep_alive_timeout(limit).keep_alive_while_idle(true)
}

/// A client that takes answers of so many bytes. Without a word it would take 4 MiB.
pub(super) fn client(channel: Channel, bytes_max: u64) -> WorkerClient<Channel> {
    WorkerClient::new(channel).max_decoding_message_size(usize::try_from(bytes_max).unwrap_or(usize::MAX))
}

/// Makes a connection and opens a session on it.
pub(super) async fn open(shared: Arc<Shared>) -> Result<Connection, Failed> {
    let no_channel = |e| Failed { nobody: is_refusal(&e), ..Failed::new(causes(&e)) };
    let channel = shared.network.connect(&shared.endpoint).await.map_err(no_channel)?;
    let (out, frames) = mpsc::channel(shared.config.frames_max.max(1));
    // Numbered when there is a connection that it can go out on, so that the newest number is the newest connection's.
    let hello = shared.hello();
    let limit = hello_limit(&shared.config, hello.resume.is_some());
    let hello = wire::Down::from(&Opening { versions: VERSIONS.to_vec(), hello });
    let mut session = client(channel.clone(), limits::FRAME_BYTES_MAX.default);
    let welcomed = async {
        let mut up = session.session(Frames { hello: Some(hello), frames }).await.map_err(|s| Failed::status(&s))?.into_inner();
        let first = up.message().await.map_err(|s| Failed::status(&s))?;
        Ok::<_, Failed>((first, up))
    };
    let welcomed = tokio::time::timeout(limit, welcomed).await;
    let (first, frames) = welcomed.map_err(|_| Failed::new("no welcome in time (hello_timeout_ms, or a quarter of the lease)"))??;
    let first = first.ok_or_else(|| Failed::new("the stream ended before a welcome"))?;
    let opened = match FromWorker::try_from(first) {
        Ok(FromWorker::Welcome(opened)) => opened,
        Ok(FromWorker::Frame(_)) => return Err(Failed::new("its first message is no welcome")),
        Err(error) => return Err(Failed::new(error.to_string())),
    };
    version::confirm(VERSIONS, opened.version).map_err(|e| Failed { refused: true, ..Failed::new(e.to_string()) })?;
    let client = client(channel, limits::SNAPSHOT_BYTES_MAX.default);
    Ok(Connection { opened, frames, out, client })
}

/// How long a welcome may take. While runs wait for it their lease runs: a connection that turns out to be dead must leave time for others.
fn hello_limit(config: &WireConfig, resumes: bool) -> Duration {
    let short = config.quiet_max.max(config.session.lease / HELLOS_A_LEASE);
    if resumes { config.hello_timeout.min(short) } else { config.hello_timeout }
}

/// What goes down a stream: the hello, then frames.
struct Frames {
    hello: Option<wire::Down>,
    frames: mpsc::Receiver<Frame<Down>>,
}

impl Stream for Frames {
    type Item = wire::Down;

    fn poll_next(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<Option<wire::Down>> {
        if let Some(hello) = self.hello.take() {
            return std::task::Poll::Ready(Some(hello));
        }
        loop {
            match std::task::ready!(self.frames.poll_recv(cx)) {
                None => return std::task::Poll::Ready(None),
                Some(frame) => match protocol::down(&frame) {
                    Ok(down) => return std::task::Poll::Ready(Some(down)),
                    // A message that this side must not have made. Its lane waits for it, and with the lease it is over.
                    Err(error) => tracing::error!(%error, "a frame that cannot be written"),
                },
            }
        }
    }
}
