//! Cancels that come at the worst moment, and a claim that comes late, at a worker's process.
// contract: C-2, C-4, C-8, C-11, C-13, C-20, C-23

use lifecycle::Cause;
use lifecycle::message::Down;

use super::raw::{Raw, Told, attempt};
use super::{Probe, alone, ended, finish, gateway, metric, slow_worker};
use crate::server::{Caller, PATIENCE, chat_body, lasting_model};
use crate::worker::Process;

fn worker() -> (Process, Probe) {
    let worker = slow_worker(&lasting_model(), &[]);
    let probe = Probe::of(&worker);
    (worker, probe)
}

fn both(a: &mut Raw, b: &mut Raw, what: &str, holds: impl Fn(&Raw, &Raw) -> bool) {
    let since = std::time::Instant::now();
    while !holds(a, b) {
        assert!(since.elapsed() < PATIENCE, "it never came to: {what}; {:?} {:?}", a.told, b.told);
        a.pump();
        b.pump();
    }
}

/// It was cancelled before it had computed anything.
fn never_ran(told: &Told) {
    assert_eq!((told.ended.as_slice(), told.released, told.tokens), (&[Cause::CancelRequested][..], 1, 0), "{told:?}");
}

#[test]
fn a_cancel_before_its_submit_lets_it_neither_compute_nor_own() {
    let (worker, probe) = worker();
    let mut raw = Raw::connect(&worker, "g");
    raw.cancel("r", 1, Cause::CancelRequested);
    raw.until("it is acknowledged", |raw| raw.of("r").acknowledged == [None]);
    assert_eq!(probe.cut().tombstones, 1);
    raw.submit("r", 1, "Hello", 6000);
    never_ran(&raw.until_released("r"));
    let cut = probe.until_at_rest();
    assert_eq!((cut.step.0, cut.tombstones), (0, 0), "no step, and nothing is kept");
}

#[test]
fn a_cancel_in_the_same_tick_as_its_submit_ends_it() {
    let (worker, probe) = worker();
    let mut raw = Raw::connect(&worker, "g");
    // One go on the wire, forty messages: each pair is taken in one after the other.
    let runs: Vec<String> = (1..=20).map(|i| format!("r{i}")).collect();
    for (number, run) in (1..).zip(&runs) {
        raw.submit(run, number, "Hello", 6000);
        raw.cancel(run, number, Cause::CancelRequested);
    }
    for run in &runs {
        let told = raw.until_released(run);
        assert_eq!((told.ended.as_slice(), told.released), (&[Cause::CancelRequested][..], 1), "{told:?}");
        assert_eq!(told.tokens, 0, "none was computed before the cancel was there: {told:?}");
        assert_eq!(told.acknowledged.len(), 1, "{told:?}");
    }
    assert_eq!(probe.until_at_rest().tombstones, 0);
}

#[test]
fn a_cancel_after_the_end_changes_nothing_and_leaves_nothing() {
    let (worker, probe) = worker();
    let mut raw = Raw::connect(&worker, "g");
    raw.submit("r", 1, "Hello", 4);
    raw.until_released("r");
    let steps = probe.until_at_rest().step;
    raw.cancel("r", 1, Cause::CancelRequested);
    raw.until("it is acknowledged", |raw| raw.of("r").acknowledged == [None]);
    let told = raw.of("r");
    assert_eq!((told.ended.as_slice(), told.released, told.tokens), (&[Cause::Length][..], 1, 4), "{told:?}");
    let cut = probe.until_at_rest();
    assert_eq!((cut.step, cut.tombstones), (steps, 0));
    // The pair is spent: the same submit again, under a new number, runs as what it is to the worker: another one's; under its own, never.
    raw.submit("r", 1, "Hello", 4);
    raw.submit("other", 2, "Hello", 4);
    raw.until_released("other");
    assert_eq!((raw.of("r").released, raw.of("r").tokens), (1, 4), "it ran once");
    assert_eq!(probe.until_at_rest().stale_messages, 1);
}

#[test]
fn a_cancel_that_comes_twice_does_what_it_does_once() {
    let (worker, probe) = worker();
    let mut raw = Raw::connect(&worker, "g");
    raw.submit("r", 1, "Hello", 6000);
    raw.until("a token", |raw| raw.of("r").tokens > 0);
    // Two causes, so that the lane does not take the second for the first one sent again.
    raw.cancel("r", 1, Cause::ClientClosed);
    raw.cancel("r", 1, Cause::CancelRequested);
    raw.until("both are acknowledged", |raw| raw.of("r").acknowledged.len() == 2);
    let told = raw.until_released("r");
    assert_eq!((told.ended.as_slice(), told.released), (&[Cause::ClientClosed][..], 1), "{told:?}");
    assert_eq!(told.acknowledged[0], Some(Cause::ClientClosed), "{told:?}");
    // The second finds the first, or nothing any more; it never wins.
    assert_ne!(told.acknowledged[1], Some(Cause::CancelRequested), "{told:?}");
    probe.until_at_rest();
}

