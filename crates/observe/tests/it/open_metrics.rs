//! The page in OpenMetrics: its grammar, its exemplars, and that it says the same as the other format.
// contract: C-1

use std::collections::BTreeMap;

use lifecycle::event::Event;
use lifecycle::{Cause, Incarnation};
use observe::{Format, Journal, Scrape};

use crate::metrics::parse;
use crate::story::*;

fn open(journal: &Journal, format: Format) -> String {
    journal.metrics(&Scrape {
        version: "0.1.0",
        incarnation: Incarnation(7),
        workers: &[],
        holdings: None,
        outside: None,
        spans: None,
        format,
    })
}

/// The samples of a page in OpenMetrics, and the exemplars by series. Panics at whatever the format does not allow.
fn read(page: &str) -> (BTreeMap<String, f64>, BTreeMap<String, String>) {
    let body = page.strip_suffix("# EOF\n").expect("the page ends with # EOF");
    let (mut samples, mut exemplars) = (BTreeMap::new(), BTreeMap::new());
    let mut family = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a kind");
            assert!(!name.ends_with("_total"), "{name}: a family is named without its samples' suffix");
            family = (name.to_owned(), kind.to_owned());
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (sample, exemplar) = line.split_once(" # ").map_or((line, None), |(sample, exemplar)| (sample, Some(exemplar)));
        let (series, value) = sample.rsplit_once(' ').expect("a value");
        let suffix = series.split('{').next().and_then(|name| name.strip_prefix(&family.0)).expect("a sample of its family");
        let allowed: &[&str] = match family.1.as_str() {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(allowed.contains(&suffix), "{line}");
        if let Some(bound) = series.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()) {
            assert!(bound == "+Inf" || bound.contains(['.', 'e']), "{line}: a bound is a fraction");
        }
        if let Some(exemplar) = exemplar {
            assert_eq!(suffix, "_bucket", "{line}");
            let (labels, numbers) = exemplar.rsplit_once("} ").expect("labels and numbers");
            let numbers: Vec<f64> = numbers.split(' ').map(|n| n.parse().expect("a number")).collect();
            assert_eq!(numbers.len(), 2, "a value and a time");
            let run = labels.strip_prefix("{run_id=\"").and_then(|rest| rest.strip_suffix('"')).expect("a run's id");
            exemplars.insert(series.to_owned(), run.to_owned());
        }
        assert!(samples.insert(series.to_owned(), value.parse().expect("a number")).is_none(), "{series} appears twice");
    }
    (samples, exemplars)
}

#[test]
fn both_formats_say_the_same() {
    let journal = journal();
    cancelled_run(&journal, &key("r"));
    let whole = |series: &String| series.replace(".0\"}", "\"}");
    let text: Vec<(String, f64)> = parse(&open(&journal, Format::Text)).into_iter().collect();
    for format in [Format::OpenMetrics, Format::Exemplars] {
        let mut opened: Vec<(String, f64)> = read(&open(&journal, format)).0.iter().map(|(s, v)| (whole(s), *v)).collect();
        opened.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(opened, text);
    }
}

#[test]
fn a_bucket_names_the_run_that_fell_into_it_to_those_who_may_know() {
    let journal = journal();
    cancelled_run(&journal, &key("the-run"));
    let (_, exemplars) = read(&open(&journal, Format::Exemplars));
    let of = |series: &str| exemplars.get(series).map(String::as_str);
    assert_eq!(of("kvit_disconnect_to_released_seconds_bucket{cause=\"client_closed\",le=\"0.005\"}"), Some("the-run"));
    assert_eq!(of("kvit_disconnect_to_released_seconds_bucket{cause=\"client_closed\",le=\"0.01\"}"), None, "it fell into one bucket");
    assert_eq!(of("kvit_time_to_first_token_seconds_bucket{le=\"0.025\"}"), Some("the-run"));
    for silent in [Format::Text, Format::OpenMetrics] {
        assert!(!open(&journal, silent).contains("the-run"), "{silent:?}");
    }
}

#[test]
fn an_id_that_no_exemplar_can_hold_is_left_out() {
    let journal = journal();
    let longest = "x".repeat(128);
    at(&journal, &key(&longest), 0, accepted());
    at(&journal, &key(&longest), 0, queued(1));
    at(&journal, &key(&longest), 10, Event::PrefillStart);
    let (samples, exemplars) = read(&open(&journal, Format::Exemplars));
    assert_eq!((samples["kvit_queue_seconds_count"], exemplars.len()), (1.0, 0));
}

/// Whatever ids callers choose, the number of series stays what the contract's words allow.
#[test]
fn callers_add_no_series() {
    let count = |runs: usize| {
        let journal = journal();
        for run in 0..runs {
            cancelled_run(&journal, &key(&format!("r{run}")));
            at(&journal, &key(&format!("s{run}")), 0, accepted());
            at(&journal, &key(&format!("s{run}")), 1, outcome_set(Cause::Stop));
        }
        read(&open(&journal, Format::Exemplars)).0.len()
    };
    assert_eq!(count(1), count(300));
}
