//! The metrics page: its grammar, its families, its numbers.

use std::collections::{BTreeMap, BTreeSet};

use lifecycle::event::{Event, Record};
use lifecycle::message::{Held, Receipt, Snapshot};
use lifecycle::{Cause, Incarnation, StepId, Time};
use observe::{Format, Gpu, Holdings, Journal, Process, Scrape, WorkerScrape};

use crate::story::*;

/// The samples of a page: series (name and labels as written) to value. Panics at whatever the text format does not allow.
pub fn parse(page: &str) -> BTreeMap<String, f64> {
    assert!(page.ends_with('\n'));
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family = (String::new(), String::new());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP has a text");
            assert!(!help.is_empty() && families.insert(name.to_owned()), "{name} appears twice");
            let kind = lines.next().and_then(|l| l.strip_prefix(&format!("# TYPE {name} "))).expect("TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
        let name = series.split('{').next().unwrap_or_default();
        let suffix = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("{name} outside its family"));
        let allowed: &[&str] = if family.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(allowed.contains(&suffix), "{name}");
        labels(&series[name.len()..]);
        let value: f64 = value.parse().expect("a number");
        assert!(value.is_finite() && value >= 0.0, "{line}");
        assert!(samples.insert(series.to_owned(), value).is_none(), "{series} appears twice");
    }
    samples
}

/// Checks `{name="value",…}` character by character: names of letters, values with only the three escapes.
fn labels(text: &str) {
    let mut rest = text;
    let mut seen = BTreeSet::new();
    let mut opening = '{';
    while !rest.is_empty() && rest != "}" {
        rest = rest.strip_prefix(opening).unwrap_or_else(|| panic!("{opening} before {rest}"));
        let (name, value) = rest.split_once("=\"").expect("a quoted value");
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert!(seen.insert(name), "{name} appears twice");
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => assert!(chars.next().is_some_and(|(_, c)| "\\\"n".contains(c)), "{value}"),
                (_, c) => assert!(!c.is_control(), "{value}"),
            }
        };
        (rest, opening) = (&value[end + 1..], ',');
    }
    assert_eq!(rest.is_empty(), text.is_empty(), "a closing brace");
}

fn account() -> Snapshot {
    let (free, active, cached, draining, quarantined) = (4000, 59, 36, 1, 0);
    let refused = Snapshot { stale_releases: 2, foreign_releases: 3, double_releases: 5, ..Snapshot::default() };
    Snapshot { total: 4096, free, active, cached, draining, quarantined, ..refused }
}

fn scrape(journal: &Journal, snapshot: Option<&Snapshot>) -> BTreeMap<String, f64> {
    parse(&journal.metrics(&Scrape {
        version: "0.1.0 \"x\\y\"",
        incarnation: Incarnation(7),
        workers: &[WorkerScrape { name: "w", snapshot, takes_runs: false, runs: 3, slots: None }],
        holdings: None,
        outside: None,
        spans: None,
        format: Format::Text,
    }))
}

#[test]
fn an_empty_page_parses_and_has_its_zeros() {
    let samples = scrape(&journal(), None);
    assert_eq!((samples["kvit_worker_up"], samples["kvit_worker_runs"]), (0.0, 3.0));
    assert!(!samples.contains_key("kvit_worker_slots"), "it has a queue of its own");
    assert_eq!(samples["kvit_run_outcomes_total{outcome=\"cancelled\",cause=\"client_closed\"}"], 0.0);
    assert!(!samples.contains_key("kvit_kv_pool_blocks"), "no account is better than an old one");
}

