//! Who reads a run's answer: the caller that asked for it, and whoever joined with the same `Idempotency-Key`, each with a queue of its own.
//!
//! A run that can be joined keeps what it has said, so that a later reader gets the same from the first event on. What was delivered is what
//! the furthest reader took: an answer that two callers read is one answer.
//!
//! Invariant: a seat that is over never comes back; the run is nobody's once all seats are over.
// contract: C-6 C-26 C-28

use std::sync::Arc;
use std::time::Duration;

use lifecycle::message::Delta;
use lifecycle::{Delivery, Time};

use crate::conn::ConnState;
use crate::feed::{Feed, FeedEnd, Item, feed};
use crate::replay::Replay;

/// Names a reader within its run.
pub(crate) type SeatId = u32;

/// A reader of a run that is not live here has this seat at it, which no reader of a live run has.
pub(crate) const NO_SEAT: SeatId = 0;

struct Seat {
    id: SeatId,
    conn: Arc<ConnState>,
    /// Where its answer goes; `None` once nothing more is sent.
    feed: Option<Feed>,
    over: bool,
    /// Tokens in frames that hyper took.
    taken: u64,
    /// When it was last seen to take something, or had nothing to take; and the queue's count at that time.
    read: (Time, usize),
    /// When its own deadline is over, if it joined with one.
    until: Option<Time>,
}

/// The readers of one run.
pub(crate) struct Seats {
    list: Vec<Seat>,
    last: SeatId,
    /// Everything said so far, for those who join.
    replay: Replay,
    /// Tokens that the furthest reader took.
    taken: u64,
    /// Somebody took a part of an answer that is delivered as one.
    begun: bool,
    /// Somebody got all of it with its proper end.
    complete: bool,
    /// Other gateways at which it is read.
    elsewhere: usize,
}

impl Seats {
    /// No readers yet. Up to so many items, of so many bytes together, are kept for those who join.
    pub(crate) fn new(kept_max: usize, kept_bytes_max: usize) -> Seats {
        Seats {
            list: Vec::new(),
            last: 0,
            replay: Replay::new(kept_max, kept_bytes_max),
            taken: 0,
            begun: false,
            complete: false,
            elsewhere: 0,
        }
    }

    /// A further reader, with everything that was said before. `None` if that is not known any more.
    pub(crate) fn join(&mut self, conn: &Arc<ConnState>, limit: usize, now: Time) -> Option<(SeatId, FeedEnd)> {
        let kept = self.replay.len().or((self.last == 0).then_some(0))?;
        let (feed, end) = feed(limit + kept);
        self.replay.said().into_iter().flatten().for_each(|item| feed.send(item));
        self.last += 1;
        self.list.push(Seat { id: self.last, conn: conn.clone(), feed: Some(feed), over: false, taken: 0, read: (now, 0), until: None });
        Some((self.last, end))
    }

