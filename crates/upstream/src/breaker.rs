//! When an engine that fails run after run gets none, and when it gets one again to try.
//!
//! Closed: it gets runs. So many that fail in a row open the circuit: it gets none for a while. Then one at a time is tried: one that goes well
//! closes the circuit, one that fails opens it for twice as long.
//!
//! Invariant: between two tries that fail no run is sent.
// contract: C-10

use std::time::Duration;

/// What an engine may be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Circuit {
    /// Runs; so many have failed since one went well.
    Closed { failures: u32 },
    /// None before this moment.
    Open { until: Duration },
    /// One at a time.
    Trial,
}

/// The circuit of one engine. Times are of one clock of its owner's.
#[derive(Clone, Debug)]
pub struct Breaker {
    circuit: Circuit,
    failures_max: u32,
    /// The first time that it stays open, the longest, and the next.
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Breaker {
    /// A closed one, which opens behind `failures_max` failures in a row for `first`, and never for longer than `longest`.
    pub fn new(failures_max: u32, first: Duration, longest: Duration) -> Breaker {
        Breaker { circuit: Circuit::Closed { failures: 0 }, failures_max, first, longest, next: first.min(longest) }
    }

    /// A run has failed by it. Whether that opened the circuit.
    pub fn failed(&mut self, now: Duration) -> bool {
        let failures = match self.circuit {
            Circuit::Closed { failures } => failures.saturating_add(1),
            Circuit::Trial => self.failures_max,
            // One that was sent before.
            Circuit::Open { .. } => return false,
        };
        if failures < self.failures_max {
            self.circuit = Circuit::Closed { failures };
            return false;
        }
        self.circuit = Circuit::Open { until: now.saturating_add(self.next) };
        self.next = self.next.saturating_mul(2).min(self.longest);
        true
    }

    /// A run went well. Whether that closed the circuit after a trial.
    pub fn worked(&mut self) -> bool {
        match self.circuit {
            Circuit::Closed { .. } => self.circuit = Circuit::Closed { failures: 0 },
            Circuit::Trial => {
                self.circuit = Circuit::Closed { failures: 0 };
                self.next = self.first.min(self.longest);
                return true;
            }
            // One that was sent before says nothing of now.
            Circuit::Open { .. } => {}
        }
        false
    }

    /// How long it is still open; `None` if it is not.
    pub fn open_for(&self, now: Duration) -> Option<Duration> {
        match self.circuit {
            Circuit::Open { until } => Some(until.saturating_sub(now)),
            _ => None,
        }
    }

    /// Its time is over: one run may be tried.
    pub fn try_one(&mut self) {
        if let Circuit::Open { .. } = self.circuit {
            self.circuit = Circuit::Trial;
        }
    }

    /// Another engine is there than the one that failed: its failures, and how long it was waited for, are not this one's.
    pub fn forget(&mut self) {
        if let Circuit::Closed { failures } = &mut self.circuit {
            *failures = 0;
        }
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

    #[test]
    fn failures_in_a_row_open_it_and_one_that_goes_well_between_them_does_not() {
        let mut breaker = Breaker::new(3, S, 4 * S);
        assert!(!breaker.failed(S) && !breaker.failed(S));
        assert!(!breaker.worked());
        assert!(!breaker.failed(S) && !breaker.failed(S));
        assert_eq!(breaker.open_for(S), None);
        assert!(breaker.failed(S));
        assert_eq!(breaker.open_for(S), Some(S));
        // Those that were on their way change nothing.
        assert!(!breaker.failed(S) && !breaker.worked());
        assert_eq!(breaker.open_for(2 * S), Some(Duration::ZERO));
    }

    #[test]
    fn a_trial_that_fails_doubles_the_wait_up_to_the_longest_and_one_that_goes_well_ends_it() {
        let mut breaker = Breaker::new(1, S, 4 * S);
        for wait in [1, 2, 4, 4] {
            assert!(breaker.failed(S));
            assert_eq!(breaker.open_for(S), Some(wait * S));
            assert!(!breaker.is_trial());
            breaker.try_one();
            assert!(breaker.is_trial() && breaker.open_for(S).is_none());
        }
        // Another engine waits as the first one did.
        breaker.forget();
        assert!(breaker.is_trial());
        assert!(breaker.failed(S));
        assert_eq!(breaker.open_for(S), Some(S));
        breaker.try_one();
        assert!(breaker.worked());
        assert!(!breaker.is_trial() && !breaker.worked());
        assert!(breaker.failed(S));
        assert_eq!(breaker.open_for(S), Some(S));
    }
}
