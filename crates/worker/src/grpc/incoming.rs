//! Connections as they come, at most so many at once.
//!
//! HTTP/2 asks an idle peer whether it is there, but only once both have begun, and what it then does about one that is not has to be written
//! first. So two things are watched below it: that a peer begins, and that it takes something of what is sent to it.
//!
//! Invariant: an error of one `accept` ends nothing; a connection gives its place back when it is dropped, and one whose peer is gone is
//! dropped within a limit, whatever state it is in.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use super::GrpcConfig;

/// After an error of `accept`: the process may be out of descriptors, and asking again at once would not help.
const PAUSE: Duration = Duration::from_millis(50);

/// Where connections come from. A trait, so that a simulation's network can be put in the system's place.
pub trait Listener: Send + Sync + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next one.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Listener for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // A heartbeat that waits for a full packet is a late one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection that is over already");
        }
        Ok(stream)
    }
}

/// Bytes with which every client of HTTP/2 begins.
const PREFACE: usize = 24;
/// So many times `keepalive` may pass without a byte taken: as long as HTTP/2 takes to find that nobody answers.
const STUCK: u32 = 2;

type Next<Io> = Pin<Box<dyn Future<Output = Connection<Io>> + Send>>;

/// A listener's connections.
pub(super) struct Incoming<L: Listener> {
    listener: Arc<L>,
    places: Arc<Semaphore>,
    config: GrpcConfig,
    next: Next<L::Io>,
}

impl<L: Listener> Incoming<L> {
    pub(super) fn new(listener: L, config: GrpcConfig) -> Incoming<L> {
        let (listener, places) = (Arc::new(listener), Arc::new(Semaphore::new(config.connections_max.max(1))));
        let next = accept(listener.clone(), places.clone(), config);
        Incoming { listener, places, config, next }
    }
}

fn accept<L: Listener>(listener: Arc<L>, places: Arc<Semaphore>, config: GrpcConfig) -> Next<L::Io> {
    Box::pin(async move {
        let place = match places.acquire_owned().await {
            Ok(place) => place,
            Err(_closed) => std::future::pending().await,
        };
        loop {
            match listener.accept().await {
                Ok(stream) => return Connection::new(stream, &config, place),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

impl<L: Listener> Stream for Incoming<L> {
    type Item = io::Result<Connection<L::Io>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let connection = ready!(self.next.as_mut().poll(cx));
        self.next = accept(self.listener.clone(), self.places.clone(), self.config);
        Poll::Ready(Some(Ok(connection)))
    }
}

/// A connection and its place.
pub(super) struct Connection<Io> {
    stream: Io,
    /// How much of the preface has yet to come, and until when.
    begins: Option<(usize, Pin<Box<Sleep>>)>,
    /// Until when the peer has to take something, while nothing more can be written.
    stuck: Option<Pin<Box<Sleep>>>,
    stuck_max: Duration,
    _place: OwnedSemaphorePermit,
}

impl<Io> Connection<Io> {
    fn new(stream: Io, config: &GrpcConfig, place: OwnedSemaphorePermit) -> Connection<Io> {
        let begins = Some((PREFACE, Box::pin(tokio::time::sleep(config.hello_timeout))));
        Connection { stream, begins, stuck: None, stuck_max: config.keepalive * STUCK, _place: place }
    }

    /// So many bytes came, or none did for now.
    fn came(&mut self, bytes: Option<usize>, cx: &mut Context<'_>) -> io::Result<()> {
        let Some((left, limit)) = &mut self.begins else { return Ok(()) };
        *left = left.saturating_sub(bytes.unwrap_or(0));
        if *left == 0 {
            self.begins = None;
        } else if bytes.is_none() && limit.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer has not begun in time (hello_timeout_ms)"));
        }
        Ok(())
    }

    /// Something was written, or nothing can be for now.
    fn wrote<T>(&mut self, written: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck_max = self.stuck_max;
        let limit = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(stuck_max)));
        ready!(limit.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes nothing (keepalive_ms)")))
    }
}

impl<Io> Connected for Connection<Io> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl<Io: AsyncRead + Unpin> AsyncRead for Connection<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.came(read.is_ready().then_some(buf.filled().len() - before), cx)?;
        read
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Connection<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(written, cx)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
