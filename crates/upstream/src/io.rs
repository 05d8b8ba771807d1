//! A connection's bytes, with a count of what was taken of a request.
//!
//! A pooled connection may have been closed by its other end without anybody having looked. So before the first byte of a request is
//! written on it, the kernel is asked, whatever tokio has been told so far; one that is closed takes nothing.
//!
//! Invariant: while `taken` has not moved since a request began, no byte of it can have reached anybody.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// What is known of one connection from outside it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    taken: AtomicU64,
    look_first: AtomicBool,
}

impl Meter {
    /// Bytes that were taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    /// Before the next byte is written, the kernel is asked whether the other end has closed.
    pub(crate) fn look_first(&self) {
        self.look_first.store(true, Ordering::Release);
    }
}

/// Counts a connection for as long as it is open.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(open: &Arc<AtomicUsize>) -> Counted {
        open.fetch_add(1, Ordering::AcqRel);
        Counted(open.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Either kind of connection.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection whose written bytes are counted.
pub(crate) struct Io {
    stream: Stream,
    meter: Arc<Meter>,
    _counted: Counted,
}

impl Io {
    pub(crate) fn new(stream: Stream, counted: Counted) -> (Io, Arc<Meter>) {
        let meter = Arc::new(Meter::default());
        (Io { stream, meter: meter.clone(), _counted: counted }, meter)
    }

    fn look(&self) -> io::Result<()> {
        if !self.meter.look_first.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let (socket, plain) = match &self.stream {
            Stream::Plain(socket) => (socket, true),
            Stream::Tls(tls) => (tls.get_ref().0, false),
        };
        let mut byte = [MaybeUninit::uninit()];
        match socket2::SockRef::from(socket).peek(&mut byte) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e),
            // Under TLS there may be a word of the protocol itself. Without it, nobody has been asked anything.
            Ok(n) if n > 0 && !plain => Ok(()),
            Ok(_) => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(n)) = written {
            self.meter.taken.fetch_add(*n as u64, Ordering::AcqRel);
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.look()?;
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.count(&written);
        written
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.look()?;
        let written = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.count(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
