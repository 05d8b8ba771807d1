//! The workspace's tests by cargo-nextest: what it counted, which failed, and those few once more, alone.
//!
//! Invariant: what failed once has failed, and is told by name at the end; that it passes alone only says where to look.

use anyhow::{Context, bail};

use crate::postgres::{self, Postgres};
use crate::process::{command, listen};
use crate::test::Count;

/// So many failures are run again, alone: whether they pass then says whether other work has a part in it.
const AGAIN_MAX: usize = 3;

/// What came of a run.
#[derive(Debug, Default)]
pub struct Done {
    /// What counts.
    pub count: Count,
    /// What is to be read last: which tests failed, and which of them pass alone.
    pub told: Vec<String>,
}

/// A test by the names that nextest has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    binary: String,
    name: String,
}

/// Runs what `args` choose with the real model.
///
/// # Errors
/// It did not begin, or ran nothing.
pub fn run(model: &std::path::Path, postgres: Option<&Postgres>, args: &[&str]) -> anyhow::Result<Done> {
    let (count, failed) = once(model, postgres, args)?;
    let mut told = Vec::new();
    let alone = failed.len() <= AGAIN_MAX && count.failed == failed.len() as u64;
    for test in failed {
        let chosen = format!("binary_id(={}) & test(={})", test.binary, test.name);
        let passes = alone
            && once(model, postgres, &["--run-ignored", "all", "-E", &chosen])
                .is_ok_and(|(count, _)| count == Count { passed: 1, failed: 0 });
        let how = if passes { "failed; it passes when it is run alone" } else { "failed" };
        told.push(format!("{} {}: {how}", test.binary, test.name));
    }
    Ok(Done { count, told })
}

fn once(model: &std::path::Path, postgres: Option<&Postgres>, args: &[&str]) -> anyhow::Result<(Count, Vec<Test>)> {
    let mut nextest = command("cargo");
    nextest.args(["nextest", "run", "--workspace", "--no-fail-fast"]).args(args).env("KVIT_TEST_MODEL", model);
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
    Ok((count, failures(&said)))
}

/// Reads `... 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 3 skipped`.
fn summary(said: &str) -> Option<Count> {
    let line = said.lines().rev().find(|line| is_summary(line))?;
    let counts = plain(line.split_once("run:")?.1);
    let number = |word: &str| -> u64 {
        let found = counts.split(',').find(|part| part.contains(word));
        found.and_then(|part| part.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    Some(Count { passed: number(" passed"), failed: number(" failed") + number(" timed out") })
}

fn is_summary(line: &str) -> bool {
    line.contains("Summary") && (line.contains("tests run:") || line.contains("test run:"))
}

/// Reads the lines behind the summary: `        FAIL [   0.5s] (12/40) upstream::it through::a_test`, and the same of one that took too long or
/// was ended by a signal.
fn failures(said: &str) -> Vec<Test> {
    let mut lines: Vec<String> = said.lines().map(plain).collect();
    let Some(summary) = lines.iter().rposition(|line| is_summary(line)) else { return Vec::new() };
    lines.drain(..=summary);
    let mut found = Vec::new();
    for line in lines {
        let Some((word, (_, rest))) = line.split_once('[').and_then(|(word, rest)| Some((word, rest.split_once(") ")?))) else { continue };
        let Some((binary, name)) = rest.split_once(' ') else { continue };
        let test = Test { binary: binary.to_owned(), name: name.to_owned() };
        if !matches!(word.trim(), "PASS" | "SLOW" | "LEAK") && !found.contains(&test) {
            found.push(test);
        }
    }
    found
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

    // As nextest 0.9.143 says it.
    #[test]
    fn whatever_failed_is_known_by_its_name() {
        let said = "        FAIL [   0.3s] (1/6) nx t::bad
     Summary [   2.367s] 6 tests run: 3 passed (1 slow, 1 leaky), 2 failed, 1 timed out, 0 skipped
        SLOW [   0.019s] (1/6) nx t::slow
     SIGABRT [   0.019s] (2/6) nx t::abort
\u{1b}[31;1m        FAIL\u{1b}[0m [   0.328s] (3/6) \u{1b}[35;1mnx::it\u{1b}[0m \u{1b}[36mt::\u{1b}[0m\u{1b}[34;1mbad\u{1b}[0m
     TIMEOUT [   2.020s] (5/6) nx t::slow
error: test run failed";
        let test = |binary: &str, name: &str| Test { binary: binary.into(), name: name.into() };
        assert_eq!(failures(said), [test("nx", "t::abort"), test("nx::it", "t::bad"), test("nx", "t::slow")]);
        assert_eq!(summary(said), Some(Count { passed: 3, failed: 3 }));
        assert_eq!(failures("no summary"), []);
    }
}
