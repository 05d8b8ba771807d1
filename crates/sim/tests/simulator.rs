//! The simulator: clean under the sound rules, the same twice, and blind to nothing that it claims to see.
// contract: C-2, C-3, C-4, C-5, C-7, C-9, C-10, C-11, C-12, C-13, C-14, C-15, C-16, C-18, C-19, C-20, C-22, C-23, C-25, C-31

use std::time::Duration;

use lifecycle::{AttemptId, Rules, Sound, StepId};
use sim::simulate::{Batch, FaultKind, FaultSet, Options, Sabotage, fail_of, find, play, run_seeds};

/// Seeds within which every unsound rule and every lie below must be seen.
const WITHIN: u64 = 1000;

#[test]
fn no_clause_is_broken_in_many_seeds() {
    let totals = run_seeds::<Sound>(Batch { from: 0, seeds: 300, jobs: 2, options: Options::default() });
    assert!(totals.is_clean(), "{totals}: {:?}", totals.failures.iter().map(|f| (f.seed, &f.violation)).collect::<Vec<_>>());
    let met = totals.met;
    let leaving = [met.came_back, met.ran_out, met.unread, met.refused, met.dismissed];
    let met = [met.completed, met.ownerless, met.suspended, met.attached, met.orphaned, met.lost, met.again, met.stale, met.tombstones];
    assert!(met.iter().chain(&leaving).all(|n| *n > 0), "something never happens: {:?}", totals.met);
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let (once, again) = (play::<Sound>(seed, &Options::default()), play::<Sound>(seed, &Options { trace: true, ..Options::default() }));
        assert_eq!((once.hash, once.events, once.faults, once.met), (again.hash, again.events, again.faults, again.met), "seed {seed}");
        let told = play::<Sound>(seed, &Options { trace: true, ..Options::default() });
        assert_eq!(again.story, told.story, "seed {seed}");
        assert!(once.story.is_empty() && told.story.len() > 10);
        hashes.insert(once.hash);
    }
    assert_eq!(hashes.len(), 60, "and another seed gives others");
}

#[test]
fn a_fault_that_is_switched_off_does_not_happen() {
    let calm = Options { without: FaultSet::ALL, ..Options::default() };
    for seed in 0..20 {
        let report = play::<Sound>(seed, &calm);
        assert_eq!((report.faults, report.violation), (0, None), "seed {seed}");
        // Who goes, goes; who stays gets everything.
        assert_eq!((report.met.lost, report.met.ownerless, report.met.orphaned, report.met.again), (0, 0, 0, 0), "seed {seed}");
    }
    let without = FaultSet::NONE.with(FaultKind::WorkerCrash);
    assert!((0..60).all(|seed| !play::<Sound>(seed, &Options { without, ..Options::default() }).kinds.has(FaultKind::WorkerCrash)));
}

macro_rules! unsound {
    ($($name:ident $test:ident $clauses:expr; { $($body:item)* })+) => {
        $(#[derive(Clone, Copy, Debug, Default)]
        struct $name;
        impl Rules for $name { $($body)* }
        #[test]
        fn $test() {
            let failure = find::<$name>(WITHIN).expect("the rule is seen to be unsound");
            println!("seed {}: {}: {} (needs {})", failure.seed, failure.violation.clause, failure.violation.what, failure.needs);
            assert!($clauses.contains(&failure.violation.clause), "{:?}", failure.violation);
            assert!(failure.story.last().is_some_and(|line| line.contains(failure.violation.clause)), "the story ends with the clause");
        })+
    };
}

unsound! {
    NoFence free_before_the_fence ["C-16", "C-14"]; { fn fence_of_block(_: Option<StepId>) -> Option<StepId> { None } }
    FreesForAll shared_block_freed ["C-17", "C-14", "C-16"]; { fn leaves_alone() -> bool { false } }
    CountsDraining draining_counted_as_free ["C-16"]; { fn capacity(available: u32, draining: u32) -> u32 { available + draining } }
    PublishesUncomputed dropped_rows_published ["C-14"]; { fn publishes(_: usize, scheduled: usize) -> usize { scheduled } }
    MatchesPrefix id_matched_by_prefix ["C-4", "C-11"]; {
        fn named<'a>(wanted: &AttemptId, exact: Option<u64>, mut live: impl Iterator<Item = (u64, &'a AttemptId)>) -> Option<u64> {
            exact.or_else(|| live.find(|(_, id)| id.key.run.as_str().starts_with(wanted.key.run.as_str())).map(|(key, _)| key))
        }
    }
    NoTombstone cancel_before_submit_lost ["C-11"]; { fn leaves_tombstone() -> bool { false } }
    ReleasesAgain released_twice ["C-20"]; { fn releases_again() -> bool { true } }
    LeavesChildren children_left ["C-20", "C-15"]; { fn ends_sequence(sequence: usize) -> bool { sequence == 0 } }
    DropsLateRows late_completion_filtered ["liveness"]; { fn counts_late_row() -> bool { false } }
    ReleasedAtOnce released_before_it_is ["C-20"]; { fn is_released(_: u32) -> bool { true } }
    AcknowledgedIsReleased acknowledgement_taken_for_release ["C-20"]; { fn acknowledgement_releases() -> bool { true } }
    SentIsReleased sending_taken_for_release ["C-4", "C-20", "C-12"]; { fn cancel_sent_releases() -> bool { true } }
    TimeReleases timer_frees ["C-20", "C-12"]; { fn time_releases(waited: Duration) -> bool { waited > Duration::from_millis(100) } }
}

fn seen(lie: Sabotage, clauses: &[&str]) {
    let options = Options { sabotage: lie, ..Options::default() };
    let failure = (0..WITHIN).find_map(|seed| fail_of::<Sound>(seed, &options)).unwrap_or_else(|| panic!("{lie:?} was not seen"));
    println!("{lie:?}: seed {}: {}: {}", failure.seed, failure.violation.clause, failure.violation.what);
    assert!(clauses.contains(&failure.violation.clause), "{lie:?}: {:?}", failure.violation);
}

#[test]
fn every_lie_is_seen() {
    seen(Sabotage::SuspendIsForgotten, &["C-10"]);
    seen(Sabotage::CancelIsForgotten, &["C-13"]);
    seen(Sabotage::SubmitTwice, &["C-2"]);
    seen(Sabotage::DeltaTwice, &["C-14"]);
    seen(Sabotage::DeltaIsForgotten, &["C-10", "C-14"]);
    seen(Sabotage::ReleaseIsForgotten, &["liveness"]);
    seen(Sabotage::SilenceIsTheEnd, &["C-9"]);
    seen(Sabotage::RefusedIsTheEnd, &["C-9"]);
    seen(Sabotage::EverythingIsDisclaimed, &["C-23"]);
    seen(Sabotage::StaleIsTaken, &["C-3"]);
    seen(Sabotage::OutcomeTwice, &["C-5"]);
    seen(Sabotage::RunIsForgotten, &["C-7"]);
    seen(Sabotage::DeadlineIsEarly, &["C-22"]);
    // Of a run that had ended, nobody is told that its answer is over: it never settles.
    seen(Sabotage::LeavingIsForgotten, &["C-25", "liveness"]);
    seen(Sabotage::ReturnIsForgotten, &["C-25"]);
    seen(Sabotage::GraceIsShort, &["C-25"]);
    seen(Sabotage::LeaseIsLookedAtLate, &["C-9", "C-10"]);
}
