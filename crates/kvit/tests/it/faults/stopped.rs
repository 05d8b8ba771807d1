//! A gateway or a worker that is stopped with SIGSTOP and goes on later, before or after the lease is over.
// contract: C-5, C-7, C-9, C-10, C-20

use std::time::Duration;

use lifecycle::event::Event;
use serde_json::{Value, json};

use super::tap::{Seen, Tap};
use super::{Probe, alone, ended, finish, gateway, metric, over, slow_worker, states, until};
use crate::server::{Caller, Server, chat_body, lasting_model};

const TOKENS: u32 = 100;

fn completes(gateway: &Server, id: &str, mut caller: Caller, mut text: String, wanted: &str) -> Value {
    let (rest, error) = finish(&mut caller);
    text.push_str(&rest);
    assert_eq!((text.as_str(), error), (wanted, None));
    let run = gateway.settled(id);
    assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("completed", "length"), &json!(1), &json!("confirmed")), "{run:#}");
    assert_eq!((&run["tokens"]["generated"], &run["tokens"]["overrun"]), (&json!(TOKENS), &json!(0)), "{run:#}");
    assert_eq!(metric(gateway, "kvit_defects_total"), 0);
    run
}

#[test]
fn a_gateway_stopped_for_less_than_the_lease_loses_nothing() {
    let texts = alone(&lasting_model(), &[("Hello", TOKENS)]);
    let worker = slow_worker(&lasting_model(), &["--lease-ms", "600000"]);
    let probe = Probe::of(&worker);
    let gateway = gateway(&[&worker.address], &["--lease-ms", "600000"]);
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", TOKENS, true));
    let text = caller.read_tokens(2);
    gateway.signal("STOP");
    probe.until_run("r", "suspended");
    let still = probe.until("its last step is over", |cut| cut.held.steps == 0);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(probe.cut().step, still.step);
    gateway.signal("CONT");
    completes(&gateway, "r", caller, text, &texts[0]);
    let cut = probe.until_at_rest();
    assert_eq!(cut.orphaned_attempts, 0);
    assert!(cut.suspensions >= 1);
}

/// What a gateway that was stopped for longer than its lease has to say: one end, whatever both sides have concluded meanwhile.
fn learned(gateway: &Server, mut caller: Caller) {
    // It may have been told before it was stopped how far it was; then one error ends the stream.
    let (_, error) = finish(&mut caller);
    let error = error.expect("the caller is told");
    assert!(["orphaned", "worker_lost"].contains(&error.as_str()), "{error}");
    let run = over(gateway, "r");
    let end = ended(&run);
    assert!([("cancelled", "orphaned"), ("failed", "worker_lost")].contains(&end), "{run:#}");
    assert_eq!(end.1, error, "the record says what the caller was told");
    assert_eq!(run["attempt"], 1);
    println!("{end:?}, {}", run["guarantee"]);
    // One outcome, and nothing that must not be.
    assert_eq!(metric(gateway, "kvit_run_outcomes_total"), 1);
    assert_eq!(metric(gateway, "kvit_defects_total"), 0);
    assert_eq!(metric(gateway, "kvit_settled_total"), 1);
}

fn gateway_stopped_beyond_the_lease(forgotten: bool) {
    let worker = slow_worker(&lasting_model(), &["--lease-ms", "1000"]);
    let probe = Probe::of(&worker);
    let gateway = gateway(&[&worker.address], &["--lease-ms", "1000"]);
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", 12_000, true));
    caller.read_tokens(2);
    gateway.signal("STOP");
    let cut = probe.until("its run is ended", |cut| cut.attempts.is_empty() && cut.orphaned_attempts == 1);
    assert_eq!((cut.active, cut.draining), (0, 0), "released while the gateway could not even be told");
    if forgotten {
        // One lease more, and the worker keeps nothing that could be told.
        std::thread::sleep(Duration::from_millis(1500));
    }
    gateway.signal("CONT");
    learned(&gateway, caller);
    until("it is heard again", || (states(&gateway) == ["here"]).then_some(()));
    let (status, _) = Caller::chat(&gateway, "next", &chat_body("Hi", 4, false)).answer();
    assert_eq!(status, 200);
    assert_eq!(probe.until_at_rest().orphaned_attempts, 1);
}

#[test]
fn a_gateway_stopped_for_more_than_the_lease_learns_the_truth() {
    gateway_stopped_beyond_the_lease(false);
}

#[test]
fn a_gateway_stopped_until_it_is_forgotten_learns_the_truth() {
    gateway_stopped_beyond_the_lease(true);
}

#[test]
fn a_worker_stopped_for_less_than_the_lease_loses_nothing() {
    let texts = alone(&lasting_model(), &[("Hello", TOKENS)]);
    let worker = slow_worker(&lasting_model(), &["--lease-ms", "600000"]);
    let gateway = gateway(&[&worker.address], &["--lease-ms", "600000"]);
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", TOKENS, true));
    let text = caller.read_tokens(2);
    worker.signal("STOP");
    until("its silence is seen", || (states(&gateway) == ["silent"]).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    worker.signal("CONT");
    completes(&gateway, "r", caller, text, &texts[0]);
    assert_eq!(Probe::of(&worker).until_at_rest().orphaned_attempts, 0);
}

#[test]
fn a_worker_stopped_for_more_than_the_lease_computes_nothing_more_when_it_goes_on() {
    let worker = slow_worker(&lasting_model(), &["--lease-ms", "1000"]);
    let (probe, tap) = (Probe::of(&worker), Tap::to(&worker.address));
    tap.linger();
    let gateway = gateway(&[&tap.address], &["--lease-ms", "1000"]);
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", 12_000, true));
    caller.read_tokens(2);
    worker.signal("STOP");
    // contract: C-9. The gateway concludes on its own, from the lease and the clocks' error.
    assert_eq!(finish(&mut caller).1.as_deref(), Some("worker_lost"));
    let run = over(&gateway, "r");
    assert_eq!((ended(&run), &run["guarantee"]), (("failed", "worker_lost"), &json!("best_effort")), "{run:#}");
    worker.signal("CONT");
    let cut = probe.until_at_rest();
    assert_eq!(cut.orphaned_attempts, 1);
    // Its first word after the pause is the one before which it said nothing for a lease. It comes when it comes: that it let go was asked beside it.
    let asleep = until("its first word after the pause", || {
        let ups = tap.log().into_iter().filter_map(|(seen, _)| if let Seen::Up(frame) = seen { Some(frame.stamp) } else { None });
        ups.collect::<Vec<_>>().windows(2).find(|pair| pair[1].since(pair[0]) >= Duration::from_millis(900)).map(|pair| pair[0])
    });
    let records = until("its end is told", || {
        Some(tap.records("r")).filter(|records| records.iter().any(|r| matches!(r.event, Event::Released { .. })))
    });
    // The step that was on the device is done; before another one was begun it looked at the lease.
    let steps = records.iter().filter(|r| matches!(r.event, Event::Computed { .. }) && r.at > asleep.after(Duration::from_millis(900)));
    assert!(steps.count() <= 1, "{records:?}");
    // Nothing of that is a second end of the run.
    assert_eq!(ended(&gateway.run("r")), ("failed", "worker_lost"));
    until("it is heard again", || (states(&gateway) == ["here"]).then_some(()));
    assert_eq!(Caller::chat(&gateway, "next", &chat_body("Hi", 4, false)).answer().0, 200);
    assert_eq!(metric(&gateway, "kvit_run_outcomes_total"), 2);
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
}
