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
use tokio::time::Instant;

use super::error::ApiError;
use super::openai::Shape;
use crate::alarm::Alarm;
use crate::feed::{Item, Reader};

/// What a reader of server-sent events must ignore.
pub(super) const COMMENT: Bytes = Bytes::from_static(b": keepalive\n\n");
/// Most bytes of a whole answer in one frame: hyper takes a frame as a whole, and whatever it took counts as delivered.
const PART_BYTES: usize = 16 << 10;

/// Frames that are ready to be sent, each with the tokens that it shows.
#[derive(Default)]
pub(super) struct Ready {
    frames: VecDeque<(Bytes, u32)>,
    /// Set once the end is known: whether it is the proper one.
    over: Option<bool>,
}

impl Ready {
    /// One more.
    pub(super) fn push(&mut self, frame: Bytes, tokens: u32) {
        self.frames.push_back((frame, tokens));
    }

    /// Nothing follows.
    pub(super) fn end(&mut self, complete: bool) {
        self.over = Some(complete);
    }

    /// An error is the last that follows.
    pub(super) fn fail(&mut self, error: &ApiError) {
        self.push(event(&error.to_json()), 0);
        self.end(false);
    }
}

/// How what was said of a run is put on the wire.
pub(super) trait Telling: Unpin {
    /// A piece of the answer.
    fn delta(&mut self, delta: Delta, ready: &mut Ready);
    /// The end.
    fn end(&mut self, outcome: &Outcome, usage: &Usage, ready: &mut Ready);
}

/// A stream of server-sent events: what its reader gets, with a comment wherever it is silent for too long.
pub(super) struct Events<T> {
    reader: Reader,
    telling: T,
    ready: Ready,
    silence: Option<Silence>,
}

/// Chunks as OpenAI's endpoints have them.
pub(super) struct Chunks {
    shape: Shape,
    /// Characters shown so far, one entry an answer.
    offsets: Vec<usize>,
    /// Tokens whose text is not shown yet.
    held: u32,
}

/// How long a stream has been silent, and how long it may be.
pub(crate) struct Silence {
    max: Duration,
    /// When something was last sent.
    pub(crate) since: Instant,
    alarm: Alarm,
}

impl Silence {
    pub(crate) fn new(max: Duration) -> Silence {
        Silence { max, since: Instant::now(), alarm: Alarm::after(max) }
    }

    /// Ready when the stream has been silent for too long, and then again as long after that.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // What was sent since the alarm was set puts it off.
        let due = self.since + self.max;
        let now = ready!(self.alarm.poll(cx, Instant::now(), due));
        self.since = now;
        self.alarm.set(now + self.max);
        Poll::Ready(())
    }
}

impl<T: Telling> Events<T> {
    pub(super) fn of(reader: Reader, telling: T) -> Events<T> {
        let silence = reader.comment_after().map(Silence::new);
        Events { reader, telling, ready: Ready::default(), silence }
    }
}

impl Events<Chunks> {
    pub(super) fn chunks(reader: Reader, shape: Shape, n: u32) -> Events<Chunks> {
        let opening: Vec<Bytes> = (0..n).filter_map(|index| shape.opening(index)).map(|chunk| event(&chunk)).collect();
        let mut events = Events::of(reader, Chunks { shape, offsets: vec![0; n as usize], held: 0 });
        opening.into_iter().for_each(|chunk| events.ready.push(chunk, 0));
        events
    }
}

impl Telling for Chunks {
    fn delta(&mut self, delta: Delta, ready: &mut Ready) {
        self.held += delta.count();
        if !delta.text.is_empty() || !delta.logprobs.is_empty() {
            let offset = self.offsets.get(delta.sequence as usize).copied().unwrap_or(0);
            let chunk = self.shape.delta(delta.sequence, &delta.text, &delta.logprobs, offset);
            if let Some(at) = self.offsets.get_mut(delta.sequence as usize) {
                *at += delta.text.chars().count();
            }
            ready.push(event(&chunk), std::mem::take(&mut self.held));
        }
        if let Some(cause) = delta.finish {
            let chunk = self.shape.finish(delta.sequence, cause);
            ready.push(event(&chunk), std::mem::take(&mut self.held));
        }
    }

    fn end(&mut self, outcome: &Outcome, usage: &Usage, ready: &mut Ready) {
        if outcome.kind() != OutcomeKind::Completed {
            return ready.fail(&ApiError::of_outcome(outcome));
        }
        if self.shape.include_usage {
            ready.push(event(&self.shape.usage(usage)), 0);
        }
        ready.push(Bytes::from_static(b"data: [DONE]\n\n"), std::mem::take(&mut self.held));
        ready.end(true);
    }
}

/// One event.
pub(super) fn event(chunk: &Value) -> Bytes {
    format!("data: {chunk}\n\n").into()
}

impl<T: Telling> Body for Events<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        loop {
            if this.reader.is_gone() {
                this.reader.finish(false);
                return Poll::Ready(None);
            }
            if let Some((bytes, tokens)) = this.ready.frames.pop_front() {
                this.reader.taken(tokens);
                if let Some(silence) = &mut this.silence {
                    silence.since = Instant::now();
                }
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if let Some(complete) = this.ready.over {
                this.reader.finish(complete);
                return Poll::Ready(None);
            }
            match this.reader.poll(cx) {
                Poll::Ready(Item::Accepted) => {}
                Poll::Ready(Item::Delta(delta)) => this.telling.delta(delta, &mut this.ready),
                Poll::Ready(Item::End { outcome, usage }) => this.telling.end(&outcome, &usage, &mut this.ready),
                // In the queue, in prefill, or between two tokens.
                Poll::Pending => {
                    let Some(silence) = &mut this.silence else { return Poll::Pending };
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
