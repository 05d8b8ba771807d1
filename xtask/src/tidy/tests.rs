//! The repository keeps its rules, and each rule notices what breaks it.

use super::files::{File, Repository, bare};
use super::*;

fn with(path: &str, text: &str) -> Repository {
    Repository { files: vec![File { path: path.to_owned(), text: text.to_owned() }] }
}

#[test]
fn the_repository_is_tidy() {
    let problems = problems(&Repository::read(&crate::root()).unwrap());
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}

#[test]
fn a_long_file_and_a_missing_header_are_noticed_and_tests_do_not_count() {
    let long = format!("//! x\n{}", "let x = 1;\n".repeat(400));
    assert_eq!(shape::check(&with("crates/kv/src/a.rs", &long)).len(), 1);
    assert!(shape::check(&with("crates/kv/tests/it/main.rs", &long)).is_empty());
    let with_tests = format!("//! x\n#[cfg(test)]\n{}", "let x = 1;\n".repeat(400));
    assert!(shape::check(&with("crates/kv/src/a.rs", &with_tests)).is_empty());
    assert_eq!(shape::check(&with("crates/kv/src/a.rs", "fn f() {}\n")).len(), 1);
}

#[test]
fn a_python_worker_that_grows_is_noticed() {
    let folder = |texts: [(&str, String); 2]| {
        let file = |(name, text): (&str, String)| File { path: format!("examples/python-worker/{name}"), text };
        Repository { files: texts.map(file).into() }
    };
    let grown = |worker: String, lanes: String| example::check(&folder([("worker.py", worker), ("lanes.py", lanes)])).len();
    let lines = |line: &str, times: usize| line.repeat(times);
    assert_eq!(grown(lines("x = 1\n", 138), lines("x = 1\n", 123)), 0);
    assert_eq!((grown(lines("x = 1\n", 139), String::new()), grown(String::new(), lines("x = 1\n", 124))), (1, 1), "each has its number");
    assert_eq!(grown(lines("    # why\n\n", 1000), lines("# why\n", 1000)), 0, "comments and blank lines are none");
    let wide = format!("x = {}\n", "1".repeat(107));
    assert_eq!(grown(lines(&wide, 2), wide), 3, "and they do not grow sideways");
    assert_eq!(example::check(&with("README.md", "")).len(), 2, "they are there");
    let mut three = folder([("worker.py", String::new()), ("lanes.py", String::new())]);
    three.files.extend(with("examples/python-worker/more.py", "y = 1\n").files);
    assert_eq!(example::check(&three).len(), 1, "and nothing of it is elsewhere");
}

#[test]
fn unsafe_stands_in_kernels_only() {
    let text = "//! x\nunsafe { f() }\n";
    assert_eq!(shape::check(&with("crates/kv/src/a.rs", text)).len(), 1);
    assert!(shape::check(&with("crates/model/src/kernel/simd.rs", text)).is_empty());
    assert!(shape::check(&with("crates/gateway/src/socket.rs", text)).is_empty());
    assert_eq!(shape::check(&with("crates/gateway/src/conn.rs", text)).len(), 1);
    assert!(shape::check(&with("crates/kv/src/a.rs", "//! x\n// unsafe in a comment\nlet s = \"unsafe\";\n")).is_empty());
}

#[test]
fn a_dependency_up_an_arrow_is_noticed() {
    let toml = "[dependencies]\nengine.workspace = true\n";
    assert_eq!(imports::check(&with("crates/gateway/Cargo.toml", toml)).len(), 1);
    assert!(imports::check(&with("crates/worker/Cargo.toml", toml)).is_empty());
    assert_eq!(imports::check(&with("crates/worker/Cargo.toml", "[dev-dependencies]\ngateway.workspace = true\n")).len(), 1);
    assert_eq!(imports::check(&with("crates/kv/Cargo.toml", "[dependencies]\nrand = \"0.9\"\n")).len(), 1);
    assert_eq!(imports::check(&with("crates/fresh/Cargo.toml", "")).len(), 1, "an unknown crate has no permission");
}

#[test]
fn a_clock_in_a_pure_crate_is_noticed_and_in_its_tests_it_is_not() {
    let text = "//! x\nuse std::time::Instant;\n";
    assert_eq!(imports::check(&with("crates/engine/src/a.rs", text)).len(), 1);
    assert!(imports::check(&with("crates/engine/src/a/tests.rs", text)).is_empty());
    assert!(imports::check(&with("crates/worker/src/a.rs", text)).is_empty());
    assert!(imports::check(&with("crates/engine/src/a.rs", "//! x\n// no tokio here\nuse std::time::Duration;\n")).is_empty());
}

#[test]
fn machine_paths_hosts_and_unfinished_work_are_noticed() {
    for word in [["/ro", "ot/x"].concat(), ["crates", ".io"].concat(), ["TO", "DO: later"].concat()] {
        assert_eq!(words::check(&with("README.md", &word)).len(), 1, "{word}");
        assert!(words::check(&with("Cargo.lock", &word)).is_empty());
    }
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    let missing = |text: &str| readme::check(&with("README.md", text)).into_iter().filter(|p| p.contains("there is no")).count();
    assert_eq!(missing("```\ncargo xtask tset\n```"), 1);
    assert_eq!(missing("```\n$ cargo xtask test --long\ncargo run --release -- serve\n```"), 0);
    assert_eq!(missing("cargo xtask tset in prose"), 0);
}

#[test]
fn a_bare_line_has_no_strings_and_comments() {
    assert_eq!(bare("let a = \"x // y\\\" z\"; // c"), "let a = ; ");
}
