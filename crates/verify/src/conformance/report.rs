//! What came of the cases: a table for a person, JSON for a machine.
//!
//! Invariant: what was skipped is never counted as passed.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::bench::Worker;

/// What came of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It holds.
    Pass,
    /// It does not.
    Fail,
    /// Nothing can be said.
    Skipped,
}

impl Verdict {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Skipped => "skipped",
        }
    }
}

/// A case that is over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// `group/name`.
    pub name: String,
    /// What it proves.
    pub proves: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What was seen, or why it failed or was skipped.
    pub evidence: String,
    /// How long it took.
    pub took: Duration,
}

/// All of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Where the worker listens.
    pub address: String,
    /// The worker's name.
    pub worker: String,
    /// Its model.
    pub model: String,
    /// In the order in which they ran.
    pub cases: Vec<Judged>,
}

impl Report {
    pub(super) fn new(address: String, worker: &Worker, cases: Vec<Judged>) -> Report {
        Report { address, worker: worker.name.clone(), model: worker.model.clone(), cases }
    }

    /// How many cases have a verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cases.iter().filter(|case| case.verdict == verdict).count()
    }

    /// A line for a case.
    pub fn line(case: &Judged) -> String {
        let seconds = case.took.as_secs_f64();
        let mut text = format!("{:<7} {:<42} {seconds:>5.1} s  {}", case.verdict.as_str(), case.name, case.evidence);
        if case.verdict == Verdict::Fail {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n        it should be so: {}", case.proves);
        }
        text
    }

    /// The closing line.
    pub fn closing(&self) -> String {
        let [pass, fail, skipped] = [Verdict::Pass, Verdict::Fail, Verdict::Skipped].map(|verdict| self.count(verdict));
        let seconds: f64 = self.cases.iter().map(|case| case.took.as_secs_f64()).sum();
        let (worker, model, address) = (&self.worker, &self.model, &self.address);
        format!("conformance: {pass} passed, {fail} failed, {skipped} skipped in {seconds:.0} s; worker {worker} with {model} at {address}")
    }

    /// For a machine.
    pub fn json(&self) -> Value {
        let case = |case: &Judged| {
            json!({
                "name": case.name, "verdict": case.verdict.as_str().to_lowercase(), "evidence": case.evidence, "proves": case.proves,
                "seconds": case.took.as_secs_f64(),
            })
        };
        json!({
            "address": self.address, "worker": self.worker, "model": self.model,
            "passed": self.count(Verdict::Pass), "failed": self.count(Verdict::Fail), "skipped": self.count(Verdict::Skipped),
            "cases": self.cases.iter().map(case).collect::<Vec<_>>(),
        })
    }
}