#[test]
fn a_cancel_from_two_gateways_ends_it_once_and_both_are_told() {
    let (worker, probe) = worker();
    let (mut owner, mut other) = (Raw::connect(&worker, "owner"), Raw::connect(&worker, "other"));
    owner.submit("r", 1, "Hello", 6000);
    both(&mut owner, &mut other, "a token", |owner, _| owner.of("r").tokens > 0);
    owner.cancel("r", 1, Cause::ClientClosed);
    other.cancel("r", 0, Cause::CancelRequested);
    both(&mut owner, &mut other, "the owner is told", |owner, _| owner.of("r").released > 0);
    both(&mut owner, &mut other, "the other is acknowledged", |_, other| !other.of("r").acknowledged.is_empty());
    let (own, others) = (owner.of("r"), other.of("r"));
    assert_eq!((own.ended.len(), own.released), (1, 1), "{own:?}");
    // Two sessions have no order: whichever came first has won, for both.
    let cause = own.ended[0];
    assert!([Cause::ClientClosed, Cause::CancelRequested].contains(&cause));
    assert!(others.acknowledged[0].is_none_or(|won| won == cause), "{others:?}");
    assert!(others.ended.iter().all(|ended| *ended == cause) && others.released <= 1, "{others:?}");
    probe.until_at_rest();
}

#[test]
fn a_cancel_from_a_gateway_that_is_not_the_owner_ends_it_and_both_are_told() {
    let (worker, probe) = worker();
    let (mut owner, mut other) = (Raw::connect(&worker, "owner"), Raw::connect(&worker, "other"));
    owner.submit("r", 1, "Hello", 6000);
    both(&mut owner, &mut other, "a token", |owner, _| owner.of("r").tokens > 0);
    other.cancel("r", 0, Cause::CancelRequested);
    both(&mut owner, &mut other, "both are told", |owner, other| owner.of("r").released > 0 && other.of("r").released > 0);
    for told in [owner.of("r"), other.of("r")] {
        assert_eq!((told.ended.as_slice(), told.released), (&[Cause::CancelRequested][..], 1), "{told:?}");
    }
    assert_eq!(other.of("r").tokens, 0, "not a token of it was shown to the other");
    assert_eq!(probe.until_at_rest().orphaned_attempts, 0);
}

#[test]
fn a_claim_composed_before_a_submit_and_delivered_after_it_harms_nobody() {
    let texts = alone(&lasting_model(), &[("Hello", 30), ("Hi there", 30)]);
    // A starved machine suspends nothing here.
    let worker = slow_worker(&lasting_model(), &["--suspend-after-ms", "60000", "--lease-ms", "600000"]);
    let probe = Probe::of(&worker);
    let mut raw = Raw::connect(&worker, "g");
    raw.submit("known", 1, "Hello", 30);
    raw.until("a token", |raw| raw.of("known").tokens > 0);
    // All that there was to be claimed when it was composed.
    let (claim, disclaim) = (Down::Claim { attempts: vec![attempt("known")] }, Down::Disclaim { attempts: vec![attempt("long-gone")] });
    raw.submit("new", 2, "Hi there", 30);
    raw.until("a token of the new one", |raw| raw.of("new").tokens > 0);
    raw.send(claim);
    raw.send(disclaim);
    for (run, text) in [("known", &texts[0]), ("new", &texts[1])] {
        let told = raw.until_released(run);
        assert_eq!((told.ended.as_slice(), told.released, &told.text), (&[Cause::Length][..], 1, text), "{run}");
    }
    let cut = probe.until_at_rest();
    assert_eq!((cut.orphaned_attempts, cut.suspensions), (0, 0));
}

/// A run is cancelled by name at the gateway that has it. To another it does not exist, and what is asked for there reaches nobody.
#[test]
fn a_cancel_at_a_gateway_that_does_not_know_the_run_is_none() {
    let (worker, probe) = worker();
    let owner = gateway(&[&worker.address], &["--name", "owner", "--lease-ms", "600000"]);
    let other = gateway(&[&worker.address], &["--name", "other", "--lease-ms", "600000"]);
    let mut caller = Caller::chat(&owner, "r", &chat_body("Hello", 6000, true));
    assert!(!caller.read_tokens(1).is_empty());
    assert_eq!(other.request("POST", "/v1/runs/r/cancel?wait_ms=0", None, None).0, 404);
    assert!(!caller.read_tokens(2).is_empty(), "it goes on");
    // contract: C-1. The same name at another gateway is another's run: the worker turns it down, and the first one goes on.
    let (status, answer) = Caller::chat(&other, "r", &chat_body("Hello", 4, false)).answer();
    assert_eq!((status, &answer["error"]["code"]), (400, &"invalid".into()), "{answer}");
    assert!(!caller.read_tokens(2).is_empty(), "it goes on");
    for _ in 0..2 {
        assert_eq!(owner.request("POST", "/v1/runs/r/cancel?wait_ms=0", None, None).0, 200);
    }
    assert_eq!(finish(&mut caller).1.as_deref(), Some("cancel_requested"));
    assert_eq!(ended(&owner.settled("r")), ("cancelled", "cancel_requested"));
    probe.until_at_rest();
    assert_eq!((metric(&owner, "kvit_defects_total"), metric(&other, "kvit_defects_total")), (0, 0));
}
