//! What a run does when its last reader leaves, by its policy; and a run that another gateway had.

use std::time::Duration;

use lifecycle::{CallState, Cause, Deadline, Delivery, Dispatch, DispatchConfig, DispatchEffect, OnDisconnect, Time, Word, Work};
use proptest::prelude::*;

use crate::dispatch::{CLOSED, ONE, TWO, at, delta, ended, key, live, run, words};

const GRACE: Duration = Duration::from_micros(1000);
const NONE: [String; 0] = [];

fn graced() -> Dispatch {
    live(DispatchConfig::default()).on_disconnect(OnDisconnect::Grace(GRACE))
}

fn came_back(run: &mut Dispatch) -> Vec<String> {
    let (there, effects) = run.returned();
    assert!(there, "{:?}", run.call());
    words(&effects)
}

// contract: C-25
#[test]
fn without_a_policy_the_last_reader_takes_the_run_along() {
    let mut run = live(DispatchConfig::default());
    let cancelled = ["AbandonmentObserved/1", "CancelSent/1", "cancel #1=4 to 0", "DeliveryEnded/1"];
    assert_eq!(words(&run.abandoned(CLOSED, Delivery::None, Time(10))), cancelled);
    assert!(!run.returned().0);
    let mut none = live(DispatchConfig::default()).on_disconnect(OnDisconnect::Grace(Duration::ZERO));
    assert_eq!(words(&none.abandoned(CLOSED, Delivery::None, Time(10))), cancelled, "a grace of nothing is none");
}

// contract: C-25
#[test]
fn whoever_comes_back_within_the_grace_finds_the_run_as_it_was() {
    let mut run = graced();
    assert_eq!(words(&run.abandoned(CLOSED, Delivery::Partial, Time(10))), ["AbandonmentObserved/1", "GraceBegun/1"]);
    assert_eq!((run.grace_until(), run.due()), (Some(Time(1010)), Some(Time(1010))));
    assert!(run.abandoned(CLOSED, Delivery::None, Time(500)).is_empty(), "nobody is there who could leave");
    assert!(run.tick(Time(1009)).is_empty());
    assert_eq!(words(&run.take_in(ONE, 1, delta(1), Time(1009))), ["tell delta"], "it goes on");
    assert_eq!(came_back(&mut run), ["AbandonmentWithdrawn/1"]);
    assert!(run.tick(Time(50_000)).is_empty() && run.grace_until().is_none());
    // Each leaving has a grace of its own.
    assert_eq!(words(&run.abandoned(CLOSED, Delivery::Partial, Time(60_000))), ["AbandonmentObserved/1", "GraceBegun/1"]);
    assert!(run.tick(Time(60_999)).is_empty());
    assert_eq!(came_back(&mut run), ["AbandonmentWithdrawn/1"]);
    assert_eq!(came_back(&mut run), NONE, "a further reader");
    let rest = [run.take_in(ONE, 1, ended(Cause::Stop), Time(70_000)), run.delivered(Delivery::Complete, Time(70_001))].concat();
    assert_eq!(words(&rest), ["OutcomeSet/1", "tell stop", "DeliveryEnded/1"]);
    assert_eq!(run.call().cancels_sent(), 0);
}

// contract: C-4, C-25
#[test]
fn a_grace_that_runs_out_cancels_with_the_first_cause() {
    let mut run = graced();
    run.abandoned(Cause::ClientLost, Delivery::Partial, Time(10));
    let effects = run.tick(Time(1010));
    assert_eq!(words(&effects), ["GraceRanOut/1", "CancelSent/1", "cancel #1=4 to 0", "DeliveryEnded/1"]);
    let ago = effects.iter().find_map(|effect| match effect {
        DispatchEffect::Send { message: lifecycle::message::Down::Cancel { cause, observed_ago, .. }, .. } => Some((*cause, *observed_ago)),
        _ => None,
    });
    assert_eq!(ago, Some((Cause::ClientLost, GRACE)), "abandonment was observed when the reader left");
    assert!(!run.returned().0, "too late");
    let end = [run.take_in(ONE, 1, ended(Cause::ClientLost), Time(1011)), run.take_in(ONE, 1, Word::Released, Time(1012))].concat();
    assert_eq!(words(&end), ["OutcomeSet/1", "tell client_lost", "Settled/1", "settle"]);
    assert_eq!(run.call().delivery(), Some(Delivery::Partial));
    // While it waits for a worker, too.
    let mut waits = self::run(DispatchConfig::default()).on_disconnect(OnDisconnect::Grace(GRACE));
    waits.abandoned(CLOSED, Delivery::None, Time(10));
    let end = ["GraceRanOut/0", "OutcomeSet/0", "tell client_closed", "DeliveryEnded/0", "Settled/0", "settle"];
    assert_eq!(words(&waits.tick(Time(2000))), end);
}

