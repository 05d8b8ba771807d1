//! Who may know whom: the crates' dependencies, and what the pure cores may not touch.

use super::files::{File, Repository, bare};

/// Each crate with the crates of this workspace that it may depend on.
const MAY_DEPEND: &[(&str, &[&str])] = &[
    ("lifecycle", &[]),
    ("kv", &["lifecycle"]),
    ("engine", &["lifecycle", "kv"]),
    ("model", &["lifecycle", "kv", "engine"]),
    ("observe", &["lifecycle"]),
    ("protocol", &["lifecycle"]),
    ("worker", &["lifecycle", "kv", "engine", "model", "observe", "protocol"]),
    ("store", &["lifecycle"]),
    ("gateway", &["lifecycle", "observe", "protocol", "store", "gpu"]),
    ("upstream", &["lifecycle", "observe", "gateway"]),
    // It judges from outside: nothing that it judges can be seen from it.
    ("verify", &["lifecycle", "observe", "protocol", "gpu"]),
    // What the driver says of this machine.
    ("gpu", &[]),
    ("sim", &["lifecycle", "kv", "engine"]),
    // It shows what the API says.
    ("top", &["lifecycle", "observe"]),
    (
        "kvit",
        &[
            "lifecycle",
            "kv",
            "engine",
            "model",
            "observe",
            "protocol",
            "worker",
            "store",
            "gateway",
            "upstream",
            "verify",
            "sim",
            "top",
            "gpu",
        ],
    ),
    ("xtask", &[]),
];
/// The crates that decide: no I/O, no async, no clock, no randomness, no locks.
const PURE: [&str; 3] = ["lifecycle", "kv", "engine"];
/// What a pure crate may take from outside the workspace. `bytes` is shared memory and nothing else: what passes unchanged is not copied.
const PURE_MAY_USE: [&str; 4] = ["thiserror", "indexmap", "smallvec", "bytes"];
/// What no line of a pure crate may name.
const IMPURE: [&str; 19] = [
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "std::net",
    "std::thread",
    "std::fs",
    "std::env",
    "std::io",
    "std::process",
    "std::sync::mpsc",
    "Mutex",
    "RwLock",
    "Condvar",
    "thread_local",
    "tokio",
    "async fn",
    ".await",
    "rand::",
];

/// Dependencies follow the floor plan; pure crates are pure.
pub fn check(repository: &Repository) -> Vec<String> {
    let mut problems = Vec::new();
    for manifest in repository.files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        let Some(krate) = manifest.krate() else { continue };
        match MAY_DEPEND.iter().find(|(name, _)| *name == krate) {
            Some((_, allowed)) => dependencies(manifest, krate, allowed, &mut problems),
            None => problems.push(format!("{}: the tidy test does not know what this crate may depend on", manifest.path)),
        }
    }
    for file in repository.rust().filter(|f| f.krate().is_some_and(|k| PURE.contains(&k))) {
        for (number, line) in file.code() {
            let bare = bare(line);
            if let Some(word) = IMPURE.iter().find(|word| bare.contains(**word)) {
                problems.push(format!("{}:{number}: a pure crate names `{word}`", file.path));
            }
        }
    }
    problems
}

fn dependencies(manifest: &File, krate: &str, allowed: &[&str], problems: &mut Vec<String>) {
    let parsed: toml::Table = match toml::from_str(&manifest.text) {
        Ok(table) => table,
        Err(error) => return problems.push(format!("{}: {error}", manifest.path)),
    };
    let ours = |name: &str| MAY_DEPEND.iter().any(|(ours, _)| *ours == name);
    for name in parsed.get("dependencies").and_then(toml::Value::as_table).into_iter().flat_map(|t| t.keys()) {
        if ours(name) && !allowed.contains(&name.as_str()) {
            problems.push(format!("{}: {krate} must not depend on {name}", manifest.path));
        }
        if !ours(name) && PURE.contains(&krate) && !PURE_MAY_USE.contains(&name.as_str()) {
            problems.push(format!("{}: {krate} is pure and must not depend on {name}", manifest.path));
        }
    }
    // Tests may look further, but never up an arrow that would close a circle of knowledge.
    for name in parsed.get("dev-dependencies").and_then(toml::Value::as_table).into_iter().flat_map(|t| t.keys()) {
        let forbidden: &[&str] = match krate {
            "gateway" => &["engine", "kv", "model", "worker"],
            "worker" => &["gateway"],
            _ => &[],
        };
        if forbidden.contains(&name.as_str()) {
            problems.push(format!("{}: even the tests of {krate} must not see {name}", manifest.path));
        }
    }
}
