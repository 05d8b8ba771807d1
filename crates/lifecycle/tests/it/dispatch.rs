//! One run at its gateway: where it waits, whom it believes, how long it insists, and when it goes to another worker.

use std::time::Duration;

use lifecycle::event::Event;
use lifecycle::message::{Delta, Down, ModelInfo, Prompt, Submit, Usage};
use lifecycle::params::Params;
use lifecycle::{
    AttemptId, CallState, Cause, Deadline, Delivery, Dispatch, DispatchConfig, DispatchEffect as F, Incarnation, Outcome, Place, RunId,
    RunKey, Said, Tenant, Time, Word, Work, WorkerIndex,
};
use proptest::prelude::*;

pub(crate) const ONE: (WorkerIndex, Incarnation) = (WorkerIndex(0), Incarnation(10));
pub(crate) const TWO: (WorkerIndex, Incarnation) = (WorkerIndex(1), Incarnation(20));
pub(crate) const CLOSED: Cause = Cause::ClientClosed;

pub(crate) fn key() -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse("r").expect("an id") }
}

pub(crate) fn run(config: DispatchConfig) -> Dispatch {
    let work = Work { prompt: Prompt::Text("x".into()), params: Params { max_tokens: Some(7), n: 2, ..Params::default() } };
    let deadline = Deadline::from_left(Time(0), Duration::from_secs(60), Cause::GatewayDeadline);
    Dispatch::new(key(), work, vec![deadline], config, Time(0))
}

pub(crate) fn at((worker, incarnation): (WorkerIndex, Incarnation), number: u64) -> Place {
    let model = ModelInfo { id: "m".into(), context: 100, default_max_tokens: 50, created: 0 };
    Place { worker, incarnation, number, model }
}

pub(crate) fn delta(attempt: u32) -> Word {
    let attempt = AttemptId { key: key(), attempt };
    Word::Delta(Delta { attempt, sequence: 0, text: "t".into(), tokens: vec![1], logprobs: vec![], finish: None, passed: None })
}

pub(crate) fn ended(cause: Cause) -> Word {
    Word::Ended { outcome: Outcome::of(cause), usage: Usage { prompt: 3, cached_prompt: 0, generated: 1 } }
}

/// Each effect in a word.
pub(crate) fn words(effects: &[F]) -> Vec<String> {
    let word = |effect: &F| match effect {
        F::Send { worker, message: Down::Submit(submit) } => format!("submit #{} to {}", submit.attempt.attempt, worker.0),
        F::Send { worker, message: Down::Cancel { attempt, number, .. } } => {
            format!("cancel #{}={number} to {}", attempt.attempt, worker.0)
        }
        F::Send { message, .. } => format!("{message:?}"),
        F::Journal { attempt, event } => {
            let text = format!("{event:?}");
            let end = text.find([' ', '{', '(']).unwrap_or(text.len());
            format!("{}/{attempt}", &text[..end])
        }
        F::Tell(Said::Accepted) => "tell accepted".into(),
        F::Tell(Said::Delta(_)) => "tell delta".into(),
        F::Tell(Said::End { outcome, .. }) => format!("tell {}", outcome.cause),
        F::Wait => "wait".into(),
        F::Settle => "settle".into(),
    };
    effects.iter().map(word).collect()
}

/// At worker one, taken on.
pub(crate) fn live(config: DispatchConfig) -> Dispatch {
    let mut run = run(config);
    assert_eq!(words(&run.place(at(ONE, 4), Time(0))), ["Dispatched/1", "submit #1 to 0"]);
    assert_eq!(words(&run.take_in(ONE, 1, Word::Accepted { prompt_tokens: 3 }, Time(1))), ["tell accepted"]);
    run
}

fn submit(effects: &[F]) -> &Submit {
    let found = effects.iter().find_map(|effect| match effect {
        F::Send { message: Down::Submit(submit), .. } => Some(submit),
        _ => None,
    });
    found.expect("a submit")
}

