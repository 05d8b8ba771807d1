//! One side's two lanes: messages that go out, numbered and kept until they are acknowledged, and how far those that come in have got.
//!
//! Go back n: whatever comes out of order is thrown away and sent again. The lanes of a session lose hardly anything; what they gain from
//! a receiver's buffer is not worth a second order of messages.
//!
//! Invariant: every message is taken once, in order; a message that was not acknowledged is not forgotten.

use std::collections::VecDeque;

use super::SessionConfig;
use crate::Time;

/// What a message's number says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accept {
    /// The next one.
    Fresh,
    /// It was here before.
    Again,
    /// One before it is missing.
    Early,
}

/// Both lanes of one side.
#[derive(Clone, PartialEq, Debug)]
pub struct Lane<M> {
    /// Not acknowledged, oldest first; the first has the number `acknowledged + 1`.
    kept: VecDeque<M>,
    acknowledged: u64,
    /// The next number to go out; those from here on are not on their way.
    next: u64,
    /// When the oldest one that is on its way was last sent.
    sent_at: Time,
    received: u64,
    missing: bool,
    /// Messages sent again.
    resent: u64,
}

impl<M> Default for Lane<M> {
    fn default() -> Self {
        Lane { kept: VecDeque::new(), acknowledged: 0, next: 1, sent_at: Time::ZERO, received: 0, missing: false, resent: 0 }
    }
}

impl<M: Clone> Lane<M> {
    /// Adds a message behind all others.
    pub fn push(&mut self, message: M) {
        self.kept.push_back(message);
    }

    /// Messages that the peer has not acknowledged.
    pub fn waiting(&self) -> usize {
        self.kept.len()
    }

    /// Those messages, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &M> {
        self.kept.iter()
    }

    /// Every message up to this number has come in.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Whether one has come in too early since the last look.
    pub fn take_missing(&mut self) -> bool {
        std::mem::take(&mut self.missing)
    }

    /// Messages that were sent more than once.
    pub const fn resent(&self) -> u64 {
        self.resent
    }

    /// A message came in. Only a fresh one may be taken.
    pub fn accept(&mut self, number: u64) -> Accept {
        if number <= self.received {
            return Accept::Again;
        }
        if number > self.received + 1 {
            self.missing = true;
            return Accept::Early;
        }
        self.received = number;
        Accept::Fresh
    }

    /// The peer says how far it has got, and whether the rest is to be sent again now.
    pub fn acknowledge(&mut self, received: u64, missing: bool, config: &SessionConfig, now: Time) {
        // A late word says less than is known; one about messages that were never sent says nothing.
        if received > self.acknowledged && received < self.next {
            self.kept.drain(..(received - self.acknowledged) as usize);
            self.acknowledged = received;
            self.sent_at = now;
        }
        if missing && received == self.acknowledged && now.since(self.sent_at) >= config.resend_pause {
            self.rewind();
        }
    }

    /// Everything that is not acknowledged is to be sent, as on a new connection.
    pub fn rewind(&mut self) {
        self.resent += self.next - self.acknowledged - 1;
        self.next = self.acknowledged + 1;
    }

    /// The next message that is to go out now, with its number. To be called until it gives none.
    pub fn pop_due(&mut self, config: &SessionConfig, now: Time) -> Option<(u64, M)> {
        let on_its_way = self.next > self.acknowledged + 1;
        if on_its_way && now.since(self.sent_at) >= config.resend_after {
            self.rewind();
        }
        if self.next - self.acknowledged > config.window {
            return None;
        }
        let message = self.kept.get((self.next - self.acknowledged - 1) as usize)?.clone();
        if self.next == self.acknowledged + 1 {
            self.sent_at = now;
        }
        self.next += 1;
        Some((self.next - 1, message))
    }

    /// When the oldest message is to be sent again; `None` if nothing is on its way.
    pub fn resend_at(&self, config: &SessionConfig) -> Option<Time> {
        (self.next > self.acknowledged + 1).then(|| self.sent_at.after(config.resend_after))
    }

    /// The messages themselves are not looked at. For tests and for sets of states: how far both lanes are, without their absolute numbers.
    pub fn shape(&self) -> (usize, u64, bool) {
        (self.kept.len(), self.next - self.acknowledged - 1, self.missing)
    }
}