// contract: C-5, C-22, C-25
#[test]
fn of_times_that_are_over_at_once_the_first_settles_what_nobody_has_and_nothing_follows() {
    let left = Deadline::from_left(Time(0), Duration::from_micros(1500), Cause::ClientDeadline);
    let work = Work { prompt: lifecycle::message::Prompt::Text("x".into()), params: lifecycle::params::Params::default() };
    let waits: Dispatch = Dispatch::new(key(), work, vec![left], DispatchConfig::default(), Time(0));
    let mut graced = waits.clone().on_disconnect(OnDisconnect::Grace(GRACE));
    graced.abandoned(CLOSED, Delivery::None, Time(10));
    let end = ["GraceRanOut/0", "OutcomeSet/0", "tell client_closed", "DeliveryEnded/0", "Settled/0", "settle"];
    assert_eq!(words(&graced.tick(Time(2000))), end);
    // The deadline of its queue is over too, long after its own.
    let mut unread = waits.clone().on_disconnect(OnDisconnect::Continue).nobody_reads();
    let end = ["AbandonmentObserved/0", "OutcomeSet/0", "tell client_deadline", "DeliveryEnded/0", "Settled/0", "settle"];
    assert_eq!(words(&unread.tick(Time(3_600_000_000))), end);
    // Where somebody reads, it is not settled yet, and what came second is written.
    let mut read = waits;
    let end = ["AbandonmentObserved/0", "OutcomeSet/0", "tell client_deadline", "Superseded/0"];
    assert_eq!(words(&read.tick(Time(3_600_000_000))), end);
}

// contract: C-4, C-25
#[test]
fn nobody_is_let_in_to_a_run_whose_end_is_wanted_decided_or_read() {
    assert!(graced().is_joinable());
    let mut wanted = graced();
    wanted.want(Cause::CancelRequested, Time(5));
    assert!(wanted.call().outcome().is_none() && wanted.call().delivery().is_none());
    assert!(!wanted.is_joinable() && !wanted.returned().0, "its reader is there, and it is cancelled");
    let mut failed = graced();
    failed.take_in(ONE, 1, ended(Cause::DeviceError), Time(5));
    assert!(failed.call().wanted().is_none() && !failed.is_joinable(), "it ended badly");
    let mut complete = graced();
    complete.take_in(ONE, 1, ended(Cause::Stop), Time(5));
    assert!(complete.is_joinable(), "its answer is not read to the end");
    complete.delivered(Delivery::Complete, Time(6));
    assert!(!complete.is_joinable());
}

// contract: C-13, C-22, C-25
#[test]
fn a_deadline_a_cancel_by_name_and_a_shutdown_do_not_wait_for_a_grace() {
    for cause in [Cause::CancelRequested, Cause::Shutdown, Cause::ClientDeadline] {
        let mut run = graced();
        run.abandoned(CLOSED, Delivery::None, Time(10));
        let acts = ["GraceRanOut/1", "AbandonmentObserved/1", "CancelSent/1", "cancel #1=4 to 0", "DeliveryEnded/1"];
        assert_eq!(words(&run.want(cause, Time(20))), acts, "{cause}");
        assert_eq!(run.call().wanted(), Some(cause));
        assert!(!run.returned().0);
    }
    // A caller's own deadline is no disconnect.
    let mut late = graced();
    assert_eq!(words(&late.abandoned(Cause::ClientDeadline, Delivery::None, Time(10)))[1], "CancelSent/1");
    // The run's deadline passes in a grace that would last longer.
    let long = OnDisconnect::Grace(Duration::from_secs(3600));
    let mut run = live(DispatchConfig::default()).on_disconnect(long);
    run.abandoned(CLOSED, Delivery::None, Time(10));
    assert_eq!(run.due(), Some(Time(60_000_000)));
    assert_eq!(words(&run.tick(Time(60_000_000)))[..3], ["GraceRanOut/1", "AbandonmentObserved/1", "CancelSent/1"]);
    assert_eq!(run.call().wanted(), Some(Cause::GatewayDeadline));
    // Nobody is let in any more.
    let mut run = graced();
    assert!(run.no_return(Time(5)).is_empty(), "somebody reads");
    run.abandoned(CLOSED, Delivery::None, Time(10));
    assert_eq!(words(&run.no_return(Time(20)))[..2], ["GraceRanOut/1", "CancelSent/1"]);
    assert_eq!(run.call().wanted(), Some(CLOSED));
}

