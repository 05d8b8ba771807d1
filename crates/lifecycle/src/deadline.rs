//! Deadlines: a moment on one process's own clock, and time left when they cross to another.
//!
//! No two clocks have to agree (C-22): the sender states how much time is left, the receiver counts it from its own receipt on. A copy is
//! therefore late by the time of its travel and never early, so where both enforce, the sender's fires first.
//!
//! The cause travels with the deadline: a worker that finds a gateway's deadline passed ends the attempt with the cause that the gateway
//! named, so that one deadline gives one cause, whoever finds it first. `worker_deadline` is for a limit of the worker's own.
//!
//! Invariant: a deadline never moves to a later moment on the clock it was made on.

use std::time::Duration;

use crate::message::DeadlineLeft;
use crate::{Cause, Phase, Time};

/// A moment on this process's clock after which a run is to end, and the cause it then ends with.
///
/// Ordered by moment, then by cause, so that [`Deadline::earliest`] is the same whatever the order of the list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Deadline {
    at: Time,
    cause: Cause,
}

impl Deadline {
    /// The deadline that is `left` away from `now`. A span beyond the clock's end means never.
    pub fn from_left(now: Time, left: Duration, cause: Cause) -> Deadline {
        Deadline { at: now.after(left), cause }
    }

    /// A deadline as it came in a message that was received at `now`.
    // contract: C-22
    pub fn received(now: Time, left: DeadlineLeft) -> Deadline {
        Deadline::from_left(now, left.left, left.cause)
    }

    /// The deadline as it goes into a message that is sent at `now`.
    // contract: C-22
    pub fn to_send(self, now: Time) -> DeadlineLeft {
        DeadlineLeft { left: self.left(now), cause: self.cause }
    }

    /// The moment on this process's clock.
    pub const fn at(self) -> Time {
        self.at
    }

    /// What a run ends with when it passes: `client_deadline`, `gateway_deadline`, `queue_deadline` or `worker_deadline`.
    pub const fn cause(self) -> Cause {
        self.cause
    }

    /// Time left; zero once it is over.
    pub fn left(self, now: Time) -> Duration {
        self.at.since(now)
    }

    /// Whether no time is left. One at the clock's end never is.
    pub const fn is_over(self, now: Time) -> bool {
        now.0 >= self.at.0 && self.at.0 != u64::MAX
    }

    /// Whether it concerns a run in this phase: a queue deadline only one that still waits, any other all of them.
    pub const fn binds(self, phase: Phase) -> bool {
        !matches!(self.cause, Cause::QueueDeadline) || matches!(phase, Phase::Queued)
    }

    /// The one that passes first; of those that pass together, the one whose cause is first in the contract's table. `None` of none.
    pub fn earliest(deadlines: impl IntoIterator<Item = Deadline>) -> Option<Deadline> {
        deadlines.into_iter().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_deadline_is_over_when_nothing_is_left() {
        let d = Deadline::from_left(Time(500), S, Cause::ClientDeadline);
        assert_eq!(d.at(), Time(1_000_500));
        assert_eq!(d.left(Time(500)), S);
        assert!(!d.is_over(Time(1_000_499)));
        assert!(d.is_over(Time(1_000_500)) && d.is_over(Time(u64::MAX)));
        assert_eq!(d.left(Time(2_000_000)), Duration::ZERO);
    }

    #[test]
    fn a_span_of_nothing_is_over_at_once_and_one_beyond_the_clock_never() {
        assert!(Deadline::from_left(Time(7), Duration::ZERO, Cause::GatewayDeadline).is_over(Time(7)));
        let never = Deadline::from_left(Time(7), Duration::MAX, Cause::GatewayDeadline);
        assert!(!never.is_over(Time(u64::MAX)));
    }

    #[test]
    fn the_earliest_wins_whatever_the_order() {
        let client = Deadline::from_left(Time(0), S * 3, Cause::ClientDeadline);
        let gateway = Deadline::from_left(Time(0), S * 2, Cause::GatewayDeadline);
        let queue = Deadline::from_left(Time(0), S * 2, Cause::QueueDeadline);
        for list in [[client, gateway, queue], [queue, gateway, client], [gateway, client, queue]] {
            assert_eq!(Deadline::earliest(list), Some(gateway));
        }
        assert_eq!(Deadline::earliest([]), None);
    }

    // field: F-82
    #[test]
    fn a_queue_deadline_binds_only_who_waits() {
        for &phase in Phase::ALL {
            let of = |cause| Deadline::from_left(Time(0), S, cause).binds(phase);
            assert_eq!(of(Cause::QueueDeadline), phase == Phase::Queued);
            assert!(of(Cause::ClientDeadline) && of(Cause::GatewayDeadline) && of(Cause::WorkerDeadline));
        }
    }

    proptest! {
        // contract: C-22
        #[test]
        fn crossing_to_any_other_clock_keeps_what_is_left_and_the_cause(
            made in 0u64..1 << 40, span in 0u64..1 << 40, waited in 0u64..1 << 41, other in 0u64..1 << 40
        ) {
            let near = Deadline::from_left(Time(made), Duration::from_micros(span), Cause::ClientDeadline);
            let sent = near.to_send(Time(made + waited));
            let far = Deadline::received(Time(other), sent);
            prop_assert_eq!(far.cause(), near.cause());
            prop_assert_eq!(far.left(Time(other)), near.left(Time(made + waited)));
            prop_assert_eq!(far.is_over(Time(other)), near.is_over(Time(made + waited)));
        }
    }
}
