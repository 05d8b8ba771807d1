//! One connection: who watches it, and what it says about its caller.
//!
//! hyper stops reading while a request is being answered and unread bytes wait in its buffer, so it would not notice that the caller left.
//! So a task of our own watches a duplicate of the socket for its end, in every phase of a request, and tells the call table at once. While an
//! answer is pending it also reads what hyper leaves (`ahead`): behind a full receive buffer no end would arrive. What hyper itself runs
//! into while reading or writing is observed on the way (`Observed`): an error can be read from a socket only once.
//!
//! A peer that vanished or that does not read says nothing. For those a second watch (`attend`) looks at the kernel's counters at intervals
//! and lets `pulse` judge: it finds a vanished peer within `client_lost_after`, whatever the connection is doing, because the peer is always
//! asked something: unacknowledged bytes are sent again, a closed window is probed, an idle connection is probed, and HTTP/2 has PING.
//!
//! Invariant: the first observation stands; nothing here waits for a handler, a body or the worker.
// contract: C-10 C-24

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use lifecycle::Cause;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::ahead::{Ahead, Came};
use crate::calls::Calls;
use crate::config::GatewayConfig;
use crate::idle::{Idle, Seen};
use crate::pulse::{Pulse, Sample};
use crate::socket;

/// Into how many parts `client_lost_after` is cut: the first is idle, each further one has a probe.
const PROBE_PARTS: u32 = 4;
/// Into how many parts it is cut for the longest pause between two retransmissions or window probes. Two: in each such time one was sent, and
/// the kernel, which gives up on a silent peer with a closed window after twice the longest pause, gives up no earlier than we do.
const PAUSE_PARTS: u32 = 2;
/// The kernel counts keepalive's times in seconds.
const PROBE_UNIT: Duration = Duration::from_secs(1);
/// The least pause between two looks.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(5);
/// The part of the send buffer that may wait unsent; beyond it hyper has to wait.
const UNSENT_PARTS: usize = 8;

/// What is known of a connection. Requests get it as an extension.
pub(crate) struct ConnState {
    /// Names the connection in the call table. Never reused.
    pub(crate) id: u64,
    /// What it sent before it was asked to.
    pub(crate) ahead: Ahead,
    gone: OnceLock<Cause>,
    close: Notify,
    calls: Arc<Calls>,
    /// How often bytes came.
    heard: AtomicU64,
    /// Bytes that the kernel has taken.
    written: AtomicU64,
    /// It speaks HTTP/2, so its program answers PINGs.
    http2: AtomicBool,
    /// One of its runs was not read; it is closed once no other is being read.
    doomed: AtomicBool,
}

impl ConnState {
    pub(crate) fn new(id: u64, calls: Arc<Calls>) -> ConnState {
        ConnState {
            id,
            ahead: Ahead::new(calls.config.pipelined_bytes_max),
            gone: OnceLock::new(),
            close: Notify::new(),
            calls,
            heard: AtomicU64::new(0),
            written: AtomicU64::new(0),
            http2: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
        }
    }

    /// Why the caller is gone, if it is.
    pub(crate) fn gone(&self) -> Option<Cause> {
        self.gone.get().copied()
    }

    /// The caller is gone: ends the live calls of this connection at once. Only the first observation counts.
    pub(crate) fn observe(&self, cause: Cause) {
        if self.gone.set(cause).is_ok() {
            self.calls.connection_gone(self.id, cause);
            self.ahead.gone();
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

    /// Asks for it to be closed as soon as no run is being delivered on it.
    pub(crate) fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
    }

    /// A request came in this version of HTTP.
    pub(crate) fn speaks(&self, version: axum::http::Version) {
        if version == axum::http::Version::HTTP_2 {
            self.http2.store(true, Ordering::Relaxed);
        }
    }

    /// A run's answer is pending on it: from its request's end until nothing more is said of it.
    pub(crate) fn run_began(&self) {
        if !self.http2.load(Ordering::Relaxed) {
            self.ahead.run_began();
        }
    }

    /// The counterpart of `run_began`.
    pub(crate) fn run_ended(&self) {
        if !self.http2.load(Ordering::Relaxed) {
            self.ahead.run_ended();
        }
    }

    /// What idleness is judged by.
    fn seen(&self) -> Seen {
        let (busy, requests) = self.ahead.requests();
        let (heard, written) = (self.heard.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        Seen { at: Instant::now(), busy, requests, heard, written }
    }

    /// How often it was heard, if its program has to answer PINGs.
    fn heard(&self) -> Option<u64> {
        self.http2.load(Ordering::Relaxed).then(|| self.heard.load(Ordering::Relaxed))
    }
}

/// Sets a fresh socket's options: small buffers so that a stalled reader is noticed, probes so that a vanished one is.
///
/// TCP_USER_TIMEOUT is not among them: it gives up on a peer whose window is closed although that answers every probe, and it would rule
/// keepalive too. Keepalive alone ends an idle connection in time; everything else is `attend`'s.
pub(crate) fn prepare(stream: &TcpStream, config: &GatewayConfig) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let part = config.client_lost_after / PROBE_PARTS;
    let unit = Duration::from_secs(part.as_secs()).max(PROBE_UNIT);
    let probes = (config.client_lost_after.as_secs() / unit.as_secs()).saturating_sub(1).clamp(1, u64::from(PROBE_PARTS)) as u32;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(unit).with_interval(unit).with_retries(probes))?;
    socket::limit_pauses(stream, config.client_lost_after / PAUSE_PARTS);
    socket.set_send_buffer_size(config.send_buffer_bytes)?;
    socket.set_tcp_notsent_lowat(u32::try_from((config.send_buffer_bytes / UNSENT_PARTS).max(1)).unwrap_or(u32::MAX))
}

