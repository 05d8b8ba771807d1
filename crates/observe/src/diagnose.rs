//! What is the matter: one verdict on what one look at a server saw, or several in a row, with its evidence and what to do next.
//!
//! Faults go before what is harmless, and of two faults that one which makes the other's numbers doubtful: an account that does not add up makes
//! all of them so, and a fence that does not complete explains cancels that nobody confirms. What else was found stands beside the verdict.
//!
//! Invariant: pure; the same looks give the same verdict. What no look showed is said to be unknown, and never taken for well.
// contract: C-9 C-15 C-16 C-20 C-24

use serde::{Deserialize, Serialize};

mod account;
mod engine;
mod faults;
mod harmless;
mod look;
mod probe;
mod tail;

pub use account::{AccountLook, AttemptLook, FenceLook};
pub use engine::{EngineLook, judge_engine};
pub use look::{LeftRun, Look, ProcessLook, WorkerLook};
pub use probe::Probe;
pub use tail::tail;

/// What is the matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Blocks that nobody owns, an account that does not add up, or something that must happen once happened twice.
    AccountingDefect,
    /// A fence does not complete, so what waits for it does not come back.
    DrainingStuck,
    /// Runs are computed, or hold something, that no live caller waits for, and the word of that has not crossed a boundary.
    UpstreamNeverCancelled,
    /// Too little was seen.
    CannotTell,
    /// Runs that callers wait for need all there is.
    PressureFromLiveRuns,
    /// The pool is full of what is kept for the next prompt, and given away when needed.
    IntentionalCache,
    /// Memory did not fall with what was held in it: the allocator keeps what was freed.
    NoLeakAllocatorKeeps,
    /// Nothing is the matter.
    Healthy,
}

impl Verdict {
    /// In the order in which one goes before the other.
    pub const ALL: [Verdict; 8] = [
        Verdict::AccountingDefect,
        Verdict::DrainingStuck,
        Verdict::UpstreamNeverCancelled,
        Verdict::CannotTell,
        Verdict::PressureFromLiveRuns,
        Verdict::IntentionalCache,
        Verdict::NoLeakAllocatorKeeps,
        Verdict::Healthy,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::AccountingDefect => "accounting_defect",
            Verdict::DrainingStuck => "draining_stuck",
            Verdict::UpstreamNeverCancelled => "upstream_never_cancelled",
            Verdict::CannotTell => "cannot_tell",
            Verdict::PressureFromLiveRuns => "pressure_from_live_runs",
            Verdict::IntentionalCache => "intentional_cache",
            Verdict::NoLeakAllocatorKeeps => "no_leak_allocator_keeps",
            Verdict::Healthy => "healthy",
        }
    }

    /// Whether somebody has to do something.
    pub const fn is_fault(self) -> bool {
        matches!(self, Verdict::AccountingDefect | Verdict::DrainingStuck | Verdict::UpstreamNeverCancelled)
    }

    /// What it means, in a sentence.
    pub const fn summary(self) -> &'static str {
        match self {
            Verdict::AccountingDefect => "Accounting defect: capacity is gone that nobody owns, so nobody will give it back.",
            Verdict::DrainingStuck => "Draining is stuck: a fence does not complete, so what waits for it does not come back.",
            Verdict::UpstreamNeverCancelled => "Never cancelled upstream: there is work, or capacity held, that no live caller waits for.",
            Verdict::CannotTell => "Cannot tell: too little was seen to rule a fault out.",
            Verdict::PressureFromLiveRuns => "Pressure from live runs: callers wait for all of it. No leak.",
            Verdict::IntentionalCache => {
                "Intentional cache: the pool is full of prefixes, which give way to whoever needs blocks. No leak."
            }
            Verdict::NoLeakAllocatorKeeps => "No leak: what was held came back, and the allocator keeps the memory.",
            Verdict::Healthy => "Healthy: every block has an owner that lives or is free to be given away, and every cancel went through.",
        }
    }
}

/// A run that a verdict is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RunName {
    /// Whose it is.
    pub tenant: String,
    /// Its id.
    pub run: String,
}

/// The verdict, and what it rests on.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diagnosis {
    /// Always `diagnosis`.
    pub object: &'static str,
    /// What is the matter.
    pub verdict: Verdict,
    /// Whether that is a fault.
    pub fault: bool,
    /// The verdict in a sentence.
    pub summary: &'static str,
    /// The boundary that the word of an end has not crossed, where that is the matter.
    pub boundary: Option<String>,
    /// Since when that is so, in milliseconds of the calendar.
    pub since_ms: Option<u64>,
    /// What was seen, a sentence each.
    pub evidence: Vec<String>,
    /// What to do, in this order.
    pub next: Vec<String>,
    /// What was found beside it, in the order of precedence.
    pub also: Vec<Verdict>,
    /// What this cannot show, and what would.
    pub cannot_tell: Vec<String>,
    /// The runs that it is about, as far as they were named.
    pub runs: Vec<RunName>,
    /// How many looks it rests on.
    pub looks: usize,
    /// Between the first of them and the last, in milliseconds.
    pub over_ms: u64,
}

