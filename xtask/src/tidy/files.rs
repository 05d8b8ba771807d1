//! The repository's text files, read once: what git tracks, and what it would.

use std::path::Path;

use anyhow::Context;

use crate::process::command;

/// A text file.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path from the root, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl File {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether all of it is test code.
    pub fn is_test(&self) -> bool {
        let parts: Vec<&str> = self.path.split('/').collect();
        parts.iter().any(|p| ["tests", "benches", "examples"].contains(p)) || self.path.ends_with("tests.rs")
    }

    /// The crate's folder name (`kv`, `xtask`), for what lies in one.
    pub fn krate(&self) -> Option<&str> {
        let rest = self.path.strip_prefix("crates/").unwrap_or(&self.path);
        rest.split_once('/').map(|(krate, _)| krate).filter(|k| self.path.starts_with("crates/") || *k == "xtask")
    }

    /// The lines before a test module begins, with their numbers from 1; all test code has none.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = if self.is_test() { 0 } else { usize::MAX };
        let inline_tests = |line: &&str| !(line.trim_start().starts_with("#[cfg(test)]"));
        self.text.lines().take(end).take_while(inline_tests).enumerate().map(|(i, line)| (i + 1, line))
    }

    /// The lines of test code.
    pub fn tests(&self) -> impl Iterator<Item = &str> {
        self.text.lines().skip(self.code().count())
    }
}

/// A line without strings and comments, as far as one line shows them.
pub fn bare(line: &str) -> String {
    let mut out = String::new();
    let mut string = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if string => {
                chars.next();
            }
            '"' => string = !string,
            '/' if !string && chars.peek() == Some(&'/') => break,
            _ if !string => out.push(c),
            _ => {}
        }
    }
    out
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    /// In the order of their paths.
    pub files: Vec<File>,
}

impl Repository {
    /// Reads what git tracks and what it does not ignore. Files that are no text are left out.
    ///
    /// # Errors
    /// No git, or an unreadable file.
    pub fn read(root: &Path) -> anyhow::Result<Repository> {
        let output =
            command("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).output().context("cannot run git")?;
        anyhow::ensure!(output.status.success(), "git ls-files: {}", output.status);
        let mut files = Vec::new();
        for path in String::from_utf8(output.stdout)?.split('\0').filter(|p| !p.is_empty()) {
            let full = root.join(path);
            // A file that was removed and not yet committed is listed and not there.
            if !full.is_file() {
                continue;
            }
            if let Ok(text) = String::from_utf8(std::fs::read(&full).with_context(|| full.display().to_string())?) {
                files.push(File { path: path.to_owned(), text });
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Repository { files })
    }

    /// The file at a path.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }

    /// The Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|f| f.is_rust())
    }
}
