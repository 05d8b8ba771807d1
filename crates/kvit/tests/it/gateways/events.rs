//! Coming back to a run at another gateway: by its events, by its `Idempotency-Key`, by a response that continues it.
// contract: C-1, C-25, C-26

use super::*;
use crate::faults::{alone, finish};
use crate::server::{Leave, chat_body};

#[test]
fn a_background_run_is_read_at_another_gateway_while_it_runs_and_after() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let expected = alone(&lasting_model(), &[("Hello there", 120)]).remove(0);
    background(&a, "r", &chat_body("Hello there", 120, true), 3).leave(Leave::Reset);
    let mut told = Follower::of(&b, "r", 0).some(5);
    told.extend(Follower::of(&b, "r", 5).all());
    assert_eq!(whole_text(&told), expected);
    for server in [&a, &b] {
        assert_eq!(Follower::of(server, "r", 0).all(), told);
        assert_eq!(Follower::of(server, "r", 100).all(), told[100..]);
        assert_eq!(outcome(server, "r"), is("completed", "length"));
    }
}

/// Nothing is kept of it until somebody at another gateway asks.
#[test]
fn a_live_interactive_run_is_read_at_another_gateway_from_its_first_event_on() {
    let Some(stand) = Stand::lasting(1) else { return };
    for more in [PATIENT.to_vec(), [&PATIENT[..], &["--store-notify", "false"]].concat()] {
        let (a, b) = (stand.gateway_with("a", &more), stand.gateway_with("b", &more));
        let id = format!("r{}", more.len());
        let mut caller = Caller::chat(&a, &id, &chat_body("Hello there", 400, true));
        let mut text = caller.read_tokens(5);
        let told = std::thread::scope(|scope| {
            let follower = scope.spawn(|| {
                let mut follower = Follower::of(&b, &id, 0);
                let mut told = follower.some(8);
                // Whoever only follows and goes has changed nothing.
                drop(follower);
                told.extend(Follower::of(&b, &id, 8).all());
                told
            });
            let (rest, error) = finish(&mut caller);
            text += &rest;
            assert_eq!(error, None);
            follower.join().expect("it follows")
        });
        assert_eq!(whole_text(&told), text);
        assert_eq!(Follower::of(&b, &id, 0).all(), told, "and when it is over");
        let run = a.settled(&id);
        assert_eq!((&run["outcome"]["cause"], &run["tokens"]["generated"]), (&json!("length"), &json!(400)), "{run:#}");
    }
}

#[test]
fn what_an_interactive_run_said_that_nobody_asked_for_in_time_is_not_kept() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    assert_eq!(a.request("POST", "/v1/chat/completions", Some("over"), Some(&chat_body("Hi", 4, false))).0, 200);
    a.settled("over");
    assert_eq!(outcome(&b, "over"), is("completed", "length"));
    let (status, answer) = b.json("GET", "/v1/runs/over/events");
    assert_eq!((status, &answer["error"]["code"]), (410, &json!("events_not_kept")), "{answer}");
    // And one that has said more than is kept for those who join.
    let full = stand.gateway_with("full", &[&PATIENT[..], &["--replay-events-max", "3"]].concat());
    let mut caller = Caller::chat(&full, "much", &chat_body("Hello there", 12_000, true));
    assert!(!caller.read_tokens(8).is_empty());
    let (status, answer) = b.json("GET", "/v1/runs/much/events");
    assert_eq!((status, &answer["error"]["code"]), (410, &json!("events_not_kept")), "{answer}");
    caller.leave(Leave::Close);
}

#[test]
fn an_idempotency_key_leads_to_its_run_at_any_gateway() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let body = chat_body("Hello there", 60, true);
    let headers = format!("{GOES_ON}Idempotency-Key: k\r\n");
    let mut first = Caller::post_with(&a, "/v1/chat/completions", "r", &headers, &body);
    let mut text = first.read_tokens(2);
    let mut second = Caller::post_with(&b, "/v1/chat/completions", "again", &headers, &body);
    let (joined, error) = finish(&mut second);
    text += &finish(&mut first).0;
    assert_eq!((&joined, error), (&text, None));
    let late = b.request_with("POST", "/v1/chat/completions", &headers, Some(&body));
    assert!(late.0 == 200 && late.1.contains("x-request-id: r\r\n"), "{}", late.1);
    let other = b.request_with("POST", "/v1/chat/completions", &headers, Some(&chat_body("Something else", 60, true)));
    assert_eq!((other.0, body_of(&other)["error"]["code"].as_str()), (422, Some("idempotency_key_reused")));
    // One run was computed.
    assert_eq!(b.json("GET", "/v1/runs/again").0, 404);
    let runs = [&a, &b].map(|server| server.json("GET", "/v1/runs").1["data"].as_array().map_or(0, Vec::len));
    assert_eq!(runs, [1, 1]);
    assert_eq!([&a, &b].map(|server| crate::faults::metric(server, "kvit_run_outcomes_total{")), [1, 0]);
}

// contract: C-25
#[test]
fn a_caller_that_comes_back_at_another_gateway_ends_the_grace_and_finds_the_same_run() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let graces = |begun, resumed| a.wait_run("r", "be left", |run| run["graces"] == json!({"begun": begun, "resumed": resumed}));
    let policy = "X-On-Disconnect: grace(60000)\r\n";
    let mut caller = Caller::post_with(&a, "/v1/chat/completions", "r", policy, &chat_body("Hello", 12_000, true));
    assert!(!caller.read_tokens(2).is_empty());
    drop(caller);
    graces(1, 0);
    let mut back = Follower::of(&b, "r", 2);
    graces(1, 1);
    let told = back.some(3);
    assert_eq!(told.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [3, 4, 5]);
    drop(back);
    let left = graces(2, 1);
    assert_eq!((&left["attempt"], &left["outcome"]), (&json!(1), &Value::Null), "{left:#}");
    assert_eq!(cancel(&b, "r", 60_000).1["outcome"]["cause"], "cancel_requested");
}

#[test]
fn a_response_continues_one_of_another_gateway() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let ask = |server: &Server, body: Value| {
        let answer = server.request("POST", "/v1/responses", None, Some(&body));
        assert_eq!(answer.0, 200, "{}", body_of(&answer));
        body_of(&answer)
    };
    let first = ask(&a, json!({"input": "Hello there", "max_output_tokens": 16, "temperature": 0}));
    let id = first["id"].as_str().expect("an id").to_owned();
    let asked = json!({"input": "Go on", "max_output_tokens": 8, "temperature": 0, "previous_response_id": id});
    let (here, there) = (ask(&a, asked.clone()), ask(&b, asked));
    assert_eq!(here["output"][0]["content"], there["output"][0]["content"]);
    assert_eq!(here["usage"]["input_tokens"], there["usage"]["input_tokens"]);
    assert!(there["usage"]["input_tokens"].as_u64() > first["usage"]["input_tokens"].as_u64(), "{there:#}");
    let (status, shown) = b.json("GET", &format!("/v1/responses/{id}"));
    assert_eq!((status, &shown["output"]), (200, &first["output"]));
}
