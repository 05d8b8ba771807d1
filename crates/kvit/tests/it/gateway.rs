//! `kvit gateway` with `kvit worker`s, each a process: they answer as `kvit serve` does, and a run's record is as complete.
// contract: C-6, C-7, C-24

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::run;
use crate::server::{Caller, Leave, PATIENCE, SLOW, Server, chat_body, lasting_model, rest, slow_model, tiny_model};
use crate::worker::Process;

pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "it never came to: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_ready(server: &Server) -> bool {
    server.json("GET", "/health").0 == 200
}

fn ready(workers: &[&Process], args: &[&str]) -> Server {
    let addresses: Vec<&str> = workers.iter().map(|worker| worker.address.as_str()).collect();
    let gateway = Server::gateway(&addresses, args);
    until("all workers are here", || states(&gateway).iter().all(|state| state == "here").then_some(()));
    gateway
}

fn states(gateway: &Server) -> Vec<String> {
    let list = gateway.json("GET", "/v1/workers").1;
    let data = list["data"].as_array().expect("a list").clone();
    data.iter().map(|worker| worker["state"].as_str().expect("a word").to_owned()).collect()
}

/// Without what no two answers share.
fn timeless(mut answer: Value) -> Value {
    answer.as_object_mut().expect("an object").remove("created");
    answer
}

#[test]
fn answers_are_the_ones_of_a_single_process() {
    let single = Server::start(&tiny_model(), &["--threads", "1"]);
    let worker = Process::start(&tiny_model(), &[]);
    let gateway = ready(&[&worker], &[]);
    for (id, content, n) in [("same-1", "Hello there", 1), ("same-2", "0123456789 and so on", 2)] {
        let mut body = chat_body(content, 24, false);
        body["n"] = json!(n);
        let answers = [&single, &gateway].map(|server| {
            let (status, _, body) = server.request("POST", "/v1/chat/completions", Some(id), Some(&body));
            let answer: Value = serde_json::from_slice(&body).expect("JSON");
            (status, timeless(answer).to_string())
        });
        assert_eq!(answers[0], answers[1]);
        assert_eq!(answers[0].0, 200);
    }
    let events = [&single, &gateway].map(|server| {
        let mut caller = Caller::chat(server, "same-3", &chat_body("Hello there", 24, true));
        let (status, events) = caller.answer_or_events();
        let events = events.expect_err("a stream").into_iter();
        // How pieces share events is the machine's pace; what they say is not.
        let texts = events.filter_map(|event| serde_json::from_str::<Value>(&event).ok());
        let text: String = texts.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
        (status, text)
    });
    assert_eq!(events[0], events[1]);
    assert!(!events[0].1.is_empty());
}

/// Names of what is `null` in a record, at whatever depth.
fn missing(at: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Null => out.push(at.to_owned()),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| missing(&format!("{at}/{name}"), value, out)),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| missing(&format!("{at}/{i}"), value, out)),
        _ => {}
    }
}