// contract: C-15, C-17
#[test]
fn the_account_adds_up_and_one_that_does_not_is_a_defect() {
    let journal = journal();
    let samples = scrape(&journal, Some(&account()));
    let blocks: f64 = samples.iter().filter(|(series, _)| series.starts_with("kvit_kv_blocks{")).map(|(_, v)| v).sum();
    assert_eq!(blocks, samples["kvit_kv_pool_blocks"]);
    let refused = ["stale", "foreign", "double"].map(|why| samples[&format!("kvit_refused_releases_total{{why=\"{why}\"}}")]);
    assert_eq!(refused, [2.0, 3.0, 5.0]);
    assert_eq!(samples["kvit_device_lost"], 0.0);
    let lost = Snapshot { device_lost: Some("it fell off".into()), ..account() };
    assert_eq!(scrape(&journal, Some(&lost))["kvit_device_lost"], 1.0);
    assert_eq!(journal.defects(), 0);
    let broken = Snapshot { free: 3999, ..account() };
    assert_eq!(scrape(&journal, Some(&broken))["kvit_defects_total{kind=\"not_conserved\"}"], 1.0);
    assert_eq!(scrape(&journal, Some(&account()))["kvit_defects_total{kind=\"not_conserved\"}"], 1.0, "a total does not fall");
}

#[test]
fn a_cancelled_run_is_counted_and_timed() {
    let journal = journal();
    cancelled_run(&journal, &key("r"));
    journal.record_at(Record {
        at: Time(2_000_000),
        run: None,
        attempt: 0,
        event: Event::StepDone { step: StepId(19), rows: 1, dropped: 0 },
    });
    let samples = scrape(&journal, Some(&account()));
    let expected = [
        ("kvit_run_outcomes_total{outcome=\"cancelled\",cause=\"client_closed\"}", 1.0),
        ("kvit_tokens_generated_total", 19.0),
        ("kvit_tokens_delivered_total", 18.0),
        ("kvit_tokens_after_disconnect_total{phase=\"decode\"}", 1.0),
        ("kvit_tokens_after_disconnect_total{phase=\"prefill\"}", 0.0),
        ("kvit_prompt_tokens_computed_total", 21.0),
        ("kvit_prefix_cached_tokens_total", 16.0),
        ("kvit_steps_total", 1.0),
        ("kvit_steps_after_disconnect_total{phase=\"decode\"}", 1.0),
        ("kvit_steps_after_disconnect_total{phase=\"prefill\"}", 0.0),
        ("kvit_settled_tokens_generated_total{outcome=\"cancelled\"}", 19.0),
        ("kvit_settled_tokens_delivered_total{outcome=\"cancelled\"}", 18.0),
        ("kvit_settled_tokens_generated_total{outcome=\"completed\"}", 0.0),
        ("kvit_released_total", 1.0),
        ("kvit_settled_total", 1.0),
        ("kvit_cancels_sent_total", 1.0),
        ("kvit_cancels_repeated_total", 0.0),
        ("kvit_cancels_unacknowledged", 0.0),
        ("kvit_zero_delivery_runs_total{outcome=\"cancelled\"}", 0.0),
        ("kvit_superseded_total{cause=\"client_deadline\"}", 1.0),
        ("kvit_runs{state=\"stopping\"}", 0.0),
        // 100 µs lie in the first bucket, whose bound is inclusive; 3 ms between 2.5 and 5.
        ("kvit_disconnect_to_cancel_seconds_bucket{cause=\"client_closed\",le=\"0.0001\"}", 1.0),
        ("kvit_disconnect_to_released_seconds_bucket{cause=\"client_closed\",le=\"0.0025\"}", 0.0),
        ("kvit_disconnect_to_released_seconds_bucket{cause=\"client_closed\",le=\"0.005\"}", 1.0),
        ("kvit_disconnect_to_released_seconds_bucket{cause=\"client_closed\",le=\"+Inf\"}", 1.0),
        ("kvit_disconnect_to_released_seconds_sum{cause=\"client_closed\"}", 0.003),
        ("kvit_disconnect_to_released_seconds_count{cause=\"client_closed\"}", 1.0),
        ("kvit_time_to_first_token_seconds_sum", 0.0215),
        ("kvit_queue_seconds_sum", 0.0003),
        ("kvit_inter_token_seconds_count", 17.0),
    ];
    for (series, value) in expected {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
    assert!(samples.iter().filter(|(series, _)| series.contains("_defects_")).all(|(_, v)| *v == 0.0));
}

#[test]
fn latencies_beyond_the_last_bound_are_in_the_infinite_bucket_only() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, queued(1));
    at(&journal, &key, 60_000_001, Event::PrefillStart);
    let samples = scrape(&journal, None);
    assert_eq!(samples["kvit_queue_seconds_bucket{le=\"60\"}"], 0.0);
    assert_eq!(samples["kvit_queue_seconds_bucket{le=\"+Inf\"}"], 1.0);
}

