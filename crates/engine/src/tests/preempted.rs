//! A cancel of a run whose blocks were taken away to make room, with rows of it still in a step and without.

use lifecycle::{Cause, OutcomeKind};

use super::simulated::{World, id, isolated};
use crate::Submission;

const RUNS: [&str; 3] = ["p0", "p1", "p2"];
const CAP: u32 = 24;

fn prompt(run: &str) -> Vec<u32> {
    let seed = run.bytes().last().map_or(0, u32::from);
    (0..14).map(|i| (seed * 17 + i * 5) % 90).collect()
}

/// Three runs in a pool that is too small for them.
fn crowd() -> World {
    let mut w = World::small(14);
    for run in RUNS {
        let s = Submission { max_tokens: Some(CAP), stop_tokens: vec![], ..w.submission(run) };
        w.start(s, &prompt(run));
    }
    w
}

/// A run that is preempted now, and how many of its rows are in steps that are not over.
fn preempted(w: &World) -> Option<(&'static str, u32)> {
    let cut = w.cut();
    let run = RUNS.into_iter().find(|run| cut.attempts.iter().any(|a| a.attempt == id(run) && a.state == "preempted"))?;
    let key = w.engine.by_id[&id(run)];
    Some((run, w.engine.attempts[&key].rows_in_flight))
}

/// Plans and steps until a run is preempted, with rows in flight or without, as wanted.
fn until_preempted(w: &mut World, wanted: fn(u32) -> bool) -> &'static str {
    for _ in 0..200 {
        w.fill();
        if let Some((run, rows)) = preempted(w)
            && wanted(rows)
        {
            return run;
        }
        assert!(w.step(), "everything is over and nobody was preempted");
        if let Some((run, rows)) = preempted(w)
            && wanted(rows)
        {
            return run;
        }
    }
    panic!("nobody was preempted");
}

/// Everything that is left comes to its own end, with the tokens that it would have alone.
fn the_others_notice_nothing(w: &mut World, cancelled: &str) {
    w.finish(400);
    w.assert_at_rest();
    for run in RUNS.into_iter().filter(|run| *run != cancelled) {
        assert_eq!(w.seen(run).ended[0].kind(), OutcomeKind::Completed, "{run}");
        assert_eq!(w.seen(run).answers[&0], isolated(&prompt(run), CAP as usize, true), "{run}");
    }
}

// contract: C-13, C-14, C-20  field: F-59
#[test]
fn a_preempted_run_that_is_in_no_step_is_released_by_its_cancel_at_once() {
    let mut w = crowd();
    let run = until_preempted(&mut w, |rows| rows == 0);
    let before = w.seen(run);
    assert!(before.preempted > 0 && before.released.is_empty());
    let available = w.cut();
    w.cancel(run, Cause::ClientClosed);
    let seen = w.seen(run);
    assert_eq!((seen.ended[0].cause, seen.released.len(), seen.released[0].blocks_held), (Cause::ClientClosed, 1, 0));
    assert_eq!(seen.acknowledged, [Some(Cause::ClientClosed)]);
    // It held nothing, so nothing moved; and it does not wait for a turn any more.
    let after = w.cut();
    assert_eq!((after.free, after.active, after.draining), (available.free, available.active, available.draining));
    assert_eq!(after.held.waiting, available.held.waiting - 1);
    the_others_notice_nothing(&mut w, run);
    assert_eq!((w.seen(run).answers, w.seen(run).computed_after_cancel), (before.answers, 0), "it never ran again");
}

// contract: C-12, C-13, C-16, C-20  field: F-39, F-59
#[test]
fn a_preempted_run_that_a_step_still_holds_is_released_behind_that_step() {
    let mut w = crowd();
    let run = until_preempted(&mut w, |rows| rows > 0);
    let before = w.seen(run).answers;
    w.cancel(run, Cause::ClientReset);
    let seen = w.seen(run);
    assert_eq!((seen.ended[0].cause, seen.released.len()), (Cause::ClientReset, 0), "a step that is not over has a row of it");
    assert!(w.cut().draining > 0, "and its blocks wait for that step");
    w.cancel(run, Cause::CancelRequested);
    assert_eq!(w.seen(run).acknowledged, [Some(Cause::ClientReset), Some(Cause::ClientReset)]);
    the_others_notice_nothing(&mut w, run);
    let seen = w.seen(run);
    assert_eq!((seen.answers, seen.released.len()), (before, 1));
    assert!(seen.computed_after_cancel <= 1, "{}", seen.computed_after_cancel);
}