// contract: C-2, C-22
#[test]
fn a_run_that_waited_takes_only_the_time_that_is_left_along() {
    let mut run = run(DispatchConfig { queue_deadline: Duration::from_secs(5), ..DispatchConfig::default() });
    assert!(run.is_waiting() && run.load().is_none());
    assert_eq!(run.due(), Some(Time(5_000_000)));
    let effects = run.place(at(ONE, 4), Time(2_000_000));
    let submit = submit(&effects);
    assert_eq!((submit.number, submit.worker, submit.attempt.attempt), (4, ONE.1, 1));
    let left: Vec<_> = submit.deadlines.iter().map(|d| (d.cause, d.left.as_secs())).collect();
    assert_eq!(left, [(Cause::GatewayDeadline, 58), (Cause::QueueDeadline, 3)]);
    assert!(run.place(at(TWO, 5), Time(2_000_000)).is_empty(), "it is somewhere already");
    // The worker knows whether it still waits there; the gateway's own deadline holds wherever it is.
    assert!(run.tick(Time(50_000_000)).is_empty());
    assert_eq!(words(&run.tick(Time(60_000_000)))[0], "AbandonmentObserved/1");
}

// contract: C-4, C-13, C-22
#[test]
fn a_run_that_waits_for_a_worker_ends_without_one() {
    for cause in [CLOSED, Cause::Shutdown, Cause::ClientDeadline] {
        let mut run = run(DispatchConfig::default());
        let effects = [run.want(cause, Time(5)), run.delivered(Delivery::None, Time(6))].concat();
        let told = format!("tell {cause}");
        assert_eq!(words(&effects), ["AbandonmentObserved/0", "OutcomeSet/0", &told, "DeliveryEnded/0", "Settled/0", "settle"]);
        assert!(run.place(at(ONE, 1), Time(7)).is_empty(), "it must not reach a worker any more");
        assert!(run.call().is_released() && run.due().is_none());
    }
    let mut run = run(DispatchConfig::default());
    assert!(run.tick(Time(59_000_000)).is_empty());
    let mut late = run.clone();
    assert!(words(&late.tick(Time(60_000_000))).contains(&"tell gateway_deadline".to_owned()));
    assert_eq!(words(&run.want(Cause::WorkerLost, Time(1))), ["OutcomeSet/0", "tell worker_lost"], "none can come");
    let mut short = self::run(DispatchConfig { queue_deadline: Duration::from_secs(1), ..DispatchConfig::default() });
    assert!(short.tick(Time(999_999)).is_empty());
    assert!(words(&short.tick(Time(1_000_000))).contains(&"tell queue_deadline".to_owned()));
}

// contract: C-6, C-8, C-9
#[test]
fn an_acknowledgement_is_no_release_and_the_cancel_is_repeated_until_there_is_one() {
    let config = DispatchConfig { answer_grace: Duration::from_secs(100), ..DispatchConfig::default() };
    let mut run = live(config);
    assert_eq!(words(&run.want(CLOSED, Time(1000))), ["AbandonmentObserved/1", "CancelSent/1", "cancel #1=4 to 0"]);
    assert!(run.want(CLOSED, Time(1000)).is_empty(), "twice is once");
    assert_eq!(words(&run.take_in(ONE, 1, Word::CancelAcknowledged, Time(2000))), ["CancelAcknowledged/1"]);
    assert!(run.take_in(ONE, 1, Word::CancelAcknowledged, Time(2000)).is_empty());
    let _ = run.delivered(Delivery::None, Time(2000));
    assert!(!run.call().is_settled() && !run.call().is_released());
    let mut now = Time(1000);
    for wait in [250, 500, 1000, 2000, 2000, 2000] {
        now = now.after(Duration::from_millis(wait));
        assert_eq!(run.due(), Some(now));
        assert!(run.tick(Time(now.0 - 1)).is_empty());
        assert_eq!(words(&run.tick(now)), ["CancelSent/1", "cancel #1=4 to 0"]);
    }
    // No time is long enough: only the worker's word, or its loss.
    assert!(!run.tick(Time(50_000_000)).is_empty() && !run.call().is_released());
    assert_eq!(words(&run.take_in(ONE, 1, ended(CLOSED), now)), ["OutcomeSet/1", "tell client_closed"]);
    assert!(run.due().is_some(), "ended is not released");
    assert_eq!(words(&run.take_in(ONE, 1, Word::Released, now)), ["Settled/1", "settle"]);
    assert_eq!(run.due(), None);
    assert!(run.tick(Time(u64::MAX - 1)).is_empty());
}

