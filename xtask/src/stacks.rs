//! `cargo xtask stacks`: `kvit verify` in front of the stacks that people run, and docs/stacks.md says what it found.
//!
//! Invariant: the matrix in the document is what the last successful run with `--write` printed.

use crate::process::{command, run as run_command, written};
use crate::test::Count;

/// Where the matrix stands.
const DOCUMENT: &str = "docs/stacks.md";

/// Builds what is asked and hands everything to bench/stacks/run.py; `--write` becomes the document's name.
///
/// # Errors
/// Anything that does not build or start, and any verdict that is not as it is known to be.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))?;
    if scripted(args) {
        run_command(command("cargo").args(["build", "--package", "verify", "--example", "scripted"]))?;
    }
    run_command(command("python3").arg("bench/stacks/run.py").args(written(args, DOCUMENT)))
}

/// What every test run judges: the scripted engine, alone and behind nginx and haproxy, and `kvit serve`; then a real llama-server, alone,
/// behind them and behind `kvit gateway`. Each counts as one test. A machine that does something else for a moment shows a stack as it is not:
/// one that is not as it is known is judged again, and the log has both.
///
/// # Errors
/// As [`run`], or a llama-server that cannot be built.
pub fn quick(engine: Quick, model: &std::path::Path) -> anyhow::Result<Count> {
    let args = ["--quick", "--retry", "--engine"];
    match engine {
        Quick::Scripted => run(&[&args[..], &["scripted"]].concat())?,
        Quick::Llama => {
            run_command(command("cargo").args(["build", "--package", "kvit"]))?;
            run_command(command("python3").args([LLAMA, "--build"]))?;
            let server = format!("python3 {LLAMA}");
            let behind = ["llamacpp", "--server-cmd", &server, "alone", "nginx", "haproxy", "haproxy-tuned", "kvit-gateway"];
            let mut driver = command("python3");
            run_command(driver.arg("bench/stacks/run.py").args(&args[1..]).args(behind).env("KVIT_TEST_MODEL", model))?;
        }
    }
    Ok(Count { passed: 1, failed: 0 })
}

/// In front of what the quick part stands.
#[derive(Clone, Copy, Debug)]
pub enum Quick {
    /// The scripted engine, and `kvit serve`.
    Scripted,
    /// A llama-server that is built for this machine.
    Llama,
}

/// Builds and starts it.
const LLAMA: &str = "bench/llama_cpp_server.py";

/// Whether the scripted engine is asked for.
fn scripted(args: &[&str]) -> bool {
    args.windows(2).any(|two| two == ["--engine", "scripted"]) || args.contains(&"--engine=scripted")
}

#[cfg(test)]
mod tests {
    use crate::process::{command, run};

    #[test]
    fn the_document_is_what_is_written() {
        assert_eq!(super::written(&["nginx", "--twice", "--write"], super::DOCUMENT), ["nginx", "--twice", "--write", "docs/stacks.md"]);
    }

    #[test]
    fn the_scripted_engine_is_built_only_if_it_is_asked_for() {
        assert!(super::scripted(&["nginx", "--engine", "scripted"]) && super::scripted(&["--engine=scripted"]));
        assert!(!super::scripted(&["--engine", "vllm", "--reports", "scripted"]));
    }

    #[test]
    fn the_driver_knows_judges_and_writes() {
        run(command("python3").arg("bench/stacks/test_stacks.py")).expect("its own tests pass");
    }
}
