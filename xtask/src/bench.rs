//! `cargo xtask bench`: kvit against llama.cpp, in one run.

use crate::process::{command, run as run_command};
use crate::test::model;

/// Builds the release binary and hands everything to bench/llama_cpp.py.
///
/// # Errors
/// Anything that does not build, start or measure.
pub fn run(args: &[&str]) -> anyhow::Result<()> {
    let model = model()?;
    run_command(command("cargo").args(["build", "--release", "--package", "kvit"]))?;
    let ours = format!("target/release/kvit bench forward --repeats 3 --json --model {}", model.display());
    run_command(command("python3").arg("bench/llama_cpp.py").args(["--ours-cmd", &ours]).args(args))
}

#[cfg(test)]
mod tests {
    use crate::process::{command, run};

    #[test]
    fn the_benchmark_says_what_is_wrong_and_holds_to_a_ratio() {
        run(command("python3").arg("bench/test_llama_cpp.py")).expect("its own tests pass");
    }
}
