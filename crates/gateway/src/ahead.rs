//! What a caller sends behind a request whose answer is pending, read in hyper's stead.
//!
//! hyper reads no further than one buffer while it answers. What it leaves fills the kernel's receive buffer, and once that is full the peer's
//! FIN stays on the peer's side: a caller that left looks as if it were there. So these bytes are read here: up to a limit they are kept for
//! hyper, beyond it they are thrown away, and then no further request is taken from the connection and it is closed behind the answers that
//! are due. So a caller's end is seen behind however many bytes, and it is never guessed at: who sends much and stays keeps its answer.
//!
//! Bytes are counted as they come from the socket: under TLS they would be its records.
//!
//! Invariant: hyper gets the bytes in their order and none after one that was thrown away; at most `limit` are kept; a body that hyper still
//! reads is left to it.
// contract: C-10 C-28

use std::io::{self, ErrorKind, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use socket2::SockRef;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Bytes read at once, and how often before others get their turn.
const PIECE: usize = 16 << 10;
const PIECES: usize = 32;

/// What reading came upon.
#[derive(Debug)]
pub(crate) enum Came {
    /// Nothing more for now, or nothing is to be read.
    Nothing,
    /// There may be more.
    More,
    /// The peer's end.
    End,
}

/// One connection's bytes that nobody has asked for yet.
pub(crate) struct Ahead {
    limit: usize,
    held: Mutex<Held>,
    asked: Notify,
}

#[derive(Default)]
struct Held {
    bytes: BytesMut,
    /// Bytes were thrown away: none follows.
    overran: bool,
    /// Requests that are being handled, and runs whose answer is pending. Runs only where hyper does not read on (HTTP/1.1).
    requests: usize,
    runs: usize,
    /// Requests so far.
    began: u64,
    /// All that was due is written.
    written: bool,
    /// The caller left: nothing is due.
    gone: bool,
    /// Whoever waits for bytes.
    hyper: Option<Waker>,
}

impl Held {
    fn is_busy(&self) -> bool {
        self.requests + self.runs > 0
    }

    fn is_read(&self) -> bool {
        self.overran || self.runs > 0
    }

    fn wake(&mut self) {
        self.hyper.take().into_iter().for_each(Waker::wake);
    }
}

impl Ahead {
    pub(crate) fn new(limit: usize) -> Ahead {
        Ahead { limit, held: Mutex::default(), asked: Notify::new() }
    }

    /// Nothing in here panics with the lock held.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins to be handled.
    pub(crate) fn request_began(&self) {
        let mut held = self.lock();
        held.requests += 1;
        held.began += 1;
        held.written = false;
    }

    /// A request was handled; its answer may be pending.
    pub(crate) fn request_ended(&self) {
        self.lock().requests -= 1;
    }

    /// Whether a request is in hand or a run's answer pending, and how many requests there have been.
    pub(crate) fn requests(&self) -> (bool, u64) {
        let held = self.lock();
        (held.is_busy(), held.began)
    }

    /// A run's answer is pending: its request was read to the end.
    pub(crate) fn run_began(&self) {
        self.lock().runs += 1;
        // What came before that has woken nobody.
        self.asked.notify_one();
    }

    /// Nothing more will be said of the run.
    pub(crate) fn run_ended(&self) {
        self.lock().runs -= 1;
    }

    /// Waits until there may be something to read that came unasked.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Reads what there is, for a while, if a run's answer is pending or nothing that comes is kept any more. Does not look at the readiness that tokio remembers.
    pub(crate) fn read(&self, socket: &TcpStream) -> io::Result<Came> {
        let mut piece = [0; PIECE];
        for _ in 0..PIECES {
            if !self.lock().is_read() {
                return Ok(Came::Nothing);
            }
            match (&*SockRef::from(socket)).read(&mut piece) {
                Ok(0) => return Ok(Came::End),
                Ok(n) => self.keep(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Came::Nothing),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Came::More)
    }

    fn keep(&self, piece: &[u8]) {
        let mut held = self.lock();
        if held.overran {
            return;
        }
        if held.bytes.len() + piece.len() > self.limit {
            held.overran = true;
            held.bytes = BytesMut::new();
            tracing::info!(limit = self.limit, "too much was sent behind a request: the connection is closed behind its answer");
            return;
        }
        held.bytes.extend_from_slice(piece);
        held.wake();
    }

    /// What hyper gets instead of the socket's bytes, if anything: those that are kept, or none any more.
    pub(crate) fn give(&self, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
        let mut held = self.lock();
        if held.overran {
            if held.gone || (held.written && !held.is_busy()) {
                return Some(Poll::Ready(Ok(())));
            }
            held.hyper = Some(cx.waker().clone());
            return Some(Poll::Pending);
        }
        if held.bytes.is_empty() {
            return None;
        }
        let n = held.bytes.len().min(buf.remaining());
        buf.put_slice(&held.bytes[..n]);
        held.bytes.advance(n);
        if held.bytes.is_empty() {
            held.bytes = BytesMut::new();
        }
        Some(Poll::Ready(Ok(())))
    }

    /// hyper waits for the socket.
    pub(crate) fn waits(&self, cx: &Context<'_>) {
        self.lock().hyper = Some(cx.waker().clone());
    }

    /// Whether bytes were thrown away.
    pub(crate) fn overran(&self) -> bool {
        self.lock().overran
    }

    /// The caller left.
    pub(crate) fn gone(&self) {
        let mut held = self.lock();
        held.gone = true;
        held.wake();
    }

    /// hyper has written all that it had. Whoever was answered after bytes were thrown away gets no further answer.
    pub(crate) fn flushed(&self) {
        let mut held = self.lock();
        if held.overran && !held.written && !held.is_busy() {
            held.written = true;
            held.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(ahead: &Ahead, room: usize) -> Option<Poll<Vec<u8>>> {
        let mut room = vec![0; room];
        let mut buf = ReadBuf::new(&mut room);
        let given = ahead.give(&Context::from_waker(Waker::noop()), &mut buf)?;
        Some(given.map(|result| result.map(|()| buf.filled().to_vec()).expect("no error")))
    }

    #[test]
    fn what_is_kept_comes_back_in_order_and_then_the_socket() {
        let ahead = Ahead::new(8);
        assert_eq!(given(&ahead, 4), None);
        ahead.keep(b"abcde");
        ahead.keep(b"fgh");
        assert_eq!(given(&ahead, 3), Some(Poll::Ready(b"abc".to_vec())));
        ahead.keep(b"ijk");
        assert_eq!(given(&ahead, 9), Some(Poll::Ready(b"defghijk".to_vec())));
        assert_eq!(given(&ahead, 9), None);
    }

    /// No byte follows one that was thrown away, and the end comes only when every answer that was due is written.
    #[test]
    fn beyond_the_limit_nothing_follows_but_the_end_behind_the_answer() {
        let ahead = Ahead::new(8);
        ahead.request_began();
        ahead.run_began();
        ahead.request_ended();
        ahead.keep(b"abcdefghi");
        ahead.keep(b"j");
        ahead.flushed();
        assert_eq!(given(&ahead, 9), Some(Poll::Pending));
        ahead.run_ended();
        assert_eq!(given(&ahead, 9), Some(Poll::Pending), "its answer is not written yet");
        ahead.flushed();
        assert_eq!(given(&ahead, 9), Some(Poll::Ready(Vec::new())));
        ahead.request_began();
        assert_eq!(given(&ahead, 9), Some(Poll::Pending), "hyper had a further request in its own buffer");
        ahead.gone();
        assert_eq!(given(&ahead, 9), Some(Poll::Ready(Vec::new())));
    }
}
