//! Two callers, one key, one run: with the real binary, its engine and its account.
// contract: C-15 C-26

use serde_json::{Value, json};

use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, lasting_model, rest};

fn joined(server: &Server, id: &str, key: &str, body: &Value) -> Caller {
    let headers = format!("Idempotency-Key: {key}\r\nX-On-Disconnect: cancel\r\n");
    Caller::post_with(server, "/v1/chat/completions", id, &headers, body)
}

/// The run's own counter, as everybody reads it.
fn metric(server: &Server, name: &str) -> f64 {
    let (_, _, text) = server.request("GET", "/metrics", None, None);
    let text = String::from_utf8(text).expect("metrics are text");
    let values = text.lines().filter(|l| l.starts_with(name)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

#[test]
fn a_second_caller_reads_the_same_events_and_nothing_is_computed_or_counted_twice() {
    let server = Server::start(&lasting_model(), &["--log", "error"]);
    let body = chat_body("Go on", 200, true);
    let mut one = joined(&server, "one", "k", &body);
    let mut first = vec![one.event().expect("an event")];
    let mut two = joined(&server, "two", "k", &body);
    first.extend(std::iter::from_fn(|| one.event()));
    let second: Vec<String> = std::iter::from_fn(|| two.event()).collect();
    assert_eq!(first, second);
    let run = server.settled("one");
    assert_eq!(
        (&run["tokens"]["generated"], &run["tokens"]["delivered"], &run["delivery"]),
        (&json!(200), &json!(200), &json!("complete"))
    );
    assert_eq!(server.json("GET", "/v1/runs/two").0, 404);
    assert_eq!(metric(&server, "kvit_defects_total"), 0.0);
}

#[test]
fn the_last_of_two_callers_cancels_and_every_block_comes_back() {
    let server = Server::start(&lasting_model(), &["--log", "error"]);
    let baseline = rest(&server.kv());
    for how in [Leave::Close, Leave::Reset] {
        let id = format!("{how:?}").to_lowercase();
        let body = chat_body(&format!("Go on, {id}"), 10_000, true);
        let mut one = joined(&server, &id, &id, &body);
        one.read_tokens(3);
        let mut two = joined(&server, "other", &id, &body);
        two.read_tokens(3);
        one.leave(how);
        two.read_tokens(20);
        assert_eq!(server.run(&id)["outcome"], Value::Null, "one is still there");
        two.leave(how);
        let run = server.settled(&id);
        assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&json!(how.cause()), &json!("partial")), "{run:#}");
        assert!(run["tokens"]["after_receipt"].as_u64() <= Some(1), "{run:#}");
        assert!(run["tokens"]["delivered"].as_u64() <= run["tokens"]["generated"].as_u64(), "{run:#}");
    }
    let since = std::time::Instant::now();
    while rest(&server.kv()) != baseline {
        assert!(since.elapsed() < PATIENCE, "{}", server.kv());
    }
}