/// One thing that was found.
#[derive(Debug)]
pub(crate) struct Finding {
    verdict: Verdict,
    boundary: Option<String>,
    since_ms: Option<u64>,
    evidence: Vec<String>,
    next: Vec<String>,
    runs: Vec<RunName>,
}

impl Finding {
    fn new(verdict: Verdict, evidence: Vec<String>, next: &[&str]) -> Finding {
        let next = next.iter().map(|step| (*step).to_owned()).collect();
        Finding { verdict, boundary: None, since_ms: None, evidence, next, runs: Vec::new() }
    }

    /// `None` if nothing was seen of it.
    fn seen(verdict: Verdict, evidence: Vec<String>, next: &[&str]) -> Option<Finding> {
        (!evidence.is_empty()).then(|| Finding::new(verdict, evidence, next))
    }

    fn about(mut self, runs: impl IntoIterator<Item = RunName>) -> Finding {
        self.runs.extend(runs);
        self.runs.sort();
        self.runs.dedup();
        self
    }

    /// The verdict, and beside it what else was found.
    fn conclude(self, also: Vec<Verdict>, cannot_tell: Vec<String>, looks: usize, over_ms: u64) -> Diagnosis {
        let Finding { verdict, boundary, since_ms, evidence, next, runs } = self;
        let (object, summary, fault) = ("diagnosis", verdict.summary(), verdict.is_fault());
        Diagnosis { object, verdict, fault, summary, boundary, since_ms, evidence, next, also, cannot_tell, runs, looks, over_ms }
    }
}

/// What is judged: looks in the order of their times, and a probe if there was one.
pub(crate) struct Seen<'a> {
    looks: &'a [Look],
    now: &'a Look,
    probe: Option<&'a Probe>,
}

impl Seen<'_> {
    /// Each worker's account now, with its name.
    fn accounts(&self) -> impl Iterator<Item = (&WorkerLook, &AccountLook)> {
        self.now.workers.iter().filter_map(|worker| Some((worker, worker.account.as_ref()?)))
    }

    /// How a worker is called in a sentence; nothing needs to be said where there is one.
    fn of(&self, worker: &WorkerLook) -> String {
        if self.now.workers.len() > 1 { format!("worker {}: ", worker.name) } else { String::new() }
    }

    /// The same life of a worker in the newest look that is at least so much older.
    fn before(&self, worker: &WorkerLook, by_ms: u64) -> Option<(&Look, &AccountLook)> {
        let older = self.looks.iter().rev().filter(|look| look.at_ms.saturating_add(by_ms.max(1)) <= self.now.at_ms);
        older
            .filter_map(|look| look.workers.iter().find(|w| w.name == worker.name && w.life == worker.life).map(|w| (look, w)))
            .find_map(|(look, w)| Some((look, w.account.as_ref()?)))
    }
}

/// Judges looks at kvit, in the order of their times; the last one is how things stand.
pub fn judge(looks: &[Look], probe: Option<&Probe>) -> Diagnosis {
    let Some(now) = looks.last() else {
        let nothing = Finding::new(Verdict::CannotTell, vec!["Nothing was looked at.".to_owned()], &["Look at a server."]);
        return nothing.conclude(Vec::new(), Vec::new(), 0, 0);
    };
    let seen = Seen { looks, now, probe };
    let finders: [fn(&Seen<'_>) -> Option<Finding>; 7] = [
        faults::accounting_defect,
        faults::draining_stuck,
        faults::never_cancelled,
        harmless::silent,
        harmless::pressure,
        harmless::cache,
        harmless::kept,
    ];
    let mut found: Vec<Finding> = finders.iter().filter_map(|find| find(&seen)).collect();
    let also = found.iter().skip(1).map(|finding| finding.verdict).collect();
    let mut first = if found.is_empty() { harmless::healthy(&seen) } else { found.swap_remove(0) };
    first.evidence.extend(probe.map(Probe::told));
    let over_ms = looks.first().map_or(0, |first| now.at_ms.saturating_sub(first.at_ms));
    first.conclude(also, harmless::unknown(&seen), looks.len(), over_ms)
}

/// A number and its word, which ends in `s` unless there is one of it.
pub(crate) fn count(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

/// A time as a person says it.
pub(crate) fn long(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..120_000 => format!("{:.1} s", ms as f64 / 1000.0),
        _ => format!("{} min", ms / 60_000),
    }
}

/// Bytes as a person says them.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