// contract: C-6
#[test]
fn a_caller_is_told_after_a_while_and_the_run_goes_on_being_cancelled() {
    let mut run = live(DispatchConfig { cancel_repeat: Duration::from_secs(9), ..DispatchConfig::default() });
    let _ = run.want(Cause::CancelRequested, Time(0));
    assert_eq!(run.due(), Some(Time(2_000_000)));
    assert_eq!(words(&run.tick(Time(2_000_000))), ["Dismissed/1", "tell cancel_requested"]);
    assert!(run.tick(Time(2_000_001)).is_empty(), "once");
    assert_eq!(run.due(), Some(Time(9_000_000)), "the cancel");
    // It has done its work meanwhile. That is the outcome; what the caller was told stands beside it.
    assert!(run.take_in(ONE, 1, delta(1), Time(2_000_002)).is_empty(), "nothing is told behind an end");
    assert_eq!(words(&run.take_in(ONE, 1, ended(Cause::Length), Time(2_000_003))), ["OutcomeSet/1", "Superseded/1"]);
}

#[test]
fn a_caller_that_has_left_is_told_nothing_and_nothing_else_is_recorded() {
    let mut run = live(DispatchConfig::default());
    let _ = run.want(CLOSED, Time(0));
    let _ = run.delivered(Delivery::None, Time(0));
    assert!(words(&run.tick(Time(2_000_000))).iter().all(|word| word.starts_with("CancelSent") || word.starts_with("cancel")));
    assert!(run.worker_refused(ONE.0, ONE.1, Time(2_000_000)).is_empty() && run.told(Cause::ClientDeadline).is_empty());
}

// contract: C-6
#[test]
fn the_end_that_the_last_reader_was_told_is_recorded_beside_the_outcome() {
    let mut run = live(DispatchConfig::default());
    assert_eq!(words(&run.told(Cause::ClientDeadline)), ["Dismissed/1"]);
    let _ = run.want(Cause::ClientDeadline, Time(1));
    assert!(run.told(Cause::ClientDeadline).is_empty(), "once");
    let _ = run.delivered(Delivery::None, Time(1));
    assert_eq!(words(&run.take_in(ONE, 1, ended(Cause::Stop), Time(2))), ["OutcomeSet/1", "Superseded/1"]);
}

// contract: C-6, C-7, C-9
#[test]
fn callers_of_a_refused_worker_are_told_and_its_attempts_are_not_over() {
    let refused = |run: &mut Dispatch| words(&run.worker_refused(ONE.0, ONE.1, Time(9)));
    let cancelled = ["AbandonmentObserved/1", "CancelSent/1", "cancel #1=4 to 0", "Dismissed/1", "tell worker_lost"];
    let mut run = live(DispatchConfig::default());
    let _ = run.take_in(ONE, 1, delta(1), Time(2));
    assert!(run.worker_refused(ONE.0, TWO.1, Time(8)).is_empty() && run.worker_refused(TWO.0, TWO.1, Time(8)).is_empty());
    assert_eq!(refused(&mut run), cancelled);
    assert!(refused(&mut run).is_empty(), "once");
    assert!(run.call().outcome().is_none() && run.call().needs_retry() && run.claims(ONE.0, ONE.1, 1), "nothing is decided");
    assert_eq!(words(&run.delivered(Delivery::Partial, Time(10))), ["DeliveryEnded/1"]);
    // Either its next life or its lease shows it lost, or it lives, and its engine decides.
    let mut lost = run.clone();
    assert_eq!(words(&lost.worker_lost(ONE.0, ONE.1, true, Time(11))), ["OutcomeSet/1", "Void/1", "Settled/1", "settle"]);
    assert_eq!(lost.call().outcome(), Some(Cause::WorkerLost));
    for decided in [Cause::WorkerLost, Cause::Length] {
        let mut lives = run.clone();
        assert!(words(&lives.take_in(ONE, 1, ended(decided), Time(11))).contains(&"OutcomeSet/1".to_owned()));
        assert_eq!(words(&lives.take_in(ONE, 1, Word::Released, Time(12))), ["Settled/1", "settle"]);
        assert_eq!((lives.call().outcome(), lives.call().is_voided()), (Some(decided), false));
    }
    // No policy would dispatch it again.
    assert_eq!(refused(&mut live(DispatchConfig { redispatch_max: 0, ..DispatchConfig::default() })), cancelled);
    // One may: it waits for what shows that worker's end.
    let mut waits = live(DispatchConfig::default());
    assert!(refused(&mut waits).is_empty() && waits.call().state() == CallState::Live);
    assert_eq!(words(&waits.worker_lost(ONE.0, ONE.1, true, Time(11))), ["Void/1", "wait"]);
    // Somebody had wanted its end: that is what is told.
    let mut wanted = live(DispatchConfig::default());
    let _ = wanted.want(Cause::CancelRequested, Time(2));
    assert_eq!(refused(&mut wanted), ["Dismissed/1", "tell cancel_requested"]);
    // It has been told already.
    let mut over = live(DispatchConfig::default());
    let _ = over.take_in(ONE, 1, ended(Cause::Stop), Time(2));
    assert!(refused(&mut over).is_empty());
}

