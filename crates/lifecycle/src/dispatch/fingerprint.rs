//! A dispatch's state as a hash, for an explorer that wants to know whether it was here before.
//!
//! Times go in as what is left of them, so that the same state at another time is the same. What only the journal is told of (when the attempt was
//! sent, how long ago abandonment was observed, how often a cancel was sent) decides nothing and stays out.
//!
//! Invariant: two states with one hash go on alike.

use std::hash::{Hash, Hasher};

use super::Dispatch;
use crate::Time;
use crate::rules::Rules;

impl<R: Rules> Dispatch<R> {
    /// Writes the state into a hasher.
    pub fn hash_state<H: Hasher>(&self, now: Time, out: &mut H) {
        let Dispatch {
            key,
            config: _,
            call,
            work,
            asked,
            place,
            placed: _,
            deadlines,
            queue,
            repeat,
            cancelled,
            observed: _,
            ended,
            usage,
            accepted,
            acknowledged,
            told,
            dismissed,
            policy,
            unread,
            first,
            unbegun,
            rules: _,
        } = self;
        (key, call.state(), call.register(), call.delivery(), call.is_voided()).hash(out);
        call.wanted_all().hash(out);
        (work.is_some(), asked).hash(out);
        place.as_ref().map(|place| (place.worker, place.incarnation, place.number)).hash(out);
        let is_open = call.outcome().is_none();
        let mut left: Vec<_> = deadlines.iter().filter(|_| is_open).map(|deadline| (deadline.left(now), deadline.cause())).collect();
        left.sort();
        left.hash(out);
        self.is_queued().then(|| queue.left(now)).hash(out);
        (self.answer_ends().map(|at| at.since(now)), *dismissed).hash(out);
        call.needs_retry().then(|| (repeat.0.since(now), repeat.1)).hash(out);
        // Only an unsound rule looks at it.
        cancelled.filter(|_| call.needs_retry()).map(|since| R::time_releases(now.since(since))).hash(out);
        ended.as_ref().map(|outcome| (outcome.cause, &outcome.reason)).hash(out);
        (usage.prompt, usage.cached_prompt, usage.generated).hash(out);
        (accepted, acknowledged, told).hash(out);
        (policy, unread.map(|unread| unread.delivery), self.grace().map(|grace| (grace.left(now), grace.cause())), first, unbegun)
            .hash(out);
    }
}
