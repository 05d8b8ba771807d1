//! `cargo xtask gateway`: what a gateway costs in front of streams, kvit's and others' in one run, and docs/gateway-bench.md says what came of it.
//!
//! Invariant: the table in the document is what the last successful run with `--write` printed.

use crate::process::{command, run as run_command, written};

/// Where the table stands.
const DOCUMENT: &str = "docs/gateway-bench.md";

/// Builds gateway and load as they are shipped and hands everything to bench/gateway/run.py; `--write` becomes the document's name.
///
/// # Errors
/// Anything that does not build, start or measure.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--profile", "dist", "--package", "kvit", "--package", "gateway-bench"]))?;
    run_command(command("python3").arg("bench/gateway/run.py").args(written(args, DOCUMENT)))
}

#[cfg(test)]
mod tests {
    use crate::process::{command, run};

    #[test]
    fn the_document_is_what_is_written() {
        assert_eq!(super::written(&["--rounds", "3", "--write"], super::DOCUMENT), ["--rounds", "3", "--write", "docs/gateway-bench.md"]);
    }

    #[test]
    fn the_driver_adds_up_and_writes() {
        run(command("python3").arg("bench/gateway/test_run.py")).expect("its own tests pass");
    }
}
