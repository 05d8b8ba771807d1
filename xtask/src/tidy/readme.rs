//! What the documents tell a reader to type exists: `cargo xtask` commands here, those of `kvit` in that crate's own tests.

use super::files::Repository;

/// Documents with commands.
const DOCUMENTS: [&str; 3] = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"];
/// The rest of `cargo ...` that they may use.
const CARGO: [&str; 8] = ["run", "build", "test", "bench", "nextest", "fmt", "clippy", "insta"];

/// Every `cargo` line in a code block names something that exists.
pub fn check(repository: &Repository) -> Vec<String> {
    let mut problems = Vec::new();
    for name in DOCUMENTS {
        let Some(document) = repository.get(name) else {
            problems.push(format!("{name} is missing"));
            continue;
        };
        for line in commands(&document.text) {
            let words: Vec<&str> = line.split_whitespace().skip_while(|w| w.contains('=')).collect();
            let known = match words.as_slice() {
                ["cargo", "xtask", command, ..] => crate::USAGE.lines().any(|l| l.split_whitespace().next() == Some(command)),
                ["cargo", command, ..] => CARGO.contains(command),
                _ => true,
            };
            if !known {
                problems.push(format!("{name}: there is no `{line}`"));
            }
        }
    }
    problems
}

/// Lines of code blocks, without a prompt.
fn commands(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            lines.push(line.trim_start_matches("$ ").trim());
        }
    }
    lines
}
