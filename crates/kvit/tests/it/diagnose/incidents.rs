//! A scripted incident for each verdict.
// contract: C-9 C-15 C-16 C-20
// field: F-03 F-42 F-45

use lifecycle::message::Down;
use serde_json::Value;

use super::{command, diagnosed, until};
use crate::faults::{self, Fate, Seen, Tap};
use crate::server::{Caller, Leave, Server, chat_body, lasting_model};
use crate::worker::Process;

/// A cancel and a fence have so long; a lease is far longer.
const IMPATIENT: [&str; 4] = ["--alert-unacknowledged-ms", "300", "--lease-ms", "120000"];

/// A run whose caller stays for so many tokens and that goes on for long.
fn begun(server: &Server, id: &str, tokens: usize) -> Caller {
    let mut caller = Caller::chat(server, id, &chat_body("Tell me a long story.", 10_000, true));
    caller.read_tokens(tokens);
    caller
}

#[test]
fn a_stopped_worker_leaves_its_fences_open_until_it_goes_on() {
    let worker = Process::start(&lasting_model(), &["--log", "error", "--lease-ms", "120000"]);
    let gateway = faults::gateway(&[&worker.address], &IMPATIENT);
    let caller = begun(&gateway, "left", 3);
    assert_eq!(diagnosed(&gateway)["verdict"], "healthy");
    worker.signal("STOP");
    caller.leave(Leave::Close);
    let told = until("it is stuck", &gateway, "draining_stuck");
    assert_eq!((&told["fault"], &told["boundary"]), (&Value::Bool(true), &Value::from("engine-allocator")), "{told:#}");
    assert!(told["evidence"][0].as_str().is_some_and(|line| line.contains("silent and has 1 run")), "{told:#}");
    let said = command(&gateway, &[]);
    assert_eq!((said.code, said.err.as_str()), (1, "kvit: draining_stuck\n"), "{}", said.out);
    assert!(said.out.starts_with("draining_stuck  FAULT\n") && said.out.contains("what to do next\n  1. "), "{}", said.out);
    worker.signal("CONT");
    gateway.settled("left");
    assert_eq!(until("it goes on", &gateway, "healthy")["fault"], false);
    assert_eq!(command(&gateway, &[]).code, 0);
}

#[test]
fn a_lost_cancel_is_told_with_the_boundary_that_it_does_not_cross() {
    let worker = Process::start(&lasting_model(), &["--log", "error", "--lease-ms", "120000"]);
    let tap = Tap::to(&worker.address);
    let gateway = faults::gateway(&[&tap.address], &IMPATIENT);
    tap.rule(|seen| match seen {
        Seen::Down(frame) if matches!(frame.message, Some(Down::Cancel { .. })) => Fate::Drop,
        _ => Fate::Pass,
    });
    let caller = begun(&gateway, "left", 3);
    caller.leave(Leave::Reset);
    let told = until("nobody cancels it", &gateway, "upstream_never_cancelled");
    assert_eq!((&told["boundary"], &told["runs"][0]["run"]), (&Value::from("gateway-worker"), &Value::from("left")), "{told:#}");
    assert!(told["evidence"][0].as_str().is_some_and(|line| line.starts_with("run left: no caller")), "{told:#}");
    let said = command(&gateway, &["--json"]);
    let json: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((said.code, &json["verdict"], &json["boundary"]), (1, &told["verdict"], &told["boundary"]), "{}", said.err);
    // The engine computes for nobody, look after look.
    let since = |json: &Value| json["since_ms"].as_u64().expect("a time");
    // Now and the time since then are each told in whole milliseconds.
    assert!(since(&json).abs_diff(since(&diagnosed(&gateway))) <= 1, "since the same moment, whoever looks");
    tap.rule(|_| Fate::Pass);
    gateway.settled("left");
    until("it came through", &gateway, "healthy");
}

