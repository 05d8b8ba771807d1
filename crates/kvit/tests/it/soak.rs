//! `kvit soak`: against a server of its own it finds nothing; against one that leaks, whatever it leaks, it says so with exit code 1.
// contract: C-12, C-13, C-14, C-15, C-24
// field: F-45, F-51, F-58

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::leaky::{Leak, Leaky};
use crate::server::{PATIENCE, real_model, tiny_model};
use crate::{Said, kvit, run, said};

fn soak(args: &[&str]) -> Said {
    let cache = tempfile::tempdir().unwrap();
    said(kvit(cache.path(), &[&["soak"], args].concat()).output().unwrap())
}

fn json(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {}\n{}", said.out, said.err))
}

/// Values of a row at each rest.
fn row(report: &Value, name: &str) -> Vec<f64> {
    let rows = report["rows"].as_array().expect("rows");
    let row = rows.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("no row `{name}`"));
    assert_eq!(row["growth"], Value::Null, "{row}");
    row["values"].as_object().expect("values").values().map(|v| v.as_f64().expect("a number")).collect()
}

/// A soak of a server of its own, with everything that it must have found; prints its table.
fn clean(model: &Path, [sequential, concurrent]: [u64; 2], more: &[&str], blocks: &str) {
    let (n, m) = (sequential.to_string(), concurrent.to_string());
    let model = model.to_str().expect("a path is text");
    let own = ["--serve", "--model", model, "--sequential", &n, "--concurrent", &m, "--json"];
    let said = soak(&[&own, more, &["--", "--max-running", "4", "--queue-limit", "1024", "--kv-blocks", blocks]].concat());
    let report = json(&said);
    println!("{report:#}");
    assert_eq!((said.code, &report["wrong"]), (0, &serde_json::json!([])), "{}", said.err);
    // Nothing went unjudged: kvit shows all that a soak looks at.
    assert_eq!((&report["growth"], &report["not_judged"]), (&Value::Bool(false), &serde_json::json!([])));
    let total: f64 = blocks.parse().expect("a number");
    assert!(row(&report, "free + cached").iter().all(|n| *n == total));
    for zero in ["active", "draining", "quarantined", "worker's tables", "tombstones", "gateway's calls", "live run views", "defects"] {
        assert!(row(&report, zero).iter().all(|n| *n == 0.0), "{zero}");
    }
    for (part, wanted) in report["parts"].as_array().expect("parts").iter().zip([sequential, concurrent]) {
        let count = |key: &str, is: &str| -> u64 {
            let list = part[if key == "outcome" { "ends" } else { "phases" }].as_array().expect("a list");
            list.iter().filter(|e| e[key] == is).map(|e| e["runs"].as_u64().unwrap_or(0)).sum()
        };
        assert!(count("outcome", "cancelled") >= wanted, "{part}");
        assert!(part["after_receipt_max"].as_u64() <= Some(1), "{part}");
        for phase in ["queued", "prefill", "decode"] {
            assert!(count("seen", phase) > 0, "{phase}: {part}");
        }
    }
}

#[test]
fn of_the_tiny_model_leaves_nothing() {
    clean(&tiny_model(), [300, 200], &["--tokens", "120", "--prompt-tokens", "400"], "512");
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn long_ten_thousand_in_a_row_and_two_thousand_at_once_on_the_tiny_model() {
    clean(&tiny_model(), [10_000, 2_000], &["--tokens", "64", "--prompt-tokens", "200", "--in-flight", "64"], "512");
}

#[test]
#[ignore = "takes minutes: cargo xtask test --long"]
fn long_real_a_thousand_cancels() {
    clean(&real_model(), [500, 500], &["--tokens", "48", "--prompt-tokens", "128", "--in-flight", "16"], "256");
}

/// The same server without a leak is found clean, so it is the leak that is found and not the simulation.
#[test]
fn of_a_simulated_server_without_a_leak_finds_nothing() {
    let leaky = Leaky::start(Leak::Nothing);
    let said = soak(&[&leaky.url(), "--sequential", "40", "--concurrent", "40", "--warm-up", "20", "--in-flight", "4"]);
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.contains("no growth") && !said.out.contains("GROWTH"), "{}", said.out);
    assert!(!said.out.contains('\u{1b}'), "no colour into a pipe");
}

#[test]
fn of_a_server_that_leaks_is_exit_code_1_and_names_what_grew() {
    let leaks = [
        (Leak::Block, "active"),
        (Leak::LostBlock, "free + cached"),
        (Leak::Call, "gateway's calls"),
        (Leak::Owner, "worker's tables"),
        (Leak::Task, "tasks"),
        (Leak::Descriptor, "descriptors"),
        (Leak::Memory, "RSS without pool, MiB"),
        (Leak::OtherAnswers, "answers"),
        (Leak::LateTokens, "sequential"),
    ];
    // Most of the time each waits in vain for its server to come to rest.
    std::thread::scope(|scope| leaks.into_iter().for_each(|(leak, row)| drop(scope.spawn(move || finds(leak, row)))));
}

fn finds(leak: Leak, row: &str) {
    let leaky = Leaky::start(leak);
    let url = leaky.url();
    let args = ["--sequential", "40", "--concurrent", "40", "--warm-up", "20", "--in-flight", "4", "--patience-ms", "3000", "--json"];
    let said = soak(&[&[url.as_str()], &args[..]].concat());
    assert_eq!(said.code, 1, "{leak:?}: {}{}", said.out, said.err);
    let report = json(&said);
    let wrong: Vec<&str> = report["wrong"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(wrong.iter().any(|w| w.starts_with(row)), "{leak:?}: {wrong:?}");
    // One leak is one finding, of nothing else; a block that is active is told from both sides.
    assert!(wrong.len() <= 2, "{leak:?}: {wrong:?}");
    assert!(said.err.contains("kvit: soak: "), "{}", said.err);
}

/// A soak that is told to end takes its server along.
#[test]
fn told_to_end_ends_its_server() {
    let cache = tempfile::tempdir().unwrap();
    let model = tiny_model();
    let args = ["soak", "--serve", "--model", model.to_str().expect("a path is text"), "--sequential", "100000000"];
    let mut child = kvit(cache.path(), &args).stderr(std::process::Stdio::piped()).spawn().expect("kvit starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.any(|l| l.starts_with("warm-up:")), "it soaks");
    let id = child.id().to_string();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("the system tells");
    let server = children.split_whitespace().next().expect("it has a server").to_owned();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    assert_eq!(child.wait().expect("it can be waited for").code(), Some(143));
    let alive = || std::fs::read_to_string(format!("/proc/{server}/cmdline")).is_ok_and(|c| c.contains("serve"));
    let since = Instant::now();
    while alive() && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!alive(), "process {server} outlives its soak");
}

#[test]
fn wrong_usage_and_no_server_have_their_exit_codes() {
    assert_eq!(soak(&["--model", "x.gguf"]).code, 2, "a model without --serve");
    assert_eq!(soak(&["http://127.0.0.1:1", "--serve"]).code, 2, "one or the other");
    assert_eq!(soak(&["--sequential", "0", "--concurrent", "0"]).code, 2);
    assert_eq!(soak(&["--phases", "asleep"]).code, 2);
    assert_eq!(run(&["soak", "https://localhost"]).code, 2);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let said = soak(&[&format!("http://{closed}")]);
    assert_eq!((said.code, said.err.contains("kvit serve")), (4, true), "{}", said.err);
    let said = soak(&["--serve", "--model", "no-such-file.gguf"]);
    assert_eq!(said.code, 1, "{}", said.err);
}
