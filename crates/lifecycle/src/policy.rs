//! What a caller's leaving means for its run.
//!
//! Invariant: a policy is a property of the run, set when it is accepted and never after; a grace is never longer than its limit.
// contract: C-25

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What a disconnect means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OnDisconnect {
    /// The run is cancelled: its answer was for whoever left.
    #[default]
    Cancel,
    /// The run is cancelled unless somebody comes back to it within this time.
    Grace(Duration),
    /// The run goes on: it is a background run, bounded by its caps, its deadline and its retention.
    Continue,
}

/// Why a text is no policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("must be `cancel`, `continue` or `grace(MILLISECONDS)`, as in `grace(2000)`")]
pub struct NoPolicy;

impl OnDisconnect {
    /// This policy with no longer grace than `max`.
    #[must_use]
    pub fn within(self, max: Duration) -> OnDisconnect {
        match self {
            OnDisconnect::Grace(grace) => OnDisconnect::Grace(grace.min(max)),
            other => other,
        }
    }
}

impl fmt::Display for OnDisconnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnDisconnect::Cancel => f.write_str("cancel"),
            OnDisconnect::Grace(grace) => write!(f, "grace({})", grace.as_millis()),
            OnDisconnect::Continue => f.write_str("continue"),
        }
    }
}

impl FromStr for OnDisconnect {
    type Err = NoPolicy;

    fn from_str(text: &str) -> Result<OnDisconnect, NoPolicy> {
        match text {
            "cancel" => Ok(OnDisconnect::Cancel),
            "continue" => Ok(OnDisconnect::Continue),
            _ => {
                let ms = text.strip_prefix("grace(").and_then(|rest| rest.strip_suffix(')')).ok_or(NoPolicy)?;
                let digits = !ms.is_empty() && ms.bytes().all(|b| b.is_ascii_digit());
                let ms: u64 = digits.then(|| ms.parse().ok()).flatten().ok_or(NoPolicy)?;
                Ok(OnDisconnect::Grace(Duration::from_millis(ms)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_nothing_else_is() {
        for policy in [OnDisconnect::Cancel, OnDisconnect::Continue, OnDisconnect::Grace(Duration::from_millis(2000))] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        for text in ["", "Cancel", "grace", "grace()", "grace(+5)", "grace(5", "grace(99999999999999999999)", "grace(1.5)", "continue "] {
            assert_eq!(text.parse::<OnDisconnect>(), Err(NoPolicy), "{text}");
        }
        let limited = OnDisconnect::Grace(Duration::from_secs(9)).within(Duration::from_secs(2));
        assert_eq!(limited, OnDisconnect::Grace(Duration::from_secs(2)));
        assert_eq!(OnDisconnect::Continue.within(Duration::ZERO), OnDisconnect::Continue);
    }
}
