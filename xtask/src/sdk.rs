//! The tests with OpenAI's Python SDK: a virtual environment, a started server, pytest against it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::process::{Running, command, listen, run as run_command};
use crate::test::{Count, kvit, model, plain};

/// How long the server may take from start to its `listening on` line: a debug build packs the weights, on a busy machine.
const START: Duration = Duration::from_secs(120);
/// What the tests import, with the versions they were written against.
const PACKAGES: [&str; 2] = ["openai>=2,<3", "pytest>=8,<10"];

/// `cargo xtask sdk`
///
/// # Errors
/// As `run`, and if a test failed.
pub fn only() -> anyhow::Result<()> {
    let count = run(&model()?)?;
    println!("{} passed, {} failed", count.passed, count.failed);
    if count.failed > 0 { bail!("the SDK's tests failed") } else { Ok(()) }
}

/// Starts a server with the model, runs tests/sdk against it and ends it.
///
/// # Errors
/// The environment cannot be made, the server does not start or does not end well.
pub fn run(model: &Path) -> anyhow::Result<Count> {
    let python = environment()?;
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    let mut serve = command(kvit());
    serve.args(["serve", "--port", "0", "--model"]).arg(model);
    let (server, address) = Running::start(&mut serve, "listening on ", START)?;
    let mut pytest = command(python);
    pytest.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "tests/sdk"]);
    pytest.env("KVIT_TEST_SERVER", &address).env("PYTHONDONTWRITEBYTECODE", "1");
    // For a test whose server needs options of its own.
    pytest.env("KVIT_TEST_BINARY", kvit()).env("KVIT_TEST_MODEL", model);
    let (said, well) = listen(&mut pytest)?;
    server.end()?;
    let mut count = summary(&said).context("pytest gave no summary")?;
    if !well && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// The Python of a virtual environment under target/ that has what the tests import.
fn environment() -> anyhow::Result<PathBuf> {
    let dir = crate::root().join("target").join("sdk-venv");
    let python = dir.join("bin").join("python");
    if !python.exists() {
        run_command(command("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let has = command(&python).args(["-c", "import openai, pytest"]).output().is_ok_and(|o| o.status.success());
    if !has {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
        run_command(command(&python).args(pip).args(PACKAGES))?;
    }
    Ok(python)
}

/// Reads pytest's closing line, such as `1 failed, 2 passed in 3.21s`.
fn summary(said: &str) -> Option<Count> {
    let line = said
        .lines()
        .rev()
        .map(plain)
        .find(|l| l.contains(" in ") && (l.contains(" passed") || l.contains(" failed") || l.contains(" error")))?;
    let number = |word: &str| -> u64 {
        let found = line.split(',').find(|part| part.contains(word));
        found.and_then(|part| part.split_whitespace().find_map(|w| w.parse().ok())).unwrap_or(0)
    };
    Some(Count { passed: number(" passed"), failed: number(" failed") + number(" error") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytests_closing_line_is_counted() {
        assert_eq!(summary("...\n1 failed, 2 passed, 1 error in 3.21s\n"), Some(Count { passed: 2, failed: 2 }));
        assert_eq!(summary("3 passed in 1.0s"), Some(Count { passed: 3, failed: 0 }));
        assert_eq!(summary("no tests ran in 0.01s"), None);
    }
}
