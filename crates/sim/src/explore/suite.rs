//! All setups of a tier, on as many threads as are given, and what they show together.
//!
//! Invariant: the figures do not depend on the number of threads; only the times do.

use std::sync::Mutex;
use std::time::Duration;

use lifecycle::Sound;

use super::cells::{CellAccount, Cells, Listening};
use super::marks::{Mark, Marks};
use super::search::{Report, Stopped, explore, story};
use super::setup::Setup;

/// What a tier's setups show together.
#[derive(Clone, Debug)]
pub struct Suite {
    /// One a setup, in the setups' order.
    pub reports: Vec<Report>,
    /// Situations that none has met.
    pub missing: Vec<Mark>,
    /// Where every cell of the machines' tables is.
    pub cells: CellAccount,
    /// The first violation, as a story.
    pub story: Vec<String>,
}

impl Suite {
    /// Different states of all setups.
    pub fn states(&self) -> usize {
        self.reports.iter().map(|r| r.states).sum()
    }

    /// Actions taken in all setups.
    pub fn edges(&self) -> u64 {
        self.reports.iter().map(|r| r.edges).sum()
    }

    /// Setups whose reachable set is exhausted.
    pub fn closed(&self) -> usize {
        self.reports.iter().filter(|r| r.stopped == Stopped::Closed).count()
    }

    /// Setups in which a clause is broken.
    pub fn violations(&self) -> usize {
        self.reports.iter().filter(|r| r.found.is_some()).count()
    }

    /// Whether every setup is closed without a violation, every mark met, and every cell met or excused.
    pub fn is_good(&self) -> bool {
        self.closed() == self.reports.len() && self.missing.is_empty() && self.cells.holes.is_empty() && self.cells.lies.is_empty()
    }
}

/// Explores these setups, each up to so many states. `clock` says how long it has taken; `told` hears of each report as it comes.
pub fn suite(
    setups: &[Setup],
    bound: usize,
    threads: usize,
    clock: &(dyn Fn() -> Duration + Sync),
    told: &(dyn Fn(&Report) + Sync),
) -> Suite {
    let waiting = Mutex::new((0..setups.len()).collect::<Vec<usize>>());
    let done: Mutex<Vec<(usize, Report)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(at) = waiting.lock().ok().and_then(|mut waiting| waiting.pop()) {
                    let report = explore::<Listening>(&setups[at], bound, &|| clock());
                    told(&report);
                    if let Ok(mut done) = done.lock() {
                        done.push((at, report));
                    }
                }
            });
        }
    });
    let mut reports = done.into_inner().unwrap_or_default();
    reports.sort_by_key(|(at, _)| *at);
    let (mut marks, mut cells) = (Marks::default(), Cells::default());
    for (_, report) in &reports {
        marks.union(report.marks);
        cells.union(&report.cells);
    }
    let first = reports.iter().find_map(|(at, report)| report.found.as_ref().map(|found| story::<Sound>(&setups[*at], found)));
    Suite {
        reports: reports.into_iter().map(|(_, report)| report).collect(),
        missing: marks.missing(),
        cells: cells.account(),
        story: first.unwrap_or_default(),
    }
}
