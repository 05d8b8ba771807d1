//! Connections as they come, at most so many at once.
//!
//! Invariant: an error of one `accept` ends nothing; a connection gives its place back when it is dropped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

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

type Next<Io> = Pin<Box<dyn Future<Output = Connection<Io>> + Send>>;

/// A listener's connections.
pub(super) struct Incoming<L: Listener> {
    listener: Arc<L>,
    places: Arc<Semaphore>,
    next: Next<L::Io>,
}

impl<L: Listener> Incoming<L> {
    pub(super) fn new(listener: L, connections_max: usize) -> Incoming<L> {
        let (listener, places) = (Arc::new(listener), Arc::new(Semaphore::new(connections_max.max(1))));
        let next = accept(listener.clone(), places.clone());
        Incoming { listener, places, next }
    }
}

fn accept<L: Listener>(listener: Arc<L>, places: Arc<Semaphore>) -> Next<L::Io> {
    Box::pin(async move {
        let place = match places.acquire_owned().await {
            Ok(place) => place,
            Err(_closed) => std::future::pending().await,
        };
        loop {
            match listener.accept().await {
                Ok(stream) => return Connection { stream, _place: place },
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
        self.next = accept(self.listener.clone(), self.places.clone());
        Poll::Ready(Some(Ok(connection)))
    }
}

/// A connection and its place.
pub(super) struct Connection<Io> {
    stream: Io,
    _place: OwnedSemaphorePermit,
}

impl<Io> Connected for Connection<Io> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl<Io: AsyncRead + Unpin> AsyncRead for Connection<Io> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for Connection<Io> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
