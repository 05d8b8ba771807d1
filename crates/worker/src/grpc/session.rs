//! One session's stream: a task that reads frames into the mailbox, and a stream that writes what the engine thread puts out.
//!
//! Invariant: the engine thread is told once that a session is over, however it ends; a peer that sends more than its share is not read.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lifecycle::message::Up;
use lifecycle::session::Frame;
use prost::Message;
use protocol::{FromGateway, worker_v1 as wire};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::service::gone;
use crate::door::{Door, Session};

/// Bytes of a frame that count as one more frame in the mailbox.
const BYTES_A_PLACE: usize = 16 << 10;

/// What goes up.
pub(super) struct Frames {
    welcome: Option<wire::Up>,
    frames: mpsc::Receiver<Frame<Up>>,
    /// Why the reader has ended, if it has.
    over: oneshot::Receiver<Option<Status>>,
    reader: JoinHandle<()>,
    door: Door,
    done: bool,
    _place: OwnedSemaphorePermit,
}

impl Frames {
    pub(super) fn new(
        door: Door,
        session: Session,
        place: OwnedSemaphorePermit,
        down: Streaming<wire::Down>,
        (welcome, frames): (wire::Up, mpsc::Receiver<Frame<Up>>),
        inbox_max: u32,
    ) -> Frames {
        let (tell, over) = oneshot::channel();
        let reader = tokio::spawn(async move {
            // Why is said before the session is over, so that whoever sees that it is over knows why.
            let why = read(&session, down, inbox_max).await;
            let _ = tell.send(why.err());
        });
        Frames { welcome: Some(welcome), frames, over, reader, door, done: false, _place: place }
    }

    /// The last word, if the reader has ended: the peer ended its half in good order, or it broke the rules.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Option<Option<Result<wire::Up, Status>>> {
        let Poll::Ready(over) = Pin::new(&mut self.over).poll(cx) else { return None };
        self.done = true;
        // No word: it is gone with the process.
        Some(over.unwrap_or(None).map(Err))
    }

    /// The engine thread has let go of this session.
    fn replaced(&self) -> Status {
        if self.door.has_ended() {
            return Status::unavailable("the worker has ended");
        }
        Status::cancelled("a newer session of this gateway has taken this one's place, or it was forgotten after two leases of silence")
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Stream for Frames {
    type Item = Result<wire::Up, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        if let Some(welcome) = self.welcome.take() {
            return Poll::Ready(Some(Ok(welcome)));
        }
        if let Some(over) = self.poll_over(cx) {
            return Poll::Ready(over);
        }
        let next = match ready!(self.frames.poll_recv(cx)) {
            Some(frame) => protocol::up(&frame).map_err(Status::from),
            None => match self.poll_over(cx) {
                Some(over) => return Poll::Ready(over),
                None => Err(self.replaced()),
            },
        };
        self.done = next.is_err();
        if let Err(status) = &next {
            tracing::info!(code = ?status.code(), why = status.message(), "session ended");
        }
        Poll::Ready(Some(next))
    }
}

/// Reads until the peer ends its half, breaks a rule, or the connection is gone.
async fn read(session: &Session, mut down: Streaming<wire::Down>, inbox_max: u32) -> Result<(), Status> {
    let places = inbox_max.max(1);
    let inbox = Arc::new(Semaphore::new(places as usize));
    while let Some(message) = down.message().await? {
        let weight = u32::try_from(message.encoded_len() / BYTES_A_PLACE).unwrap_or(u32::MAX).saturating_add(1).min(places);
        let FromGateway::Frame(frame) = FromGateway::try_from(message)? else {
            return Err(Status::invalid_argument("a second Hello"));
        };
        // Waits here, and with it the peer, while the engine thread has not taken what came before.
        let Ok(room) = inbox.clone().acquire_many_owned(weight).await else { return Ok(()) };
        session.frame(frame, room).map_err(gone)?;
    }
    Ok(())
}