// contract: C-5, C-7, C-20
#[test]
fn a_lost_worker_is_followed_by_another_if_nothing_was_delivered() {
    let mut run = live(DispatchConfig::default());
    assert_eq!(run.load().map(|(worker, load)| (worker, load.tokens, load.runs)), Some((ONE.0, 14, 1)));
    assert!(run.worker_lost(ONE.0, TWO.1, true, Time(8)).is_empty(), "another life of it");
    assert!(run.worker_lost(TWO.0, TWO.1, true, Time(8)).is_empty(), "another worker");
    assert_eq!(words(&run.worker_lost(ONE.0, ONE.1, true, Time(9))), ["Void/1", "wait"]);
    assert!(run.is_waiting() && run.load().is_none());
    assert!(!run.claims(ONE.0, ONE.1, 1));
    assert!(run.worker_lost(ONE.0, ONE.1, true, Time(9)).is_empty(), "once");
    let effects = run.place(at(TWO, 9), Time(10));
    assert_eq!(words(&effects), ["Dispatched/2", "submit #2 to 1"]);
    assert_eq!(submit(&effects).prompt, Prompt::Text("x".into()));
    assert!(run.claims(TWO.0, TWO.1, 2) && !run.claims(TWO.0, TWO.1, 1) && !run.claims(ONE.0, ONE.1, 2));
    // The readers were told once that somebody took it on.
    assert!(run.take_in(TWO, 2, Word::Accepted { prompt_tokens: 3 }, Time(11)).is_empty());
    assert_eq!(words(&run.take_in(TWO, 2, delta(2), Time(12))), ["tell delta"]);
    assert_eq!(words(&run.take_in(TWO, 2, ended(Cause::Stop), Time(13))), ["OutcomeSet/2", "tell stop"]);
    let rest = [run.delivered(Delivery::Complete, Time(14)), run.take_in(TWO, 2, Word::Released, Time(15))].concat();
    assert_eq!(words(&rest), ["DeliveryEnded/2", "Settled/2", "settle"]);
    assert!(matches!(run.call().state(), CallState::Settled { proven: false, .. }), "of the first attempt nobody knows");
}

// contract: C-7
#[test]
fn a_lost_worker_ends_the_run_if_it_cannot_be_done_anew() {
    let lost = |mut run: Dispatch, may_wait: bool| words(&run.worker_lost(ONE.0, ONE.1, may_wait, Time(9)));
    let failed = ["OutcomeSet/1", "tell worker_lost", "Void/1"];
    let mut told = live(DispatchConfig::default());
    let _ = told.take_in(ONE, 1, delta(1), Time(2));
    assert_eq!(lost(told, true), failed, "a piece of the answer is somebody's");
    assert_eq!(lost(live(DispatchConfig::default()), false), failed, "no other can come");
    assert_eq!(lost(live(DispatchConfig { redispatch_max: 0, ..DispatchConfig::default() }), true), failed, "the policy");
    let mut wanted = live(DispatchConfig::default());
    let _ = wanted.want(CLOSED, Time(2));
    assert_eq!(lost(wanted, true), ["OutcomeSet/1", "tell client_closed", "Void/1"], "what was asked for");
    // The policy counts.
    let mut again = live(DispatchConfig::default());
    let _ = again.worker_lost(ONE.0, ONE.1, true, Time(2));
    let _ = again.place(at(TWO, 9), Time(3));
    assert_eq!(words(&again.worker_lost(TWO.0, TWO.1, true, Time(4))), ["OutcomeSet/2", "tell worker_lost", "Void/2"]);
}

