//! A worker that is ended with SIGKILL in the middle of its work: nobody waits in silence, and nothing that its former life says counts.
// contract: C-3, C-5, C-7, C-20, C-29

use std::time::{Duration, Instant};

use lifecycle::message::{Receipt, Up};
use lifecycle::session::Frame;
use serde_json::{Value, json};

use super::relay::Relay;
use super::tap::Tap;
use super::{Probe, SLOWLY, alone, ended, finish, gateway, metric, over, slow_worker, states, text_of, until};
use crate::server::{Caller, Server, chat_body, lasting_model};
use crate::worker::Process;

/// Two that are being answered and one that has had nothing.
struct Callers {
    streams: Caller,
    whole: Caller,
    waits: Caller,
}

fn ask(gateway: &Server) -> Callers {
    let mut streams = Caller::chat(gateway, "streams", &chat_body("Hello", 12_000, true));
    assert!(!streams.read_tokens(2).is_empty());
    let whole = Caller::chat(gateway, "whole", &chat_body("Hello you", 12_000, false));
    gateway.wait_run("whole", "decode", |run| run["tokens"]["generated"].as_u64() > Some(1));
    let waits = Caller::chat(gateway, "waits", &chat_body("Hi there", 8, false));
    gateway.wait_run("waits", "queue", |run| !run["milestones"]["queued"].is_null());
    Callers { streams, whole, waits }
}

/// Ends it and waits until it is no more.
fn kill(worker: Process) {
    worker.signal("KILL");
    assert_eq!(worker.ended().0, None, "by a signal");
}

fn revived(address: &str) -> Process {
    Process::named("w1", address, &lasting_model(), &[&SLOWLY[..], &["--max-running", "2", "--lease-ms", "1500"]].concat())
}

fn is_lost(gateway: &Server, id: &str) {
    let run = over(gateway, id);
    assert_eq!((ended(&run), &run["attempt"]), (("failed", "worker_lost"), &json!(1)), "{run:#}");
    assert_eq!(run["guarantee"], "best_effort", "{run:#}");
    // contract: C-28. What it may still compute is bounded by what was left of it.
    assert!(run["waste_bound_tokens"].as_u64().is_some_and(|n| n > 0 && n < 16_000), "{run:#}");
    let traced = crate::run(&["trace", id, "--server", &format!("http://127.0.0.1:{}", gateway.port)]);
    assert!(traced.out.contains("worker_lost") && traced.out.contains("best_effort"), "{}", traced.out);
}

/// The one that had nothing is answered by another attempt, as if nothing had been.
fn is_answered(gateway: &Server, mut caller: Caller, text: &str) {
    let (status, answer) = caller.answer();
    assert_eq!((status, text_of(&answer).as_str()), (200, text), "{answer}");
    let run = over(gateway, "waits");
    assert_eq!((ended(&run), &run["attempt"]), (("completed", "length"), &json!(2)), "{run:#}");
    assert_eq!((&run["tokens"]["generated"], &run["tokens"]["delivered"]), (&json!(8), &json!(8)), "{run:#}");
    // contract: C-29. Nobody has said that the first attempt's blocks came back.
    assert_eq!(run["guarantee"], "best_effort", "{run:#}");
}

#[test]
fn callers_of_a_killed_worker_are_told_when_its_next_life_answers() {
    let texts = alone(&lasting_model(), &[("Hi there", 8)]);
    let worker = slow_worker(&lasting_model(), &["--max-running", "2"]);
    let address = worker.address.clone();
    // Its lease tells nobody anything for ten minutes.
    let gateway = gateway(&[&address], &["--lease-ms", "600000", "--worker-refused-ms", "0"]);
    let Callers { mut streams, mut whole, waits } = ask(&gateway);
    kill(worker);
    let worker = revived(&address);
    let since = Instant::now();
    assert_eq!(finish(&mut streams).1.as_deref(), Some("worker_lost"));
    let told = since.elapsed();
    assert!(told < Duration::from_secs(2), "the caller was told {told:?} after the next life listened");
    let (status, answer) = whole.answer();
    assert_eq!((status >= 500, &answer["error"]["code"]), (true, &json!("worker_lost")), "{answer}");
    is_lost(&gateway, "streams");
    is_lost(&gateway, "whole");
    is_answered(&gateway, waits, &texts[0]);
    let cut = Probe::of(&worker).until_at_rest();
    assert_eq!(cut.orphaned_attempts, 0, "it never had anything of the former life's");
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
    // contract: C-5. One outcome each.
    assert_eq!(metric(&gateway, "kvit_run_outcomes_total"), 3);
}

