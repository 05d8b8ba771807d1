//! What a disconnect means for a run, over real sockets and with a real engine: whoever comes back in time finds the same attempt; a run that
//! nobody comes back to is cancelled for the cause that was seen; one that goes on needs no reader.
// contract: C-12, C-15, C-25, C-26

use serde_json::{Value, json};

use crate::http2::Http2;
use crate::server::{Caller, Leave, PATIENCE, SLOW, Server, chat_body, lasting_model, rest, slow_model};

/// No grace ends by itself here.
const LONG: &str = "60000";

fn chat_with(server: &Server, id: &str, headers: &str, body: &Value) -> Caller {
    Caller::post_with(server, "/v1/chat/completions", id, headers, body)
}

fn keyed(server: &Server, id: &str, body: &Value) -> Caller {
    chat_with(server, id, &format!("Idempotency-Key: {id}\r\n"), body)
}

/// The run's reader has left, and its grace runs.
fn in_grace(server: &Server, id: &str, times: u64) -> Value {
    server.wait_run(id, "be left", |run| run["graces"]["begun"] == times)
}

fn metric(server: &Server, name: &str) -> f64 {
    let (_, _, text) = server.request("GET", "/metrics", None, None);
    let text = String::from_utf8(text).expect("metrics are text");
    text.lines().filter(|l| l.starts_with(name)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn at_baseline(server: &Server, baseline: &(u64, u64, u64, u64, String)) {
    let since = std::time::Instant::now();
    while rest(&server.kv()) != *baseline {
        assert!(since.elapsed() < PATIENCE, "{}", server.kv());
    }
}

/// All text of each answer, in a stream or whole.
fn texts(mut caller: Caller) -> Vec<String> {
    let (status, answer) = caller.answer_or_events();
    assert_eq!(status, 200, "{answer:?}");
    let mut all = vec![String::new(); 2];
    let mut add = |choices: &Value, part: &str| {
        for choice in choices.as_array().into_iter().flatten() {
            let text = choice[part]["content"].as_str().unwrap_or_default();
            all[choice["index"].as_u64().unwrap_or(0) as usize] += text;
        }
    };
    match answer {
        Ok(whole) => add(&whole["choices"], "message"),
        Err(events) => {
            assert_eq!(events.last().map(String::as_str), Some("[DONE]"), "{events:?}");
            let read = |event: &String| serde_json::from_str::<Value>(event).unwrap_or_default();
            events.iter().map(read).for_each(|event| add(&event["choices"], "delta"));
        }
    }
    all
}

/// A run that somebody came back to is a run that nobody left.
fn undisturbed(server: &Server, id: &str, generated: u64) -> Value {
    let run = server.settled(id);
    let waste = ["/tokens/after_disconnect", "/tokens/prompt_computed_after_disconnect", "/steps/after_disconnect"];
    assert!(waste.iter().all(|at| run.pointer(at) == Some(&json!(0))), "{run:#}");
    let ended = (&run["outcome"]["kind"], &run["delivery"], &run["attempt"], &run["tokens"]["generated"], &run["phase_at_disconnect"]);
    assert_eq!(ended, (&json!("completed"), &json!("complete"), &json!(1), &json!(generated), &Value::Null), "{run:#}");
    assert_eq!(run["graces"]["begun"], run["graces"]["resumed"], "{run:#}");
    run
}

#[test]
fn whoever_comes_back_in_time_reads_the_same_text_of_the_same_attempt() {
    let options = ["--max-running", "3", "--log", "error", "--idempotency-grace-ms", LONG];
    let server = Server::start(&slow_model(), &[&SLOW[..], &options].concat());
    let baseline = rest(&server.kv());
    for (how, stream) in [(Leave::Close, true), (Leave::Reset, true), (Leave::Reset, false)] {
        let id = |phase: &str| format!("{phase}-{how:?}-{stream}");
        // Decodes, with two answers.
        let mut two_answers = chat_body(&id("go"), 40, stream);
        two_answers["n"] = json!(2);
        let prompt = format!("{} {}", id("p"), "0123456789".repeat(30));
        let bodies =
            [("decode", two_answers, 80), ("prefill", chat_body(&prompt, 6, stream), 6), ("queued", chat_body(&id("hi"), 6, stream), 6)];
        let mut callers = Vec::new();
        for (phase, body, _) in &bodies {
            callers.push(keyed(&server, &id(phase), body));
            server.wait_run(&id(phase), phase, |run| match *phase {
                "decode" => run["tokens"]["generated"].as_u64() > Some(2),
                "prefill" => run["milestones"]["prefill_start"].is_number(),
                _ => run["milestones"]["queued"].is_number(),
            });
        }
        for ((phase, ..), caller) in bodies.iter().zip(callers).rev() {
            caller.leave(how);
            assert_eq!(in_grace(&server, &id(phase), 1)["phase_at_disconnect"], *phase);
        }
        let back: Vec<Caller> = bodies.iter().map(|(phase, body, _)| keyed(&server, &id(phase), body)).collect();
        let back: Vec<_> = back.into_iter().map(texts).collect();
        for ((phase, body, generated), text) in bodies.iter().zip(back) {
            let run = undisturbed(&server, &id(phase), *generated);
            assert_eq!((&run["graces"], &run["on_disconnect"]), (&json!({"begun": 1, "resumed": 1}), &json!("grace(60000)")), "{run:#}");
            let alone = texts(chat_with(&server, &format!("alone-{}", id(phase)), "", body));
            assert_eq!(text, alone, "{}", id(phase));
        }
    }
    at_baseline(&server, &baseline);
    assert_eq!((metric(&server, "kvit_graces_begun_total"), metric(&server, "kvit_graces_resumed_total")), (9.0, 9.0));
    assert_eq!(metric(&server, "kvit_tokens_after_disconnect_total") + metric(&server, "kvit_cancels_sent_total"), 0.0);
    assert_eq!(metric(&server, "kvit_defects_total"), 0.0);
}

#[test]
fn an_http2_stream_that_was_reset_is_taken_up_again_and_again() {
    let server = Server::start(&lasting_model(), &["--log", "error", "--idempotency-grace-ms", LONG]);
    let body = chat_body("Go on", 300, true);
    let mut caller = Http2::over(server.connect());
    for times in 1..=3 {
        let mut open = caller.chat_with("r", &[("idempotency-key", "k")], &body);
        caller.read_until(&mut open, "\"content\":\"");
        open.request.send_reset(h2::Reason::CANCEL);
        in_grace(&server, "r", times);
    }
    let text = texts(chat_with(&server, "other", "Idempotency-Key: k\r\n", &body));
    let run = undisturbed(&server, "r", 300);
    assert_eq!(run["graces"], json!({"begun": 3, "resumed": 3}), "{run:#}");
    assert_eq!(text, texts(chat_with(&server, "alone", "", &body)));
}

#[test]
fn if_nobody_comes_back_it_is_cancelled_for_what_was_seen_and_its_waste_is_counted() {
    let server = Server::start(&lasting_model(), &["--log", "error", "--grace-max-ms", "1500"]);
    let baseline = rest(&server.kv());
    for (how, n) in [(Leave::Close, 1), (Leave::Reset, 2)] {
        let id = format!("{how:?}");
        let mut body = chat_body(&id, 7_000, true);
        (body["n"], body["on_disconnect"]) = (json!(n), json!("grace(90000)"));
        let mut caller = chat_with(&server, &id, "", &body);
        caller.read_tokens(3);
        caller.leave(how);
        let run = server.settled(&id);
        assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&json!(how.cause()), &json!("partial")), "{run:#}");
        assert_eq!((&run["graces"], &run["on_disconnect"]), (&json!({"begun": 1, "resumed": 0}), &json!("grace(1500)")), "{run:#}");
        assert_eq!((&run["phase_at_disconnect"], &run["guarantee"]), (&json!("decode"), &json!("confirmed")), "{run:#}");
        let (wasted, generated) = (run["tokens"]["after_disconnect"].as_u64(), run["tokens"]["generated"].as_u64());
        assert!(wasted > Some(0) && wasted < generated, "{run:#}");
        assert!(run["tokens"]["after_receipt"].as_u64() <= Some(n), "{run:#}");
    }
    // A deadline and a cancel by name do not wait for it; and whoever asks after that gets another run.
    let headers = "Idempotency-Key: k\r\nX-On-Disconnect: grace(1500)\r\nX-Request-Timeout-Ms: 600\r\n";
    let mut late = chat_with(&server, "late", headers, &chat_body("go", 15_000, true));
    late.read_tokens(1);
    late.leave(Leave::Close);
    assert_eq!(server.settled("late")["outcome"]["cause"], "client_deadline");
    let mut named = chat_with(&server, "named", "X-On-Disconnect: grace(1500)\r\n", &chat_body("go", 15_000, true));
    named.read_tokens(1);
    named.leave(Leave::Close);
    in_grace(&server, "named", 1);
    let (_, run) = server.json("POST", "/v1/runs/named/cancel?wait_ms=60000");
    assert_eq!((&run["outcome"]["cause"], &run["released"]), (&json!("cancel_requested"), &json!(true)), "{run:#}");
    at_baseline(&server, &baseline);
    let counts = ["begun", "resumed", "run_out"].map(|what| metric(&server, &format!("kvit_graces_{what}_total")));
    assert_eq!(counts, [4.0, 0.0, 4.0]);
    assert_eq!(metric(&server, "kvit_defects_total"), 0.0);
}