// contract: C-3, C-5
#[test]
fn late_words_of_a_lost_attempt_and_words_of_strangers_change_nothing() {
    let every = |attempt| {
        [Word::Accepted { prompt_tokens: 9 }, delta(attempt), Word::CancelAcknowledged, ended(Cause::DeviceError), Word::Released]
    };
    let mut run = live(DispatchConfig::default());
    let _ = run.worker_lost(ONE.0, ONE.1, true, Time(2));
    let mut stages = vec![run.clone()];
    let _ = run.place(at(TWO, 9), Time(3));
    stages.push(run.clone());
    let _ = run.take_in(TWO, 2, Word::Accepted { prompt_tokens: 3 }, Time(4));
    stages.push(run.clone());
    let _ = run.want(CLOSED, Time(5));
    stages.push(run);
    for stage in stages {
        for (from, attempt) in [(ONE, 1), (ONE, 2), (TWO, 1), ((TWO.0, ONE.1), 2), (TWO, 3)] {
            for word in every(attempt) {
                let mut told = stage.clone();
                assert!(told.take_in(from, attempt, word, Time(6)).is_empty(), "{from:?} #{attempt}");
                assert_eq!((told.call(), told.usage()), (stage.call(), stage.usage()));
            }
        }
    }
}

/// Something that happens to a run.
#[derive(Clone, Debug)]
enum Input {
    Place(bool),
    Want(Cause),
    Word(bool, u32, u8),
    Lost(bool, bool),
    Refused(bool),
    Told,
    Delivered,
    Later(u32),
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        2 => any::<bool>().prop_map(Input::Place),
        1 => prop::sample::select(vec![CLOSED, Cause::CancelRequested, Cause::ClientDeadline, Cause::QueueFull]).prop_map(Input::Want),
        6 => (any::<bool>(), 1u32..4, 0u8..5).prop_map(|(two, attempt, word)| Input::Word(two, attempt, word)),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(two, may)| Input::Lost(two, may)),
        1 => any::<bool>().prop_map(Input::Refused),
        1 => prop::sample::select(vec![Input::Delivered, Input::Delivered, Input::Told]),
        2 => (0u32..400_000_000).prop_map(Input::Later),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    // contract: C-5, C-7, C-9, C-20
    #[test]
    fn whatever_comes_a_run_is_told_once_and_speaks_only_with_the_worker_that_has_it(
        inputs in prop::collection::vec(input(), 0..60), redispatch_max in 0u32..3
    ) {
        let mut run = run(DispatchConfig { redispatch_max, ..DispatchConfig::default() });
        let (mut now, mut number, mut holder) = (Time(0), 0, None);
        let (mut ends, mut settles, mut deltas, mut submits) = (0, 0, 0, 0u32);
        let (mut told, mut dismissed) = (None, None);
        for input in inputs {
            let one_of = |two: bool| if two { TWO } else { ONE };
            let settled = run.call().is_settled();
            let was = run.call().clone();
            let effects = match input {
                Input::Place(two) => {
                    number += 1;
                    let effects = run.place(at(one_of(two), number), now);
                    if !effects.is_empty() {
                        holder = Some(one_of(two).0);
                    }
                    effects
                }
                Input::Want(cause) => run.want(cause, now),
                Input::Word(two, attempt, word) => {
                    let words = [Word::Accepted { prompt_tokens: 3 }, delta(attempt), Word::CancelAcknowledged, ended(CLOSED), Word::Released];
                    run.take_in(one_of(two), attempt, words[usize::from(word)].clone(), now)
                }
                Input::Lost(two, may_wait) => run.worker_lost(one_of(two).0, one_of(two).1, may_wait, now),
                Input::Refused(two) => run.worker_refused(one_of(two).0, one_of(two).1, now),
                Input::Told => run.told(Cause::ClientDeadline),
                Input::Delivered => run.delivered(Delivery::None, now),
                Input::Later(us) => {
                    now = now.after(Duration::from_micros(us.into()));
                    run.tick(now)
                }
            };
            for effect in &effects {
                match effect {
                    F::Send { worker, message } => {
                        prop_assert!(!settled && Some(*worker) == holder, "{:?}", message);
                        submits += u32::from(matches!(message, Down::Submit(_)));
                    }
                    F::Tell(Said::End { outcome, .. }) => {
                        ends += 1;
                        told = Some(outcome.cause);
                    }
                    F::Tell(said) => {
                        deltas += u32::from(matches!(said, Said::Delta(_)));
                        prop_assert!(ends == 0 && dismissed.is_none(), "nothing follows an end");
                    }
                    F::Journal { event: Event::Dismissed { cause }, .. } => {
                        prop_assert!(dismissed.is_none() && was.outcome().is_none() && was.delivery().is_none());
                        dismissed = Some(*cause);
                    }
                    F::Settle => settles += 1,
                    F::Wait => {
                        prop_assert!(deltas == 0 && dismissed.is_none() && was.wanted().is_none() && was.outcome().is_none(), "it could not be done anew");
                    }
                    _ => {}
                }
            }
            prop_assert!(was.outcome().is_none() || was.outcome() == run.call().outcome());
            prop_assert!(run.call().needs_retry() <= run.due().is_some(), "a cancel that was sent is looked at again");
        }
        // One end is told, and the record has it: as the outcome, or as what was told before.
        prop_assert!(ends <= 1 && (ends == 1 || run.call().outcome().is_none() || dismissed.is_some()));
        prop_assert!(told.is_none() || told == dismissed.or(run.call().outcome()), "{:?}", told);
        prop_assert_eq!(settles, usize::from(run.call().is_settled()));
        prop_assert_eq!(submits, run.call().attempt());
        prop_assert!(submits <= redispatch_max + 1 + DispatchConfig::default().unbegun_max);
    }
}