// contract: C-6, C-25
#[test]
fn a_run_that_completes_in_its_grace_is_kept_for_whoever_comes_back() {
    let complete = |run: &mut Dispatch| {
        let effects = [run.take_in(ONE, 1, ended(Cause::Stop), Time(20)), run.take_in(ONE, 1, Word::Released, Time(21))].concat();
        assert_eq!(words(&effects), ["OutcomeSet/1", "tell stop"]);
    };
    let mut run = graced();
    run.abandoned(CLOSED, Delivery::Partial, Time(10));
    complete(&mut run);
    let mut nobody = run.clone();
    assert_eq!(came_back(&mut run), ["AbandonmentWithdrawn/1"]);
    assert_eq!(words(&run.delivered(Delivery::Complete, Time(30))), ["DeliveryEnded/1", "Settled/1", "settle"]);
    assert_eq!(nobody.due(), Some(Time(1010)));
    assert_eq!(words(&nobody.tick(Time(1010))), ["GraceRanOut/1", "Superseded/1", "DeliveryEnded/1", "Settled/1", "settle"]);
    assert_eq!(nobody.call().state(), CallState::Settled { cause: Cause::Stop, proven: true });
    // It left when all was computed: its answer is kept, and nothing was computed for nobody.
    let mut run = graced();
    complete(&mut run);
    assert_eq!(words(&run.abandoned(CLOSED, Delivery::Partial, Time(22))), ["GraceBegun/1"]);
    assert_eq!(came_back(&mut run), ["AbandonmentWithdrawn/1"]);
}

// contract: C-7, C-25
#[test]
fn a_run_that_ends_badly_in_its_grace_waits_for_nobody_and_a_lost_worker_is_followed() {
    let mut failed = graced();
    failed.abandoned(CLOSED, Delivery::None, Time(10));
    let effects = failed.take_in(ONE, 1, ended(Cause::DeviceError), Time(20));
    assert_eq!(words(&effects), ["OutcomeSet/1", "tell device_error", "GraceRanOut/1", "DeliveryEnded/1"]);
    assert_eq!(words(&failed.take_in(ONE, 1, Word::Released, Time(21))), ["Settled/1", "settle"]);
    let mut lost = graced();
    lost.abandoned(CLOSED, Delivery::None, Time(10));
    assert_eq!(words(&lost.worker_lost(ONE.0, ONE.1, true, Time(20))), ["Void/1", "wait"]);
    assert_eq!(words(&lost.place(at(TWO, 9), Time(30))), ["Dispatched/2", "submit #2 to 1"]);
    assert_eq!(came_back(&mut lost), ["AbandonmentWithdrawn/2"]);
}

