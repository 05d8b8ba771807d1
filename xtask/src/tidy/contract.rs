//! The contract's clauses: each is kept by code and shown by a test, or stands in the list of what is not built yet.
//!
//! Code and tests cite a clause in a comment, `contract: C-16` or `contract: C-16 C-17`. The list shrinks: a clause that both cite may no
//! longer stand in it.

use std::collections::BTreeSet;

use super::files::Repository;

/// The project's copy of the contract.
const CONTRACT: &str = "docs/contract.md";
/// Heading of the list of clauses that nothing keeps yet.
const NOT_BUILT: &str = "## Not built yet";

/// Every clause is built and tested, or listed.
pub fn check(repository: &Repository) -> Vec<String> {
    let Some(contract) = repository.get(CONTRACT) else { return vec![format!("{CONTRACT} is missing")] };
    let (clauses, list) = contract.text.split_once(NOT_BUILT).unwrap_or((&contract.text, ""));
    let section = list.split("\n## ").next().unwrap_or_default();
    let clauses = leading(clauses);
    let listed = leading(section);
    let mut problems = Vec::new();
    let (mut code, mut tests) = (BTreeSet::new(), BTreeSet::new());
    for file in repository.rust() {
        file.code().for_each(|(_, line)| code.extend(cited(line)));
        file.tests().for_each(|line| tests.extend(cited(line)));
    }
    for file in repository.files.iter().filter(|f| f.path.ends_with(".py") && f.path.starts_with("tests/")) {
        file.text.lines().for_each(|line| tests.extend(cited(line)));
    }
    for unknown in code.union(&tests).chain(&listed).filter(|c| !clauses.contains(c)) {
        problems.push(format!("C-{unknown} is cited or listed, and {CONTRACT} has no such clause"));
    }
    for clause in &clauses {
        match (code.contains(clause), tests.contains(clause), listed.contains(clause)) {
            (true, true, true) => problems.push(format!("C-{clause} is cited by code and by a test: strike it from `{NOT_BUILT}`")),
            (false, _, false) => problems.push(format!("C-{clause} is cited by no code and not listed under `{NOT_BUILT}`")),
            (_, false, false) => problems.push(format!("C-{clause} is cited by no test and not listed under `{NOT_BUILT}`")),
            _ => {}
        }
    }
    problems
}

/// Clauses that lines begin with: `- **C-12** ...` or `- C-12: ...`.
fn leading(text: &str) -> BTreeSet<u32> {
    text.lines().filter_map(|l| number(l.strip_prefix("- ")?.trim_start_matches('*').strip_prefix("C-")?)).collect()
}

/// Clauses that a comment on this line cites.
fn cited(line: &str) -> Vec<u32> {
    let Some((before, after)) = line.split_once("contract:") else { return Vec::new() };
    if !(before.contains("//") || before.contains('#')) {
        return Vec::new();
    }
    let words = after.split([' ', ',', ';', '.', ':', ')']);
    words.filter_map(|w| w.strip_prefix("C-")).filter_map(number).collect()
}

fn number(text: &str) -> Option<u32> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::files::File;
    use super::*;

    fn repository(code: &str, test: &str, contract: &str) -> Repository {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        Repository { files: vec![file("crates/kv/src/a.rs", code), file("crates/kv/tests/it/main.rs", test), file(CONTRACT, contract)] }
    }

    #[test]
    fn a_clause_is_built_and_tested_or_listed() {
        let contract = "- **C-1** one\n- **C-2** two\n\n## Not built yet\n- C-2: later\n";
        assert_eq!(check(&repository("// contract: C-1\n", "// contract: C-1, C-7\n", contract)).len(), 1, "C-7 is unknown");
        assert!(check(&repository("// contract: C-1\n", "// contract: C-1\n", contract)).is_empty());
        let no_test = check(&repository("// contract: C-1\n", "", contract));
        assert!(no_test.len() == 1 && no_test[0].contains("C-1 is cited by no test"), "{no_test:?}");
        let no_code = check(&repository("let x = \"contract: C-1\";", "// contract: C-1", contract));
        assert!(no_code.len() == 1 && no_code[0].contains("C-1 is cited by no code"), "{no_code:?}");
    }

    #[test]
    fn the_list_shrinks() {
        let contract = "- **C-1** one\n\n## Not built yet\n- C-1: later\n";
        let struck = check(&repository("// contract: C-1\n", "// contract: C-1\n", contract));
        assert!(struck.len() == 1 && struck[0].contains("strike it"), "{struck:?}");
        assert!(check(&repository("// contract: C-1\n", "", contract)).is_empty(), "begun is not built");
    }
}
