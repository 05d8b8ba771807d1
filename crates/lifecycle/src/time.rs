//! Time as the cores see it: microseconds on one process's monotonic clock, handed in from outside.
//!
//! No clock is read here, so that the same inputs always give the same outputs.

use std::fmt;
use std::time::Duration;

/// A moment on one process's monotonic clock, in microseconds since that process started. Two processes' values are not comparable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The process's start.
    pub const ZERO: Time = Time(0);

    /// Time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Milliseconds since `earlier` with fractions, as the API shows them; zero if `earlier` is later.
    pub fn ms_since(self, earlier: Time) -> f64 {
        self.0.saturating_sub(earlier.0) as f64 / 1000.0
    }

    /// This moment plus `span`, saturating at the end of the clock.
    pub fn after(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}
