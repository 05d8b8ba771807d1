//! The house's rules that a machine can check. `cargo xtask tidy` prints what breaks them; a test of this crate demands that nothing does.
//!
//! Each rule is a function from the repository's files to sentences; an empty list is the only good answer.

mod contract;
mod example;
mod files;
mod imports;
mod readme;
mod reports;
mod shape;
mod words;

use files::Repository;

/// Prints every broken rule.
///
/// # Errors
/// A rule is broken, or the repository cannot be read.
pub fn run() -> anyhow::Result<()> {
    let problems = problems(&Repository::read(&crate::root())?);
    for problem in &problems {
        println!("{problem}");
    }
    anyhow::ensure!(problems.is_empty(), "{} rules are broken", problems.len());
    println!("tidy");
    Ok(())
}

fn problems(repository: &Repository) -> Vec<String> {
    let rules = [shape::check, imports::check, contract::check, words::check, readme::check, reports::check, example::check];
    rules.iter().flat_map(|rule| rule(repository)).collect()
}

#[cfg(test)]
mod tests;
