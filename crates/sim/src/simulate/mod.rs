//! The simulator: gateways and workers as the real cores on virtual clocks and a seeded network.
//!
//! ```text
//!  seed ──► scenario ──► world: true time, what is to happen next
//!                          │  gateway: GatewaySide + Workers + Dispatch     ▲ frames, connections
//!                          │  worker:  WorkerSide + Engine + device         ▼ lost, doubled, late, cut
//!                          └► oracle: the truth, and every clause's check
//! ```
//!
//! A seed gives the same events in every process and on every machine; a failure is replayed with its number alone.
//!
//! Invariant: what is decided is decided by the cores that serve; the shells here carry messages and times.
// contract: C-2, C-3, C-5, C-9, C-10, C-11, C-14, C-15, C-16, C-20, C-22, C-23, C-25

mod batch;
mod chaos;
mod device;
mod event;
mod faults;
mod gateway;
mod judge;
mod leaving;
mod met;
mod network;
mod oracle;
mod readers;
pub mod rng;
mod runs;
mod scenario;
mod steps;
mod story;
mod worker;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use lifecycle::Rules;

pub use batch::{Batch, Totals, run_seeds};
pub use faults::{FaultKind, FaultSet};
pub use met::Met;
pub use oracle::Violation;
use world::World;

/// A lie between the cores and the oracle, so that a test can show that the oracle sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sabotage {
    /// None.
    #[default]
    None,
    /// The engine does not hear that an attempt is suspended.
    SuspendIsForgotten,
    /// The engine does not hear a cancel.
    CancelIsForgotten,
    /// Every second submit is executed twice.
    SubmitTwice,
    /// What a step brings is delivered twice.
    DeltaTwice,
    /// What every fourth step brings is not delivered, where the answer would go on.
    DeltaIsForgotten,
    /// The worker's word that a run is released is lost on its way to the session.
    ReleaseIsForgotten,
    /// A gateway takes a silent worker for lost.
    SilenceIsTheEnd,
    /// A gateway takes a worker whose host refuses connections for lost.
    RefusedIsTheEnd,
    /// A gateway disclaims what it is asked about.
    EverythingIsDisclaimed,
    /// A worker takes the words of an earlier life for those that it waits for.
    StaleIsTaken,
    /// An outcome is written twice.
    OutcomeTwice,
    /// A gateway forgets a run whose outcome is set.
    RunIsForgotten,
    /// A gateway's deadlines come at half their time.
    DeadlineIsEarly,
    /// A gateway's dispatch does not hear that a reader left.
    LeavingIsForgotten,
    /// A gateway's dispatch does not hear that a reader came back.
    ReturnIsForgotten,
    /// A gateway's graces are half as long as was promised.
    GraceIsShort,
    /// A worker looks at its leases after it has planned, not before.
    LeaseIsLookedAtLate,
}

/// How a seed is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Faults that do not happen, whatever the seed says.
    pub without: FaultSet,
    /// Whether the story is kept.
    pub trace: bool,
    /// A lie.
    pub sabotage: Sabotage,
}

/// What became of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Events that happened.
    pub events: u64,
    /// Of them, faults.
    pub faults: u64,
    /// A number that two runs share only if they were the same, event by event.
    pub hash: u64,
    /// The faults that were switched on.
    pub kinds: FaultSet,
    /// What was met.
    pub met: Met,
    /// The first clause that was broken.
    pub violation: Option<Violation>,
    /// What happened, if it was asked for.
    pub story: Vec<String>,
}

/// A seed that broke a clause.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The clause and what happened.
    pub violation: Violation,
    /// How many events it took.
    pub events: u64,
    /// The smallest set of faults that still breaks the same clause.
    pub needs: FaultSet,
    /// The story with those faults alone.
    pub story: Vec<String>,
}

/// Plays a seed.
pub fn play<R: Rules>(seed: u64, options: &Options) -> Report {
    let mut world: World<R> = World::new(seed, options);
    // A core that finds its own account broken does not go on: that is a violation as any other.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
        let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        let what = said.unwrap_or("a core panicked").to_string();
        world.oracle.fail("C-15", || what);
    }
    if let Some(Violation { clause, what }) = world.oracle.violation().cloned() {
        world.tell(|| format!("{clause} is broken: {what}"));
    }
    Report {
        seed,
        events: world.events,
        faults: world.faults,
        hash: world.hash,
        kinds: world.scenario.faults,
        met: world.oracle.met,
        violation: world.oracle.violation().cloned(),
        story: world.story.into_lines(),
    }
}

/// The first of so many seeds that breaks a clause under these rules, shrunk.
pub fn find<R: Rules>(seeds: u64) -> Option<Failure> {
    (0..seeds).find_map(|seed| fail_of::<R>(seed, &Options::default()))
}

/// A seed's failure, shrunk, if it has one.
pub fn fail_of<R: Rules>(seed: u64, options: &Options) -> Option<Failure> {
    let report = play::<R>(seed, options);
    let violation = report.violation?;
    Some(shrink::<R>(seed, options, &violation, report.kinds))
}

/// Switches off one kind of fault after the other, as long as the same clause breaks.
fn shrink<R: Rules>(seed: u64, options: &Options, violation: &Violation, kinds: FaultSet) -> Failure {
    let mut without = options.without;
    for kind in kinds.iter() {
        let less = without.with(kind);
        let report = play::<R>(seed, &Options { without: less, trace: false, ..*options });
        if report.violation.is_some_and(|v| v.clause == violation.clause) {
            without = less;
        }
    }
    let told = play::<R>(seed, &Options { without, trace: true, ..*options });
    let violation = told.violation.unwrap_or_else(|| violation.clone());
    Failure { seed, violation, events: told.events, needs: kinds.without(without), story: told.story }
}

/// The rules that serve, compiled in this crate: generic code is compiled where its types are known, and that is where it is made quick.
pub mod sound {
    use super::{Batch, Failure, Options, Report, Totals};
    use lifecycle::Sound;

    /// Plays a seed.
    pub fn play(seed: u64, options: &Options) -> Report {
        super::play::<Sound>(seed, options)
    }

    /// A seed's failure, shrunk, if it has one.
    pub fn fail_of(seed: u64, options: &Options) -> Option<Failure> {
        super::fail_of::<Sound>(seed, options)
    }

    /// Plays seeds on some threads.
    pub fn run_seeds(batch: Batch) -> Totals {
        super::run_seeds::<Sound>(batch)
    }
}
