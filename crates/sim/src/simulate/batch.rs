//! Many seeds, on some threads, and the closing line.
//!
//! Invariant: the totals do not depend on the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use lifecycle::Rules;

use super::{Failure, Met, Options, fail_of, play};

/// Which seeds, and how.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// The first.
    pub from: u64,
    /// How many.
    pub seeds: u64,
    /// On so many threads.
    pub jobs: usize,
    /// How each is played.
    pub options: Options,
}

/// What came of them.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Seeds that were played.
    pub seeds: u64,
    /// Events.
    pub events: u64,
    /// Faults.
    pub faults: u64,
    /// Fewest events of a seed.
    pub events_min: u64,
    /// Fewest faults of a seed.
    pub faults_min: u64,
    /// What was met.
    pub met: Met,
    /// How long it took.
    pub seconds: f64,
    /// The first failures, by seed; after a few of them no further seed is begun.
    pub failures: Vec<Failure>,
}

/// Failures after which nothing more is begun.
const FAILURES_MAX: usize = 5;

impl Totals {
    fn add(&mut self, report: &super::Report) {
        self.events_min = if self.seeds == 0 { report.events } else { self.events_min.min(report.events) };
        self.faults_min = if self.seeds == 0 { report.faults } else { self.faults_min.min(report.faults) };
        self.seeds += 1;
        self.events += report.events;
        self.faults += report.faults;
        self.met += report.met;
    }

    /// Whether every clause held and every seed was worth its time.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.events_min >= super::world::EVENTS_MIN && self.faults_min >= super::world::FAULTS_MIN
    }
}

/// Plays seeds on some threads.
pub fn run_seeds<R: Rules>(batch: Batch) -> Totals {
    let began = Instant::now();
    let (next, stop, all) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..batch.jobs.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= batch.seeds {
                        return;
                    }
                    let report = play::<R>(batch.from + i, &batch.options);
                    let failure = report.violation.is_some().then(|| fail_of::<R>(report.seed, &batch.options)).flatten();
                    let mut all = match all.lock() {
                        Ok(all) => all,
                        Err(poisoned) => poisoned.into_inner(),
                    };
                    if report.violation.is_none() {
                        all.add(&report);
                    }
                    all.failures.extend(failure);
                    stop.fetch_or(all.failures.len() >= FAILURES_MAX, Ordering::Relaxed);
                }
            });
        }
    });
    let mut totals = match all.into_inner() {
        Ok(totals) => totals,
        Err(poisoned) => poisoned.into_inner(),
    };
    totals.failures.sort_by_key(|failure| failure.seed);
    totals.seconds = began.elapsed().as_secs_f64();
    totals
}

impl std::fmt::Display for Totals {
    /// The closing line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Totals { seeds, events, faults, events_min, faults_min, seconds, .. } = self;
        let per_second = *seeds as f64 / seconds.max(1e-9);
        write!(
            f,
            "simulated {seeds} seeds: {events} events (at least {events_min} a seed), {faults} faults (at least {faults_min}), \
             {per_second:.0} seeds/s in {seconds:.1} s, violations {}",
            self.failures.len()
        )
    }
}
