//! Both machines under random sequences of events: what must hold whatever comes.

use lifecycle::{Applied, AttemptEvent, AttemptState, Call, CallEffect, CallEvent, CallState, Cause, Delivery};
use proptest::prelude::*;

fn cause() -> impl Strategy<Value = Cause> {
    prop::sample::select(Cause::ALL)
}

fn attempt_event() -> impl Strategy<Value = AttemptEvent> {
    use AttemptEvent::*;
    let plain = prop::sample::select(vec![Submit, Tokenised, Scheduled, FirstToken, Preempt, Suspend, Attach, Drained]);
    prop_oneof![6 => plain, 1 => cause().prop_map(End)]
}

fn call_event() -> impl Strategy<Value = CallEvent> {
    use CallEvent::*;
    prop_oneof![
        2 => (0u32..3).prop_map(|after| Dispatch { after }),
        2 => (0u32..3).prop_map(|attempt| WorkerAccepted { attempt }),
        2 => cause().prop_map(Want),
        2 => (0u32..3, cause()).prop_map(|(attempt, cause)| WorkerEnded { attempt, cause }),
        1 => (0u32..3).prop_map(|attempt| WorkerHandedBack { attempt, cause: Cause::Shutdown }),
        2 => (0u32..3).prop_map(|attempt| WorkerReleased { attempt }),
        1 => (0u32..3, any::<bool>()).prop_map(|(attempt, again)| WorkerLost { attempt, again }),
        2 => prop::sample::select(Delivery::ALL).prop_map(Delivered),
        2 => Just(Retry),
    ]
}

