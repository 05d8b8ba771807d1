//! When an engine that fails run after run gets none, and when it gets one again to try.
//!
//! Closed: it gets runs. So many that fail in a row open the circuit: it gets none for a while. Then one at a time is tried: one that goes well
//! closes the circuit, one that fails opens it for twice as long.
//!
//! Held: it has said that it has too much to do, and gets none for a while; then it gets runs as before, for that was no failure.
//!
//! A run may end long after it was sent, and what was sent before a change says nothing of what is there behind it. So every change begins an
//! epoch, and a run counts in that in which it was sent.
//!
//! Invariant: between two tries that fail no run is sent; only a run that was sent in a trial ends that trial.
// contract: C-10

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What an engine may be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Circuit {
    /// Runs; so many have failed since one went well.
    Closed { failures: u32 },
    /// None before this moment.
    Open { until: Duration },
    /// The same, and then runs again, of which so many have failed before.
    Held { until: Duration, failures: u32 },
    /// One at a time.
    Trial,
}

/// The epoch of a circuit, for whoever sends a run and must not wait for its owner.
#[derive(Clone, Debug, Default)]
pub struct Epoch(Arc<AtomicU64>);

impl Epoch {
    /// The one that a run counts in that is sent now.
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The circuit of one engine. Times are of one clock of its owner's.
#[derive(Debug)]
pub struct Breaker {
    circuit: Circuit,
    epoch: Epoch,
    failures_max: u32,
    /// The first time that it stays open, the longest, and the next.
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Breaker {
    /// A closed one, which opens behind `failures_max` failures in a row for `first`, and never for longer than `longest`.
    pub fn new(failures_max: u32, first: Duration, longest: Duration) -> Breaker {
        let (circuit, epoch) = (Circuit::Closed { failures: 0 }, Epoch::default());
        Breaker { circuit, epoch, failures_max, first, longest, next: first.min(longest) }
    }

    /// Its epoch, now and later.
    pub fn epoch(&self) -> Epoch {
        self.epoch.clone()
    }

    fn change(&mut self, circuit: Circuit) {
        self.circuit = circuit;
        self.epoch.0.fetch_add(1, Ordering::AcqRel);
    }

    /// A run that was sent in this epoch has failed by it. Whether that opened the circuit.
    pub fn failed(&mut self, epoch: u64, now: Duration) -> bool {
        if epoch != self.epoch.now() {
            return false;
        }
        let failures = match self.circuit {
            Circuit::Closed { failures } => failures.saturating_add(1),
            Circuit::Trial => self.failures_max,
            // One that was on its way when it opened.
            Circuit::Open { .. } | Circuit::Held { .. } => return false,
        };
        if failures < self.failures_max {
            self.circuit = Circuit::Closed { failures };
            return false;
        }
        self.change(Circuit::Open { until: now.saturating_add(self.next) });
        self.next = self.next.saturating_mul(2).min(self.longest);
        true
    }

    /// A run that was sent in this epoch went well. Whether that closed the circuit after a trial.
    pub fn worked(&mut self, epoch: u64) -> bool {
        if epoch != self.epoch.now() {
            return false;
        }
        match self.circuit {
            Circuit::Closed { .. } => self.circuit = Circuit::Closed { failures: 0 },
            Circuit::Trial => {
                self.change(Circuit::Closed { failures: 0 });
                self.next = self.first.min(self.longest);
                return true;
            }
            Circuit::Open { .. } | Circuit::Held { .. } => {}
        }
        false
    }

    /// A run that was sent in this epoch was turned away for want of room: none for so long. A trial goes on behind that. Whether it gets none
    /// from now on that could have had one.
    pub fn hold(&mut self, epoch: u64, now: Duration, wait: Duration) -> bool {
        if epoch != self.epoch.now() {
            return false;
        }
        let until = now.saturating_add(wait);
        match self.circuit {
            Circuit::Closed { failures } => self.change(Circuit::Held { until, failures }),
            Circuit::Trial => self.change(Circuit::Open { until }),
            Circuit::Open { .. } | Circuit::Held { .. } => return false,
        }
        true
    }

    /// How long it is still open; `None` if it is not.
    pub fn open_for(&self, now: Duration) -> Option<Duration> {
        match self.circuit {
            Circuit::Open { until } | Circuit::Held { until, .. } => Some(until.saturating_sub(now)),
            _ => None,
        }
    }

    /// Its time is over, or it is back within a trial: one run may be tried, and only that one counts. One that was only held gets runs as before.
    pub fn try_one(&mut self) {
        match self.circuit {
            Circuit::Open { .. } | Circuit::Trial => self.change(Circuit::Trial),
            Circuit::Held { failures, .. } => self.change(Circuit::Closed { failures }),
            Circuit::Closed { .. } => {}
        }
    }

    /// Another engine is there than the one that failed: its failures, and how long it was waited for, are not this one's.
    pub fn forget(&mut self) {
        let circuit = match self.circuit {
            Circuit::Closed { .. } => Circuit::Closed { failures: 0 },
            Circuit::Held { until, .. } => Circuit::Held { until, failures: 0 },
            other => other,
        };
        self.change(circuit);
        self.next = self.first.min(self.longest);
    }

    /// Whether one run at a time is tried.
    pub fn is_trial(&self) -> bool {
        self.circuit == Circuit::Trial
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// One that was sent and has failed there and then.
    fn fails(breaker: &mut Breaker) -> bool {
        breaker.failed(breaker.epoch().now(), S)
    }

    fn works(breaker: &mut Breaker) -> bool {
        breaker.worked(breaker.epoch().now())
    }

    #[test]
    fn failures_in_a_row_open_it_and_one_that_goes_well_between_them_does_not() {
        let mut breaker = Breaker::new(3, S, 4 * S);
        assert!(!fails(&mut breaker) && !fails(&mut breaker));
        assert!(!works(&mut breaker));
        assert!(!fails(&mut breaker) && !fails(&mut breaker));
        assert_eq!(breaker.open_for(S), None);
        assert!(fails(&mut breaker));
        assert_eq!(breaker.open_for(S), Some(S));
        // Those that were on their way change nothing.
        assert!(!fails(&mut breaker) && !works(&mut breaker));
        assert_eq!(breaker.open_for(2 * S), Some(Duration::ZERO));
    }

    #[test]
    fn a_trial_that_fails_doubles_the_wait_up_to_the_longest_and_one_that_goes_well_ends_it() {
        let mut breaker = Breaker::new(1, S, 4 * S);
        for wait in [1, 2, 4, 4] {
            assert!(fails(&mut breaker));
            assert_eq!(breaker.open_for(S), Some(wait * S));
            assert!(!breaker.is_trial());
            breaker.try_one();
            assert!(breaker.is_trial() && breaker.open_for(S).is_none());
        }
        // Another engine waits as the first one did.
        breaker.forget();
        assert!(breaker.is_trial());
        assert!(fails(&mut breaker));
        assert_eq!(breaker.open_for(S), Some(S));
        breaker.try_one();
        assert!(works(&mut breaker));
        assert!(!breaker.is_trial() && !works(&mut breaker));
        assert!(fails(&mut breaker));
        assert_eq!(breaker.open_for(S), Some(S));
    }

    #[test]
    fn one_that_has_too_much_to_do_gets_none_for_as_long_as_it_says_and_has_not_failed() {
        let mut breaker = Breaker::new(2, S, 4 * S);
        assert!(!fails(&mut breaker));
        let sent = breaker.epoch().now();
        assert!(breaker.hold(sent, S, 3 * S) && !breaker.hold(sent, S, 60 * S), "what was sent with it says nothing new");
        assert_eq!((breaker.open_for(2 * S), breaker.is_trial()), (Some(2 * S), false));
        // What was sent before it, or while it is held, does not count.
        assert!(!breaker.worked(sent) && !breaker.failed(sent, S) && !fails(&mut breaker));
        breaker.try_one();
        assert!(!breaker.is_trial() && breaker.open_for(S).is_none(), "all its runs again, and not one");
        assert!(fails(&mut breaker), "the failure before is remembered");
        // Within a trial it is tried again behind the wait, and the next failure waits as long as it would have.
        breaker.try_one();
        assert!(breaker.hold(breaker.epoch().now(), S, S / 2));
        assert_eq!(breaker.open_for(S), Some(S / 2));
        breaker.try_one();
        assert!(breaker.is_trial() && fails(&mut breaker));
        assert_eq!(breaker.open_for(S), Some(2 * S));
    }

    // contract: C-10
    #[test]
    fn what_was_sent_before_a_change_counts_no_more() {
        let mut breaker = Breaker::new(2, S, 4 * S);
        let epoch = breaker.epoch();
        let before = epoch.now();
        assert!(!breaker.failed(before, S) && breaker.failed(before, S));
        let while_open = epoch.now();
        breaker.try_one();
        for old in [before, while_open] {
            assert!(!breaker.failed(old, S) && !breaker.worked(old));
            assert!(breaker.is_trial(), "it is the trial's own run that ends it");
        }
        // It was away within the trial: what was tried then is not what is tried now.
        let first = epoch.now();
        breaker.try_one();
        assert!(!breaker.worked(first) && breaker.is_trial());
        let tried = epoch.now();
        assert!(breaker.worked(tried));
        // Closed, and the old ones still fail.
        assert!(![before, while_open, first, tried, before].into_iter().any(|old| breaker.failed(old, S)));
        assert!(!fails(&mut breaker) && fails(&mut breaker));
        // The failures of an engine before are none of this one's.
        let mut breaker = Breaker::new(2, S, 4 * S);
        let before = breaker.epoch().now();
        assert!(!breaker.failed(before, S));
        breaker.forget();
        assert!(!breaker.failed(before, S) && !fails(&mut breaker));
    }
}
