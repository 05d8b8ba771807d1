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

type Next = Pin<Box<dyn Future<Output = Connection> + Send>>;

/// A listener's connections.
pub(super) struct Incoming {
    listener: Arc<TcpListener>,
    places: Arc<Semaphore>,
    next: Next,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener, connections_max: usize) -> Incoming {
        let (listener, places) = (Arc::new(listener), Arc::new(Semaphore::new(connections_max.max(1))));
        let next = accept(listener.clone(), places.clone());
        Incoming { listener, places, next }
    }
}

fn accept(listener: Arc<TcpListener>, places: Arc<Semaphore>) -> Next {
    Box::pin(async move {
        let place = match places.acquire_owned().await {
            Ok(place) => place,
            Err(_closed) => std::future::pending().await,
        };
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    // A heartbeat that waits for a full packet is a late one.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "a connection that is over already");
                    }
                    return Connection { stream, _place: place };
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Connection>>> {
        let connection = ready!(self.next.as_mut().poll(cx));
        self.next = accept(self.listener.clone(), self.places.clone());
        Poll::Ready(Some(Ok(connection)))
    }
}

/// A connection and its place.
pub(super) struct Connection {
    stream: TcpStream,
    _place: OwnedSemaphorePermit,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
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