#[test]
fn a_void_names_the_life_that_is_over() {
    let mut run = live(DispatchConfig::default());
    let effects = run.worker_lost(ONE.0, ONE.1, true, Time(9));
    assert!(matches!(&effects[0], F::Journal { attempt: 1, event: Event::Void { worker } } if *worker == ONE.1));
}

fn fingerprint(run: &Dispatch, now: Time) -> u64 {
    let mut out = std::hash::DefaultHasher::new();
    run.hash_state(now, &mut out);
    std::hash::Hasher::finish(&out)
}

#[test]
fn a_fingerprint_is_of_the_state_and_not_of_the_time() {
    let later = |us: u64| {
        let work = Work { prompt: Prompt::Text("x".into()), params: Params { max_tokens: Some(7), n: 2, ..Params::default() } };
        let deadline = Deadline::from_left(Time(us), Duration::from_secs(60), Cause::GatewayDeadline);
        let mut run: Dispatch = Dispatch::new(key(), work, vec![deadline], DispatchConfig::default(), Time(us));
        let _ = run.place(at(ONE, 4), Time(us));
        let _ = run.want(CLOSED, Time(us + 5));
        (run, Time(us + 7))
    };
    let ((run, now), (same, then)) = (later(0), later(1_000_000));
    assert_eq!(fingerprint(&run, now), fingerprint(&same, then));
    let steps = [Word::Accepted { prompt_tokens: 1 }, Word::CancelAcknowledged, delta(1), ended(CLOSED), Word::Released];
    let mut seen = vec![fingerprint(&run, now), fingerprint(&run, Time(now.0 + 1))];
    let mut run = run;
    for word in steps {
        let _ = run.take_in(ONE, 1, word, now);
        seen.push(fingerprint(&run, now));
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "each step is another state");
}

// contract: C-5, C-7, C-20
#[test]
fn a_worker_that_stops_gives_a_run_back_and_its_release_stays_proven() {
    let mut run = live(DispatchConfig::default());
    assert_eq!(words(&run.take_in(ONE, 1, ended(Cause::Shutdown), Time(2))), ["HandedBack/1"]);
    assert!(run.place(at(TWO, 5), Time(3)).is_empty(), "the first attempt is not released yet");
    assert_eq!(run.load().map(|(worker, _)| worker), Some(ONE.0));
    assert_eq!(words(&run.take_in(ONE, 1, Word::Released, Time(4))), ["wait"]);
    assert!(run.is_waiting() && run.usage() == Usage::default() && run.load().is_none());
    assert!(run.take_in(ONE, 1, ended(Cause::Shutdown), Time(5)).is_empty(), "its words count no more");
    assert_eq!(words(&run.place(at(TWO, 5), Time(6))), ["Dispatched/2", "submit #2 to 1"]);
    assert_eq!(words(&run.take_in(TWO, 2, ended(Cause::Stop), Time(7))), ["OutcomeSet/2", "tell stop"]);
    run.take_in(TWO, 2, Word::Released, Time(8));
    assert_eq!(words(&run.delivered(Delivery::Complete, Time(9))), ["DeliveryEnded/2", "Settled/2", "settle"]);
    assert!(run.call().is_released());
    assert_eq!(run.call().state(), CallState::Settled { cause: Cause::Stop, proven: true });
}

