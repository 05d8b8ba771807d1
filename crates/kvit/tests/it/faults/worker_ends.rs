//! A worker that is ended with SIGKILL in the middle of its work: nobody waits in silence, and nothing that its former life says counts.
// contract: C-3, C-5, C-7, C-20, C-29

use std::time::{Duration, Instant};

use lifecycle::message::{Receipt, Up};
use lifecycle::session::Frame;
use serde_json::{Value, json};

use super::tap::Tap;
use super::{Probe, SLOWLY, alone, ended, finish, gateway, metric, over, slow_worker, text_of, until};
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
    let gateway = gateway(&[&address], &["--lease-ms", "600000"]);
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

// field: F-25
#[test]
fn callers_of_a_killed_worker_are_told_by_its_lease_when_no_life_answers() {
    let texts = alone(&lasting_model(), &[("Hi there", 8)]);
    let worker = slow_worker(&lasting_model(), &["--max-running", "2", "--lease-ms", "1500"]);
    let address = worker.address.clone();
    let gateway = gateway(&[&address], &["--lease-ms", "1500"]);
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
    let newest = tap.ups().pop().expect("a frame");
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