// contract: C-20
#[test]
fn what_must_happen_once_and_comes_twice_is_a_defect_and_changes_nothing() {
    let (journal, key) = (journal(), key("r"));
    cancelled_run(&journal, &key);
    let before = journal.run(&key);
    let holding = Receipt { blocks_held: 2, ..Receipt::default() };
    for event in [accepted(), released(), Event::Released { receipt: holding }, outcome_set(Cause::Stop), Event::Settled { proven: false }]
    {
        at(&journal, &key, 9_000_000, event);
    }
    assert_eq!(journal.run(&key), before);
    at(&journal, &key, 9_000_000, computed(99, 0, 1, 0));
    journal.record(None, 0, Event::Defect { what: "a machine refused" });
    let samples = scrape(&journal, None);
    let kinds = [
        ("accepted_twice", 1.0),
        ("released_twice", 2.0),
        ("released_holding", 1.0),
        ("outcome_twice", 1.0),
        ("settled_twice", 1.0),
        ("used_after_release", 1.0),
        ("refused", 1.0),
    ];
    for (kind, count) in kinds {
        assert_eq!(samples[&format!("kvit_defects_total{{kind=\"{kind}\"}}")], count, "{kind}");
    }
    assert_eq!((journal.defects(), samples["kvit_released_total"], samples["kvit_settled_total"]), (8, 1.0, 1.0));
}

// contract: C-9
#[test]
fn a_cancel_without_an_answer_shows_until_it_is_moot() {
    let (journal, key) = (journal(), key("r"));
    at(&journal, &key, 0, accepted());
    for count in 1..=3 {
        at(&journal, &key, 1, Event::CancelSent { cause: Cause::ClientLost, count });
    }
    let samples = scrape(&journal, None);
    assert_eq!((samples["kvit_cancels_sent_total"], samples["kvit_cancels_repeated_total"]), (3.0, 2.0));
    assert_eq!((samples["kvit_cancels_unacknowledged"], samples["kvit_runs{state=\"stopping\"}"]), (1.0, 1.0));
    at(&journal, &key, 2, released());
    assert_eq!(scrape(&journal, None)["kvit_cancels_unacknowledged"], 0.0);
}

#[test]
fn runs_that_computed_and_delivered_nothing_are_counted_apart_by_outcome() {
    let journal = journal();
    let runs = [
        ("idle", 0, 0, Cause::ClientClosed),
        ("busy", 3, 0, Cause::ClientClosed),
        ("read", 3, 3, Cause::ClientClosed),
        ("ok", 5, 5, Cause::Stop),
    ];
    for (id, generated, delivered, cause) in runs {
        at(&journal, &key(id), 0, accepted());
        if generated > 0 {
            at(&journal, &key(id), 1, computed(1, 8, generated, 0));
        }
        if delivered > 0 {
            at(&journal, &key(id), 2, Event::Delivered { tokens: delivered });
        }
        at(&journal, &key(id), 3, outcome_set(cause));
        at(&journal, &key(id), 4, Event::Settled { proven: true });
    }
    let samples = scrape(&journal, None);
    let of = |name: &str| ["cancelled", "completed"].map(|kind| samples[&format!("{name}{{outcome=\"{kind}\"}}")]);
    assert_eq!(of("kvit_settled_tokens_generated_total"), [6.0, 5.0]);
    assert_eq!(of("kvit_settled_tokens_delivered_total"), [3.0, 5.0]);
    assert_eq!(of("kvit_zero_delivery_runs_total"), [1.0, 0.0]);
    assert_eq!(of("kvit_zero_delivery_tokens_generated_total"), [3.0, 0.0]);
    assert_eq!(of("kvit_zero_delivery_prompt_tokens_computed_total"), [8.0, 0.0]);
}

