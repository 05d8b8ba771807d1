//! SIGTERM and SIGINT to the real binary: what can be done while it drains, and what a second and a third signal do.
// contract: C-6 C-28

use std::process::Command;

use serde_json::{Value, json};

use crate::server::{Caller, Server, chat_body, lasting_model};

/// No drain ends by itself here.
const FOR_EVER: &str = "600000";

fn error_code(body: &[u8]) -> Value {
    serde_json::from_slice::<Value>(body).map_or(Value::Null, |v| v["error"]["code"].clone())
}

/// Waits until the signal has been taken in.
fn drains(server: &Server) {
    let since = std::time::Instant::now();
    while server.request("GET", "/health/ready", None, None).0 != 503 {
        assert!(since.elapsed() < crate::server::PATIENCE, "the signal changed nothing");
    }
}

/// Every event that is still to come.
fn rest_of(caller: &mut Caller) -> Vec<String> {
    std::iter::from_fn(|| caller.event()).collect()
}

#[test]
fn while_it_drains_it_answers_and_cancels_but_takes_nothing_on() {
    let server = Server::start(&lasting_model(), &["--drain-ms", FOR_EVER]);
    let mut caller = Caller::chat(&server, "long", &chat_body("Go on", 15_000, true));
    caller.read_tokens(2);
    server.signal("TERM");
    drains(&server);
    for stream in [false, true] {
        let (status, head, body) = server.request("POST", "/v1/chat/completions", Some("late"), Some(&chat_body("Hi", 2, stream)));
        assert_eq!((status, error_code(&body)), (503, json!("shutting_down")));
        assert!(head.contains("\r\nretry-after: ") && head.contains("\r\nconnection: close"), "{head}");
    }
    assert_eq!(server.json("GET", "/v1/runs/late").0, 404, "what is refused is no run");
    assert_eq!(server.json("GET", "/health/live").0, 200);
    let (status, _, metrics) = server.request("GET", "/metrics", None, None);
    assert!(status == 200 && String::from_utf8_lossy(&metrics).contains("kvit_"));
    assert_eq!(server.run("long")["state"], "decoding");
    assert_eq!(server.kv()["runs"]["running"], 1);
    let (status, run) = server.json("POST", "/v1/runs/long/cancel?wait_ms=60000");
    assert_eq!((status, &run["released"], &run["outcome"]["cause"]), (200, &json!(true), &json!("cancel_requested")));
    let events = rest_of(&mut caller);
    assert!(events.last().is_some_and(|e| e.contains("cancel_requested")), "{events:?}");
    assert_eq!(server.ended(), Some(0), "the last run is over, and so is the drain");
}

#[test]
fn a_second_signal_cancels_tells_every_caller_and_shows_in_the_exit_code() {
    for (first, second, code) in [("TERM", "INT", 130), ("INT", "TERM", 143)] {
        let server = Server::start(&lasting_model(), &["--drain-ms", FOR_EVER, "--settle-ms", FOR_EVER, "--max-running", "2"]);
        let mut streaming = Caller::chat(&server, "streaming", &chat_body("Go on", 15_000, true));
        streaming.read_tokens(2);
        let whole = Caller::chat(&server, "whole", &chat_body("Go on", 15_000, false));
        server.wait_run("whole", "decode", |r| r["state"] == "decoding");
        let queued = Caller::chat(&server, "queued", &chat_body("Go on", 10, false));
        server.wait_run("queued", "queue", |r| r["milestones"]["queued"].is_number());
        server.signal(first);
        drains(&server);
        for (id, state) in [("streaming", "decoding"), ("whole", "decoding"), ("queued", "queued")] {
            assert_eq!(server.run(id)["state"], state, "the first signal cancels nothing");
        }
        server.signal(second);
        let events = rest_of(&mut streaming);
        assert!(events.last().is_some_and(|e| e.contains("\"code\":\"shutdown\"")), "{events:?}");
        for mut caller in [whole, queued] {
            let (status, body) = caller.answer();
            assert_eq!((status, &body["error"]["code"]), (503, &json!("shutdown")));
        }
        assert_eq!(server.ended(), Some(code));
    }
}

/// A caller that does not read keeps its run from settling; a third signal does not wait for it.
#[test]
fn a_third_signal_ends_the_process_as_it_stands() {
    let limits = ["--drain-ms", FOR_EVER, "--settle-ms", FOR_EVER, "--send-buffer-bytes", "4096", "--head-bytes-max", "8192"];
    let server = Server::start(&lasting_model(), &limits);
    let mut caller = Caller::chat(&server, "unread", &chat_body("Go on", 15_000, true));
    caller.read_tokens(1);
    let behind = |r: &Value| r["tokens"]["generated"].as_u64() > r["tokens"]["delivered"].as_u64().map(|n| n + 300);
    server.wait_run("unread", "fall behind", behind);
    server.signal("TERM");
    drains(&server);
    server.signal("TERM");
    server.wait_run("unread", "be cancelled", |r| r["outcome"]["cause"] == "shutdown");
    server.signal("INT");
    assert_eq!(server.ended(), Some(130));
    drop(caller);
}

/// `kvit serve 2>&1 | head` and the like: what was read of its log is enough for its reader, and nothing for the server.
#[test]
fn nobody_has_to_read_its_log() {
    let (reader, log) = std::io::pipe().expect("a pipe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvit"));
    command.args(["serve", "--port", "0", "--log", "debug", "--model"]).arg(lasting_model()).stderr(log);
    let server = Server::listening(command);
    drop(reader);
    let (status, answer) = Caller::chat(&server, "unread", &chat_body("Hi", 4, false)).answer();
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(4)));
    let mut caller = Caller::chat(&server, "left", &chat_body("Go on", 15_000, true));
    caller.read_tokens(2);
    drop(caller);
    assert_eq!(server.settled("left")["outcome"]["kind"], "cancelled");
    assert!(server.terminate(), "it drains and ends by itself");
}
