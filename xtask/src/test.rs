//! `cargo xtask test`: format, lints, every test of the workspace with the real model, the proof by simulation, the clients' tests, one
//! closing line.
//!
//! A failed part does not hide the others: all run, and the closing line adds up what each counted.

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::postgres::{self, Postgres};
use crate::process::{command, listen, run as run_command};
use crate::stacks::{self, Quick};
use crate::{prometheus, proof, sdk};

/// What the runners counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tests that passed.
    pub passed: u64,
    /// Tests, or whole parts, that failed.
    pub failed: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs everything; `long` adds the tests that take minutes.
///
/// # Errors
/// A tool that is missing, or anything that does not hold.
pub fn run(long: bool) -> anyhow::Result<()> {
    have_tools()?;
    let mut total = Count::default();
    part(&mut total, "format", lint(&["fmt", "--all", "--check"]));
    part(&mut total, "lints", lint(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]));
    let mut closing = Vec::new();
    // Without it the store's tests would skip half of what they are for: that is a failure, and does not hide the others.
    let postgres = Postgres::start().inspect_err(|error| eprintln!("xtask: PostgreSQL: {error:#}")).ok();
    total.failed += u64::from(postgres.is_none());
    // The same of Prometheus, which judges the rules and the dashboard.
    let prometheus = prometheus::install().inspect_err(|error| eprintln!("xtask: Prometheus: {error:#}"));
    total.failed += u64::from(prometheus.is_err());
    let model = model().context("the tests need the real model");
    match model {
        Err(error) => part(&mut total, "model", Err(error)),
        Ok(model) => {
            // Tests with the real model are ignored for those who have none; here it is there. Those named `long_` take minutes.
            part(&mut total, "workspace", nextest(&model, postgres.as_ref(), &["--run-ignored", "all", "-E", "not test(/long_/)"]));
            if long {
                part(&mut total, "long tests", nextest(&model, postgres.as_ref(), &["--run-ignored", "only", "-E", "test(/long_/)"]));
            }
            simulate(&mut total, long, &mut closing);
            part(&mut total, "clients", sdk::run(&model, &[]));
            part(&mut total, "stacks", stacks::quick(Quick::Scripted, &model));
            part(&mut total, "stacks with llama-server", stacks::quick(Quick::Llama, &model));
        }
    }
    closing.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed", total.passed, total.failed);
    if total.failed > 0 {
        bail!("not everything holds");
    }
    Ok(())
}

/// Explorer, simulator and museum: each counts as a test. What they say at their end is shown at ours.
fn simulate(total: &mut Count, long: bool, closing: &mut Vec<String>) {
    if let Err(error) = proof::build() {
        return part(total, "simulation", Err(error));
    }
    for args in proof::commands(long) {
        let name = format!("kvit {}", args.join(" "));
        let done = proof::run(args).map(|line| {
            closing.push(format!("{name}: {line}"));
            Count { passed: 1, failed: 0 }
        });
        part(total, &name, done);
    }
}

fn part(total: &mut Count, name: &str, result: anyhow::Result<Count>) {
    match result {
        Ok(count) => *total += count,
        Err(error) => {
            eprintln!("xtask: {name}: {error:#}");
            total.failed += 1;
        }
    }
}

fn lint(args: &[&str]) -> anyhow::Result<Count> {
    run_command(command("cargo").args(args)).map(|()| Count { passed: 1, failed: 0 })
}

/// Names what is missing; what cargo itself can install it does.
fn have_tools() -> anyhow::Result<()> {
    let works = |program: &str, args: &[&str]| command(program).args(args).output().is_ok_and(|o| o.status.success());
    for component in ["fmt", "clippy"] {
        if !works("cargo", &[component, "--version"]) {
            bail!("cargo {component} is missing: `rustup component add rustfmt clippy` installs it");
        }
    }
    if !works("python3", &["-m", "venv", "--help"]) {
        bail!("python3 with its venv module is missing: install your system's `python3` and `python3-venv`");
    }
    for (program, package) in [("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux"), ("setpriv", "util-linux")] {
        if !works(program, &["-V"]) {
            bail!("{program} is missing: install your system's `{package}`; the tests that pull a cable or need PostgreSQL call it");
        }
    }
    if !works("cargo", &["nextest", "--version"]) {
        eprintln!("xtask: cargo-nextest is missing; installing it, which takes minutes");
        run_command(command("cargo").args(["install", "cargo-nextest", "--locked"]))?;
    }
    Ok(())
}

/// The model file, fetched into kvit's cache if it is not there. Also leaves the binary built.
pub fn model() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os("KVIT_TEST_MODEL").filter(|p| !p.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    let output = command(kvit()).args(["model", "pull"]).stderr(std::process::Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("`kvit model pull`: {}", output.status);
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

/// The binary that `cargo build` leaves.
pub fn kvit() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| crate::root().join("target"), PathBuf::from);
    target.join("debug").join("kvit")
}

fn nextest(model: &std::path::Path, postgres: Option<&Postgres>, more: &[&str]) -> anyhow::Result<Count> {
    let mut nextest = command("cargo");
    nextest.args(["nextest", "run", "--workspace", "--no-fail-fast"]).args(more).env("KVIT_TEST_MODEL", model);
    if let Some(postgres) = postgres {
        nextest.env(postgres::VARIABLE, &postgres.url);
    }
    let (said, well) = listen(&mut nextest)?;
    let count = summary(&said).context("nextest gave no summary")?;
    if !well && count.failed == 0 {
        bail!("nextest failed");
    }
    if count.passed + count.failed == 0 {
        bail!("nextest ran no test");
    }
    Ok(count)
}

/// Reads `... 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 3 skipped`.
fn summary(said: &str) -> Option<Count> {
    let line = said.lines().rev().find(|l| l.contains("Summary") && (l.contains("tests run:") || l.contains("test run:")))?;
    let counts = plain(line.split_once("run:")?.1);
    let number = |word: &str| -> u64 {
        let found = counts.split(',').find(|part| part.contains(word));
        found.and_then(|part| part.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Some(Count { passed: number(" passed"), failed: number(" failed") + number(" timed out") })
}

/// A line without its colour codes.
pub fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    for c in line.chars() {
        match c {
            '\u{1b}' => code = true,
            'm' if code => code = false,
            _ if code => {}
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_counted_with_and_without_colour() {
        let plain = "x\n     Summary [   0.5s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 3 skipped\ny";
        assert_eq!(summary(plain), Some(Count { passed: 10, failed: 2 }));
        let coloured = "\u{1b}[32;1m     Summary\u{1b}[0m [ 1s] \u{1b}[1m1\u{1b}[0m test run: \u{1b}[1m1\u{1b}[0m \u{1b}[32;1mpassed\u{1b}[0m, 0 skipped";
        assert_eq!(summary(coloured), Some(Count { passed: 1, failed: 0 }));
        assert_eq!(summary("error: could not compile"), None);
    }
}