// contract: C-4, C-7
#[test]
fn a_run_that_cannot_be_given_back_ends_as_the_worker_said() {
    let shutdown = ["OutcomeSet/1", "tell shutdown"];
    let mut told = live(DispatchConfig::default());
    told.take_in(ONE, 1, delta(1), Time(2));
    assert_eq!(words(&told.take_in(ONE, 1, ended(Cause::Shutdown), Time(3))), shutdown, "a piece of it was delivered");
    let mut never = live(DispatchConfig { redispatch_max: 0, ..DispatchConfig::default() });
    assert_eq!(words(&never.take_in(ONE, 1, ended(Cause::Shutdown), Time(3))), shutdown, "the policy says no");
    let mut left = live(DispatchConfig::default());
    left.want(CLOSED, Time(2));
    let words_of = words(&left.take_in(ONE, 1, ended(Cause::Shutdown), Time(3)));
    assert_eq!(words_of, ["OutcomeSet/1", "tell shutdown", "Superseded/1"], "nobody wants it");
    // Somebody leaves between the two words: the run is the gateway's again, and only the release is waited for.
    let mut late = live(DispatchConfig::default());
    late.take_in(ONE, 1, ended(Cause::Shutdown), Time(2));
    let words_of = words(&late.want(CLOSED, Time(3)));
    assert_eq!(words_of, ["AbandonmentObserved/1", "OutcomeSet/1", "tell client_closed"], "no cancel: the worker has ended it");
    assert!(late.take_in(ONE, 1, Word::Released, Time(4)).is_empty() && late.call().is_released());
    // The worker is lost between them: nobody can say that it is released.
    let mut lost = live(DispatchConfig::default());
    lost.take_in(ONE, 1, ended(Cause::Shutdown), Time(2));
    assert_eq!(words(&lost.worker_lost(ONE.0, ONE.1, true, Time(3))), ["Void/1", "wait"]);
    assert!(lost.is_waiting() && lost.call().is_voided());
}

// contract: C-2, C-7
#[test]
fn what_no_worker_began_goes_on_beside_what_the_policy_allows_and_a_cancel_of_it_is_one() {
    let config = DispatchConfig { redispatch_max: 1, unbegun_max: 2, ..DispatchConfig::default() };
    let mut run = run(config);
    for attempt in 1..=4 {
        assert!(run.is_waiting(), "attempt {attempt}");
        let _ = run.place(at(ONE, 3 + u64::from(attempt)), Time(1));
        let ends = words(&run.take_in(ONE, attempt, ended(Cause::WorkerLost), Time(2)));
        // Two are free, and the policy allows one more behind the first.
        if attempt < 4 {
            assert_eq!(ends, [format!("HandedBack/{attempt}")]);
            assert_eq!(words(&run.take_in(ONE, attempt, Word::Released, Time(3))), ["wait"]);
        } else {
            assert_eq!(ends, ["OutcomeSet/4", "tell worker_lost"]);
        }
    }
    // One that was wanted to end meanwhile has ended for that.
    let mut left = self::run(config);
    let _ = left.place(at(ONE, 4), Time(1));
    let _ = left.want(Cause::CancelRequested, Time(2));
    assert_eq!(words(&left.take_in(ONE, 1, ended(Cause::WorkerLost), Time(3))), ["OutcomeSet/1", "tell cancel_requested"]);
    assert_eq!(left.call().outcome(), Some(Cause::CancelRequested));
}

