//! The field reports: each that docs/field-reports.md says a test shows is cited by one, and none is cited that it does not list.

use std::collections::BTreeSet;

use super::files::Repository;

/// Lists them.
const REPORTS: &str = "docs/field-reports.md";
/// Heading of those that tests cite.
const SHOWN: &str = "## Shown by tests";

/// Citations and the list agree.
pub fn check(repository: &Repository) -> Vec<String> {
    let Some(reports) = repository.get(REPORTS) else { return vec![format!("{REPORTS} is missing")] };
    let Some((_, list)) = reports.text.split_once(SHOWN) else { return vec![format!("{REPORTS} has no section `{SHOWN}`")] };
    let (shown, others) = list.split_once("\n## ").unwrap_or((list, ""));
    let (shown, others) = (numbers(shown), numbers(others));
    let mut cited = BTreeSet::new();
    for file in &repository.files {
        match (file.is_rust(), file.path.starts_with("tests/")) {
            (true, _) => file.tests().for_each(|line| cited.extend(citations(line))),
            (false, true) => file.text.lines().for_each(|line| cited.extend(citations(line))),
            _ => {}
        }
    }
    let line = |n: &u32, what: &str| format!("F-{n:02} {what}");
    let missing = shown.difference(&cited).map(|n| line(n, &format!("stands under `{SHOWN}` of {REPORTS}, and no test cites it")));
    let unlisted = cited.difference(&shown).map(|n| line(n, &format!("is cited by a test: list it under `{SHOWN}` of {REPORTS}")));
    let both = shown.intersection(&others).map(|n| line(n, &format!("stands in two lists of {REPORTS}")));
    missing.chain(unlisted).chain(both).collect()
}

/// Cases that a line cites: `field: F-01, F-02`.
fn citations(line: &str) -> BTreeSet<u32> {
    let comment = line.split_once("field").filter(|(before, _)| !before.contains('"'));
    comment.and_then(|(_, rest)| rest.strip_prefix([':', ' '])).map(numbers).unwrap_or_default()
}

/// Every `F-12` in a text.
fn numbers(text: &str) -> BTreeSet<u32> {
    let digits = |rest: &str| rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
    text.split("F-").skip(1).filter_map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::File;
    use super::*;

    fn problems(test: &str, reports: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        check(&Repository { files: vec![file("crates/kv/tests/it/main.rs", test), file(REPORTS, reports)] })
    }

    #[test]
    fn what_tests_cite_is_listed_and_what_is_listed_is_cited() {
        let list = "## Shown by tests\nF-01, F-13\n\n## Cannot occur\n| F-07 | why |\n";
        assert!(problems("// contract: C-1  field: F-01, F-13\n", list).is_empty());
        assert_eq!(
            problems("// field: F-01\n", list),
            ["F-13 stands under `## Shown by tests` of docs/field-reports.md, and no test cites it"]
        );
        assert_eq!(problems("// field: F-01 F-13 F-07\n", list).len(), 1, "cited, and stated to be impossible");
        assert_eq!(
            problems("// field: F-01 F-13 F-80\n", list),
            ["F-80 is cited by a test: list it under `## Shown by tests` of docs/field-reports.md"]
        );
    }
}