#[test]
fn a_run_that_goes_on_comes_to_its_own_end_without_a_reader() {
    let server = Server::start(&lasting_model(), &["--log", "error", "--on-disconnect-completions", "continue"]);
    let baseline = rest(&server.kv());
    for (how, stream) in [(Leave::Close, true), (Leave::Reset, true), (Leave::Reset, false)] {
        let id = format!("{how:?}-{stream}");
        let mut caller = chat_with(&server, &id, "X-On-Disconnect: continue\r\n", &chat_body(&id, 200, stream));
        if stream {
            caller.read_tokens(2);
        }
        server.wait_run(&id, "decode", |run| run["tokens"]["generated"].as_u64() > Some(0));
        caller.leave(how);
        gone_on(&server, &id, if stream { "partial" } else { "none" });
    }
    let body = json!({"prompt": "go", "max_tokens": 200, "temperature": 0, "stream": true, "ignore_eos": true});
    let mut route = Caller::post(&server, "/v1/completions", "route", &body);
    route.event().expect("a first event");
    route.leave(Leave::Close);
    gone_on(&server, "route", "partial");
    at_baseline(&server, &baseline);
    assert_eq!((metric(&server, "kvit_left_running_total"), metric(&server, "kvit_cancels_sent_total")), (4.0, 0.0));
    assert_eq!(metric(&server, "kvit_defects_total"), 0.0);
}

