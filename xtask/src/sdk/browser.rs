//! A browser's clients: Chromium without a window, driven from Node, against the server.

use anyhow::Context;

use super::{Server, node};
use crate::packages;
use crate::test::Count;

/// Names the browser's binary, for the tests and for whoever has one of his own.
const VARIABLE: &str = "KVIT_TEST_CHROMIUM";
/// What systems call it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Runs the browser's tests against the server at an address.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    node::files(server.address, &["browser.test.mjs"], &[(VARIABLE, &chromium()?)])
}

/// The binary: named, or found, or installed where that can be done.
fn chromium() -> anyhow::Result<String> {
    if let Some(named) = std::env::var(VARIABLE).ok().filter(|n| !n.is_empty()) {
        return Ok(named);
    }
    if let Some(found) = found() {
        return Ok(found);
    }
    packages::install("chromium", "the browser's tests need Chromium", &format!(", or name one in {VARIABLE}"))?;
    found().context("apt-get has installed chromium, and there is none")
}

fn found() -> Option<String> {
    packages::found(&NAMES)
}
