//! What became of the runs of one part of a soak.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::{Phase, word};
use super::caller::Fate;

/// Runs that are named when something is wrong with them.
const NAMED_MAX: usize = 5;

/// Counts of one part.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Callers that came and went.
    pub callers: u64,
    /// Requests that nobody read: their callers were faster.
    pub never_read: u64,
    /// Runs by outcome and cause.
    pub ends: BTreeMap<(String, String), u64>,
    /// Cancelled runs by the phase that was aimed at and the one that the server saw.
    pub phases: BTreeMap<(Phase, String), u64>,
    /// Most tokens that any run computed after its cancel had arrived.
    pub after_receipt_max: u64,
    /// What must not be, in words, with the runs of which it is true.
    pub wrong: BTreeMap<&'static str, (u64, Vec<String>)>,
    /// How long it took.
    pub took: Duration,
}

impl Tally {
    /// Adds one.
    pub fn add(&mut self, id: &str, aimed: Phase, fate: &Fate) {
        self.callers += 1;
        match fate {
            Fate::NeverRead => self.never_read += 1,
            Fate::Ended { outcome, cause, phase, after_receipt, held } => {
                *self.ends.entry((outcome.clone(), cause.clone())).or_default() += 1;
                if let Some(phase) = phase.as_ref().filter(|_| outcome == "cancelled") {
                    *self.phases.entry((aimed, phase.clone())).or_default() += 1;
                }
                self.after_receipt_max = self.after_receipt_max.max(*after_receipt);
                if *after_receipt > 1 {
                    self.is_wrong("more than one token computed after the cancel had arrived", id);
                }
                if *held > 0 {
                    self.is_wrong("settled and still holding blocks", id);
                }
                if outcome == "failed" {
                    self.is_wrong("failed", id);
                }
            }
            Fate::Stuck(_) => self.is_wrong("not released and settled within the patience", id),
        }
    }

    fn is_wrong(&mut self, what: &'static str, id: &str) {
        let (count, named) = self.wrong.entry(what).or_default();
        *count += 1;
        if named.len() < NAMED_MAX {
            named.push(id.to_owned());
        }
    }

    /// Takes another one in.
    pub fn merge(&mut self, other: Tally) {
        self.callers += other.callers;
        self.never_read += other.never_read;
        for (key, n) in other.ends {
            *self.ends.entry(key).or_default() += n;
        }
        for (key, n) in other.phases {
            *self.phases.entry(key).or_default() += n;
        }
        self.after_receipt_max = self.after_receipt_max.max(other.after_receipt_max);
        for (what, (n, named)) in other.wrong {
            let (count, all) = self.wrong.entry(what).or_default();
            *count += n;
            all.extend(named);
            all.truncate(NAMED_MAX);
        }
        self.took += other.took;
    }

    /// Fewer cancels than were asked for: runs came to their end before their callers went.
    pub fn missed(&mut self, wanted: u64) {
        if self.outcome("cancelled") < wanted {
            let n = wanted - self.outcome("cancelled");
            self.wrong.insert("could not be cancelled: they ended before their callers went (ask for more --tokens)", (n, Vec::new()));
        }
    }

    /// Runs with this outcome.
    pub fn outcome(&self, kind: &str) -> u64 {
        self.ends.iter().filter(|((k, _), _)| k == kind).map(|(_, n)| n).sum()
    }

    /// For `--json`.
    pub fn to_json(&self) -> Value {
        let ends: Vec<Value> = self.ends.iter().map(|((o, c), n)| json!({"outcome": o, "cause": c, "runs": n})).collect();
        let phases: Vec<Value> = self.phases.iter().map(|((a, s), n)| json!({"aimed": word(*a), "seen": s, "runs": n})).collect();
        json!({"callers": self.callers, "never_read": self.never_read, "ends": ends, "phases": phases,
               "after_receipt_max": self.after_receipt_max, "seconds": self.took.as_secs_f64()})
    }
}
