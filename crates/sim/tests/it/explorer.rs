//! Small setups are closed, every mark and every cell of the tables is met, and a story reads well.
// contract: C-2 C-4 C-5 C-9 C-11 C-12 C-13 C-14 C-15 C-16 C-17 C-18 C-19 C-20 C-31

use std::time::Duration;

use sim::explore::{self, Stopped, suite};

/// States after which a setup counts as not closed.
const BOUND: usize = 1_000_000;

fn still() -> Duration {
    Duration::ZERO
}

#[test]
fn every_setup_is_closed_without_a_violation_and_nothing_is_left_unmet() {
    let suite = suite(&explore::all(), BOUND, 2, &still, &|_| {});
    assert!(suite.story.is_empty(), "{}", suite.story.join("\n"));
    assert!(suite.reports.iter().all(|r| r.stopped == Stopped::Closed), "{:?}", suite.reports);
    assert_eq!(suite.missing, [], "situations that no setup meets");
    assert_eq!((suite.cells.holes.clone(), suite.cells.lies.clone()), (Vec::new(), Vec::new()), "cells");
    assert!(suite.is_good());
}

#[test]
fn the_same_setup_gives_the_same_figures_and_a_bound_is_said() {
    let share = |bound| {
        let setups: Vec<_> = explore::all().into_iter().filter(|s| s.name == "share").collect();
        suite(&setups, bound, 1, &still, &|_| {})
    };
    let (once, again) = (share(BOUND), share(BOUND));
    assert_eq!((once.states(), once.edges()), (again.states(), again.edges()));
    assert!(once.reports[0].rests > 0 && once.reports[0].longest > 0);
    let cut = share(100);
    assert_eq!((cut.reports[0].stopped, cut.closed()), (Stopped::Bound, 0));
    assert!(!cut.is_good());
}