// contract: C-24
#[test]
fn the_record_of_a_run_lacks_nothing_that_one_process_has() {
    let single = Server::start(&tiny_model(), &["--threads", "1"]);
    let worker = Process::start(&tiny_model(), &[]);
    let gateway = ready(&[&worker], &[]);
    let body = chat_body("Hello there", 24, false);
    let [alone, apart] = [&single, &gateway].map(|server| {
        assert_eq!(server.request("POST", "/v1/chat/completions", Some("whole"), Some(&body)).0, 200);
        server.settled("whole")
    });
    let (mut lacks_alone, mut lacks_apart) = (Vec::new(), Vec::new());
    missing("", &alone, &mut lacks_alone);
    missing("", &apart, &mut lacks_apart);
    assert_eq!(lacks_apart, lacks_alone);
    for same in ["/tokens", "/blocks/peak", "/blocks/held", "/outcome", "/delivery", "/guarantee", "/state"] {
        assert_eq!(apart.pointer(same), alone.pointer(same), "{same}");
    }
    assert_eq!(alone["boundaries"][1]["clock_error_ms"], 0.0);
    let error = apart["boundaries"][1]["clock_error_ms"].as_f64().expect("a number");
    assert!(error > 0.0 && apart["boundaries"][0]["clock_error_ms"] == 0.0, "{apart:#}");
    let order = ["accepted", "queued", "blocks_allocated", "prefill_start", "first_token", "last_compute", "settled"];
    let stamps: Vec<f64> = order.iter().map(|name| apart["milestones"][name].as_f64().expect("a stamp")).collect();
    assert!(stamps.is_sorted(), "{stamps:?}");
    let url = format!("http://127.0.0.1:{}", gateway.port);
    let traced = run(&["trace", "whole", "--server", &url]);
    assert!(traced.code == 0 && traced.out.contains("released"), "{}", traced.out);
    let metrics = String::from_utf8(gateway.request("GET", "/metrics", None, None).2).expect("text");
    for line in ["kvit_worker_up 1", "kvit_kv_pool_blocks 2048", "kvit_released_total 1"] {
        assert!(metrics.lines().any(|is| is == line), "{line} is not in {metrics}");
    }
}

fn leaves(phase: &str, model: &std::path::Path, how: Leave) {
    let worker = Process::start(model, &["--max-running", "1", "--isa", "scalar", "--step-tokens", "32", "--drain-ms", "100"]);
    let gateway = ready(&[&worker], &[]);
    let before = rest(&gateway.kv());
    let prompt = if phase == "prefill" { "0123456789".repeat(300) } else { "Hello".to_owned() };
    let blocker = (phase == "queued").then(|| {
        let mut caller = Caller::chat(&gateway, "blocker", &chat_body("Hello", 3000, true));
        assert!(!caller.read_tokens(1).is_empty());
        caller
    });
    let mut caller = Caller::chat(&gateway, "leaver", &chat_body(&prompt, 3000, true));
    match phase {
        "queued" => drop(gateway.wait_run("leaver", "queue", |run| !run["milestones"]["queued"].is_null())),
        "prefill" => drop(gateway.wait_run("leaver", "begin", |run| run["state"] == "prefilling")),
        _ => assert!(!caller.read_tokens(3).is_empty()),
    }
    caller.leave(how);
    let run = gateway.settled("leaver");
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&json!("cancelled"), &json!(how.cause())), "{run:#}");
    assert_eq!((&run["guarantee"], &run["phase_at_disconnect"]), (&json!("confirmed"), &json!(phase)), "{run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().expect("a number") <= 1, "{run:#}");
    for stamp in ["disconnect_observed", "cancel_sent", "cancel_received", "cancel_applied", "cancel_acknowledged", "released"] {
        assert!(run["milestones"][stamp].is_number(), "{stamp}: {run:#}");
    }
    if let Some(caller) = blocker {
        caller.leave(Leave::Close);
        gateway.settled("blocker");
    }
    until("the account is as before", || (rest(&gateway.kv()) == before).then_some(()));
}

#[test]
fn who_leaves_in_the_queue_leaves_nothing() {
    leaves("queued", &lasting_model(), Leave::Close);
}

#[test]
fn who_leaves_in_prefill_leaves_nothing() {
    leaves("prefill", &slow_model(), Leave::Reset);
}

// field: F-10 F-16
#[test]
fn who_leaves_in_decode_leaves_nothing() {
    leaves("decode", &lasting_model(), Leave::Close);
}

#[test]
fn a_run_waits_for_a_worker_that_is_not_there_yet() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").to_string();
    let gateway = Server::gateway(&[&address], &[]);
    assert!(!is_ready(&gateway));
    assert_eq!(states(&gateway), ["unknown"]);
    let mut body = chat_body("Hello", 8, false);
    let worker = Process::named("late", &address, &tiny_model(), &[]);
    until("it is ready", || is_ready(&gateway).then_some(()));
    body["max_tokens"] = json!(8);
    assert_eq!(gateway.request("POST", "/v1/chat/completions", Some("early"), Some(&body)).0, 200);
    let list = gateway.json("GET", "/v1/workers").1;
    assert_eq!((&list["data"][0]["name"], &list["data"][0]["state"]), (&json!("late"), &json!("here")));
    assert!(list["data"][0]["clock_error_ms"].is_number(), "{list}");
    drop(worker);
    until("its loss of voice is seen", || (states(&gateway) == ["silent"]).then_some(()));
}