#[test]
// contract: C-12
fn a_piece_that_comes_after_the_end_is_told_to_nobody() {
    let once = DispatchConfig { redispatch_max: 1, ..DispatchConfig::default() };
    let mut void = live(DispatchConfig { redispatch_max: 0, ..once });
    assert!(words(&void.worker_lost(ONE.0, ONE.1, true, Time(2))).contains(&"tell worker_lost".to_owned()));
    let mut over = live(once);
    over.take_in(ONE, 1, delta(1), Time(2));
    over.take_in(ONE, 1, ended(Cause::Length), Time(3));
    let mut given_back = live(once);
    given_back.take_in(ONE, 1, ended(Cause::Shutdown), Time(2));
    assert_eq!(given_back.call().state(), CallState::HandedBack);
    for run in [&mut void, &mut over, &mut given_back] {
        let before = fingerprint(run, Time(4));
        assert_eq!(words(&run.take_in(ONE, 1, delta(1), Time(4))), Vec::<String>::new());
        assert_eq!(fingerprint(run, Time(4)), before, "it changes nothing");
    }
    // So the attempt that follows has everything that it needs.
    assert_eq!(words(&given_back.take_in(ONE, 1, Word::Released, Time(5))), ["wait"]);
    assert_eq!(words(&given_back.place(at(TWO, 9), Time(6)))[1], "submit #2 to 1");
}

// contract: C-6, C-20
#[test]
fn a_run_is_queued_until_a_worker_takes_it_on_and_waited_for_until_it_is_released_or_void() {
    let stands = |run: &Dispatch| (run.is_queued(), run.is_released_or_void());
    let mut run = run(DispatchConfig::default());
    assert_eq!(stands(&run), (true, false), "it waits here");
    let _ = run.place(at(ONE, 4), Time(0));
    assert_eq!(stands(&run), (true, false), "it waits there");
    let _ = run.take_in(ONE, 1, Word::Accepted { prompt_tokens: 3 }, Time(1));
    assert_eq!(stands(&run), (false, false));
    let mut back = run.clone();
    let _ = back.take_in(ONE, 1, ended(Cause::Shutdown), Time(2));
    assert_eq!(stands(&back), (true, false), "it will wait again");
    let mut void = run.clone();
    let _ = void.worker_lost(ONE.0, ONE.1, false, Time(2));
    assert_eq!(stands(&void), (false, true), "nobody will ever say it");
    let _ = run.want(CLOSED, Time(2));
    assert_eq!(stands(&run), (false, false));
    let _ = run.take_in(ONE, 1, ended(CLOSED), Time(3));
    assert_eq!(stands(&run), (false, false), "ended is not released");
    let _ = run.take_in(ONE, 1, Word::Released, Time(4));
    assert_eq!(stands(&run), (false, true));
    let _ = run.delivered(Delivery::None, Time(5));
    assert!(run.call().is_settled());
    assert_eq!(stands(&run), (false, true));
}

#[test]
fn an_end_without_a_first_word_tells_that_a_worker_took_the_run_on_only_if_the_answer_is_whole() {
    let ends = |cause: Cause| {
        let mut run = run(DispatchConfig::default());
        let _ = run.place(at(ONE, 4), Time(0));
        words(&run.take_in(ONE, 1, ended(cause), Time(1)))
    };
    assert_eq!(ends(Cause::Stop), ["tell accepted", "OutcomeSet/1", "tell stop"]);
    assert_eq!(ends(Cause::Invalid), ["OutcomeSet/1", "tell invalid"], "it was turned away");
}

/// With what is said of that; one that a worker may have begun is not turned away any more.
// contract: C-2
#[test]
fn a_run_that_waits_in_vain_is_turned_away_unless_it_was_begun() {
    let refusal = || Outcome::because(Cause::Invalid, "nobody has it");
    let mut waits = run(DispatchConfig::default());
    let effects = waits.refuse(refusal(), Time(1));
    let told = effects.iter().find_map(|effect| if let F::Tell(Said::End { outcome, .. }) = effect { Some(outcome.clone()) } else { None });
    assert_eq!((told, waits.call().outcome()), (Some(refusal()), Some(Cause::Invalid)));
    let mut given_back = run(DispatchConfig { redispatch_max: 1, ..DispatchConfig::default() });
    given_back.place(at(ONE, 4), Time(0));
    assert_eq!(words(&given_back.refuse(refusal(), Time(1))), [""; 0], "it is at a worker");
    given_back.worker_lost(ONE.0, ONE.1, true, Time(1));
    assert!(given_back.is_waiting());
    assert_eq!(words(&given_back.refuse(refusal(), Time(2))), [""; 0], "a worker may have begun it");
}
