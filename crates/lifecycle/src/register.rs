//! The one register of a run, as a value of its own so that nothing but compare-and-set can change it.
//!
//! Invariant: an outcome that is set never changes, and no attempt begins after it.

use crate::Cause;

/// The one register of a run: which attempt is current, and how the run ended. Both change by compare-and-set only.
// contract: C-5
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Register {
    attempt: u32,
    outcome: Option<Cause>,
}

impl Register {
    /// The register of an open run whose current attempt is this one, as another gateway left it.
    pub const fn at(attempt: u32) -> Register {
        Register { attempt, outcome: None }
    }

    /// The current attempt, from 1; 0 before the first dispatch.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Why the run ended; `None` while it has not.
    pub const fn outcome(&self) -> Option<Cause> {
        self.outcome
    }

    /// Makes `from + 1` the current attempt if `from` still is and no outcome is set. Returns whether it did.
    pub const fn next_attempt(&mut self, from: u32) -> bool {
        let open = self.attempt == from && self.outcome.is_none() && from < u32::MAX;
        if open {
            self.attempt = from + 1;
        }
        open
    }

    /// Sets the outcome if `attempt` is the current one and none is set. Returns whether it did.
    pub const fn set_outcome(&mut self, attempt: u32, cause: Cause) -> bool {
        let open = self.attempt == attempt && self.outcome.is_none();
        if open {
            self.outcome = Some(cause);
        }
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_that_can_be_counted_is_followed_by_none() {
        let mut last = Register { attempt: u32::MAX, outcome: None };
        assert!(!last.next_attempt(u32::MAX));
        assert!(last.set_outcome(u32::MAX, Cause::Stop));
    }
}
