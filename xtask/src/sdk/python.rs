//! Python's clients: a virtual environment under target/, pytest against the server.

use std::path::PathBuf;

use anyhow::Context;

use super::{Server, installed};
use crate::nextest::plain;
use crate::process::{command, listen, run as run_command};
use crate::test::{Count, kvit};
use crate::{packages, postgres};

/// What the tests import, with the versions they were written against.
const PACKAGES: [&str; 9] = [
    "openai>=2,<3",
    "httpx[http2]>=0.28,<1",
    "aiohttp>=3.14,<4",
    "langchain-openai>=1,<2",
    "pytest>=8,<10",
    // Holds the Responses API against the schema that OpenAI publishes.
    "jsonschema>=4.23,<5",
    // For gRPC's own tests, which learn the service by reflection, and for the worker in examples/python-worker, which reads its .proto file
    // when it starts.
    "grpcio>=1.70,<2",
    "grpcio-reflection>=1.70,<2",
    "grpcio-tools>=1.70,<2",
];

/// Runs tests/sdk against the server at an address. The tests with curl and with nginx in front are among them.
pub(super) fn run(server: &Server) -> anyhow::Result<Count> {
    if !command("curl").arg("--version").output().is_ok_and(|o| o.status.success()) {
        anyhow::bail!("curl is missing: install your system's `curl`");
    }
    if packages::found(&["nginx"]).is_none() {
        packages::install("nginx", "the tests with a proxy in front need nginx", "")?;
    }
    // For a test whose server needs options of its own.
    let (binary, model) = (kvit().display().to_string(), server.model.display().to_string());
    let mut variables = vec![("KVIT_TEST_BINARY", binary.as_str()), ("KVIT_TEST_MODEL", &model)];
    // Two gateways behind nginx share one; those tests skip without it. Always a fresh one: they take the whole of it.
    let postgres = postgres::fresh().inspect_err(|error| eprintln!("xtask: PostgreSQL: {error:#}")).ok();
    let store = postgres.as_ref().map(postgres::Own::url);
    variables.extend(store.as_deref().map(|url| ("KVIT_TEST_GATEWAYS_STORE", url)));
    // Those through a gateway have a server of their own.
    tests(server.address, &["--ignore=tests/sdk/upstream", "tests/sdk"], &variables)
}

/// Runs pytest with these words against the server at an address.
pub(super) fn tests(address: &str, words: &[&str], variables: &[(&str, &str)]) -> anyhow::Result<Count> {
    let mut pytest = command(environment()?);
    pytest.args(["-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]).args(words);
    pytest.env("KVIT_TEST_SERVER", address).env("PYTHONDONTWRITEBYTECODE", "1").envs(variables.iter().copied());
    let (said, well) = listen(&mut pytest)?;
    let mut count = summary(&said).context("pytest gave no summary")?;
    if !well && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// The Python of a virtual environment that has what the tests import.
fn environment() -> anyhow::Result<PathBuf> {
    let dir = crate::root().join("target").join("sdk-venv");
    let python = dir.join("bin").join("python");
    if !python.exists() {
        run_command(command("python3").args(["-m", "venv"]).arg(&dir))?;
    }
    let (stamp, wanted) = (dir.join("kvit-packages"), PACKAGES.join("\n"));
    if !installed(&stamp, &wanted) {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"];
        run_command(command(&python).args(pip).args(PACKAGES))?;
        std::fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
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
