//! Node's clients: the packages that tests/sdk/node's lock names, and Node's own test runner against the server.

use std::path::PathBuf;

use anyhow::{Context, bail};

use super::{Server, installed};
use crate::nextest::plain;
use crate::process::{command, listen, run as run_command};
use crate::test::Count;

/// The oldest Node.js that the packages run on: major and minor.
const NODE_MIN: (u64, u64) = (20, 18);
/// Longest one test may take. Each waits within bounds of its own; this ends what hangs in a client.
const TEST_TIMEOUT_MS: u32 = 300_000;

/// The tests without a browser.
const FILES: [&str; 5] = ["openai.test.mjs", "responses.test.mjs", "ai.test.mjs", "fetch.test.mjs", "http2.test.mjs"];

/// Runs them against the server at an address.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    files(server.address, &FILES, &[])
}

/// Installs what the lock names, if that has not been done, and runs test files, one after the other.
pub(super) fn files(address: &str, files: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<Count> {
    let dir = packages()?;
    let mut node = command("node");
    node.args(["--test", "--test-reporter=spec", "--test-concurrency=1"]).arg(format!("--test-timeout={TEST_TIMEOUT_MS}"));
    node.args(files).current_dir(dir).env("KVIT_TEST_SERVER", address).envs(variables.iter().copied());
    let (said, well) = listen(&mut node)?;
    let mut count = summary(&said).context("node's test runner gave no summary")?;
    if !well && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// The tests' folder, its packages installed.
fn packages() -> anyhow::Result<PathBuf> {
    let said = command("node").arg("--version").output().map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    if version(&said).is_none_or(|v| v < NODE_MIN) {
        let found = if said.is_empty() { "there is none" } else { &said };
        bail!("Node.js {}.{} or newer with npm is needed, and {found}: install it", NODE_MIN.0, NODE_MIN.1);
    }
    let dir = crate::root().join("tests").join("sdk").join("node");
    let lock = dir.join("package-lock.json");
    let wanted = std::fs::read_to_string(&lock).with_context(|| lock.display().to_string())?;
    let stamp = dir.join("node_modules").join(".kvit-lock");
    if !installed(&stamp, &wanted) {
        run_command(command("npm").args(["ci", "--silent"]).current_dir(&dir)).context("npm cannot install the clients' packages")?;
        std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    }
    Ok(dir)
}

/// Reads `v20.18.1`.
fn version(said: &str) -> Option<(u64, u64)> {
    let mut numbers = said.strip_prefix('v')?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Reads the closing lines of Node's test runner, such as `ℹ pass 3`. A test that ran out of time is counted there as cancelled.
fn summary(said: &str) -> Option<Count> {
    let lines: Vec<String> = said.lines().map(plain).collect();
    let number = |word: &str| -> Option<u64> {
        lines.iter().rev().find_map(|l| l.trim_start_matches(['ℹ', '#']).trim().strip_prefix(word)?.trim().parse().ok())
    };
    Some(Count { passed: number("pass ")?, failed: number("fail ")? + number("cancelled ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_closing_lines_are_counted() {
        let said = "✔ a stream (3ms)\n\u{1b}[34mℹ tests 4\u{1b}[39m\nℹ pass 2\nℹ fail 1\nℹ cancelled 1\nℹ skipped 0\n";
        assert_eq!(summary(said), Some(Count { passed: 2, failed: 2 }));
        assert_eq!(summary("# pass 3\n# fail 0\n# cancelled 0\n"), Some(Count { passed: 3, failed: 0 }));
        assert_eq!(summary("node: bad option"), None);
    }

    #[test]
    fn nodes_version_is_read() {
        assert_eq!(version("v20.18.1"), Some((20, 18)));
        assert!(version("v18.20.4").is_some_and(|v| v < NODE_MIN));
        assert_eq!(version(""), None);
    }
}