#[test]
fn a_full_cache_is_no_leak_and_a_probe_gets_its_blocks() {
    let server = Server::start(&lasting_model(), &["--kv-blocks", "256", "--log", "error"]);
    for n in 0..10 {
        let prompt = format!("{n} ").repeat(150);
        let (status, answer) = Caller::chat(&server, &format!("fills{n}"), &chat_body(&prompt, 2, false)).answer();
        assert_eq!(status, 200, "{answer}");
        server.settled(&format!("fills{n}"));
    }
    let told = until("it is full", &server, "intentional_cache");
    assert_eq!(told["fault"], false, "{told:#}");
    let said = command(&server, &["--probe"]);
    assert_eq!(said.code, 0, "{} {}", said.out, said.err);
    let out = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.contains("intentional_cache ok") && out.contains("in 4 runs: 4 were answered"), "{out}");
    assert!(out.contains("all of them are free or cached again") && !out.contains("flat gauges"), "{out}");
}

#[test]
fn plain_load_is_pressure_from_live_runs_and_nothing_else() {
    let server = Server::start(&lasting_model(), &["--max-running", "2", "--log", "error"]);
    let callers: Vec<Caller> = (0..4).map(|n| Caller::chat(&server, &format!("r{n}"), &chat_body("On and on.", 15_000, true))).collect();
    let told = until("two wait", &server, "pressure_from_live_runs");
    assert_eq!((&told["fault"], told["also"].as_array().map(Vec::len)), (&Value::Bool(false), Some(0)), "{told:#}");
    assert!(told["evidence"].to_string().contains("Every one of them has a caller"), "{told:#}");
    let refused = command(&server, &["--probe"]);
    assert!(refused.code == 0 && refused.out.contains("proves nothing"), "a probe that would wait is not sent: {}", refused.out);
    for (n, caller) in callers.into_iter().enumerate() {
        caller.leave(Leave::Close);
        server.settled(&format!("r{n}"));
    }
    until("they are gone", &server, "healthy");
}

#[test]
fn memory_that_stays_when_the_runs_have_gone_is_the_allocators() {
    let server = Server::start(&lasting_model(), &["--log", "error"]);
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    let (under_load, after) = (file("a.json"), file("b.json"));
    let prompt = "0123456789".repeat(100);
    let mut caller = Caller::chat(&server, "r", &chat_body(&prompt, 10_000, true));
    caller.read_tokens(1);
    assert_eq!(command(&server, &["--snapshot", &under_load]).code, 0);
    caller.leave(Leave::Close);
    server.settled("r");
    assert_eq!(command(&server, &["--snapshot", &after]).code, 0);
    let said = command(&server, &["--compare", &under_load, &after, "--json"]);
    let told: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!((said.code, &told["verdict"], &told["looks"]), (0, &Value::from("no_leak_allocator_keeps"), &Value::from(2)), "{told:#}");
}

/// Whenever one looks, also in the moment behind a leaving.
#[test]
fn twenty_healthy_runs_under_load_are_told_healthy() {
    // Nothing here is a matter of how quick the machine is.
    let server = Server::start(&lasting_model(), &["--alert-unacknowledged-ms", "60000", "--log", "error"]);
    let stay: Vec<Caller> = (0..4).map(|n| begun(&server, &format!("stays{n}"), 1)).collect();
    for n in 0..20 {
        let id = format!("leaves{n}");
        let mut caller = Caller::chat(&server, &id, &chat_body(&id, 10_000, true));
        assert_eq!(diagnosed(&server)["verdict"], "healthy", "{id} comes");
        caller.read_tokens(2);
        caller.leave(if n % 2 == 0 { Leave::Close } else { Leave::Reset });
        let told = diagnosed(&server);
        assert_eq!(told["verdict"], "healthy", "{id} leaves: {told:#}");
        server.settled(&id);
        let told = diagnosed(&server);
        assert_eq!((&told["verdict"], &told["fault"]), (&Value::from("healthy"), &Value::Bool(false)), "{id} has left: {told:#}");
    }
    let said = command(&server, &["--watch", "2"]);
    assert!(said.code == 0 && said.out.starts_with("healthy  ok\n") && said.out.contains("looks over"), "{}", said.out);
    for (n, caller) in stay.into_iter().enumerate() {
        caller.leave(Leave::Close);
        server.settled(&format!("stays{n}"));
    }
    assert_eq!(diagnosed(&server)["verdict"], "healthy");
}
