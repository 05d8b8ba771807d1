//! The proof by simulation as CI runs it: explorer, simulator and museum, each a command of `kvit` that ends with one closing line.
//!
//! Invariant: a command that says nothing at its end has shown nothing, and counts as failed.

use anyhow::{Context, bail};

use crate::process::{command, listen_to_stdout, run as run_command};
use crate::test::kvit;

/// What is run, in this order.
const SHORT: [&[&str]; 3] = [&["sim", "explore"], &["sim", "--seeds", "20000", "--jobs", "2"], &["museum", "--check"]];
/// In the longer tier: more of the same, so that nothing is run twice.
const LONG: [&[&str]; 3] = [&["sim", "explore", "--large"], &["sim", "--seeds", "200000", "--jobs", "2"], &["museum", "--check"]];

/// The commands of a tier.
pub const fn commands(long: bool) -> [&'static [&'static str]; 3] {
    if long { LONG } else { SHORT }
}

/// Builds the binary that they are commands of.
///
/// # Errors
/// It does not build.
pub fn build() -> anyhow::Result<()> {
    run_command(command("cargo").args(["build", "--package", "kvit"]))
}

/// Runs one to its end; its closing line.
///
/// # Errors
/// It found something, or said nothing.
pub fn run(args: &[&str]) -> anyhow::Result<String> {
    let (said, well) = listen_to_stdout(command(kvit()).args(args))?;
    let closing = closing(&said);
    if !well {
        bail!("failed{}", closing.map(|line| format!(": {line}")).unwrap_or_default());
    }
    Ok(closing.context("no closing line")?.to_owned())
}

/// The last line that says anything.
fn closing(said: &str) -> Option<&str> {
    said.lines().rev().map(str::trim).find(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_is_the_last_that_says_anything() {
        assert_eq!(closing("met: 3\nsimulated 2 seeds: violations 0\n\n"), Some("simulated 2 seeds: violations 0"));
        assert_eq!(closing(" \n"), None);
    }

    #[test]
    fn both_tiers_run_explorer_simulator_and_museum() {
        for long in [false, true] {
            let heads: Vec<_> = commands(long).iter().map(|args| args[..2].join(" ")).collect();
            assert_eq!(heads, ["sim explore", "sim --seeds", "museum --check"]);
        }
    }
}
