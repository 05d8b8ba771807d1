//! One connection through a tap: bytes pass as they come, and each side's close passes as it came.
//!
//! A piece is read, written on at once, and only then looked at. Nothing more is read from a side while the other has not taken all of that
//! piece, so a reader that stops makes the writer stop, as it would without a tap.
//!
//! Invariant: a FIN passes as a FIN, behind all bytes before it and for its direction alone; every other end passes as an RST. So an answer
//! that was cut never looks as if it was whole.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use super::book::{Book, lock};
use super::ear::Ear;
use super::exchange::How;

/// Most bytes of one read.
const PIECE: usize = 64 << 10;
/// Most bytes that the kernel may hold unsent before it takes no more of them: a tap is no place for an answer to wait in.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 128 << 10;

thread_local! {
    /// Bytes of the read under way. They are gone from it before anything else can be read, so one a thread is enough for any number of
    /// connections.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE].into_boxed_slice());
}

/// The two sockets of a connection. Unless it ended well both are reset when they go.
struct Pair {
    down: TcpStream,
    up: TcpStream,
    well: bool,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if !self.well {
            reset(&self.down);
            reset(&self.up);
        }
    }
}

/// Whoever closes it from here on resets it.
pub fn reset(socket: &TcpStream) {
    // It fails only for a socket that is none.
    SockRef::from(socket).set_linger(Some(Duration::ZERO)).ok();
}

/// Small pieces go at once, and few wait.
fn prepare(socket: &TcpStream) {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true).ok();
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(UNSENT).ok();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Down,
    Up,
}

/// A side that is gone.
struct Gone;

/// What both directions know of each other.
struct Shared<'a> {
    book: &'a Book,
    ear: Mutex<Ear>,
    /// Whether the answers' direction, or the requests', reads nothing at the moment: it waits for its reader, or has seen its end.
    busy: [AtomicBool; 2],
}

impl Shared<'_> {
    fn hear(&self, from: Side, bytes: &[u8], at: u64) {
        let mut ear = lock(&self.ear);
        match from {
            Side::Down => ear.hear_request(bytes, at),
            Side::Up => ear.hear_answer(bytes, at),
        }
    }

    fn closed(&self, side: Side, how: How) {
        let (at, mut ear) = (self.book.now_ns(), lock(&self.ear));
        match side {
            Side::Down => ear.down_closed(at, how),
            Side::Up => ear.up_closed(at, how),
        }
    }

    fn gone(&self, side: Side, how: How) -> Gone {
        self.closed(side, how);
        Gone
    }

    fn is_busy(&self, from: Side) -> &AtomicBool {
        &self.busy[usize::from(from == Side::Up)]
    }
}

/// Runs a connection to its end.
pub async fn run(down: TcpStream, upstream: &[SocketAddr], book: std::sync::Arc<Book>) {
    prepare(&down);
    let mut ear = Ear::new(std::sync::Arc::clone(&book));
    let connected = tokio::select! {
        connected = connect(upstream) => connected,
        // The caller is gone before anybody was there.
        _ = down.ready(Interest::ERROR) => {
            reset(&down);
            return;
        }
    };
    let up = match connected {
        Ok(up) => up,
        Err(error) => {
            ear.refused(book.now_ns(), &format!("nobody took the connection: {}", error.kind()));
            return reset(&down);
        }
    };
    prepare(&up);
    let shared = Shared { book: &book, ear: Mutex::new(ear), busy: [const { AtomicBool::new(false) }; 2] };
    let mut pair = Pair { down, up, well: false };
    pair.well = both(&mut pair, &shared).await.is_ok();
    lock(&shared.ear).over(pair.well);
}