/// The gateway's view of a run whose worker may still be somewhere: its readers have been told, and nothing else is over.
fn is_told(gateway: &Server, id: &str, delivery: &str) {
    let run = gateway.wait_run(id, "end its delivery", |run| run["delivery"] == delivery);
    assert_eq!((&run["outcome"], &run["state"], &run["told"]), (&Value::Null, &json!("stopping"), &json!("worker_lost")), "{run:#}");
    assert_eq!((&run["settled"], &run["released"], &run["guarantee"]), (&json!(false), &json!(false), &Value::Null), "{run:#}");
    let traced = crate::run(&["trace", id, "--server", &format!("http://127.0.0.1:{}", gateway.port)]);
    assert!(traced.out.contains("readers were told: worker_lost"), "{}", traced.out);
}

// contract: C-6, C-7, C-9
#[test]
fn callers_of_a_killed_worker_are_told_while_nobody_listens_there() {
    let texts = alone(&lasting_model(), &[("Hi there", 8)]);
    let worker = slow_worker(&lasting_model(), &["--max-running", "2"]);
    let address = worker.address.clone();
    // Neither its lease nor a next life tells anybody anything.
    let gateway = gateway(&[&address], &["--lease-ms", "600000"]);
    let Callers { mut streams, mut whole, waits } = ask(&gateway);
    kill(worker);
    assert_eq!(finish(&mut streams).1.as_deref(), Some("worker_lost"));
    let (status, answer) = whole.answer();
    assert_eq!((status, &answer["error"]["code"]), (500, &json!("worker_lost")), "{answer}");
    // It is not given up: no attempt is void, none is dispatched again.
    assert_eq!(states(&gateway), ["refused"]);
    is_told(&gateway, "streams", "partial");
    is_told(&gateway, "whole", "none");
    let run = gateway.run("waits");
    assert_eq!((&run["outcome"], &run["told"], &run["attempt"]), (&Value::Null, &Value::Null, &json!(1)), "it may go to another: {run:#}");
    // A new run is taken on as where no worker is.
    let mut next = Caller::chat(&gateway, "next", &chat_body("Hi there", 8, false));
    let run = gateway.wait_run("next", "be accepted", |run| run["object"] == "run");
    assert_eq!((&run["state"], &run["attempt"]), (&json!("queued"), &json!(0)), "{run:#}");
    let (status, head, _) = gateway.request("GET", "/health/ready", None, None);
    assert_eq!((status, head.to_lowercase().contains("retry-after")), (503, true), "{head}");
    assert_eq!(metric(&gateway, "kvit_run_outcomes_total"), 0);
    let worker = revived(&address);
    is_lost(&gateway, "streams");
    is_lost(&gateway, "whole");
    assert_eq!(gateway.run("streams")["told"], "worker_lost");
    is_answered(&gateway, waits, &texts[0]);
    assert_eq!(next.answer().0, 200);
    let cut = Probe::of(&worker).until_at_rest();
    assert_eq!(cut.orphaned_attempts, 0, "it never had anything of the former life's");
    over(&gateway, "next");
    assert_eq!((metric(&gateway, "kvit_defects_total"), metric(&gateway, "kvit_run_outcomes_total")), (0, 4));
}

// contract: C-4, C-6, C-9
#[test]
fn a_worker_that_lives_behind_a_refusing_host_ends_the_run_itself() {
    let worker = slow_worker(&lasting_model(), &[]);
    let (probe, relay) = (Probe::of(&worker), Relay::to(&worker.address));
    let gateway = gateway(&[&relay.address], &["--lease-ms", "300000"]);
    let mut caller = Caller::chat(&gateway, "r", &chat_body("Hello", 12_000, true));
    caller.read_tokens(2);
    relay.refuse();
    assert_eq!(finish(&mut caller).1.as_deref(), Some("worker_lost"));
    is_told(&gateway, "r", "partial");
    // The worker keeps its blocks and waits, as after any cut.
    let cut = probe.until_run("r", "suspended");
    assert!(cut.active > 0 && cut.orphaned_attempts == 0, "{cut:?}");
    relay.listen();
    let run = gateway.settled("r");
    assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("failed", "worker_lost"), &json!(1), &json!("confirmed")), "{run:#}");
    assert!(run["milestones"]["cancel_received"].is_number() && run["milestones"]["released"].is_number(), "by the engine: {run:#}");
    probe.until_at_rest();
    assert_eq!(Caller::chat(&gateway, "next", &chat_body("Hi", 4, false)).answer().0, 200, "it is here again");
    gateway.settled("next");
    assert_eq!((metric(&gateway, "kvit_defects_total"), metric(&gateway, "kvit_run_outcomes_total")), (0, 2));
}