/// Every table that has an entry a run shows its length; what the system does not tell is not shown at all.
#[test]
fn what_is_held_is_shown_by_kind_and_the_journal_with_its_limits() {
    let journal = journal();
    cancelled_run(&journal, &key("r"));
    let held = Held { attempts: 1, owners: 2, waiting: 3, running: 4, deadlines: 5, slots: 6, slots_total: 7, steps: 8, answers: 9 };
    let snapshot = Snapshot { held, ..account() };
    let page = |holdings: &Holdings| {
        parse(&journal.metrics(&Scrape {
            version: "0",
            incarnation: Incarnation(7),
            workers: &[WorkerScrape { name: "w", snapshot: Some(&snapshot), takes_runs: false, runs: 0, slots: None }],
            holdings: Some(holdings),
            outside: None,
            spans: None,
            format: Format::Text,
        }))
    };
    let gpu = Gpu { index: 0, memory: Some((3 << 30, 8 << 30)), computing: Some(2 << 30), busy: Some(0.25) };
    // One that is cut into instances says little.
    let silent = Gpu { index: 1, ..Gpu::default() };
    let process = Some(Process { resident_bytes: 5 << 20, open_fds: 12, threads: 6 });
    let samples = page(&Holdings { calls: 3, questions: 1, tasks: 9, process, store: None, gpus: vec![gpu, silent] });
    let expected = [
        ("kvit_worker_held{kind=\"attempts\"}", 1.0),
        ("kvit_worker_held{kind=\"owners\"}", 2.0),
        ("kvit_worker_held{kind=\"waiting\"}", 3.0),
        ("kvit_worker_held{kind=\"running\"}", 4.0),
        ("kvit_worker_held{kind=\"deadlines\"}", 5.0),
        ("kvit_worker_held{kind=\"slots\"}", 6.0),
        ("kvit_worker_sequences_max", 7.0),
        ("kvit_worker_held{kind=\"steps\"}", 8.0),
        ("kvit_worker_held{kind=\"answers\"}", 9.0),
        ("kvit_gateway_calls", 3.0),
        ("kvit_gateway_questions", 1.0),
        ("kvit_tasks", 9.0),
        ("process_resident_memory_bytes", 5_242_880.0),
        ("process_open_fds", 12.0),
        ("process_threads", 6.0),
        ("kvit_gpu_memory_used_bytes{gpu=\"0\"}", 3_221_225_472.0),
        ("kvit_gpu_memory_total_bytes{gpu=\"0\"}", 8_589_934_592.0),
        ("kvit_gpu_processes_memory_bytes{gpu=\"0\"}", 2_147_483_648.0),
        ("kvit_gpu_busy_ratio{gpu=\"0\"}", 0.25),
        ("kvit_journal_runs", 1.0),
    ];
    for (series, value) in expected {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
    assert!(samples["kvit_journal_records"] > 1.0 && samples["kvit_journal_records"] <= samples["kvit_journal_records_max"]);
    assert!(!samples.keys().any(|series| series.contains("gpu=\"1\"")), "what is not told is left out");
    let bare = page(&Holdings::default());
    assert!(!bare.contains_key("process_open_fds") && !bare.keys().any(|series| series.starts_with("kvit_gpu")));
}
