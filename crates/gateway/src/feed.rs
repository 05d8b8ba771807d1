//! The way of one answer from the table to its reader: a bounded queue that the pump never waits for, and the reader's side of it.
//!
//! Invariant: pushing never blocks; at most `limit` items wait; the end always gets through.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use lifecycle::message::{Delta, Usage};
use lifecycle::{Cause, Outcome, RunKey, Time};
use tokio::sync::Notify;

use crate::calls::Calls;
use crate::conn::ConnState;
use crate::seats::SeatId;

/// What a reader gets.
pub(crate) type Item = lifecycle::Said;

/// The table's side.
#[derive(Debug)]
pub(crate) struct Feed {
    queue: Arc<Queue>,
    limit: usize,
}

/// Items on their way. It takes as much memory as waits in it: most of the time there is nothing.
#[derive(Debug, Default)]
struct Queue {
    held: Mutex<Held>,
    /// The reader is gone.
    left: Notify,
}

#[derive(Debug, Default)]
struct Held {
    items: VecDeque<Item>,
    /// Items that were taken so far.
    popped: usize,
    /// The reader, while it waits.
    reader: Option<Waker>,
    /// Nothing more is sent.
    sealed: bool,
    /// Nobody takes anything any more.
    gone: bool,
    /// The end that comes is the reading's and not the run's.
    parted: bool,
}

impl Queue {
    /// Nothing in here panics with the lock held.
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Feed {
    /// Adds a piece; false if there is no room for it.
    pub(crate) fn push(&self, delta: Delta) -> bool {
        let held = self.queue.lock();
        if held.items.len() >= self.limit {
            return false;
        }
        Feed::add(held, Item::Delta(delta));
        true
    }

    /// Adds what must get through whatever waits.
    pub(crate) fn send(&self, item: Item) {
        Feed::add(self.queue.lock(), item);
    }

    fn add(mut held: MutexGuard<'_, Held>, item: Item) {
        // A reader that is gone has said so to the table already.
        if held.gone {
            return;
        }
        held.items.push_back(item);
        let reader = held.reader.take();
        drop(held);
        reader.into_iter().for_each(Waker::wake);
    }

    /// The end that is sent next is the reading's and not the run's.
    pub(crate) fn part(&self) {
        self.queue.lock().parted = true;
    }

    /// Items that nobody has taken yet.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().items.len()
    }

    /// Whether nobody takes anything any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.queue.lock().gone
    }

    /// Waits until nobody takes anything any more.
    pub(crate) async fn closed(&self) {
        while !self.is_closed() {
            self.queue.left.notified().await;
        }
    }

    /// Items that were taken so far.
    pub(crate) fn popped(&self) -> usize {
        self.queue.lock().popped
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let mut held = self.queue.lock();
        held.sealed = true;
        let reader = held.reader.take();
        drop(held);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// The reader's half of the queue alone.
pub(crate) struct FeedEnd {
    queue: Arc<Queue>,
}

impl FeedEnd {
    /// The next item; none behind the last of a queue that nothing more is sent to.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let mut held = self.queue.lock();
        if let Some(item) = held.items.pop_front() {
            held.popped += 1;
            return Poll::Ready(Some(item));
        }
        if held.sealed {
            return Poll::Ready(None);
        }
        if !held.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            held.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for FeedEnd {
    fn drop(&mut self) {
        let mut held = self.queue.lock();
        held.gone = true;
        let waited = std::mem::take(&mut held.items);
        drop(held);
        drop(waited);
        // One waits at most; if it does so only now, it finds this.
        self.queue.left.notify_one();
    }
}

/// A queue of at most `limit` pieces.
pub(crate) fn feed(limit: usize) -> (Feed, FeedEnd) {
    let queue = Arc::new(Queue::default());
    (Feed { queue: queue.clone(), limit }, FeedEnd { queue })
}

/// Whoever delivers an answer: the handler first, then the response's body. It owns nothing of the run: dropping it at any moment tells the
/// table that the caller is gone, and the table goes on from there.
// contract: C-6 C-13
// field: F-17 F-21
pub(crate) struct Reader {
    /// The run.
    pub(crate) key: RunKey,
    seat: SeatId,
    end: FeedEnd,
    calls: Arc<Calls>,
    conn: Arc<ConnState>,
    finished: bool,
    /// From when on a caller that lets go does so because its own deadline is over.
    impatient: Option<Time>,
}

impl Reader {
    pub(crate) fn new(key: RunKey, (seat, end): (SeatId, FeedEnd), calls: Arc<Calls>, conn: Arc<ConnState>) -> Reader {
        conn.run_began();
        Reader { key, seat, end, calls, conn, finished: false, impatient: None }
    }

    /// The caller counts its deadline itself and lets go of the answer when it is over: from then on that is why it went.
    // contract: C-22
    pub(crate) fn impatient_from(&mut self, at: Time) {
        self.impatient = Some(at);
    }

    /// Why a caller that is there let go of the answer.
    fn let_go(&self) -> Cause {
        let is_late = self.impatient.is_some_and(|at| at <= self.calls.now());
        if is_late { Cause::ClientDeadline } else { Cause::ClientReset }
    }

    /// The next item. A queue that broke off without an end counts as a failed worker.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Item> {
        let item = ready!(self.end.poll(cx));
        Poll::Ready(item.unwrap_or_else(|| Item::End { outcome: Outcome::of(Cause::WorkerError), usage: Usage::default() }))
    }

    /// Whether the run goes on behind the end that was read: then that is none of its events.
    pub(crate) fn has_parted(&self) -> bool {
        self.end.queue.lock().parted
    }

    /// The next item.
    pub(crate) async fn next(&mut self) -> Item {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Whether anybody is left to deliver to.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone().is_some()
    }

    /// Why nobody is left to deliver to, if so.
    pub(crate) fn gone(&self) -> Option<Cause> {
        self.conn.gone()
    }

    /// hyper took a frame with this many tokens in it.
    pub(crate) fn taken(&self, tokens: u32) {
        self.calls.taken(&self.key, self.seat, tokens);
    }

    /// hyper took a part of the answer that says nothing without the rest.
    pub(crate) fn taken_part(&self) {
        self.calls.taken_part(&self.key, self.seat);
    }

    /// How long a stream may be silent before a comment is sent.
    pub(crate) fn comment_after(&self) -> Option<std::time::Duration> {
        Some(self.calls.config.keepalive_comment).filter(|after| !after.is_zero())
    }

    /// The answer is over; `complete` if all of it was taken with its proper end.
    pub(crate) fn finish(&mut self, complete: bool) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        match self.gone().filter(|_| !complete) {
            // The connection may have said so to the table already, or be about to.
            Some(cause) => self.calls.caller_gone(&self.key, self.seat, cause),
            None => self.calls.delivery_ended(&self.key, self.seat, complete),
        }
    }
}

impl Drop for Reader {
    /// The second line behind the connection's watcher. Where the connection lives on, the caller reset its HTTP/2 stream; where the
    /// delivery is over already, the gateway itself closed the connection and the reader went with it: nobody left a second time.
    fn drop(&mut self) {
        if !self.finished {
            self.calls.caller_gone(&self.key, self.seat, self.conn.gone().unwrap_or_else(|| self.let_go()));
        }
        self.conn.run_ended();
    }
}
