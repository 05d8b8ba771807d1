//! The newest records of some runs, as lines for a report.
//!
//! Invariant: kinds, times, causes, counts and ids; the sentences in which somebody explains an end stay out, for they may quote a prompt.
// contract: C-24

use std::collections::{HashMap, VecDeque};

use lifecycle::event::{Event, Record};
use lifecycle::{Outcome, RunKey};
use serde_json::{Value, json};

use crate::journal::Journal;

/// The newest records of these runs that are still in the ring, oldest first, run by run: at most so many of each.
pub fn tail(journal: &Journal, runs: &[RunKey], each_max: usize) -> Vec<Value> {
    let clock = journal.clock();
    let line = |record: &Record| {
        let (tenant, run) = record.run.as_ref().map(|key| (key.tenant.as_str(), key.run.as_str())).unzip();
        json!({"at_ms": clock.calendar_ms(record.at), "at_us": record.at.0, "tenant": tenant, "run": run, "attempt": record.attempt,
               "event": told(&record.event)})
    };
    let mut newest: HashMap<&RunKey, VecDeque<Value>> = runs.iter().map(|key| (key, VecDeque::new())).collect();
    journal.scan(|record| {
        if let Some(lines) = record.run.as_ref().and_then(|key| newest.get_mut(key)) {
            if lines.len() >= each_max {
                lines.pop_front();
            }
            lines.push_back(line(record));
        }
    });
    runs.iter().filter_map(|key| newest.remove(key)).flatten().collect()
}

/// What happened, without anybody's words.
fn told(event: &Event) -> String {
    let ended =
        |word: &str, outcome: &Outcome| format!("{word} {{ kind: {}, cause: {} }}", outcome.kind().as_str(), outcome.cause.as_str());
    match event {
        Event::OutcomeSet { outcome } => ended("OutcomeSet", outcome),
        Event::AttemptEnded { outcome } => ended("AttemptEnded", outcome),
        Event::SentAs { .. } => "SentAs".to_owned(),
        Event::Accepted { n, stream, on_disconnect, .. } => {
            format!("Accepted {{ n: {n}, stream: {stream}, on_disconnect: {on_disconnect} }}")
        }
        other => format!("{other:?}"),
    }
}
