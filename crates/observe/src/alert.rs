//! The alert rules: what each watches, evaluated here for those without Prometheus, and written for Prometheus from the same list.
//!
//! A rule never asks for more than a metric of the page shows, so both judge alike. None of them waits for time to pass with the condition
//! held: what must last shows its own age, so that one look is enough and whoever looks seldom is told the same.
//!
//! Invariant: one rule, one name, one threshold; a rule whose metric is not known now says `unknown` and never `ok`.
// contract: C-9 C-12 C-15 C-20 C-23

use std::time::Duration;

use lifecycle::Time;
use serde::Serialize;

use crate::accounts::unowned;
use crate::history::{History, Tally, WINDOWS};
use crate::metrics::histogram::quantile;
use crate::metrics::{Totals, WorkerScrape};
use crate::waste::RatioView;

mod prometheus;

/// A cancel may take this many scheduler cycles.
pub(crate) const CYCLES: f64 = 2.0;

/// From where on each rule raises an alarm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AlertRules {
    /// Waste in percent of all work, in each of three windows in a row.
    pub waste_percent: f64,
    /// What the 95th percentile from disconnect to cancel may always take, however short a scheduler cycle is.
    pub cancel: Duration,
    /// How long a cancel may be unacknowledged.
    pub unacknowledged: Duration,
    /// How long an orphan may be unreaped.
    pub orphaned: Duration,
}

impl Default for AlertRules {
    fn default() -> Self {
        AlertRules {
            waste_percent: 1.0,
            cancel: Duration::from_millis(50),
            unacknowledged: Duration::from_secs(5),
            orphaned: Duration::from_secs(30),
        }
    }
}

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Alert {
    /// The word of a disconnect takes longer to the engine than two scheduler cycles.
    SlowCancel,
    /// Work for nobody.
    Waste,
    /// A cancel that no worker confirms.
    UnacknowledgedCancels,
    /// Attempts that no gateway claims, and that nobody ends.
    OrphansNotReaped,
    /// Something that must happen once happened twice, or the account of blocks does not add up.
    Defect,
    /// Blocks in use that no live attempt holds: free blocks fall, and nobody will give them back.
    BlocksWithoutOwner,
}

/// Whether a rule raises an alarm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertState {
    /// It does not.
    Ok,
    /// It does.
    Firing,
    /// What it watches is not known now.
    Unknown,
}

/// A rule as it stands now.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AlertView {
    /// Always `alert`.
    pub object: &'static str,
    /// The rule's name, the same as in Prometheus.
    pub name: &'static str,
    /// Whether it raises an alarm.
    pub state: AlertState,
    /// What it watches, now; `null` if nothing was there to watch.
    pub value: Option<f64>,
    /// From where on it raises an alarm.
    pub threshold: f64,
    /// Of both numbers: `seconds`, `percent`, `count` or `blocks`.
    pub unit: &'static str,
    /// `page` or `warning`.
    pub severity: &'static str,
    /// What it means that it fires, in a sentence.
    pub summary: &'static str,
    /// Where to read on.
    pub runbook: String,
}

/// All rules as they stand now.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct AlertsView {
    /// Always `list`.
    pub object: &'static str,
    /// How many fire.
    pub firing: usize,
    /// Each rule.
    pub data: Vec<AlertView>,
}

/// What the rules look at.
pub(crate) struct Seen<'a> {
    pub now: Time,
    pub totals: &'a Totals,
    pub history: &'a History,
    pub workers: &'a [WorkerScrape<'a>],
}

