//! The setups that are explored: each small enough to be closed, together rich enough to reach every mark.

use lifecycle::Cause;

use super::setup::{RunSetup, Setup};

/// What CI closes.
pub fn all() -> Vec<Setup> {
    use Cause::{CancelRequested, ClientClosed};
    let a = || RunSetup::new("a", &[1, 2, 3]);
    let b = || RunSetup::new("b", &[1, 2, 4]);
    vec![Setup::new("leave", "two runs that share a prefix, both left at any time", vec![a().leaves(&[ClientClosed]), b().leaves(&[CancelRequested])])]
}

/// Larger ones, for the longer tier.
pub fn large() -> Vec<Setup> {
    Vec::new()
}
