//! `kvit conformance`: kvit's own worker keeps the protocol, case by case; and what the command says where nothing can be judged.
// contract: C-2, C-3, C-8, C-9, C-10, C-11, C-12, C-13, C-15, C-22, C-23, C-31

use serde_json::Value;

use crate::run;
use crate::server::lasting_model;
use crate::worker::Process;

/// A lease and a question that a test can wait for.
const SHORT: [&str; 4] = ["--lease-ms", "2500", "--ask-every-ms", "1000"];

#[test]
fn kvits_own_worker_keeps_the_protocol() {
    let worker = Process::start(&lasting_model(), &SHORT);
    let said = run(&["conformance", &worker.address, "--drain", "--json", "--patience-ms", "60000"]);
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {} {}", said.out, said.err));
    let cases = report["cases"].as_array().expect("a list");
    let not_passed: Vec<&Value> = cases.iter().filter(|case| case["verdict"] != "pass").collect();
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    assert_eq!((said.code, report["passed"].as_u64()), (0, Some(cases.len() as u64)));
    let listed = run(&["conformance", "--list"]).out.lines().count();
    assert_eq!(cases.len(), listed, "every case was judged");
    assert!(listed >= 60, "{listed} cases");
}

#[test]
fn a_table_closes_with_one_line_of_figures_and_says_what_was_left_out() {
    let worker = Process::start(&lasting_model(), &SHORT);
    let said = run(&["conformance", &worker.address, "--quick", "--only", "hello/"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    let last = said.out.lines().last().unwrap_or_default();
    assert!(last.starts_with("conformance: 8 passed, 0 failed, 1 skipped in "), "{last}");
    assert!(said.out.contains("skipped hello/no_hello") && said.out.contains("--quick"), "{}", said.out);
}

#[test]
fn nothing_that_can_be_judged_is_told_by_the_exit_code() {
    let nobody = run(&["conformance", "127.0.0.1:1"]);
    assert_eq!(nobody.code, 4, "{}", nobody.err);
    assert!(nobody.err.contains("no worker answers at 127.0.0.1:1"), "{}", nobody.err);
    assert_eq!(run(&["conformance", "127.0.0.1:1", "--only", "no such case"]).code, 2);
    assert_eq!(run(&["conformance", "no address"]).code, 2);
    assert_eq!(run(&["conformance"]).code, 2);
}