impl Alert {
    /// All of them.
    pub const ALL: [Alert; 6] =
        [Alert::SlowCancel, Alert::Waste, Alert::UnacknowledgedCancels, Alert::OrphansNotReaped, Alert::Defect, Alert::BlocksWithoutOwner];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Alert::SlowCancel => "KvitSlowCancel",
            Alert::Waste => "KvitWaste",
            Alert::UnacknowledgedCancels => "KvitUnacknowledgedCancels",
            Alert::OrphansNotReaped => "KvitOrphansNotReaped",
            Alert::Defect => "KvitDefect",
            Alert::BlocksWithoutOwner => "KvitBlocksWithoutOwner",
        }
    }

    /// `page` for what will not mend itself, `warning` for what costs money meanwhile.
    pub const fn severity(self) -> &'static str {
        match self {
            Alert::SlowCancel | Alert::Waste => "warning",
            Alert::UnacknowledgedCancels | Alert::OrphansNotReaped | Alert::Defect | Alert::BlocksWithoutOwner => "page",
        }
    }

    /// What it means that it fires.
    pub const fn summary(self) -> &'static str {
        match self {
            Alert::SlowCancel => "The 95th percentile from a caller's leaving to the cancel at the engine is above two scheduler cycles.",
            Alert::Waste => "More than the allowed part of the work was done for callers who had left, in three windows in a row.",
            Alert::UnacknowledgedCancels => "A cancel was sent and its worker does not confirm it.",
            Alert::OrphansNotReaped => "Attempts that no gateway claims still hold their blocks.",
            Alert::Defect => "The account of blocks does not add up, or something that must happen once happened twice: a bug of kvit's.",
            Alert::BlocksWithoutOwner => "Blocks are in use that no live attempt holds: the pool shrinks.",
        }
    }

    /// Where the document says what to do.
    pub fn runbook(self) -> String {
        format!("docs/metrics.md#{}", self.name().to_lowercase())
    }

    const fn unit(self) -> &'static str {
        match self {
            Alert::Waste => "percent",
            Alert::SlowCancel | Alert::UnacknowledgedCancels | Alert::OrphansNotReaped => "seconds",
            Alert::Defect => "count",
            Alert::BlocksWithoutOwner => "blocks",
        }
    }

    /// It, as things stand.
    pub(crate) fn look(self, rules: &AlertRules, seen: &Seen<'_>) -> AlertView {
        let age = |us: u64| Some(us as f64 / 1e6).filter(|age| *age > 0.0);
        let latest = || seen.history.latest(seen.now, seen.totals);
        let (value, threshold) = match self {
            Alert::SlowCancel => slow_cancel(&latest(), rules.cancel),
            Alert::Waste => (least_waste(seen), rules.waste_percent),
            Alert::UnacknowledgedCancels => (age(seen.totals.unacknowledged_oldest_us), rules.unacknowledged.as_secs_f64()),
            Alert::OrphansNotReaped => (age(seen.totals.orphans_oldest_us), rules.orphaned.as_secs_f64()),
            Alert::Defect => (Some(latest().defects as f64), 0.0),
            Alert::BlocksWithoutOwner => (most_unowned(seen.workers), 0.0),
        };
        let is_known = self != Alert::BlocksWithoutOwner || value.is_some() || seen.workers.iter().all(|w| w.takes_runs);
        let state = match value {
            Some(value) if value > threshold => AlertState::Firing,
            _ if is_known => AlertState::Ok,
            _ => AlertState::Unknown,
        };
        let (name, unit, severity, summary) = (self.name(), self.unit(), self.severity(), self.summary());
        AlertView { object: "alert", name, state, value, threshold, unit, severity, summary, runbook: self.runbook() }
    }
}

/// The 95th percentile from disconnect to cancel, and what it may be. A scheduler cycle is what lies between two steps of a run.
fn slow_cancel(latest: &Tally, floor: Duration) -> (Option<f64>, f64) {
    let p95 = |counts| quantile(counts, 0.95).map(|us| us / 1e6);
    let cycles = p95(&latest.cycle).map_or(0.0, |cycle| CYCLES * cycle);
    (p95(&latest.cancel), floor.as_secs_f64().max(cycles))
}

/// In percent, the best of the last windows: if it is above the threshold, all are. `None` until there were so many.
fn least_waste(seen: &Seen<'_>) -> Option<f64> {
    let worst = |back| Some(RatioView::of(&seen.history.window(back, seen.now, seen.totals)?).worst() * 100.0);
    let windows = (0..WINDOWS).map(worst).collect::<Option<Vec<f64>>>()?;
    windows.into_iter().reduce(f64::min)
}

/// Of the worker that has most; `None` if none of them says.
fn most_unowned(workers: &[WorkerScrape<'_>]) -> Option<f64> {
    workers.iter().filter_map(|w| unowned(w.snapshot?)).max().map(|blocks| blocks as f64)
}