    /// Seats of which something is kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.list.len()
    }

    /// Everything that was said, if it is still there.
    pub(crate) fn said(&self) -> Option<Vec<Item>> {
        Some(self.replay.said()?.collect())
    }

    /// Readers that are not over; each other gateway at which it is read is one.
    pub(crate) fn open(&self) -> usize {
        self.elsewhere + self.list.iter().filter(|s| !s.over).count()
    }

    /// Other gateways at which it is read.
    pub(crate) fn elsewhere(&self) -> usize {
        self.elsewhere
    }

    /// It is read at so many other gateways.
    pub(crate) fn set_elsewhere(&mut self, gateways: usize) {
        self.elsewhere = gateways;
    }

    /// Whether this reader is still there.
    pub(crate) fn is_open(&self, seat: SeatId) -> bool {
        self.list.iter().any(|s| s.id == seat && !s.over)
    }

    /// Whether a reader on this connection is still there.
    pub(crate) fn reads_on(&self, connection: u64) -> bool {
        self.list.iter().any(|s| s.conn.id == connection && !s.over)
    }

    /// Whether a reader ever was on this connection.
    pub(crate) fn has(&self, connection: u64) -> bool {
        self.list.iter().any(|s| s.conn.id == connection)
    }

    /// What was delivered so far.
    // contract: C-6
    pub(crate) fn delivery(&self) -> Delivery {
        match (self.complete, self.begun || self.taken > 0) {
            (true, _) => Delivery::Complete,
            (false, false) => Delivery::None,
            (false, true) => Delivery::Partial,
        }
    }

    /// Sends what must get through to everybody.
    pub(crate) fn send(&mut self, item: &Item, now: Time) {
        self.replay.item(item);
        for seat in &mut self.list {
            seat.read.0 = now;
            if let Some(feed) = &seat.feed {
                feed.send(item.clone());
            }
        }
    }

    /// Sends everybody an end that is none of the run's: it goes on without them.
    pub(crate) fn part(&mut self, item: &Item, now: Time) {
        self.list.iter().flat_map(|seat| &seat.feed).for_each(Feed::part);
        self.send(item, now);
    }

    /// Sends a piece to everybody; those who have no room for it are returned.
    pub(crate) fn push(&mut self, delta: Delta, now: Time) -> Vec<(SeatId, Arc<ConnState>)> {
        self.replay.delta(&delta);
        let mut stalled = Vec::new();
        let mut left = self.list.iter().filter(|s| s.feed.is_some()).count();
        let mut delta = Some(delta);
        for seat in &mut self.list {
            let Some(feed) = &seat.feed else { continue };
            if feed.waiting() == 0 {
                seat.read.0 = now;
            }
            left -= 1;
            // The last one, nearly always the only one, gets the piece itself.
            let piece = if left == 0 { delta.take() } else { delta.clone() };
            if piece.is_some_and(|piece| !feed.push(piece)) {
                stalled.push((seat.id, seat.conn.clone()));
            }
        }
        stalled
    }

    /// Nothing more is sent or kept.
    pub(crate) fn close(&mut self) {
        self.list.iter_mut().for_each(|s| s.feed = None);
        self.replay.close();
    }

    /// A reader took a frame. How many more tokens the furthest reader has by that.
    pub(crate) fn take(&mut self, seat: SeatId, tokens: u32, now: Time) -> u32 {
        let Some(seat) = self.list.iter_mut().find(|s| s.id == seat) else { return 0 };
        seat.read.0 = now;
        if seat.over {
            return 0;
        }
        seat.taken += u64::from(tokens);
        let more = seat.taken.saturating_sub(self.taken);
        self.taken += more;
        u32::try_from(more).unwrap_or(u32::MAX)
    }

    /// A reader took a part of a whole answer, which shows no token without the rest.
    pub(crate) fn take_part(&mut self, seat: SeatId, now: Time) {
        let Some(seat) = self.list.iter_mut().find(|s| s.id == seat) else { return };
        seat.read.0 = now;
        self.begun |= !seat.over;
    }

    /// A reader came to the end of its answer. False if it was not there any more.
    pub(crate) fn finish(&mut self, seat: SeatId, complete: bool) -> bool {
        let Some(seat) = self.list.iter_mut().find(|s| s.id == seat && !s.over) else { return false };
        seat.over = true;
        self.complete |= complete;
        true
    }

    /// A reader is gone: its last item is `last`. Nothing of it is kept, so any number may come and go while a run lives.
    pub(crate) fn leave(&mut self, seat: SeatId, last: &Item) {
        let gone = self.list.iter().position(|s| s.id == seat).map(|at| self.list.remove(at));
        gone.and_then(|seat| seat.feed).into_iter().for_each(|feed| feed.send(last.clone()));
    }

    /// Gives a reader a deadline of its own.
    pub(crate) fn bound(&mut self, seat: SeatId, until: Time) {
        if let Some(seat) = self.list.iter_mut().find(|s| s.id == seat) {
            seat.until = Some(until);
        }
    }

    /// Readers whose own deadline is over.
    pub(crate) fn late(&self, now: Time) -> Vec<SeatId> {
        self.list.iter().filter(|s| !s.over && s.until.is_some_and(|at| at <= now)).map(|s| s.id).collect()
    }

    /// The readers on a connection.
    pub(crate) fn on(&self, connection: u64) -> Vec<SeatId> {
        self.list.iter().filter(|s| s.conn.id == connection).map(|s| s.id).collect()
    }

    /// Readers for whom something has waited for too long.
    pub(crate) fn unread(&mut self, ended: bool, max: Duration, now: Time) -> Vec<(SeatId, Arc<ConnState>)> {
        let mut unread = Vec::new();
        for seat in self.list.iter_mut().filter(|s| !s.over) {
            let (waiting, popped) = seat.feed.as_ref().map_or((0, 0), |feed| (feed.waiting(), feed.popped()));
            if waiting == 0 && !ended {
                continue;
            }
            if popped != seat.read.1 {
                seat.read = (now, popped);
            }
            if now.since(seat.read.0) >= max {
                unread.push((seat.id, seat.conn.clone()));
            }
        }
        unread
    }

    /// When the first reader's time may be over.
    pub(crate) fn due(&self, max: Duration, now: Time) -> Option<Time> {
        // A reader's time may be over while there is nothing to read: then the regular look is soon enough.
        let unread = |s: &Seat| Some(s.read.0.after(max)).filter(|at| *at > now);
        self.list.iter().filter(|s| !s.over).flat_map(|s| [unread(s), s.until]).flatten().min()
    }
}
