//! Sizes and headers of Rust files, and where `unsafe` may stand.

use super::files::{Repository, bare};

/// Most lines of a file, tests aside.
const LINES_MAX: usize = 400;
/// Where `unsafe` may stand: the kernels, the threads and the memory that they share, the one line that maps the model file, and the system
/// calls that look at a socket.
const UNSAFE_IN: [&str; 7] = [
    "crates/model/src/kernel/",
    "crates/model/src/kernel.rs",
    "crates/model/src/arch/",
    "crates/model/src/threads.rs",
    "crates/model/src/kv_memory.rs",
    "crates/model/src/gguf/mod.rs",
    "crates/gateway/src/socket.rs",
];

/// Files are short, open with `//!`, and are safe.
pub fn check(repository: &Repository) -> Vec<String> {
    let mut problems = Vec::new();
    for file in repository.rust() {
        let lines = file.code().count();
        if lines > LINES_MAX {
            problems.push(format!("{}: {lines} lines without its tests, at most {LINES_MAX} are allowed", file.path));
        }
        if !file.text.starts_with("//!") {
            problems.push(format!("{}: does not open with a `//!` header", file.path));
        }
        if UNSAFE_IN.iter().any(|place| file.path.starts_with(place)) {
            continue;
        }
        for (number, line) in file.text.lines().enumerate() {
            if bare(line).split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe") {
                problems.push(format!("{}:{}: unsafe stands outside the files that may have it", file.path, number + 1));
            }
        }
    }
    problems
}
