//! A response as a stream of events, for whoever created it and for whoever follows it.
//!
//! Both are one fold of the same items; only the creator of an interactive response is one of its readers, whose frames count as delivered
//! and whose leaving means something. A follower that leaves, or does not read, harms nobody: it is given only what it takes.
//!
//! Invariant: the last event is the terminal one, and then the stream ends; a comment has no number; a token counts as delivered when hyper
//! has taken the frame that shows it.
// contract: C-6 C-26 C-28

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use lifecycle::Said;
use tokio::time::Instant;

use super::fold::{Event, Fold};
use super::object::Status;
use super::runs::Follows;
use crate::conn::ConnState;
use crate::feed::Reader;
use crate::http::stream::{COMMENT, Silence};

/// Where a stream's items come from.
pub(super) trait Source: Send + Unpin + 'static {
    /// The next item; `None` if there is none any more.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Said>>;
    /// Whether nobody is left to tell.
    fn is_gone(&self) -> bool;
    /// hyper took a frame.
    fn taken(&self, tokens: u32);
    /// Nothing more is taken; `complete` if the answer was told to its proper end.
    fn finish(&mut self, complete: bool);
}

impl Source for Reader {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Said>> {
        let said = ready!(Reader::poll(self, cx));
        let is_of_run = !(matches!(said, Said::End { .. }) && self.has_parted());
        Poll::Ready(Some(said).filter(|_| is_of_run))
    }

    fn is_gone(&self) -> bool {
        Reader::is_gone(self)
    }

    fn taken(&self, tokens: u32) {
        Reader::taken(self, tokens);
    }

    fn finish(&mut self, complete: bool) {
        Reader::finish(self, complete);
    }
}

type Next<F> = Pin<Box<dyn Future<Output = (F, Option<(u64, Said)>)> + Send>>;

/// Somebody who follows a run and is none of its readers.
pub(super) struct Follower<F: Follows> {
    next: Option<Next<F>>,
    conn: Option<Arc<ConnState>>,
}

impl<F: Follows> Follower<F> {
    /// A follower on a connection, whose end is watched for like that of a reader.
    pub(super) fn new(follow: F, conn: Option<Arc<ConnState>>) -> Follower<F> {
        if let Some(conn) = &conn {
            conn.run_began();
        }
        Follower { next: Some(after(follow)), conn }
    }
}

fn after<F: Follows>(mut follow: F) -> Next<F> {
    Box::pin(async move {
        let next = follow.next().await;
        (follow, next)
    })
}

impl<F: Follows> Source for Follower<F> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Said>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (follow, said) = ready!(next.as_mut().poll(cx));
        self.next = said.is_some().then(|| after(follow));
        Poll::Ready(said.map(|(_, said)| said))
    }

    fn is_gone(&self) -> bool {
        self.conn.as_ref().is_some_and(|conn| conn.gone().is_some())
    }

    fn taken(&self, _: u32) {}

    fn finish(&mut self, _: bool) {}
}

impl<F: Follows> Drop for Follower<F> {
    fn drop(&mut self) {
        if let Some(conn) = &self.conn {
            conn.run_ended();
        }
    }
}

/// The body.
pub(super) struct Events<S> {
    source: S,
    fold: Fold,
    /// Events up to this one are known to the caller.
    after: Option<u64>,
    ready: VecDeque<(Bytes, u32)>,
    over: bool,
    silence: Option<Silence>,
}

impl<S: Source> Events<S> {
    /// What `fold` says from here on and what it says first, without what the caller has. After `comment_after` of silence comes a comment.
    pub(super) fn new(source: S, mut fold: Fold, first: &[Said], after: Option<u64>, comment_after: Option<Duration>) -> Events<S> {
        let mut told = fold.begin();
        told.extend(first.iter().flat_map(|said| fold.take(said)));
        let silence = comment_after.map(Silence::new);
        let mut events = Events { source, fold, after, ready: VecDeque::new(), over: false, silence };
        events.tell(told);
        events
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            match self.after {
                // Its caller has it, and with it its tokens.
                Some(after) if event.number <= after => self.source.taken(event.tokens),
                _ => self.ready.push_back((frame(&event), event.tokens)),
            }
        }
    }

    /// Whether the answer came to its own end, and the caller was told.
    fn is_complete(&self) -> bool {
        self.fold.is_over() && matches!(self.fold.status(), Status::Completed | Status::Incomplete)
    }
}

/// An event as a server-sent one.
fn frame(event: &Event) -> Bytes {
    format!("event: {}\ndata: {}\n\n", event.kind, event.body).into()
}

impl<S: Source> Body for Events<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if self.source.is_gone() {
                self.source.finish(false);
                return Poll::Ready(None);
            }
            if let Some((bytes, tokens)) = self.ready.pop_front() {
                self.source.taken(tokens);
                if let Some(silence) = &mut self.silence {
                    silence.since = Instant::now();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.over || self.fold.is_over() {
                let complete = self.is_complete();
                self.source.finish(complete);
                return Poll::Ready(None);
            }
            match self.source.poll(cx) {
                Poll::Ready(Some(said)) => {
                    let events = self.fold.take(&said);
                    self.tell(events);
                }
                // What is kept of the run breaks off without an end: there is nothing more to tell, and no end to make up.
                Poll::Ready(None) => self.over = true,
                Poll::Pending => {
                    let Some(silence) = &mut self.silence else { return Poll::Pending };
                    ready!(silence.poll(cx));
                    return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
                }
            }
        }
    }
}