/// Looks at the connection at intervals, until its caller has to be given up for the cause that is returned.
// field: F-80
pub(crate) async fn attend(stream: &TcpStream, state: &ConnState, config: &GatewayConfig) -> Cause {
    let mut pulse = Pulse::new(config);
    let mut idle = Idle::new(config, Instant::now());
    let mut looks = tokio::time::interval(pulse.every().min(idle.every()).max(LOOK_EVERY_MIN));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if state.doomed.load(Ordering::Acquire) && !state.calls.is_delivering(state.id) {
            state.close();
        }
        if !state.http2.load(Ordering::Relaxed) && idle.is_over(state.seen()) {
            state.close();
        }
        // A socket that cannot be looked at is one whose end the watcher sees.
        let Ok(look) = socket::look(stream) else { continue };
        let sample = Sample { at: Instant::now(), look, written: state.written.load(Ordering::Relaxed), heard: state.heard() };
        if let Some(cause) = pulse.judge(&sample) {
            return cause;
        }
    }
}

/// The connection's last options: what is still unsent must not occupy the kernel for longer than a silent peer may; for one that is lost
/// nothing is kept, and should it come back it is told.
pub(crate) fn part(stream: &TcpStream, state: &ConnState, config: &GatewayConfig) {
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_user_timeout(Some(config.client_lost_after));
    if state.gone() == Some(Cause::ClientLost) {
        let _ = socket.set_linger(Some(Duration::ZERO));
    }
}

/// A second handle on the socket with a registration of its own: hyper clears the first one's readiness as it reads.
pub(crate) fn duplicate(stream: &TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(std::net::TcpStream::from(stream.as_fd().try_clone_to_owned()?))
}

/// Watches until the peer's end or an error is seen, and tells. The registration is edge-triggered, so bytes that nobody reads do not wake it
/// again; while an answer is pending it reads them (`ahead`; HTTP/2 is always read), so they do not hide the end behind them either.
// field: F-01 F-03 F-13
pub(crate) async fn watch(socket: &TcpStream, state: &ConnState, allow_half_close: bool) {
    let mut interest = Interest::READABLE | Interest::ERROR;
    loop {
        let ready = tokio::select! {
            ready = socket.ready(interest) => ready,
            () = state.ahead.asked() => Ok(Ready::EMPTY),
        };
        let Ok(ready) = ready else { return };
        if ready.is_error() {
            return state.observe(classify(SockRef::from(socket).take_error().ok().flatten(), allow_half_close));
        }
        if ready.is_read_closed() {
            if !allow_half_close {
                return state.observe(Cause::ClientClosed);
            }
            // "Read side closed" stays set for ever: from here on only an error says anything.
            interest = Interest::ERROR;
        }
        // "Would block" clears the readiness to read and nothing else, so no end and no error can get lost between two looks. Cleared before
        // it is read, so that what comes in between wakes it again.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        loop {
            match state.ahead.read(socket) {
                Ok(Came::More) => tokio::task::yield_now().await,
                Ok(Came::End) if !allow_half_close => return state.observe(Cause::ClientClosed),
                Ok(_) => break,
                Err(e) => return state.observe(classify(Some(e), allow_half_close)),
            }
        }
    }
}

/// A pending socket error in the contract's words. That there was one and another reader has taken it means a reset as well. A broken pipe is
/// the kernel's word for a peer that had closed in good order, and then resets what comes behind its end: where such a close is no leaving, the
/// reset is.
fn classify(error: Option<io::Error>, allow_half_close: bool) -> Cause {
    use io::ErrorKind::{BrokenPipe, HostUnreachable, NetworkUnreachable, TimedOut};
    match error.map(|e| e.kind()) {
        Some(BrokenPipe) if !allow_half_close => Cause::ClientClosed,
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

    fn wrote(&self, result: io::Result<usize>) -> io::Result<usize> {
        match &result {
            Ok(n) => _ = self.state.written.fetch_add(*n as u64, Ordering::Relaxed),
            Err(e) => self.failed(e),
        }
        result
    }

    fn failed(&self, error: &io::Error) {
        self.state.observe(classify(Some(error.kind().into()), self.allow_half_close));
    }
}

impl AsyncRead for Observed {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(given) = self.state.ahead.give(cx, buf) {
            return given;
        }
        let before = buf.filled().len();
        let Poll::Ready(result) = Pin::new(&mut self.stream).poll_read(cx, buf) else {
            self.state.ahead.waits(cx);
            return Poll::Pending;
        };
        match &result {
            Err(e) => self.failed(e),
            Ok(()) if buf.filled().len() > before => _ = self.state.heard.fetch_add(1, Ordering::Relaxed),
            Ok(()) if buf.remaining() > 0 && !self.allow_half_close => self.state.observe(Cause::ClientClosed),
            Ok(()) => {}
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Observed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, buf));
        Poll::Ready(self.wrote(result))
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bufs));
        Poll::Ready(self.wrote(result))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.state.ahead.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
