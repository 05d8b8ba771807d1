//! The process's clock: the one place where a moment is read for the journal and for the machines.
//!
//! Every stamp of a process comes from one `Clock`, so stamps of that process can be subtracted from one another; stamps of two processes
//! cannot (their offset and its error are kept beside them, C-24).
//!
//! Invariant: never runs backwards.

use std::time::Instant;

use lifecycle::Time;

/// This process's monotonic clock, counted from `start`. A copy shows the same time.
///
/// It stands still while the machine is suspended (`CLOCK_MONOTONIC`). That is right for latencies; leases must not be judged by it: they
/// need a clock that counts suspended time (C-9).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts the clock. Once a process: two clocks' times are not comparable.
    pub fn start() -> Clock {
        Clock { start: Instant::now() }
    }

    /// The time since the start, in whole microseconds.
    pub fn now(&self) -> Time {
        Time::ZERO.after(self.start.elapsed())
    }
}
