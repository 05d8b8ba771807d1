//! The worker in examples/python-worker is one small file, so that a stranger reads all of it.
//!
//! Invariant: its lines are counted as its README's command counts them: blank ones and comments are none.

use super::files::Repository;

/// Where it lies, and the only Python there.
const FOLDER: &str = "examples/python-worker/";
const WORKER: &str = "examples/python-worker/worker.py";
/// Most lines of it.
const LINES_MAX: usize = 232;
/// Most characters of one of its lines, so that its lines are not few because they are long.
const COLUMNS_MAX: usize = 110;

/// It is one file, it is there, and it is small.
pub fn check(repository: &Repository) -> Vec<String> {
    let Some(worker) = repository.get(WORKER) else { return vec![format!("{WORKER} is missing")] };
    let mut problems = Vec::new();
    let others = repository.files.iter().filter(|f| f.path.starts_with(FOLDER) && f.path.ends_with(".py") && f.path != WORKER);
    problems.extend(others.map(|f| format!("{}: the example is one file", f.path)));
    let is_code = |line: &&str| !line.trim_start().is_empty() && !line.trim_start().starts_with('#');
    let lines = worker.text.lines().filter(is_code).count();
    if lines > LINES_MAX {
        problems.push(format!("{WORKER}: {lines} lines without blank ones and comments, at most {LINES_MAX} are allowed"));
    }
    let wide = worker.text.lines().enumerate().filter(|(_, line)| line.chars().count() > COLUMNS_MAX);
    problems.extend(wide.map(|(i, _)| format!("{WORKER}:{}: more than {COLUMNS_MAX} characters in a line", i + 1)));
    problems
}
