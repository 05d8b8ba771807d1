//! Cancels that come before their submit, number by number.
// contract: C-2, C-11

use lifecycle::{Cause, Outcome};

use super::simulated::id;
use crate::tombstone::Tombstones;

fn outcome(cause: Cause) -> Outcome {
    Outcome::of(cause)
}

#[test]
fn the_first_cause_wins_and_is_told_once() {
    let mut t = Tombstones::new(4);
    t.remember(id("a"), 5, outcome(Cause::ClientClosed));
    t.remember(id("a"), 5, outcome(Cause::CancelRequested));
    t.remember(id("a"), 9, outcome(Cause::CancelRequested));
    assert_eq!(t.len(), 1);
    assert_eq!(t.submit(&id("a"), 5), Ok(Some(outcome(Cause::ClientClosed))));
    assert_eq!((t.submit(&id("a"), 5), t.len()), (Err(()), 0), "it came already");
    assert_eq!(t.submit(&id("b"), 6), Ok(None));
}

#[test]
fn as_many_as_the_limit_are_remembered_and_the_oldest_is_given_up_for_one_more() {
    let mut t = Tombstones::new(2);
    for (name, number) in [("a", 5), ("b", 6)] {
        t.remember(id(name), number, outcome(Cause::ClientClosed));
    }
    assert_eq!((t.len(), t.may_come(5), t.may_come(1)), (2, true, true));
    t.remember(id("c"), 7, outcome(Cause::ClientClosed));
    assert_eq!((t.len(), t.may_come(5), t.may_come(6)), (2, false, true));
    assert_eq!(t.submit(&id("a"), 5), Err(()), "its cancel is forgotten, so it must not run");
    assert_eq!(t.submit(&id("b"), 6), Ok(Some(outcome(Cause::ClientClosed))));
}

#[test]
fn what_came_or_was_passed_over_is_not_remembered() {
    let mut t = Tombstones::new(4);
    t.remember(id("a"), 5, outcome(Cause::ClientClosed));
    t.remember(id("b"), 6, outcome(Cause::ClientClosed));
    t.remember(id("d"), 7, outcome(Cause::ClientClosed));
    assert_eq!((t.submit(&id("c"), 6), t.len()), (Ok(None), 1), "up to number 6 nothing more comes");
    t.remember(id("a"), 5, outcome(Cause::ClientClosed));
    t.remember(id("b"), 6, outcome(Cause::ClientClosed));
    assert_eq!(t.len(), 1);
    assert_eq!(t.submit(&id("d"), 7), Ok(Some(outcome(Cause::ClientClosed))));
}