async fn connect(upstream: &[SocketAddr]) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
    for address in upstream {
        match TcpStream::connect(address).await {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Both directions, until each has seen its FIN or one side is gone.
async fn both(pair: &mut Pair, shared: &Shared<'_>) -> Result<(), Gone> {
    let (mut down_read, down_write) = pair.down.split();
    let (mut up_read, up_write) = pair.up.split();
    let mut requests = pin!(pass(Side::Down, &mut down_read, &up_write, shared));
    let mut answers = pin!(pass(Side::Up, &mut up_read, &down_write, shared));
    // Who has said that it sends no more can still be reset.
    tokio::select! {
        ended = &mut requests => {
            ended?;
            tokio::select! {
                ended = &mut answers => ended,
                _ = down_write.as_ref().ready(Interest::ERROR) => Err(broke(shared, Side::Down, down_write.as_ref())),
            }
        }
        ended = &mut answers => {
            ended?;
            tokio::select! {
                ended = &mut requests => ended,
                _ = up_write.as_ref().ready(Interest::ERROR) => Err(broke(shared, Side::Up, up_write.as_ref())),
            }
        }
    }
}

/// Why a side is gone.
fn how(error: &std::io::Error) -> How {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted | ErrorKind::NotConnected => How::Rst,
        _ => How::Lost,
    }
}

fn broke(shared: &Shared<'_>, side: Side, socket: &TcpStream) -> Gone {
    let how = socket.take_error().ok().flatten().map_or(How::Rst, |error| how(&error));
    shared.gone(side, how)
}

/// One direction, until its FIN has passed.
async fn pass(side: Side, from: &mut ReadHalf<'_>, to: &WriteHalf<'_>, shared: &Shared<'_>) -> Result<(), Gone> {
    let other = if side == Side::Down { Side::Up } else { Side::Down };
    loop {
        let rest = match std::future::poll_fn(|cx| piece(cx, side, from, to, shared)).await {
            Piece::Passed(rest) => rest,
            Piece::Over => break,
            Piece::Gone(error) => return Err(shared.gone(side, how(&error))),
            Piece::Untaken(error) => return Err(untaken(other, &error, to.as_ref(), from.as_ref(), shared)),
        };
        let mut rest = &rest[..];
        while !rest.is_empty() {
            shared.is_busy(side).store(true, Ordering::Relaxed);
            tokio::select! {
                _ = to.writable() => {}
                _ = from.ready(Interest::ERROR) => return Err(broke(shared, side, from.as_ref())),
            }
            match to.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(untaken(other, &error, to.as_ref(), from.as_ref(), shared)),
            }
        }
        shared.is_busy(side).store(false, Ordering::Relaxed);
    }
    shared.is_busy(side).store(true, Ordering::Relaxed);
    shared.closed(side, How::Fin);
    match SockRef::from(to.as_ref()).shutdown(Shutdown::Write) {
        Ok(()) => Ok(()),
        Err(error) => Err(untaken(other, &error, to.as_ref(), from.as_ref(), shared)),
    }
}

/// What one read brought.
enum Piece {
    /// Bytes, of which these were not taken yet.
    Passed(Vec<u8>),
    /// A FIN.
    Over,
    /// The side that is read is gone.
    Gone(std::io::Error),
    /// The side that is written is.
    Untaken(std::io::Error),
}

fn piece(cx: &mut Context<'_>, side: Side, from: &mut ReadHalf<'_>, to: &WriteHalf<'_>, shared: &Shared<'_>) -> Poll<Piece> {
    BUFFER.with_borrow_mut(|buffer| {
        let mut read = ReadBuf::new(buffer);
        match Pin::new(from).poll_read(cx, &mut read) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Err(error)) => return Poll::Ready(Piece::Gone(error)),
            Poll::Ready(Ok(())) => {}
        }
        let (at, bytes) = (shared.book.now_ns(), read.filled());
        if bytes.is_empty() {
            return Poll::Ready(Piece::Over);
        }
        let written = to.try_write(bytes);
        shared.hear(side, bytes, at);
        Poll::Ready(match written {
            Ok(written) => Piece::Passed(bytes[written..].to_vec()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Piece::Passed(bytes.to_vec()),
            Err(error) => Piece::Untaken(error),
        })
    })
}

/// `side` takes nothing more, for it is gone. What it had said before still passes, as far as it is taken at once.
fn untaken(side: Side, error: &std::io::Error, gone: &TcpStream, other: &TcpStream, shared: &Shared<'_>) -> Gone {
    if !shared.is_busy(side).load(Ordering::Relaxed) {
        BUFFER.with_borrow_mut(|buffer| {
            while let Ok(count @ 1..) = gone.try_read(buffer) {
                let (at, taken) = (shared.book.now_ns(), other.try_write(&buffer[..count]));
                shared.hear(side, &buffer[..count], at);
                if taken.ok() != Some(count) {
                    break;
                }
            }
        });
    }
    shared.gone(side, how(error))
}
