//! docs/metrics.md has a row for every family, made from the page itself.

use std::collections::BTreeSet;
use std::fmt::Write;

use lifecycle::message::{AttemptCut, Snapshot};
use lifecycle::{AttemptId, Incarnation};
use observe::{Exported, FilesConfig, Format, Gpu, Holdings, Outside, Process, Scrape, StoreHoldings, WorkerScrape};

use crate::story::*;

const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");

/// A page on which every family stands with all its labels.
fn whole() -> String {
    let (journal, dir) = (journal(), tempfile::tempdir().expect("a folder"));
    let files =
        FilesConfig { dir: dir.path().to_owned(), file_bytes: 1 << 20, files_max: 1, release: "0".to_owned(), life: Incarnation(7) };
    let _writer = journal.write_files(files).expect("the files are begun");
    cancelled_run(&journal, &key("r"));
    let cut = AttemptCut { attempt: AttemptId { key: key("r"), attempt: 1 }, state: "decoding", blocks: 1 };
    let account = Snapshot { total: 1, active: 1, running: 1, attempts: vec![cut], ..Snapshot::default() };
    let worker = |name, snapshot, slots| WorkerScrape { name, snapshot, takes_runs: true, runs: 0, slots };
    let gpu = Gpu { index: 0, memory: Some((1, 2)), computing: Some(1), busy: Some(0.5) };
    let (store, process) = (Some(StoreHoldings::default()), Some(Process::default()));
    let holdings = Holdings { store, process, gpus: vec![gpu], ..Holdings::default() };
    journal.metrics(&Scrape {
        version: "0",
        incarnation: Incarnation(7),
        workers: &[worker("a", Some(&account), None), worker("b", None, Some(4))],
        holdings: Some(&holdings),
        outside: Some(&Outside::default()),
        spans: Some(&Exported::default()),
        format: Format::Text,
    })
}

fn table(page: &str) -> String {
    let mut table = "| metric | kind | labels | what it says |\n|---|---|---|---|\n".to_owned();
    let lines: Vec<&str> = page.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else { continue };
        let kind = lines[at + 1].rsplit(' ').next().unwrap_or_default();
        let samples = lines[at + 2..].iter().take_while(|line| !line.starts_with('#'));
        let labels: BTreeSet<&str> = samples
            .filter_map(|sample| sample.split_once('{'))
            .flat_map(|(_, labels)| labels.split("=\"").map(|before| before.rsplit(['"', ',', '{']).next().unwrap_or_default()))
            .filter(|label| !label.is_empty() && label.bytes().all(|b| b.is_ascii_lowercase()) && *label != "le")
            .collect();
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(table, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
    }
    table
}

#[test]
fn every_metric_has_its_row() {
    let table = table(&whole());
    let found = DOCUMENT.split("<!-- metrics -->\n").nth(1).and_then(|rest| rest.split("<!-- /metrics -->").next());
    assert!(found == Some(table.as_str()), "between the two comments in docs/metrics.md this must stand:\n{table}");
}
