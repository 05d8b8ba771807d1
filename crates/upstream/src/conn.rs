//! One HTTP/1.1 connection, driven by whoever waits for something on it: no task of its own.
//!
//! Invariant: dropping it closes the socket there and then.

use std::error::Error as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::client::{Lost, NotSent};
use super::io::{Io, Meter};

/// hyper's own least.
const HEAD_BYTES_LEAST: usize = 8 << 10;

/// Why there is no answer, and what can have come of the request.
pub(crate) enum Failed {
    /// Not one byte of it was taken.
    NotSent(NotSent),
    /// It may have arrived.
    Lost(Lost),
}

/// A connection.
pub(crate) struct Conn {
    sender: http1::SendRequest<Full<Bytes>>,
    /// The larger part by far, in a place of its own: futures hold a connection several times over.
    driver: Box<http1::Connection<TokioIo<Io>, Full<Bytes>>>,
    meter: Arc<Meter>,
    /// The driver is done and must not be asked again.
    over: bool,
    /// The runtime that its socket wakes.
    pub(crate) home: tokio::runtime::Id,
    /// When it was put back last.
    pub(crate) idle_since: Instant,
}

impl Conn {
    pub(crate) async fn new(io: Io, meter: Arc<Meter>, head_bytes_max: usize) -> Result<Conn, NotSent> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(head_bytes_max.max(HEAD_BYTES_LEAST));
        let (sender, driver) = builder.handshake(TokioIo::new(io)).await.map_err(|_| NotSent::Closed)?;
        Ok(Conn { sender, driver: Box::new(driver), meter, over: false, home: Handle::current().id(), idle_since: Instant::now() })
    }

    /// Lets the connection go on as far as it can now. Returns whether it is over.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) -> bool {
        // How it ended is told to whoever waits for an answer or a body.
        self.over = self.over || Pin::new(&mut self.driver).poll(cx).is_ready();
        self.over
    }

    /// Whether it can take a request now, and its other end is not known to have closed.
    pub(crate) fn usable(&mut self) -> bool {
        !self.drive(&mut Context::from_waker(Waker::noop())) && self.sender.is_ready()
    }

    /// Before the next request's first byte, the kernel is asked whether the other end has closed.
    pub(crate) fn look_first(&self) {
        self.meter.look_first();
    }

    /// Sends, and waits for the head of the answer.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Failed> {
        let before = self.meter.taken();
        let Conn { sender, driver, over, .. } = self;
        let mut answer = std::pin::pin!(sender.try_send_request(request));
        let result = std::future::poll_fn(|cx| {
            if !*over {
                *over = Pin::new(&mut *driver).poll(cx).is_ready();
            }
            match answer.as_mut().poll(cx) {
                // Nobody is left who could answer.
                Poll::Pending if *over => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
                Poll::Ready(result) => Poll::Ready(Some(result)),
            }
        })
        .await;
        match result {
            Some(Ok(response)) => Ok(response),
            _ if self.meter.taken() == before => Err(Failed::NotSent(NotSent::Closed)),
            Some(Err(e)) => Err(Failed::Lost(before_head(e.error()))),
            None => Err(Failed::Lost(Lost::Closed)),
        }
    }

    /// What counts them.
    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Bytes that were taken of it so far.
    pub(crate) fn taken(&self) -> u64 {
        self.meter.taken()
    }
}

fn before_head(error: &hyper::Error) -> Lost {
    // hyper names this kind only where its server is built too.
    if error.is_parse() && error.to_string().contains("too large") {
        Lost::HeadTooLarge
    } else if error.is_parse() {
        Lost::NotHttp(error.to_string())
    } else {
        Lost::Closed
    }
}

/// What a body that broke off says.
pub(crate) fn in_body(error: &hyper::Error) -> Lost {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        // A chunk whose length is none.
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => Lost::NotHttp(error.to_string()),
        _ if error.is_parse() => Lost::NotHttp(error.to_string()),
        _ => Lost::BrokeOff,
    }
}
