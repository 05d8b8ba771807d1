//! What a gateway makes of connections that a worker's host refuses: a cut cable answers nothing, a process that stands still is connected to by
//! its kernel, and only where nobody listens does a host refuse.
//!
//! It is evidence and no proof: a proxy may have gone while the worker lives, and another process may come to listen. So it ends no attempt
//! (C-9), and only says that nobody need wait for this worker's word.
//!
//! Invariant: it is told once, and only of refusals with nothing else between them.
// contract: C-7, C-9, C-10

use std::time::Duration;

use crate::Time;

/// Longest pause between two refusals of one row: twice the longest pause between two tries (`retry_max`). What was not looked at for longer may
/// have been otherwise meanwhile.
const APART_MAX: Duration = Duration::from_secs(2);

/// A row of refusals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusals {
    /// When the first of the row came, and the newest.
    row: Option<(Time, Time)>,
    told: bool,
}

impl Refusals {
    /// A try to connect was refused. Whether that is now evidence, for the first time.
    pub(super) fn refused(&mut self, after: Duration, now: Time) -> bool {
        let first = match self.row {
            Some((first, newest)) if now.since(newest) <= APART_MAX => first,
            _ => now,
        };
        self.row = Some((first, now));
        let is_evidence = !after.is_zero() && now.since(first) >= after;
        is_evidence && !std::mem::replace(&mut self.told, true)
    }

    /// A try to connect came to anything else.
    pub(super) fn broken(&mut self) {
        self.row = None;
    }

    /// The worker is heard. Whether it had been told otherwise.
    pub(super) fn over(&mut self) -> bool {
        self.row = None;
        std::mem::take(&mut self.told)
    }

    /// How long until a further refusal would be evidence; `None` if none is to be told.
    pub(super) fn left(&self, after: Duration, now: Time) -> Option<Duration> {
        let (first, _) = self.row.filter(|_| !self.told && !after.is_zero())?;
        Some(first.after(after).since(now))
    }
}
