//! The call machine, rule by rule.

use lifecycle::CallEvent::*;
use lifecycle::{Applied, Call, CallEffect as F, CallEvent, CallState, Cause, Delivery, Register};

/// The call after these events, and every effect of them.
fn after(events: &[CallEvent]) -> (Call, Vec<F>) {
    let mut call = Call::new();
    let mut effects = Vec::new();
    for event in events {
        let (applied, more) = call.apply(*event);
        assert!(!matches!(applied, Applied::Defect(_)), "{event:?} in {:?}: {applied:?}", call.state());
        effects.extend(more);
    }
    (call, effects)
}

const DISPATCH: CallEvent = Dispatch { after: 0 };
const ACCEPTED: CallEvent = WorkerAccepted { attempt: 1 };
const LOST: CallEvent = WorkerLost { attempt: 1, again: false };
const CLOSED: Cause = Cause::ClientClosed;
const DEADLINE: Cause = Cause::ClientDeadline;
const ENDED: CallEvent = WorkerEnded { attempt: 1, cause: CLOSED };
const RELEASED: CallEvent = WorkerReleased { attempt: 1 };
const SENT: F = F::SendCancel { attempt: 1, cause: CLOSED, count: 1 };

#[test]
fn a_run_that_completes() {
    let stop = WorkerEnded { attempt: 1, cause: Cause::Stop };
    let (call, effects) = after(&[DISPATCH, ACCEPTED, stop, RELEASED, Delivered(Delivery::Complete)]);
    assert_eq!(effects, [F::OutcomeSet { cause: Cause::Stop }, F::Settle { proven: true }]);
    assert_eq!(call.state(), CallState::Settled { cause: Cause::Stop, proven: true });
    assert_eq!((call.attempt(), call.delivery(), call.cancels_sent()), (1, Some(Delivery::Complete), 0));
}

#[test]
fn a_run_whose_caller_leaves() {
    let (call, effects) = after(&[DISPATCH, ACCEPTED, Want(CLOSED), Delivered(Delivery::Partial), ENDED, RELEASED]);
    assert_eq!(effects, [SENT, F::OutcomeSet { cause: CLOSED }, F::Settle { proven: true }]);
    assert_eq!(call.superseded().count(), 0);
}

// contract: C-4
#[test]
fn before_dispatch_the_call_decides_by_itself() {
    let (mut call, effects) = after(&[Want(CLOSED), Want(DEADLINE), Delivered(Delivery::None)]);
    let superseded = F::Superseded { cause: DEADLINE, won: CLOSED };
    assert_eq!(effects, [F::OutcomeSet { cause: CLOSED }, superseded, F::Settle { proven: true }]);
    assert_eq!(call.apply(DISPATCH), (Applied::NoOp, vec![]), "it must not reach a worker any more");
    assert_eq!(call.attempt(), 0);
}

// contract: C-4
#[test]
fn after_dispatch_the_engine_decides_and_the_wish_may_lose() {
    let length = WorkerEnded { attempt: 1, cause: Cause::Length };
    let (call, effects) = after(&[DISPATCH, Want(CLOSED), Want(DEADLINE), length]);
    let lost = |cause| F::Superseded { cause, won: Cause::Length };
    assert_eq!(effects, [SENT, F::OutcomeSet { cause: Cause::Length }, lost(CLOSED), lost(DEADLINE)]);
    assert_eq!(call.superseded().collect::<Vec<_>>(), [CLOSED, DEADLINE]);
    assert_eq!(call.wanted(), Some(CLOSED));
}

// contract: C-4
#[test]
fn of_several_wishes_the_first_is_sent_and_the_winner_is_never_called_superseded() {
    let (mut call, effects) = after(&[DISPATCH, ACCEPTED, Want(CLOSED)]);
    assert_eq!(effects, [SENT]);
    assert_eq!(call.apply(Want(DEADLINE)), (Applied::Superseded { won: CLOSED }, vec![]));
    assert_eq!(call.superseded().collect::<Vec<_>>(), [DEADLINE]);
    // The worker's own copy of the deadline was faster than the cancel.
    let (_, effects) = call.apply(WorkerEnded { attempt: 1, cause: DEADLINE });
    assert_eq!(effects, [F::OutcomeSet { cause: DEADLINE }, F::Superseded { cause: CLOSED, won: DEADLINE }]);
    assert_eq!(call.superseded().collect::<Vec<_>>(), [CLOSED]);
}

