//! What no file of the repository says: a path of one machine, a registry's host, a promise to do something later.

use super::files::Repository;

/// Pieces that are put together here, so that this file does not break its own rule.
const FORBIDDEN: &[(&[&str], &str)] = &[
    (&["/ro", "ot/"], "a machine's path"),
    (&["/wo", "rk/"], "a machine's path"),
    (&["/ho", "me/"], "a machine's path"),
    (&["crates", ".io"], "a registry's host"),
    (&["py", "pi.org"], "a registry's host"),
    (&["pythonhosted", ".org"], "a registry's host"),
    (&["registry.npm", "js.org"], "a registry's host"),
    (&["TO", "DO"], "work left undone"),
    (&["FIX", "ME"], "work left undone"),
];
/// Cargo writes its registry's name there.
const EXEMPT: [&str; 1] = ["Cargo.lock"];

/// No file says any of it.
pub fn check(repository: &Repository) -> Vec<String> {
    let mut problems = Vec::new();
    for file in repository.files.iter().filter(|f| !EXEMPT.contains(&f.path.as_str())) {
        for (pieces, what) in FORBIDDEN {
            let word = pieces.concat();
            for (number, _) in file.text.lines().enumerate().filter(|(_, line)| line.contains(&word)) {
                problems.push(format!("{}:{}: `{word}` is {what}", file.path, number + 1));
            }
        }
    }
    problems
}
