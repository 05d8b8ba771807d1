//! Response bodies: server-sent events as they come, or the whole answer at once. Here hyper takes the frames, so here delivery is counted.
//!
//! Invariant: a token counts as delivered when hyper has taken the frame that shows it, and an answer as complete only when its last frame
//! was taken; an answer that did not end well never looks as if it had. A comment is nobody's token.
// contract: C-6

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use lifecycle::message::{Delta, Usage};
use lifecycle::{Outcome, OutcomeKind};
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use super::error::ApiError;
use super::openai::Shape;
use crate::feed::{Item, Reader};

/// What a reader of server-sent events must ignore.
pub(super) const COMMENT: Bytes = Bytes::from_static(b": keepalive\n\n");
/// Most bytes of a whole answer in one frame: hyper takes a frame as a whole, and whatever it took counts as delivered.
const PART_BYTES: usize = 16 << 10;

/// A stream of server-sent events.
pub(crate) struct Events {
    reader: Reader,
    shape: Shape,
    ready: VecDeque<(Bytes, u32)>,
    /// Characters shown so far, one entry an answer.
    offsets: Vec<usize>,
    /// Tokens whose text is not shown yet.
    held: u32,
    /// Set once the end is known: whether it is the proper one.
    over: Option<bool>,
    silence: Option<Silence>,
}

/// How long a stream has been silent, and how long it may be.
pub(crate) struct Silence {
    max: Duration,
    /// When something was last sent.
    pub(crate) since: Instant,
    alarm: Pin<Box<Sleep>>,
}

impl Silence {
    pub(crate) fn new(max: Duration) -> Silence {
        Silence { max, since: Instant::now(), alarm: Box::pin(tokio::time::sleep(max)) }
    }

    /// Ready when the stream has been silent for too long, and then again as long after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.alarm.as_mut().poll(cx));
            let due = self.since + self.max;
            let now = Instant::now();
            if due <= now {
                self.since = now;
                self.alarm.as_mut().reset(now + self.max);
                return Poll::Ready(());
            }
            // Something was sent since the alarm was set.
            self.alarm.as_mut().reset(due);
        }
    }
}

impl Events {
    pub(crate) fn new(reader: Reader, shape: Shape, n: u32) -> Events {
        let ready = (0..n).filter_map(|index| shape.opening(index)).map(|chunk| (event(&chunk), 0)).collect();
        let silence = reader.comment_after().map(Silence::new);
        Events { reader, shape, ready, offsets: vec![0; n as usize], held: 0, over: None, silence }
    }

    fn delta(&mut self, delta: &Delta) {
        self.held += delta.count();
        if !delta.text.is_empty() || !delta.logprobs.is_empty() {
            let offset = self.offsets.get(delta.sequence as usize).copied().unwrap_or(0);
            let chunk = self.shape.delta(delta.sequence, &delta.text, &delta.logprobs, offset);
            if let Some(at) = self.offsets.get_mut(delta.sequence as usize) {
                *at += delta.text.chars().count();
            }
            self.ready.push_back((event(&chunk), std::mem::take(&mut self.held)));
        }
        if let Some(cause) = delta.finish {
            let chunk = self.shape.finish(delta.sequence, cause);
            self.ready.push_back((event(&chunk), std::mem::take(&mut self.held)));
        }
    }

    fn end(&mut self, outcome: &Outcome, usage: &Usage) {
        let completed = outcome.kind() == OutcomeKind::Completed;
        self.over = Some(completed);
        if !completed {
            return self.ready.push_back((event(&ApiError::of_outcome(outcome).to_json()), 0));
        }
        if self.shape.include_usage {
            self.ready.push_back((event(&self.shape.usage(usage)), 0));
        }
        self.ready.push_back((Bytes::from_static(b"data: [DONE]\n\n"), std::mem::take(&mut self.held)));
    }
}

fn event(chunk: &Value) -> Bytes {
    format!("data: {chunk}\n\n").into()
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if self.reader.is_gone() {
                self.reader.finish(false);
                return Poll::Ready(None);
            }
            if let Some((bytes, tokens)) = self.ready.pop_front() {
                self.reader.taken(tokens);
                if let Some(silence) = &mut self.silence {
                    silence.since = Instant::now();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(complete) = self.over {
                self.reader.finish(complete);
                return Poll::Ready(None);
            }
            match self.reader.poll(cx) {
                Poll::Ready(Item::Accepted) => {}
                Poll::Ready(Item::Delta(delta)) => self.delta(&delta),
                Poll::Ready(Item::End { outcome, usage }) => self.end(&outcome, &usage),
                // In the queue, in prefill, or between two tokens.
                Poll::Pending => {
                    let Some(silence) = &mut self.silence else { return Poll::Pending };
                    ready!(silence.poll(cx));
                    return Poll::Ready(Some(Ok(Frame::data(COMMENT))));
                }
            }
        }
    }
}

/// A whole answer, in frames that a caller who reads slowly can hold back.
pub(crate) struct Whole {
    reader: Reader,
    rest: Bytes,
    tokens: u32,
}

impl Whole {
    pub(crate) fn new(reader: Reader, whole: &Value, tokens: u32) -> Whole {
        Whole::of(reader, whole.to_string().into(), tokens)
    }

    /// The same of bytes.
    pub(crate) fn of(reader: Reader, rest: Bytes, tokens: u32) -> Whole {
        Whole { reader, rest, tokens }
    }
}

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.reader.is_gone() || self.rest.is_empty() {
            self.rest.clear();
            self.reader.finish(false);
            return Poll::Ready(None);
        }
        let part = self.rest.len().min(PART_BYTES);
        let part = self.rest.split_to(part);
        if self.rest.is_empty() {
            let tokens = self.tokens;
            self.reader.taken(tokens);
            // The length is known, so hyper asks for nothing after this frame.
            self.reader.finish(true);
        } else {
            self.reader.taken_part();
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
