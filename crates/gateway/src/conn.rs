//! One connection: who watches it, and what it says about its caller.
//!
//! hyper stops reading while a request is being answered and unread bytes wait in its buffer, so it would not notice that the caller left.
//! So a task of our own watches a duplicate of the socket for its end, in every phase of a request, and tells the call table at once. What
//! hyper itself runs into while reading or writing is observed on the way (`Observed`): an error can be read from a socket only once.
//!
//! What nobody can see: a close behind more unread bytes than the kernel's receive buffer holds. Its FIN has not arrived.
//!
//! Invariant: the first observation stands; nothing here waits for a handler, a body or the worker.
// contract: C-10 C-24

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use lifecycle::Cause;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::calls::Calls;
use crate::config::GatewayConfig;

/// Probes that a silent peer may leave unanswered, and the seconds between them.
const KEEPALIVE_PROBES: (u32, u64) = (3, 5);
/// How much later than `unread_max` the kernel gives up on a peer that acknowledges nothing: a reader that is only slow is judged first.
const LOST_AFTER_S: u64 = 5;

/// What is known of a connection. Requests get it as an extension.
pub(crate) struct ConnState {
    /// Names the connection in the call table. Never reused.
    pub(crate) id: u64,
    gone: OnceLock<Cause>,
    spoken: AtomicBool,
    close: Notify,
    calls: Arc<Calls>,
}

impl ConnState {
    pub(crate) fn new(id: u64, calls: Arc<Calls>) -> ConnState {
        ConnState { id, gone: OnceLock::new(), spoken: AtomicBool::new(false), close: Notify::new(), calls }
    }

    /// Why the caller is gone, if it is.
    pub(crate) fn gone(&self) -> Option<Cause> {
        self.gone.get().copied()
    }

    /// The caller is gone: ends the live calls of this connection at once. Only the first observation counts.
    pub(crate) fn observe(&self, cause: Cause) {
        if self.gone.set(cause).is_ok() {
            self.calls.connection_gone(self.id, cause);
        }
    }

    /// Asks the connection's task to close it.
    pub(crate) fn close(&self) {
        self.close.notify_one();
    }

    /// Waits until somebody asks to close it.
    pub(crate) async fn closing(&self) {
        self.close.notified().await;
    }

    /// Whether the peer has sent anything yet.
    pub(crate) fn has_spoken(&self) -> bool {
        self.spoken.load(Ordering::Relaxed)
    }
}

/// Sets a fresh socket's options: small buffers so that a stalled reader is noticed, probes so that a vanished one is.
pub(crate) fn prepare(stream: &TcpStream, config: &GatewayConfig) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let (probes, every_s) = KEEPALIVE_PROBES;
    let keepalive = TcpKeepalive::new().with_time(config.keepalive).with_interval(std::time::Duration::from_secs(every_s));
    socket.set_tcp_keepalive(&keepalive.with_retries(probes))?;
    socket.set_tcp_user_timeout(Some(config.unread_max + std::time::Duration::from_secs(LOST_AFTER_S)))?;
    socket.set_send_buffer_size(config.send_buffer_bytes)
}

/// A second handle on the socket with a registration of its own: hyper clears the first one's readiness as it reads.
pub(crate) fn duplicate(stream: &TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?))
}

/// Watches until the peer's end or an error is seen, and tells. The registration is edge-triggered and nothing is read, so bytes that
/// nobody reads neither wake it again nor hide the end behind them.
// field: F-01 F-03 F-13
pub(crate) async fn watch(socket: TcpStream, state: Arc<ConnState>, allow_half_close: bool) {
    let mut interest = Interest::READABLE | Interest::ERROR;
    loop {
        let Ok(ready) = socket.ready(interest).await else { return };
        if ready.is_error() {
            return state.observe(classify(SockRef::from(&socket).take_error().ok().flatten()));
        }
        if ready.is_read_closed() {
            if !allow_half_close {
                return state.observe(Cause::ClientClosed);
            }
            // "Read side closed" stays set for ever: from here on only an error says anything.
            interest = Interest::ERROR;
        }
        // "Would block" clears the readiness to read and nothing else, so no end and no error can get lost between two looks.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
}

/// A pending socket error in the contract's words. That there was one and another reader has taken it means a reset as well.
fn classify(error: Option<io::Error>) -> Cause {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    match error.map(|e| e.kind()) {
        Some(TimedOut | HostUnreachable | NetworkUnreachable) => Cause::ClientLost,
        _ => Cause::ClientReset,
    }
}

/// The socket as hyper sees it, with what it runs into noted for the call table.
pub(crate) struct Observed {
    stream: TcpStream,
    state: Arc<ConnState>,
    allow_half_close: bool,
}

impl Observed {
    pub(crate) fn new(stream: TcpStream, state: Arc<ConnState>, allow_half_close: bool) -> Observed {
        Observed { stream, state, allow_half_close }
    }

    fn failed(&self, error: &io::Error) {
        match error.kind() {
            // The other side had closed in good order before this was written.
            io::ErrorKind::BrokenPipe => self.state.observe(Cause::ClientClosed),
            kind => self.state.observe(classify(Some(kind.into()))),
        }
    }
}

impl AsyncRead for Observed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        match &result {
            Err(e) => self.failed(e),
            Ok(()) if buf.filled().len() > before => self.state.spoken.store(true, Ordering::Relaxed),
            Ok(()) if buf.remaining() > 0 && !self.allow_half_close => self.state.observe(Cause::ClientClosed),
            Ok(()) => {}
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Observed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        Poll::Ready(result.inspect_err(|e| self.failed(e)))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        Poll::Ready(result.inspect_err(|e| self.failed(e)))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