// contract: C-4, C-8
#[test]
fn a_wish_after_the_end_changes_nothing_and_is_written_once() {
    for events in [&[DISPATCH, ENDED][..], &[DISPATCH, ENDED, RELEASED], &[DISPATCH, ENDED, RELEASED, Delivered(Delivery::Partial)]] {
        let (mut call, _) = after(events);
        let state = call.state();
        let late = F::Superseded { cause: DEADLINE, won: CLOSED };
        assert_eq!(call.apply(Want(DEADLINE)), (Applied::Superseded { won: CLOSED }, vec![late]));
        assert_eq!(call.apply(Want(DEADLINE)), (Applied::Superseded { won: CLOSED }, vec![]));
        assert_eq!(call.apply(Want(CLOSED)), (Applied::Superseded { won: CLOSED }, vec![]), "the winner again is no loser");
        assert_eq!((call.state(), call.cancels_sent()), (state, 0));
    }
}

// contract: C-9
// field: F-09, F-21
#[test]
fn a_cancel_is_repeated_until_it_is_released() {
    let (mut call, _) = after(&[DISPATCH, Want(CLOSED)]);
    let again = |count| F::SendCancel { attempt: 1, cause: CLOSED, count };
    assert_eq!(call.apply(Retry), (Applied::Moved, vec![again(2)]));
    assert_eq!(call.apply(ENDED).0, Applied::Moved);
    assert!(call.needs_retry(), "ended is not released");
    assert_eq!(call.apply(Retry), (Applied::Moved, vec![again(3)]));
    assert_eq!(call.apply(RELEASED).0, Applied::Moved);
    assert!(!call.needs_retry());
    assert_eq!(call.apply(Retry), (Applied::NoOp, vec![]));
    assert_eq!(call.cancels_sent(), 3);
}

#[test]
fn nothing_is_repeated_where_nothing_was_sent() {
    let stop = WorkerEnded { attempt: 1, cause: Cause::Stop };
    for events in [&[][..], &[DISPATCH], &[DISPATCH, ACCEPTED], &[DISPATCH, stop], &[Want(CLOSED)]] {
        let (mut call, _) = after(events);
        assert_eq!(call.apply(Retry), (Applied::NoOp, vec![]), "{events:?}");
    }
}

// contract: C-7, C-20
#[test]
fn a_lost_worker_is_not_silence_and_not_a_release() {
    for events in [&[DISPATCH][..], &[DISPATCH, ACCEPTED]] {
        let (mut call, _) = after(events);
        let (_, effects) = call.apply(LOST);
        assert_eq!(effects, [F::OutcomeSet { cause: Cause::WorkerLost }, F::Void]);
        assert!(!call.is_released());
        assert_eq!(call.apply(LOST), (Applied::NoOp, vec![]));
        assert_eq!(call.apply(RELEASED), (Applied::NoOp, vec![]), "the late word of the lost worker");
        assert_eq!(call.apply(ENDED), (Applied::Superseded { won: Cause::WorkerLost }, vec![]));
        assert_eq!(call.apply(Delivered(Delivery::Partial)), (Applied::Moved, vec![F::Settle { proven: false }]));
        assert_eq!(call.state(), CallState::Settled { cause: Cause::WorkerLost, proven: false });
        assert!(call.is_settled() && !call.is_released());
    }
}

// contract: C-7
#[test]
fn a_lost_worker_gives_what_was_asked_for() {
    let (call, effects) = after(&[DISPATCH, ACCEPTED, Want(CLOSED), Delivered(Delivery::Partial), LOST]);
    assert_eq!(effects, [SENT, F::OutcomeSet { cause: CLOSED }, F::Void, F::Settle { proven: false }]);
    assert_eq!(call.outcome(), Some(CLOSED));
}

// contract: C-6, C-20
#[test]
fn a_worker_that_is_lost_after_the_end_voids_the_release_and_not_the_outcome() {
    let (call, effects) = after(&[DISPATCH, WorkerEnded { attempt: 1, cause: Cause::Stop }, LOST, Delivered(Delivery::Complete)]);
    assert_eq!(effects, [F::OutcomeSet { cause: Cause::Stop }, F::Void, F::Settle { proven: false }]);
    assert_eq!(call.outcome(), Some(Cause::Stop));
    let (_, effects) = after(&[DISPATCH, ENDED, RELEASED, LOST]);
    assert_eq!(effects, [F::OutcomeSet { cause: CLOSED }], "what is released stays released");
}

// contract: C-6
#[test]
fn outcome_delivery_and_release_come_in_any_order() {
    let stop = WorkerEnded { attempt: 1, cause: Cause::Stop };
    for at in 0..=4 {
        let mut events = vec![DISPATCH, ACCEPTED, stop, RELEASED];
        events.insert(at, Delivered(Delivery::Complete));
        let (call, effects) = after(&events);
        assert_eq!(effects, [F::OutcomeSet { cause: Cause::Stop }, F::Settle { proven: true }], "delivered at {at}");
        assert!(call.is_settled());
    }
}

