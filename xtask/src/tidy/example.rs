//! The worker in examples/python-worker is two small files, so that a stranger reads all of it: the worker, and what any worker needs.
//!
//! Invariant: their lines are counted as its README's command counts them: blank ones and comments are none.

use super::files::Repository;

/// Where it lies, and the only Python there.
const FOLDER: &str = "examples/python-worker/";
/// Its files, and most lines of each.
const FILES: [(&str, usize); 2] = [("worker.py", 138), ("lanes.py", 123)];
/// Most characters of one of its lines, so that its lines are not few because they are long.
const COLUMNS_MAX: usize = 110;

/// It is these files, they are there, and they are small.
pub fn check(repository: &Repository) -> Vec<String> {
    let is_one = |path: &str| FILES.iter().any(|(name, _)| path.strip_prefix(FOLDER) == Some(name));
    let others = repository.files.iter().filter(|f| f.path.starts_with(FOLDER) && f.path.ends_with(".py") && !is_one(&f.path));
    let mut problems: Vec<String> = others.map(|f| format!("{}: the example is worker.py and lanes.py", f.path)).collect();
    for (name, lines_max) in FILES {
        let path = format!("{FOLDER}{name}");
        match repository.get(&path) {
            Some(file) => problems.extend(size(&path, &file.text, lines_max)),
            None => problems.push(format!("{path} is missing")),
        }
    }
    problems
}

/// What is too large in one of them.
fn size(path: &str, text: &str, lines_max: usize) -> Vec<String> {
    let mut problems = Vec::new();
    let is_code = |line: &&str| !line.trim_start().is_empty() && !line.trim_start().starts_with('#');
    let lines = text.lines().filter(is_code).count();
    if lines > lines_max {
        problems.push(format!("{path}: {lines} lines without blank ones and comments, at most {lines_max} are allowed"));
    }
    let wide = text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
    problems.extend(wide.map(|(i, _)| format!("{path}:{}: more than {COLUMNS_MAX} characters in a line", i + 1)));
    problems
}