// field: F-25
#[test]
fn callers_of_a_killed_worker_are_told_by_its_lease_when_no_life_answers() {
    let texts = alone(&lasting_model(), &[("Hi there", 8)]);
    let worker = slow_worker(&lasting_model(), &["--max-running", "2", "--lease-ms", "1500"]);
    let address = worker.address.clone();
    let gateway = gateway(&[&address], &["--lease-ms", "1500", "--worker-refused-ms", "0"]);
    let Callers { mut streams, mut whole, waits } = ask(&gateway);
    kill(worker);
    assert_eq!(finish(&mut streams).1.as_deref(), Some("worker_lost"));
    assert_eq!(whole.answer().1["error"]["code"], "worker_lost");
    is_lost(&gateway, "streams");
    is_lost(&gateway, "whole");
    let run = gateway.run("waits");
    assert_eq!((&run["outcome"], &run["settled"]), (&Value::Null, &json!(false)), "it waits for a worker: {run:#}");
    let worker = revived(&address);
    is_answered(&gateway, waits, &texts[0]);
    Probe::of(&worker).until_at_rest();
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
}

#[test]
fn late_messages_of_a_killed_workers_life_change_nothing() {
    let texts = alone(&lasting_model(), &[("Hi there", 40)]);
    let worker = slow_worker(&lasting_model(), &[]);
    let address = worker.address.clone();
    let tap = Tap::to(&address);
    let gateway = gateway(&[&tap.address], &["--lease-ms", "600000"]);
    let mut first = Caller::chat(&gateway, "first", &chat_body("Hello", 12_000, true));
    first.read_tokens(2);
    kill(worker);
    let (old_ups, old_downs) = (tap.ups(), tap.downs());
    let worker = revived(&address);
    assert_eq!(finish(&mut first).1.as_deref(), Some("worker_lost"));
    let mut second = Caller::chat(&gateway, "second", &chat_body("Hi there", 40, true));
    let mut text = second.read_tokens(2);
    let (probe, stale) = (Probe::of(&worker), metric(&gateway, "kvit_stale_messages_total"));
    let stale_there = probe.cut().stale_messages;
    // All that the former life ever said, and what it might say of the run of now, as the next message of the lane of now.
    // A heartbeat has no number.
    let newest = tap.ups().into_iter().rev().find(|frame| frame.number > 0).expect("a frame with a message");
    let old = old_ups.last().expect("a frame").from;
    assert!(old < newest.from);
    let attempt = lifecycle::AttemptId { key: gateway_key("second"), attempt: 1 };
    let lie = Up::Released { attempt, receipt: Receipt::default() };
    for frame in &old_ups {
        tap.say_up(frame);
    }
    for number in newest.number..newest.number + 50 {
        tap.say_up(&Frame { from: old, number, message: Some(lie.clone()), ..newest.clone() });
    }
    for frame in &old_downs {
        tap.say_down(frame);
    }
    let ups = old_ups.len() as u64 + 50;
    until("each is counted at the gateway", || (metric(&gateway, "kvit_stale_messages_total") == stale + ups).then_some(()));
    let downs = old_downs.len() as u64;
    probe.until("each is counted at the worker", |cut| cut.stale_messages == stale_there + downs);
    let (rest, error) = finish(&mut second);
    text.push_str(&rest);
    assert_eq!((text, error), (texts[0].clone(), None));
    let run = gateway.settled("second");
    assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("completed", "length"), &json!(1), &json!("confirmed")), "{run:#}");
    assert_eq!(ended(&over(&gateway, "first")), ("failed", "worker_lost"));
    probe.until_at_rest();
    assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
}

fn gateway_key(run: &str) -> lifecycle::RunKey {
    lifecycle::RunKey { tenant: lifecycle::Tenant::default(), run: lifecycle::RunId::parse(run).expect("an id") }
}