#[test]
fn two_workers_share_the_runs_and_one_that_stops_gives_its_own_to_the_other() {
    let mut flags = vec!["--max-running", "1", "--drain-ms", "200"];
    flags.extend_from_slice(&SLOW[..2]);
    let first = Process::named("w1", "127.0.0.1:0", &lasting_model(), &flags);
    let second = Process::named("w2", "127.0.0.1:0", &lasting_model(), &flags);
    let gateway = ready(&[&first, &second], &[]);
    let callers: Vec<Caller> = (0..2)
        .map(|i| {
            let mut caller = Caller::chat(&gateway, &format!("busy-{i}"), &chat_body("Hello", 12_000, true));
            assert!(!caller.read_tokens(1).is_empty());
            caller
        })
        .collect();
    let runs = |gateway: &Server| -> Vec<u64> {
        let list = gateway.json("GET", "/v1/workers").1;
        list["data"].as_array().expect("a list").iter().map(|worker| worker["runs"].as_u64().expect("a number")).collect()
    };
    assert_eq!(runs(&gateway), [1, 1], "each has one");
    // Two that wait, one behind each; nothing of them is delivered.
    let waiting: Vec<Caller> = (0..2).map(|i| Caller::chat(&gateway, &format!("waits-{i}"), &chat_body("Hi", 4, false))).collect();
    until("both wait at workers", || (runs(&gateway) == [2, 2]).then_some(()));
    for i in 0..2 {
        gateway.wait_run(&format!("waits-{i}"), "queue", |run| !run["milestones"]["queued"].is_null());
    }
    first.signal("TERM");
    let (code, said) = first.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("1 handed back"), "{said}");
    until("the other has three", || (runs(&gateway).get(1) == Some(&3)).then_some(()));
    let ended: Vec<Value> = (0..2).map(|i| gateway.run(&format!("busy-{i}"))).filter(|run| !run["outcome"].is_null()).collect();
    assert_eq!(ended.len(), 1, "the one at the first");
    assert_eq!(ended[0]["outcome"]["cause"], "shutdown", "{:#}", ended[0]);
    for caller in callers {
        caller.leave(Leave::Close);
    }
    let again: Vec<Value> = waiting
        .into_iter()
        .enumerate()
        .map(|(i, mut caller)| {
            assert_eq!(caller.answer().0, 200);
            gateway.settled(&format!("waits-{i}"))
        })
        .collect();
    let attempts: Vec<u64> = again.iter().map(|run| run["attempt"].as_u64().expect("a number")).collect();
    assert_eq!(attempts.iter().sum::<u64>(), 3, "one of them was given back: {attempts:?}");
    for run in again {
        // contract: C-20. The first attempt was released, so the run's release is proven.
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!("length"), &json!("confirmed")), "{run:#}");
        assert_eq!(run["tokens"]["after_disconnect"], 0, "nobody had left: {run:#}");
    }
    until("the other is at rest", || (runs(&gateway).get(1) == Some(&0)).then_some(()));
}

#[test]
fn a_gateway_needs_a_worker_and_an_address_that_is_one() {
    assert_eq!(run(&["gateway", "--port", "0"]).code, 2);
    let said = run(&["gateway", "--port", "0", "--worker", "nowhere"]);
    assert!(said.code == 2 && said.err.contains("HOST:PORT"), "{}", said.err);
}