/// How far a call is; it may only grow.
fn rank(state: CallState) -> u8 {
    match state {
        CallState::Accepted => 0,
        CallState::Dispatched => 1,
        CallState::Live => 2,
        CallState::Stopping { .. } | CallState::HandedBack => 3,
        CallState::Ended { .. } => 4,
        CallState::Released { .. } | CallState::Void { .. } => 5,
        CallState::Settled { .. } => 6,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // contract: C-4, C-13, C-20
    #[test]
    fn an_attempt_ends_once_and_is_released_once(events in prop::collection::vec(attempt_event(), 0..60)) {
        let mut state = AttemptState::default();
        let mut releases = 0;
        for event in events {
            let before = state;
            let applied = state.apply(event);
            prop_assert_eq!(applied == Applied::Moved, before != state, "{:?} in {:?}", event, before);
            if let Some(won) = before.cause() {
                prop_assert_eq!(state.cause(), Some(won), "a cause never changes");
                prop_assert!(!state.is_live() && !state.is_runnable(), "an ended attempt is never live again");
                let answers = applied == Applied::Superseded { won };
                prop_assert!(answers || !matches!(event, AttemptEvent::End(_)), "a late end is answered with what won");
            }
            let is_released = |s| matches!(s, AttemptState::Released { .. });
            releases += u32::from(is_released(state) && !is_released(before));
        }
        prop_assert!(releases <= 1);
    }

    // contract: C-4, C-5, C-6, C-20
    #[test]
    fn a_call_has_one_outcome_and_settles_once(events in prop::collection::vec(call_event(), 0..60)) {
        let mut call = Call::new();
        let mut all = Vec::new();
        for event in events {
            let before = call.clone();
            let (applied, effects) = call.apply(event);
            match applied {
                Applied::NoOp | Applied::Defect(_) => {
                    prop_assert_eq!(&call, &before, "{:?}", event);
                    prop_assert!(effects.is_empty());
                }
                Applied::Superseded { won } => {
                    prop_assert_eq!(call.state(), before.state());
                    prop_assert_eq!(won, before.outcome().or(before.wanted()).expect("something won"));
                }
                Applied::Moved => prop_assert_ne!(&call, &before),
            }
            let waits_again = call.state() == CallState::Accepted && before.is_at_worker();
            prop_assert!(waits_again || rank(call.state()) >= rank(before.state()), "never back");
            if waits_again {
                let lost = event == CallEvent::WorkerLost { attempt: before.attempt(), again: true };
                let released = event == CallEvent::WorkerReleased { attempt: before.attempt() };
                prop_assert!(lost || (released && before.state() == CallState::HandedBack));
                prop_assert_eq!(call.is_voided(), before.is_voided() || lost, "an attempt that was released proves it");
                prop_assert!(before.wanted().is_none() && before.delivery().is_none() && before.outcome().is_none());
            }
            let dispatched = event == (CallEvent::Dispatch { after: before.attempt() });
            prop_assert!(call.attempt() == before.attempt() + u32::from(dispatched && applied == Applied::Moved), "compare-and-set");
            prop_assert!(before.outcome().is_none() || before.outcome() == call.outcome(), "an outcome never changes");
            prop_assert!(call.superseded().all(|cause| Some(cause) != call.outcome()), "a winner is no loser");
            all.extend(effects);
        }
        let count = |which: fn(&CallEffect) -> bool| all.iter().filter(|effect| which(effect)).count();
        let settles = count(|e| matches!(e, CallEffect::Settle { .. }));
        prop_assert_eq!(count(|e| matches!(e, CallEffect::OutcomeSet { .. })), usize::from(call.outcome().is_some()));
        prop_assert_eq!(settles, usize::from(call.is_settled()));
        prop_assert!(count(|e| matches!(e, CallEffect::HandedBack)) <= call.attempt() as usize, "once an attempt");
        prop_assert!(count(|e| matches!(e, CallEffect::Void)) <= call.attempt() as usize, "once an attempt");
        let proven = all.iter().any(|e| matches!(e, CallEffect::Settle { proven: true }));
        prop_assert!(!(proven && call.is_voided()), "a void attempt is never proven away");
        prop_assert_eq!(count(|e| matches!(e, CallEffect::SendCancel { .. })), call.cancels_sent() as usize);
        let mut lost: Vec<_> = all.iter().filter(|e| matches!(e, CallEffect::Superseded { .. })).collect();
        let written = lost.len();
        lost.sort_by_key(|e| format!("{e:?}"));
        lost.dedup();
        prop_assert_eq!(lost.len(), written, "a loser is written once");
        prop_assert!(call.outcome().is_none() || written == call.superseded().count(), "and every loser is written");
        let after_settle = all.iter().skip_while(|e| !matches!(e, CallEffect::Settle { .. })).skip(1);
        let only_losers = after_settle.into_iter().all(|e| matches!(e, CallEffect::Superseded { .. }));
        prop_assert!(only_losers, "nothing is sent or decided after the end");
    }

    // contract: C-8
    #[test]
    fn a_wish_twice_is_a_wish_once(events in prop::collection::vec(call_event(), 0..30), wish in cause()) {
        let mut call = Call::new();
        for event in events {
            let _ = call.apply(event);
        }
        let _ = call.apply(CallEvent::Want(wish));
        let once = call.clone();
        let (applied, effects) = call.apply(CallEvent::Want(wish));
        let is_late = matches!(applied, Applied::Superseded { .. });
        prop_assert!(is_late && effects.is_empty(), "{:?} {:?}", applied, effects);
        prop_assert_eq!(call, once);
    }

    // contract: C-7
    #[test]
    fn no_silence_whatever_came_before(events in prop::collection::vec(call_event(), 0..30)) {
        let mut call = Call::new();
        for event in events {
            let _ = call.apply(event);
        }
        let reached_a_worker = call.is_at_worker();
        for event in [CallEvent::WorkerLost { attempt: call.attempt(), again: false }, CallEvent::Delivered(Delivery::None)] {
            let _ = call.apply(event);
        }
        prop_assert!(!reached_a_worker || call.is_settled(), "a lost worker and a gone caller leave nothing open: {:?}", call);
    }
}
