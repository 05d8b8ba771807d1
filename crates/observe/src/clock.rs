//! The process's clock: the one place where a moment is read for the journal and for the machines.
//!
//! Every stamp of a process comes from one `Clock`, so stamps of that process can be subtracted from one another; stamps of two processes
//! cannot (their offset and its error are kept beside them, C-24).
//!
//! Invariant: never runs backwards, and counts the time in which the machine is suspended.
// contract: C-9

use std::time::{Duration, SystemTime};

use lifecycle::Time;
use rustix::time::{ClockId, clock_gettime};

/// The clock that counts suspended time. macOS's monotonic one does anyway.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// This process's clock, counted from `start`. A copy shows the same time.
///
/// It goes on while the machine is suspended: a lease that ran out meanwhile is over, and so is a deadline.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    read: fn() -> Duration,
    start: Duration,
    /// What the calendar said at the start, since 1970.
    calendar: Duration,
    /// Whether it shows the same moment for ever.
    stands: bool,
}

impl Clock {
    /// Starts the clock. Once a process: two clocks' times are not comparable.
    pub fn start() -> Clock {
        // Before 1970 there were no clocks like this one.
        let calendar = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { calendar, ..Clock::over(read) }
    }

    /// Starts a clock over another source than the system's: a simulation's time, whose calendar begins in 1970. `read` never runs backwards.
    pub fn over(read: fn() -> Duration) -> Clock {
        Clock { read, start: read(), calendar: Duration::ZERO, stands: false }
    }

    /// A clock that shows `at` for ever, for records of a process that has gone. Its start was so long after 1970.
    pub(crate) fn standing(at: Time, calendar_ns: u64) -> Clock {
        let read = || Duration::MAX;
        Clock { read, start: Duration::MAX - at.since(Time::ZERO), calendar: Duration::from_nanos(calendar_ns), stands: true }
    }

    /// The time since the start, in whole microseconds.
    pub fn now(&self) -> Time {
        Time::ZERO.after((self.read)().saturating_sub(self.start))
    }

    /// A moment in milliseconds of the calendar (since 1970), as it stood at the start: what is set on the system's clock later does not move it.
    pub fn calendar_ms(&self, at: Time) -> u64 {
        u64::try_from((self.calendar + at.since(Time::ZERO)).as_millis()).unwrap_or(u64::MAX)
    }

    /// The same in nanoseconds, to the microsecond.
    pub fn calendar_ns(&self, at: Time) -> u64 {
        u64::try_from((self.calendar + at.since(Time::ZERO)).as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many microseconds after 1970 it began, by the system's idea of the date now that it shows `now`.
    pub(crate) fn epoch_us(&self, now: Time) -> u64 {
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        if self.stands {
            return us(self.calendar);
        }
        us(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()).saturating_sub(now.0)
    }
}

/// Neither of these clocks is ever negative.
fn read() -> Duration {
    let now = clock_gettime(CLOCK);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
