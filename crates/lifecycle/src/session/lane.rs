//! One side's two lanes: messages that go out, numbered and kept until they are acknowledged, and how far those that come in have got.
//!
//! What comes too early waits for what is missing, which is asked for at once and sent again alone; whatever is unacknowledged for long is
//! all sent again.
//!
//! Invariant: every message is taken once, in order; a message that was not acknowledged is not forgotten.

use std::collections::{BTreeMap, VecDeque};

use super::SessionConfig;
use crate::Time;

/// Both lanes of one side: `O` goes out, `I` comes in.
#[derive(Clone, PartialEq, Debug)]
pub struct Lane<O, I> {
    /// Not acknowledged, oldest first; the first has the number `acknowledged + 1`.
    kept: VecDeque<O>,
    acknowledged: u64,
    /// The next number to go out for the first time, or after a rewind again.
    next: u64,
    /// When the oldest one that is on its way was last sent.
    sent_at: Time,
    /// The oldest ones are to be sent again, from this number to that: the peer has later ones.
    again: Option<(u64, u64)>,
    /// How many at once: one, and twice as many each time that the next is missing as well.
    burst: u64,
    /// When they last were for that reason.
    again_at: Time,
    received: u64,
    /// What came before its turn.
    early: BTreeMap<u64, I>,
    missing: bool,
    /// Messages sent again.
    resent: u64,
}

impl<O, I> Default for Lane<O, I> {
    fn default() -> Self {
        Lane {
            kept: VecDeque::new(),
            acknowledged: 0,
            next: 1,
            sent_at: Time::ZERO,
            again: None,
            burst: 1,
            again_at: Time::ZERO,
            received: 0,
            early: BTreeMap::new(),
            missing: false,
            resent: 0,
        }
    }
}

impl<O: Clone, I> Lane<O, I> {
    /// Adds a message behind all others.
    pub fn push(&mut self, message: O) {
        self.kept.push_back(message);
    }

    /// Messages that the peer has not acknowledged.
    pub fn waiting(&self) -> usize {
        self.kept.len()
    }

    /// Those messages, oldest first.
    pub fn kept(&self) -> impl Iterator<Item = &O> {
        self.kept.iter()
    }

    /// Every message up to this number has come in.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Whether one is missing before some that are there; asked for once for each that comes too early.
    pub fn take_missing(&mut self) -> bool {
        std::mem::take(&mut self.missing)
    }

    /// Messages that were sent more than once.
    pub const fn resent(&self) -> u64 {
        self.resent
    }

    /// A message came in: what can be taken now, in order.
    pub fn accept(&mut self, number: u64, message: I, config: &SessionConfig) -> Vec<I> {
        let mut taken = Vec::new();
        let next = number == self.received + 1;
        if number > self.received && number - self.received <= config.window {
            // The nearest are kept: those whose turn comes last make room.
            let farthest = self.early.last_key_value().map(|(number, _)| *number).filter(|_| self.early.len() >= config.early_max);
            if let Some(farthest) = farthest.filter(|farthest| !next && number < *farthest) {
                self.early.remove(&farthest);
            }
            if next || self.early.len() < config.early_max {
                self.early.insert(number, message);
            }
        }
        while let Some(next) = self.early.remove(&(self.received + 1)) {
            self.received += 1;
            taken.push(next);
        }
        // What there was no room for is missing as well.
        self.missing = number > self.received || !self.early.is_empty();
        taken
    }

    /// The peer says how far it has got, and whether it misses the next one.
    pub fn acknowledge(&mut self, received: u64, missing: bool, config: &SessionConfig, now: Time) {
        // A late word says less than is known; one about messages that never were says nothing.
        if received > self.acknowledged && received - self.acknowledged <= self.kept.len() as u64 {
            self.kept.drain(..(received - self.acknowledged) as usize);
            self.acknowledged = received;
            self.next = self.next.max(received + 1);
            self.sent_at = now;
            self.again = None;
            self.again_at = Time::ZERO;
            // One message was lost, and all is well; or the next is missing too, and the one after it: each would cost a way there and back.
            self.burst = if missing { self.burst.saturating_mul(2).min(config.window.max(1)) } else { 1 };
        }
        let pause_over = self.again_at == Time::ZERO || now.since(self.again_at) >= config.resend_pause;
        if missing && received == self.acknowledged && pause_over && self.is_on_its_way() {
            let last = self.acknowledged.saturating_add(self.burst).min(self.next - 1);
            (self.again, self.again_at) = (Some((self.acknowledged + 1, last)), now);
        }
    }

    /// Whether any message was sent and is not acknowledged.
    const fn is_on_its_way(&self) -> bool {
        self.next > self.acknowledged + 1
    }

    /// Everything that is not acknowledged is to be sent, as on a new connection.
    pub fn rewind(&mut self) {
        self.resent += self.next - self.acknowledged - 1;
        self.next = self.acknowledged + 1;
        self.again = None;
    }

    /// The next message that is to go out now, with its number. To be called until it gives none.
    pub fn pop_due(&mut self, config: &SessionConfig, now: Time) -> Option<(u64, O)> {
        if self.is_on_its_way() && now.since(self.sent_at) >= config.resend_after {
            self.rewind();
        }
        if let Some((number, last)) = self.again.take() {
            self.resent += 1;
            self.again = (number < last).then_some((number + 1, last));
            return Some((number, self.kept.get((number - self.acknowledged - 1) as usize)?.clone()));
        }
        if self.next - self.acknowledged > config.window {
            return None;
        }
        let message = self.kept.get((self.next - self.acknowledged - 1) as usize)?.clone();
        if !self.is_on_its_way() {
            self.sent_at = now;
        }
        self.next += 1;
        Some((self.next - 1, message))
    }

    /// When everything is to be sent again; `None` if nothing is on its way.
    pub fn resend_at(&self, config: &SessionConfig) -> Option<Time> {
        self.is_on_its_way().then(|| self.sent_at.after(config.resend_after))
    }
}