fn gone_on(server: &Server, id: &str, delivery: &str) {
    let run = server.settled(id);
    let ended = (&run["outcome"]["kind"], &run["tokens"]["generated"], &run["delivery"], &run["on_disconnect"]);
    assert_eq!(ended, (&json!("completed"), &json!(200), &json!(delivery), &json!("continue")), "{run:#}");
    let wasted = (&run["tokens"]["after_disconnect"], &run["steps"]["after_disconnect"], &run["phase_at_disconnect"]);
    assert_eq!(wasted, (&json!(0), &json!(0), &Value::Null), "{run:#}");
    assert_eq!((&run["guarantee"], &run["blocks"]["held"]), (&json!("confirmed"), &json!(0)), "{run:#}");
}

#[test]
fn a_shutdown_waits_for_no_grace() {
    let server = Server::start(&lasting_model(), &["--log", "error", "--drain-ms", "600000", "--grace-max-ms", "600000"]);
    let mut caller = chat_with(&server, "r", "X-On-Disconnect: grace(600000)\r\n", &chat_body("Go on", 15_000, true));
    caller.read_tokens(2);
    caller.leave(Leave::Close);
    in_grace(&server, "r", 1);
    assert!(server.terminate(), "nobody who comes back is let in, so the drain is over at once");
}

#[test]
fn what_is_no_policy_is_refused_by_name() {
    let server = Server::start(&lasting_model(), &["--log", "error"]);
    let with = |policy: Value| {
        let mut body = chat_body("hi", 1, false);
        body["on_disconnect"] = policy;
        body
    };
    let rows = [
        ("X-On-Disconnect: stay\r\n", with(Value::Null), "X-On-Disconnect"),
        ("", with(json!("grace")), "on_disconnect"),
        ("", with(json!(5)), "on_disconnect"),
        ("X-On-Disconnect: cancel\r\n", with(json!("continue")), "on_disconnect"),
    ];
    for (headers, body, param) in rows {
        let (status, answer) = chat_with(&server, "bad", headers, &body).answer();
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{headers}{body}: {answer}");
    }
    assert_eq!(server.json("GET", "/v1/runs").1["data"], json!([]), "what is refused is no run");
    let (status, _) = chat_with(&server, "good", "X-On-Disconnect: grace(10)\r\n", &with(json!("grace(10)"))).answer();
    assert_eq!((status, &server.settled("good")["on_disconnect"]), (200, &json!("grace(10)")));
}
