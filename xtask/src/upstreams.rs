//! `cargo xtask upstreams`: a run is left in every phase and every way in front of a real engine, and docs/upstreams.md says what came of
//! it. With `--against` the same callers stand before other gateways, too, side by side.
//!
//! Invariant: the tables in the document are what the last successful runs printed.

use crate::process::{command, run as run_command, written};

/// Where the tables stand.
const DOCUMENT: &str = "docs/upstreams.md";

/// Builds the gateway and hands everything to the driver; `--write` becomes the document's name.
///
/// # Errors
/// Anything that does not build, start or hold.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    run_command(command("python3").arg(driver(args)).args(written(args, DOCUMENT)))
}

fn driver(args: &[&str]) -> &'static str {
    let against = args.iter().any(|word| *word == "--against" || word.starts_with("--against="));
    if against { "bench/upstream_beside.py" } else { "bench/upstreams.py" }
}

#[cfg(test)]
mod tests {
    use crate::process::{command, run};

    #[test]
    fn the_document_is_what_is_written() {
        assert_eq!(super::written(&["--engine", "vllm", "--write"], super::DOCUMENT), ["--engine", "vllm", "--write", "docs/upstreams.md"]);
    }

    #[test]
    fn others_have_a_driver_of_their_own() {
        assert_eq!(super::driver(&["--engine", "vllm"]), "bench/upstreams.py");
        for args in [["--against", "litellm"].as_slice(), &["--against=litellm"]] {
            assert_eq!(super::driver(args), "bench/upstream_beside.py");
        }
    }

    #[test]
    fn the_drivers_read_judge_and_write() {
        for test in ["bench/test_upstreams.py", "bench/test_upstream_beside.py"] {
            run(command("python3").arg(test)).expect("its own tests pass");
        }
    }
}
