//! A request's body that ends when the gateway has to: a stream that its caller would keep open for ever does not hold up the shutdown.
//!
//! Invariant: what has come is given first; the end is an end, not an error.
// contract: C-28

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::Frame;
use tokio::sync::watch;

/// Ready once it is true, or can become true no more.
pub(super) type Stop = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Waits for the signal.
pub(super) fn stopped(mut stop: watch::Receiver<bool>) -> Stop {
    Box::pin(async move {
        let _ = stop.wait_for(|stop| *stop).await;
    })
}

/// The body.
pub(crate) struct Until {
    body: Body,
    stop: Stop,
}

impl Until {
    pub(crate) fn new(body: Body, stop: watch::Receiver<bool>) -> Until {
        Until { body, stop: stopped(stop) }
    }
}

impl http_body::Body for Until {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            // Only looked at while nothing comes, so it is never asked again once it was ready: the end has been given.
            Poll::Pending => self.stop.as_mut().poll(cx).map(|()| None),
            ready => ready,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
