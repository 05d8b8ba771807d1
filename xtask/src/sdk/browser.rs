//! A browser's clients: Chromium without a window, driven from Node, against the server.

use anyhow::Context;

use super::{Server, node};
use crate::packages;
use crate::test::{Count, kvit};

/// Names the browser's binary, for the tests and for whoever has one of his own.
const VARIABLE: &str = "KVIT_TEST_CHROMIUM";
/// What systems call it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// The tests in it.
const FILES: [&str; 2] = ["browser.test.mjs", "console.test.mjs"];

/// Runs the browser's tests against the server at an address; a server with keys is started by its test.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    let (binary, model) = (kvit().display().to_string(), server.model.display().to_string());
    node::files(server.address, &FILES, &[(VARIABLE, &chromium()?), ("KVIT_TEST_BINARY", &binary), ("KVIT_TEST_MODEL", &model)])
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