// contract: C-25
#[test]
fn a_run_that_goes_on_needs_no_reader_to_end_and_to_settle() {
    let mut run = live(DispatchConfig::default()).on_disconnect(OnDisconnect::Continue);
    assert_eq!(words(&run.abandoned(CLOSED, Delivery::Partial, Time(10))), ["LeftRunning/1"]);
    assert!(run.tick(Time(50_000_000)).is_empty() && run.grace_until().is_none());
    let mut again = run.clone();
    let ends = ["OutcomeSet/1", "tell stop", "DeliveryEnded/1"];
    assert_eq!(words(&run.take_in(ONE, 1, ended(Cause::Stop), Time(20))), ends);
    assert_eq!(words(&run.take_in(ONE, 1, Word::Released, Time(21))), ["Settled/1", "settle"]);
    assert_eq!(run.call().delivery(), Some(Delivery::Partial));
    // Somebody reads again, and then it is that reader's answer.
    assert_eq!(came_back(&mut again), NONE);
    assert_eq!(words(&again.take_in(ONE, 1, ended(Cause::Stop), Time(20))), ["OutcomeSet/1", "tell stop"]);
    // Its caller's own deadline bounds the caller; the run has its own.
    let mut late = live(DispatchConfig::default()).on_disconnect(OnDisconnect::Continue);
    assert_eq!(words(&late.abandoned(Cause::ClientDeadline, Delivery::None, Time(10))), ["LeftRunning/1"]);
    let by_name = ["AbandonmentObserved/1", "CancelSent/1", "cancel #1=4 to 0", "DeliveryEnded/1"];
    assert_eq!(words(&late.want(Cause::CancelRequested, Time(20))), by_name);
    // Nobody ever read it.
    let mut background = self::run(DispatchConfig::default()).on_disconnect(OnDisconnect::Continue).nobody_reads();
    let effects = background.want(Cause::QueueFull, Time(5));
    assert_eq!(words(&effects), ["OutcomeSet/0", "tell queue_full", "DeliveryEnded/0", "Settled/0", "settle"]);
}

// contract: C-2, C-5, C-20
#[test]
fn a_run_that_was_taken_over_goes_on_with_the_next_attempt_and_is_never_called_proven() {
    let work = || Work { prompt: lifecycle::message::Prompt::Text("x".into()), params: lifecycle::params::Params::default() };
    let over = |attempt| Dispatch::taken_over(key(), work(), vec![], DispatchConfig::default(), attempt, Time(0));
    let mut run: Dispatch = over(3).on_disconnect(OnDisconnect::Continue).nobody_reads().accepted_before();
    assert!(run.is_waiting() && run.call().attempt() == 3);
    assert_eq!(words(&run.former()), ["Void/3"]);
    assert_eq!(words(&run.place(at(ONE, 7), Time(1))), ["Dispatched/4", "submit #4 to 0"]);
    assert!(run.former().is_empty());
    for word in [Word::Accepted { prompt_tokens: 1 }, delta(3), ended(Cause::Stop), Word::Released] {
        assert!(run.take_in(ONE, 3, word, Time(2)).is_empty(), "the former attempt's words");
    }
    assert!(run.take_in(ONE, 4, Word::Accepted { prompt_tokens: 1 }, Time(2)).is_empty(), "its readers know");
    // Redispatches count from here.
    assert_eq!(words(&run.worker_lost(ONE.0, ONE.1, true, Time(3))), ["Void/4", "wait"]);
    assert_eq!(words(&run.place(at(TWO, 8), Time(4)))[0], "Dispatched/5");
    let mut last = run.clone();
    assert_eq!(words(&last.worker_lost(TWO.0, TWO.1, true, Time(5)))[..2], ["OutcomeSet/5", "tell worker_lost"]);
    let end = [run.take_in(TWO, 5, ended(Cause::Stop), Time(6)), run.take_in(TWO, 5, Word::Released, Time(7))].concat();
    assert_eq!(words(&end), ["OutcomeSet/5", "tell stop", "DeliveryEnded/5", "Settled/5", "settle"]);
    assert_eq!(run.call().state(), CallState::Settled { cause: Cause::Stop, proven: false });
    // Of the former attempt nobody can say anything, whatever this one's worker says.
    let mut once: Dispatch = over(3).nobody_reads();
    once.place(at(ONE, 7), Time(1));
    let end = [once.take_in(ONE, 4, ended(Cause::Stop), Time(2)), once.take_in(ONE, 4, Word::Released, Time(3))].concat();
    assert_eq!(words(&end)[..2], ["tell accepted", "OutcomeSet/4"]);
    assert_eq!(once.call().state(), CallState::Settled { cause: Cause::Stop, proven: false });
    // It never was at a worker: nothing of it can be left, and it is accepted as ever.
    let mut fresh: Dispatch = over(0);
    assert!(fresh.former().is_empty() && !fresh.call().is_voided());
    fresh.place(at(ONE, 7), Time(1));
    assert_eq!(words(&fresh.take_in(ONE, 1, Word::Accepted { prompt_tokens: 1 }, Time(2))), ["tell accepted"]);
}

