//! `cargo xtask upstreams`: a run is left in every phase and every way in front of a real engine, and docs/upstreams.md says what came of it.
//!
//! Invariant: the table in the document is what the last successful run printed.

use crate::process::{command, run as run_command};

/// Where the table stands.
const DOCUMENT: &str = "docs/upstreams.md";

/// Builds the gateway and hands everything to bench/upstreams.py; `--write` becomes the document's name.
///
/// # Errors
/// Anything that does not build, start or hold.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    run_command(command("python3").arg("bench/upstreams.py").args(words(args)))
}

fn words<'a>(args: &[&'a str]) -> Vec<&'a str> {
    args.iter().flat_map(|&word| if word == "--write" { vec!["--write", DOCUMENT] } else { vec![word] }).collect()
}

#[cfg(test)]
mod tests {
    use crate::process::{command, run};

    #[test]
    fn the_document_is_what_is_written() {
        assert_eq!(super::words(&["--engine", "vllm", "--write"]), ["--engine", "vllm", "--write", "docs/upstreams.md"]);
    }

    #[test]
    fn the_cells_driver_reads_judges_and_writes() {
        run(command("python3").arg("bench/test_upstreams.py")).expect("its own tests pass");
    }
}
