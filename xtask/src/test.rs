//! `cargo xtask test`: format, lints, every test of the workspace with the real model, the proof by simulation, the clients' tests, one
//! closing line.
//!
//! A failed part does not hide the others: all run, and the closing line adds up what each counted.

use std::path::PathBuf;

use anyhow::{Context, bail};

use crate::nextest::{self, Done};
use crate::postgres::Postgres;
use crate::process::{command, run as run_command};
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

/// What all parts gave.
#[derive(Default)]
struct Report {
    total: Count,
    /// Said last, before the closing line: an output of thousands of lines may be read from its end only.
    closing: Vec<String>,
}

/// Runs everything; `long` adds the tests that take minutes.
///
/// # Errors
/// A tool that is missing, or anything that does not hold.
pub fn run(long: bool) -> anyhow::Result<()> {
    have_tools()?;
    let mut report = Report::default();
    report.part("format", lint(&["fmt", "--all", "--check"]));
    report.part("lints", lint(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]));
    // Without it the store's tests would skip half of what they are for: that is a failure, and does not hide the others.
    let postgres = report.service("PostgreSQL", Postgres::start());
    // The same of Prometheus, which judges the rules and the dashboard.
    report.service("Prometheus", prometheus::install());
    match model().context("the tests need the real model") {
        Err(error) => report.part("model", Err(error)),
        Ok(model) => {
            // Tests with the real model are ignored for those who have none; here it is there. Those named `long_` take minutes.
            report.tests("workspace", nextest::run(&model, postgres.as_ref(), &["--run-ignored", "all", "-E", "not test(/long_/)"]));
            if long {
                report.tests("long tests", nextest::run(&model, postgres.as_ref(), &["--run-ignored", "only", "-E", "test(/long_/)"]));
            }
            report.simulate(long);
            report.part("clients", sdk::run(&model, &[]));
            report.part("stacks", stacks::quick(Quick::Scripted, &model));
            report.part("stacks with llama-server", stacks::quick(Quick::Llama, &model));
        }
    }
    report.closing.iter().for_each(|line| println!("{line}"));
    println!("{} passed, {} failed", report.total.passed, report.total.failed);
    if report.total.failed > 0 {
        bail!("not everything holds");
    }
    Ok(())
}

impl Report {
    fn part(&mut self, name: &str, result: anyhow::Result<Count>) {
        match result {
            Ok(count) if count.failed > 0 => {
                self.closing.push(format!("{name}: {} failed", count.failed));
                self.total += count;
            }
            Ok(count) => self.total += count,
            Err(error) => {
                eprintln!("xtask: {name}: {error:#}");
                self.closing.push(format!("{name}: failed: {error:#}"));
                self.total.failed += 1;
            }
        }
    }

    fn tests(&mut self, name: &str, done: anyhow::Result<Done>) {
        let count = done.map(|Done { count, told }| {
            self.closing.extend(told);
            count
        });
        self.part(name, count);
    }

    /// Something that the tests need and that failed to start.
    fn service<T>(&mut self, name: &str, started: anyhow::Result<T>) -> Option<T> {
        started.map_err(|error| self.part(name, Err(error))).ok()
    }

    /// Explorer, simulator and museum: each counts as a test. What they say at their end is shown at ours.
    fn simulate(&mut self, long: bool) {
        if let Err(error) = proof::build() {
            return self.part("simulation", Err(error));
        }
        for args in proof::commands(long) {
            let name = format!("kvit {}", args.join(" "));
            let done = proof::run(args).map(|line| {
                self.closing.push(format!("{name}: {line}"));
                Count { passed: 1, failed: 0 }
            });
            self.part(&name, done);
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