#[test]
fn the_first_delivery_counts() {
    let (mut call, _) = after(&[Delivered(Delivery::Partial)]);
    assert_eq!(call.apply(Delivered(Delivery::Complete)), (Applied::NoOp, vec![]));
    assert_eq!(call.delivery(), Some(Delivery::Partial));
}

// contract: C-5
#[test]
fn words_about_another_attempt_change_nothing() {
    let (mut call, _) = after(&[DISPATCH, ACCEPTED]);
    let before = call.clone();
    assert_eq!(call.apply(WorkerEnded { attempt: 0, cause: Cause::Stop }), (Applied::NoOp, vec![]));
    assert_eq!(call.apply(WorkerReleased { attempt: 0 }), (Applied::NoOp, vec![]));
    for future in [WorkerEnded { attempt: 2, cause: Cause::Stop }, WorkerReleased { attempt: 2 }] {
        assert!(matches!(call.apply(future), (Applied::Defect(_), ref effects) if effects.is_empty()));
    }
    assert_eq!(call, before);
}

#[test]
fn the_impossible_is_a_defect() {
    let cases: [(&[CallEvent], CallEvent); 9] = [
        (&[], ACCEPTED),
        // About the attempt that a call without any has: none.
        (&[], WorkerAccepted { attempt: 0 }),
        (&[Want(CLOSED)], WorkerAccepted { attempt: 0 }),
        // No worker knows of it, so none can say how it ended, not even rightly.
        (&[Want(CLOSED)], WorkerEnded { attempt: 0, cause: CLOSED }),
        (&[Want(CLOSED)], ACCEPTED),
        (&[], WorkerEnded { attempt: 0, cause: Cause::Stop }),
        (&[DISPATCH, ACCEPTED], RELEASED),
        (&[DISPATCH, ENDED], WorkerEnded { attempt: 1, cause: Cause::Stop }),
        (&[Want(CLOSED)], WorkerReleased { attempt: 0 }),
    ];
    for (events, event) in cases {
        let (mut call, _) = after(events);
        let before = call.clone();
        let (applied, effects) = call.apply(event);
        assert!(matches!(applied, Applied::Defect(d) if d.machine == "call"), "{event:?} after {events:?}: {applied:?}");
        assert_eq!((call, effects), (before, vec![]));
    }
}

// contract: C-5
#[test]
fn the_register_changes_by_compare_and_set_only() {
    let mut register = Register::default();
    assert!(register.next_attempt(0) && !register.next_attempt(0));
    assert!(!register.set_outcome(2, Cause::Stop) && !register.set_outcome(0, Cause::Stop));
    assert!(register.set_outcome(1, Cause::Stop));
    assert!(!register.set_outcome(1, Cause::Length));
    assert!(!register.next_attempt(1), "no attempt begins after the outcome");
    assert_eq!((register.attempt(), register.outcome()), (1, Some(Cause::Stop)));
}

#[test]
fn the_names_are_the_api_s() {
    let name = |events: &[CallEvent]| after(events).0.name("prefilling");
    assert_eq!(name(&[]), "queued");
    assert_eq!(name(&[DISPATCH]), "queued");
    assert_eq!(name(&[DISPATCH, ACCEPTED]), "prefilling");
    assert_eq!(name(&[DISPATCH, Want(CLOSED)]), "stopping");
    assert_eq!(name(&[DISPATCH, ENDED]), "stopping", "ended, and its release is not there yet");
    assert_eq!(name(&[DISPATCH, ENDED, RELEASED]), "ended");
    assert_eq!(name(&[DISPATCH, LOST]), "ended");
}

// contract: C-20
#[test]
fn a_call_is_released_by_the_worker_s_word_and_by_no_loss() {
    let mut call = Call::new();
    let mut after = |event| {
        let _ = call.apply(event);
        (call.is_released(), call.is_settled())
    };
    assert_eq!(after(DISPATCH), (false, false));
    assert_eq!(after(CallEvent::WorkerEnded { attempt: 1, cause: Cause::Stop }), (false, false));
    assert_eq!(after(CallEvent::WorkerReleased { attempt: 1 }), (true, false));
    assert_eq!(after(CallEvent::Delivered(Delivery::Complete)), (true, true));
    let mut lost = Call::new();
    for event in [DISPATCH, LOST, CallEvent::Delivered(Delivery::None)] {
        let _ = lost.apply(event);
        assert!(!lost.is_released(), "{event:?}");
    }
    assert!(lost.is_settled());
}