/// What can happen to a run with a policy.
#[derive(Clone, Debug)]
enum Input {
    Leave,
    ComeBack,
    Later(u64),
    Word(u8),
    Want,
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        4 => Just(Input::Leave),
        4 => Just(Input::ComeBack),
        4 => (1u64..2500).prop_map(Input::Later),
        3 => (0u8..4).prop_map(Input::Word),
        1 => Just(Input::Want),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // contract: C-25
    #[test]
    fn a_leaving_counts_only_when_nobody_came_back_in_time(
        inputs in prop::collection::vec(input(), 0..40), which in 0u8..3
    ) {
        let policy = [OnDisconnect::Cancel, OnDisconnect::Grace(GRACE), OnDisconnect::Continue][usize::from(which)];
        let mut run = live(DispatchConfig { answer_grace: Duration::from_secs(1000), ..DispatchConfig::default() }).on_disconnect(policy);
        // The truth: whether somebody reads, since when nobody does, what was wanted by name.
        let (mut now, mut reads, mut left, mut named) = (Time(10), true, None::<Time>, false);
        let (mut begun, mut over, mut settles) = (0u32, 0u32, 0u32);
        for input in inputs {
            // The table lets go of it.
            if run.call().is_settled() {
                break;
            }
            let effects = match input {
                Input::Leave if reads => {
                    (reads, left) = (false, Some(now));
                    run.abandoned(CLOSED, Delivery::Partial, now)
                }
                Input::ComeBack if !reads => {
                    let (there, effects) = run.returned();
                    if there {
                        (reads, left) = (true, None);
                    }
                    effects
                }
                Input::Leave | Input::ComeBack => Vec::new(),
                Input::Later(us) => {
                    now = now.after(Duration::from_micros(us));
                    run.tick(now)
                }
                Input::Want => {
                    named = true;
                    run.want(Cause::CancelRequested, now)
                }
                Input::Word(word) => {
                    let cause = run.call().wanted().unwrap_or(Cause::Stop);
                    let is_over = run.call().outcome().is_some();
                    let word = match word {
                        0 => delta(1),
                        1 => Word::CancelAcknowledged,
                        2 => ended(cause),
                        _ if is_over => Word::Released,
                        _ => delta(1),
                    };
                    run.take_in(ONE, 1, word, now)
                }
            };
            for word in words(&effects) {
                begun += u32::from(word.starts_with("GraceBegun"));
                over += u32::from(word.starts_with("GraceRanOut") || word.starts_with("AbandonmentWithdrawn"));
                settles += u32::from(word == "settle");
            }
            let counts = match policy {
                OnDisconnect::Cancel => left.is_some(),
                OnDisconnect::Grace(grace) => left.is_some_and(|at| now.since(at) >= grace),
                OnDisconnect::Continue => false,
            };
            let wanted = run.call().wanted_all().contains(&CLOSED);
            // Only a look at the clock, or somebody's word, applies what is due.
            prop_assert!(!wanted || counts || named, "{policy}: a leaving that does not count cancelled it");
            if matches!(policy, OnDisconnect::Grace(_)) {
                prop_assert_eq!(begun - over, u32::from(run.grace_until().is_some()), "each grace ends once");
            }
            prop_assert!(!(reads && run.grace_until().is_some()));
        }
        if run.call().is_settled() {
            prop_assert_eq!(settles, 1);
            return Ok(());
        }
        // Whatever came before: nobody comes back, the worker does its part.
        now = now.after(GRACE);
        if reads {
            run.abandoned(CLOSED, Delivery::Partial, now);
            now = now.after(GRACE);
        }
        run.tick(now);
        prop_assert!(run.grace_until().is_none());
        let cause = run.call().wanted().unwrap_or(Cause::Stop);
        prop_assert!(run.call().wanted().is_some() || policy == OnDisconnect::Continue || run.call().is_settled());
        for word in [ended(cause), Word::Released] {
            settles += words(&run.take_in(ONE, 1, word, now)).iter().filter(|word| *word == "settle").count() as u32;
        }
        prop_assert!(run.call().is_settled(), "{:?}", run.call());
        prop_assert!(settles <= 1);
    }
}
