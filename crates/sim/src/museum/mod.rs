//! The museum: real bugs as other answers to the questions of `lifecycle::rules`, each caught by the explorer and by the simulator.
//!
//! What serves is compiled with the sound answers; nothing of this is in it.
//!
//! Invariant: every exhibit names the public thread that it comes from, the clause that it breaks and the sound rule.

mod bugs;
mod exhibits;
mod seen;

use std::time::Duration;

use lifecycle::Rules;
use lifecycle::message::Snapshot;

pub use exhibits::EXHIBITS;

use crate::explore::{self, Found, Report, RunSetup, Setup};
use crate::simulate::{self, Failure};

/// States after which a bug counts as not caught.
const BOUND: usize = 200_000;
/// Seeds within which the simulator has to find each bug.
pub const SEEDS: u64 = 1000;

/// A bug on show.
#[derive(Clone, Copy, Debug)]
pub struct Exhibit {
    /// Its name on the command line.
    pub name: &'static str,
    /// What goes wrong.
    pub title: &'static str,
    /// The public thread: repository and number.
    pub thread: &'static str,
    /// What was reported there.
    pub report: &'static str,
    /// The clause that must be seen to break.
    pub clause: &'static str,
    /// The sound rule.
    pub fix: &'static str,
    /// The setup in which it shows.
    pub setup: &'static str,
    /// The clauses of which the simulator sees one break first: it looks from further away.
    pub seen_as: &'static [&'static str],
    catch: fn(&Setup, &dyn Fn() -> Duration) -> Caught,
    play: fn(u64) -> Option<Failure>,
    cuts: fn(&Setup, &Found) -> Vec<Snapshot>,
}

/// What became of the hunt for a bug.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The exploration.
    pub report: Report,
    /// The counterexample as a story; empty if there is none.
    pub story: Vec<String>,
}

impl Caught {
    /// The counterexample.
    pub fn found(&self) -> Option<&Found> {
        self.report.found.as_ref()
    }

    /// Its number of steps.
    pub fn steps(&self) -> usize {
        self.found().map_or(0, |found| found.path.len())
    }
}

impl Exhibit {
    /// Looks for it. `clock` says how long it has taken.
    pub fn catch(&self, clock: &dyn Fn() -> Duration) -> Caught {
        (self.catch)(&setup(self.setup), clock)
    }

    /// Looks for it with the simulator, in so many seeds from 0.
    pub fn play(&self, seeds: u64) -> Option<Failure> {
        (self.play)(seeds)
    }

    /// The worker's account after each step of the way on which it is caught, and of the fair way after that.
    pub fn cuts(&self, caught: &Caught) -> Vec<Snapshot> {
        caught.found().map(|found| (self.cuts)(&setup(self.setup), found)).unwrap_or_default()
    }

    /// Whether the simulator saw it break one of its clauses.
    pub fn is_seen(&self, failure: Option<&Failure>) -> bool {
        failure.is_some_and(|failure| self.seen_as.contains(&failure.violation.clause))
    }

    /// Whether it was caught breaking its clause.
    pub fn is_caught(&self, caught: &Caught) -> bool {
        caught.found().is_some_and(|found| found.violation.clause == self.clause)
    }
}

/// The exhibit of a name.
pub fn exhibit(name: &str) -> Option<&'static Exhibit> {
    EXHIBITS.iter().find(|exhibit| exhibit.name == name)
}

fn catch<R: Rules>(setup: &Setup, clock: &dyn Fn() -> Duration) -> Caught {
    explore::quietly(|| {
        let report = explore::explore::<R>(setup, BOUND, clock);
        let story = report.found.as_ref().map(|found| explore::story::<R>(setup, found)).unwrap_or_default();
        Caught { report, story }
    })
}

fn play<R: Rules>(seeds: u64) -> Option<Failure> {
    explore::quietly(|| simulate::find::<R>(seeds))
}

/// One of the explorer's setups, or one that only the museum needs.
fn setup(name: &str) -> Setup {
    let names = || {
        let runs = vec![RunSetup::new("ab", &[1, 2, 3]), RunSetup::new("a", &[1, 2, 4]).leaves(&[lifecycle::Cause::CancelRequested])];
        Setup::new("names", "two runs, one of whose ids begins with the other's", runs)
    };
    explore::all().into_iter().find(|setup| setup.name == name).unwrap_or_else(names)
}
