//! Prometheus' own programs, from the system's package: the tests of what kvit shows it ask them and nobody else.

use anyhow::Context;

use crate::packages;

/// Where they are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Checks rule files and plays them.
    pub promtool: String,
    /// The server.
    pub server: String,
}

/// Both, if they are here.
#[must_use]
pub fn found() -> Option<Programs> {
    Some(Programs { promtool: packages::found(&["promtool"])?, server: packages::found(&["prometheus"])? })
}

/// Both, installed if they are not here.
///
/// # Errors
/// They are not, and cannot be installed: says what to do.
pub fn install() -> anyhow::Result<Programs> {
    if found().is_none() {
        packages::install("prometheus", "the tests of metrics, alerts and the dashboard need Prometheus and promtool", "")?;
    }
    found().context("the package `prometheus` is installed, and promtool or prometheus is not on the path")
}
