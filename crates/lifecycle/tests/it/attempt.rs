//! The attempt machine, rule by rule.

use lifecycle::AttemptEvent::*;
use lifecycle::AttemptState as S;
use lifecycle::{Applied, AttemptEvent, Cause, Phase, Resumable};

/// The state after these events, none of which may be refused.
fn after(events: &[AttemptEvent]) -> S {
    let mut state = S::default();
    for event in events {
        assert_eq!(state.apply(*event), Applied::Moved, "{event:?} in {state:?}");
    }
    state
}

fn live_states() -> Vec<S> {
    let path = [Submit, Tokenised, Scheduled, FirstToken, Preempt];
    let walked: Vec<S> = (1..=path.len()).map(|n| after(&path[..n])).collect();
    let suspended = walked.iter().map(|state| {
        let mut state = *state;
        assert_eq!(state.apply(Suspend), Applied::Moved);
        state
    });
    let suspended: Vec<S> = suspended.collect();
    [walked, suspended].concat()
}

#[test]
fn the_whole_way_and_a_preemption() {
    let s = after(&[Submit, Tokenised, Scheduled, FirstToken, Preempt, Scheduled, FirstToken, End(Cause::Stop), Drained]);
    assert_eq!(s, S::Released { cause: Cause::Stop });
}

// contract: C-11
// field: F-22
#[test]
fn an_end_before_the_submit_leaves_a_tombstone_and_the_late_submit_computes_nothing() {
    let mut s = after(&[End(Cause::ClientClosed)]);
    assert_eq!(s, S::Tombstoned { cause: Cause::ClientClosed });
    assert_eq!(s.apply(End(Cause::Shutdown)), Applied::Superseded { won: Cause::ClientClosed });
    assert_eq!(s.apply(Submit), Applied::Moved);
    assert_eq!(s, S::Released { cause: Cause::ClientClosed });
    assert!(!s.is_runnable() && !s.is_live());
    for late in [Submit, Tokenised, Scheduled, FirstToken, Preempt, Suspend, Attach, Drained] {
        assert_eq!(s.apply(late), Applied::NoOp, "{late:?}");
    }
}

// contract: C-13
#[test]
fn an_end_works_in_every_live_state_and_the_first_one_wins() {
    for state in live_states() {
        let mut s = state;
        assert!(s.is_live() && s.cause().is_none(), "{s:?}");
        assert_eq!(s.apply(End(Cause::CancelRequested)), Applied::Moved, "{state:?}");
        assert_eq!(s, S::Stopping { cause: Cause::CancelRequested });
        for late in [Cause::Length, Cause::ClientDeadline, Cause::CancelRequested] {
            assert_eq!(s.apply(End(late)), Applied::Superseded { won: Cause::CancelRequested });
        }
        assert_eq!(s.apply(Drained), Applied::Moved);
        assert_eq!(s.apply(Drained), Applied::NoOp, "released once");
        assert_eq!(s.apply(End(Cause::Stop)), Applied::Superseded { won: Cause::CancelRequested });
        assert_eq!(s.cause(), Some(Cause::CancelRequested));
    }
}

// contract: C-10
#[test]
fn a_suspended_attempt_goes_on_where_it_was() {
    for state in live_states().into_iter().filter(|s| !matches!(s, S::Suspended { .. })) {
        let mut s = state;
        assert_eq!(s.apply(Suspend), Applied::Moved);
        assert_eq!(s.name(), "suspended");
        assert!(!s.is_runnable() && s.is_live());
        assert_eq!(s.apply(Suspend), Applied::NoOp);
        assert!(matches!(s.apply(Scheduled), Applied::Defect(_)), "it is not scheduled");
        assert!(matches!(s.apply(Preempt), Applied::Defect(_)), "its blocks are kept");
        assert_eq!(s.apply(Attach), Applied::Moved);
        assert_eq!(s, state);
        assert_eq!(s.apply(Attach), Applied::NoOp);
    }
}

// contract: C-10
#[test]
fn what_was_under_way_still_arrives_while_suspended() {
    let mut s = after(&[Submit, Suspend, Tokenised, Attach]);
    assert_eq!(s, S::Queued);
    assert_eq!(s.apply(Scheduled), Applied::Moved);
    assert_eq!(after(&[Submit, Tokenised, Scheduled, Suspend, FirstToken]), S::Suspended { was: Resumable::Decoding });
}

// contract: C-2
#[test]
fn a_repeated_submit_never_starts_anything() {
    for mut s in live_states() {
        assert_eq!(s.apply(Submit), Applied::NoOp, "{s:?}");
    }
}

#[test]
fn the_impossible_is_a_defect_that_names_itself() {
    let mut s = S::Tokenising;
    let Applied::Defect(defect) = s.apply(Drained) else { panic!("a live attempt cannot be drained") };
    assert_eq!(defect.to_string(), "attempt: drained cannot happen in state tokenising");
    assert_eq!(s, S::Tokenising);
}

#[test]
fn the_names_are_the_api_s() {
    let names: Vec<_> = live_states().iter().map(|s| s.name()).collect();
    assert_eq!(names[..5], ["queued", "queued", "prefilling", "decoding", "preempted"]);
    assert!(names[5..].iter().all(|name| *name == "suspended"));
    assert_eq!(after(&[Submit, End(Cause::Stop)]).name(), "stopping");
    assert_eq!(after(&[Submit, End(Cause::Stop), Drained]).name(), "ended");
    assert_eq!(after(&[End(Cause::Shutdown)]).name(), "ended");
}

// contract: C-24
#[test]
fn the_phase_is_what_the_caller_would_call_it() {
    assert_eq!(S::Tokenising.phase(), Some(Phase::Queued), "being tokenised counts as queued");
    assert_eq!(S::Prefilling.phase(), Some(Phase::Prefill));
    assert_eq!(S::Prefilling.phase_with(true, false), Some(Phase::BeforeFirstToken));
    assert_eq!(S::Prefilling.phase_with(false, true), Some(Phase::Decode), "a recomputation");
    assert_eq!(S::Preempted.phase_with(false, true), Some(Phase::Decode));
    assert_eq!(S::Decoding.phase(), Some(Phase::Decode));
    assert_eq!(S::Suspended { was: Resumable::Queued }.phase(), Some(Phase::Queued));
    assert_eq!(S::Stopping { cause: Cause::Stop }.phase(), None);
}

#[test]
fn runnable_is_what_a_step_may_hold() {
    let runnable: Vec<_> = live_states().into_iter().filter(|s| s.is_runnable()).collect();
    assert_eq!(runnable, [S::Queued, S::Prefilling, S::Decoding, S::Preempted]);
    assert!(!S::Unknown.is_runnable() && !S::Unknown.is_live());
}
