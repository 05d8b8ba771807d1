//! A clock whose hands a test turns.

use std::cell::Cell;
use std::time::Duration;

use observe::{Clock, Journal, Limits};

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// It is so many seconds after the clock began.
pub fn set(seconds: u64) {
    NOW.set(seconds * 1_000_000);
}

/// A journal with the usual limits and this clock, at 0.
pub fn journal() -> Journal {
    set(0);
    Journal::new(Clock::over(|| Duration::from_micros(NOW.get())), Limits::default())
}

/// That second, in microseconds.
pub fn us() -> u64 {
    NOW.get()
}
