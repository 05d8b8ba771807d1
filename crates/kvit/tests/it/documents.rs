//! The documents tell the truth: the reference is the program's own, and each command that they show exists.

use super::run;

const CONFIG: &str = include_str!("../../../../docs/config.md");
const DOCUMENTS: [(&str, &str); 7] = [
    ("README.md", include_str!("../../../../README.md")),
    ("CONTRIBUTING.md", include_str!("../../../../CONTRIBUTING.md")),
    ("ARCHITECTURE.md", include_str!("../../../../ARCHITECTURE.md")),
    ("docs/diagnose.md", include_str!("../../../../docs/diagnose.md")),
    ("docs/journal.md", include_str!("../../../../docs/journal.md")),
    ("docs/protocol.md", include_str!("../../../../docs/protocol.md")),
    ("docs/verify.md", include_str!("../../../../docs/verify.md")),
];

#[test]
fn the_reference_is_what_the_program_prints() {
    let said = run(&["config"]);
    assert_eq!(said.out, CONFIG, "write it anew: cargo run -- config > docs/config.md");
}

#[test]
fn every_command_in_the_documents_exists_with_its_flags() {
    let mut seen = 0;
    for (name, text) in DOCUMENTS {
        for line in commands(text) {
            let words: Vec<&str> = line.split_whitespace().take_while(|w| !["#", "|", ">"].contains(w)).collect();
            let args = match words.as_slice() {
                ["kvit", args @ ..] => args,
                ["cargo", "run", rest @ ..] => rest.iter().position(|w| *w == "--").map_or(&[][..], |at| &rest[at + 1..]),
                _ => continue,
            };
            seen += 1;
            check(name, line, args);
        }
    }
    assert!(seen >= 8, "{seen} commands");
}

/// Follows the subcommands down, then looks each flag up in the help that is reached.
fn check(name: &str, line: &str, args: &[&str]) {
    let mut path: Vec<&str> = Vec::new();
    let mut help = run(&["--help"]).out;
    for word in args.iter().take_while(|w| !w.starts_with('-')) {
        let subcommand = help.lines().any(|l| l.starts_with("  ") && l.split_whitespace().next() == Some(word));
        if !subcommand {
            assert!(!path.is_empty() && help.contains('['), "{name}: there is no `{word}` in `{line}`");
            break;
        }
        path.push(word);
        let said = run(&[path.as_slice(), &["--help"]].concat());
        assert_eq!(said.code, 0, "{name}: {line}");
        help = said.out;
    }
    assert!(!path.is_empty(), "{name}: `{line}` names no command");
    for flag in args.iter().filter(|w| w.starts_with("--")) {
        let flag = flag.split('=').next().unwrap();
        assert!(help.split([' ', '\n', ',']).any(|w| w == flag), "{name}: there is no `{flag}` for `{line}`");
    }
}

/// Lines of code blocks, without a prompt.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```").skip(1).step_by(2);
    blocks.flat_map(|block| block.lines().skip(1)).map(|line| line.trim_start_matches("$ ").trim()).collect()
}