/// After attempt 1, its worker lost and nothing delivered: the run waits for another.
const AGAIN: [CallEvent; 3] = [DISPATCH, ACCEPTED, WorkerLost { attempt: 1, again: true }];

// contract: C-5, C-7, C-20
#[test]
fn a_lost_attempt_is_followed_by_another_one() {
    let (mut call, effects) = after(&AGAIN);
    assert_eq!(effects, [F::Void], "no outcome");
    assert_eq!((call.state(), call.attempt(), call.outcome(), call.name("?")), (CallState::Accepted, 1, None, "queued"));
    assert_eq!(call.apply(DISPATCH), (Applied::NoOp, vec![]), "a decision that was made before the first attempt is none for the second");
    assert_eq!(call.apply(Dispatch { after: 1 }), (Applied::Moved, vec![]));
    assert_eq!(call.apply(Dispatch { after: 1 }), (Applied::NoOp, vec![]), "nor for a third");
    let rest = [WorkerAccepted { attempt: 2 }, WorkerEnded { attempt: 2, cause: Cause::Stop }, WorkerReleased { attempt: 2 }];
    let effects: Vec<F> = rest.into_iter().flat_map(|event| call.apply(event).1).collect();
    assert_eq!(effects, [F::OutcomeSet { cause: Cause::Stop }]);
    assert_eq!(call.apply(Delivered(Delivery::Complete)).1, [F::Settle { proven: false }], "of the first attempt nobody knows");
    assert!(!call.is_released() && call.is_settled());
}

// contract: C-3, C-5
#[test]
fn late_words_of_a_lost_attempt_change_nothing() {
    let late = [ACCEPTED, WorkerEnded { attempt: 1, cause: Cause::DeviceError }, RELEASED, LOST];
    let mut paths = vec![AGAIN.to_vec()];
    for event in [Dispatch { after: 1 }, WorkerAccepted { attempt: 2 }, Want(CLOSED), WorkerEnded { attempt: 2, cause: CLOSED }] {
        paths.push([paths.last().expect("one").as_slice(), &[event]].concat());
    }
    for path in paths {
        let (call, _) = after(&path);
        for event in late {
            let mut told = call.clone();
            assert_eq!(told.apply(event), (Applied::NoOp, vec![]), "{event:?} after {path:?}");
            assert_eq!(told, call);
        }
    }
}

// contract: C-7
#[test]
fn a_run_that_is_not_wanted_or_was_delivered_is_not_dispatched_again() {
    let again = WorkerLost { attempt: 1, again: true };
    for events in [&[DISPATCH, Want(CLOSED)][..], &[DISPATCH, ACCEPTED, Want(CLOSED)]] {
        let (mut call, _) = after(events);
        assert_eq!(call.apply(again).1, [F::OutcomeSet { cause: CLOSED }, F::Void], "{events:?}");
    }
    let (mut call, _) = after(&[DISPATCH, ACCEPTED, Delivered(Delivery::Partial)]);
    assert_eq!(call.apply(again).1, [F::OutcomeSet { cause: Cause::WorkerLost }, F::Void, F::Settle { proven: false }]);
    let (mut call, _) = after(&[DISPATCH, ENDED]);
    assert_eq!(call.apply(again).1, [F::Void], "what has its outcome keeps it");
}

// contract: C-4, C-20
#[test]
fn a_run_that_waits_for_another_worker_is_decided_by_its_call_and_stays_unproven() {
    let (mut call, _) = after(&AGAIN);
    assert_eq!(call.apply(Want(CLOSED)), (Applied::Moved, vec![F::OutcomeSet { cause: CLOSED }]), "no cancel: nobody has it");
    assert_eq!(call.state(), CallState::Void { cause: CLOSED });
    assert_eq!(call.apply(Delivered(Delivery::None)).1, [F::Settle { proven: false }]);
}

// contract: C-23
#[test]
fn a_call_is_at_a_worker_from_its_dispatch_to_the_release_and_not_behind_a_loss() {
    let is_at = |events: &[CallEvent]| after(events).0.is_at_worker();
    for events in
        [&[][..], &[Want(CLOSED)], &[DISPATCH, LOST], &AGAIN, &[DISPATCH, ENDED, RELEASED], &[Delivered(Delivery::None), Want(CLOSED)]]
    {
        assert!(!is_at(events), "{events:?}");
    }
    let back = WorkerHandedBack { attempt: 1, cause: Cause::Shutdown };
    for events in [&[DISPATCH][..], &[DISPATCH, ACCEPTED], &[DISPATCH, back], &[DISPATCH, Want(CLOSED)], &[DISPATCH, ENDED]] {
        assert!(is_at(events), "{events:?}");
    }
}
