//! Questions asked while the engine works, and dropped half way: they disturb no run, and they are answered while runs end in masses.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::server::{Caller, Leave, SLOW, Server, chat_body, rest, slow_model};

/// What an operator's tools ask for.
const QUESTIONS: [&str; 6] =
    ["GET /metrics", "GET /v1/kv", "GET /v1/kv/blocks", "GET /v1/runs", "GET /health/ready", "POST /v1/runs/other/cancel?wait_ms=5000"];

/// Twenty-five of these take many of the slow model's steps to prefill.
const PROMPT: &str = "0123456789";

/// Asks on a connection that ends with its answer.
fn ask(server: &Server, id: &str, body: &serde_json::Value) -> Caller {
    Caller::post_with(server, "/v1/chat/completions", id, "Connection: close\r\n", body)
}

// contract: C-13, C-14
// field: F-15
#[test]
fn questions_that_are_dropped_in_a_prefill_harm_nothing() {
    let server = Server::start(&slow_model(), &[&SLOW[..], &["--log", "warn"]].concat());
    let descriptors = server.descriptors();
    let alone = ask(&server, "alone", &chat_body(&PROMPT.repeat(25), 6, false)).answer();
    assert_eq!(alone.0, 200, "{}", alone.1);
    // Another salt: the same prompt is computed anew.
    let mut body = chat_body(&PROMPT.repeat(25), 6, false);
    body["cache_salt"] = "again".into();
    let mut caller = ask(&server, "asked", &body);
    let other = Caller::chat(&server, "other", &chat_body("Go on.", 2000, true));
    server.wait_run("asked", "be in its prefill", |run| run["state"] == "prefilling");
    for i in 0..300 {
        let mut stream = server.connect();
        write!(stream, "{} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", QUESTIONS[i % QUESTIONS.len()]).expect("it is asked");
        match i % 3 {
            // Gone before the answer, with a reset, or with the answer half read.
            0 => drop(stream),
            1 => {
                let socket = socket2::SockRef::from(&stream);
                socket.set_linger(Some(std::time::Duration::ZERO)).expect("the option is there");
            }
            _ => {
                let _ = stream.read(&mut [0; 16]);
            }
        }
    }
    let (status, answer) = caller.answer();
    assert_eq!((status, &answer["choices"]), (200, &alone.1["choices"]), "what was computed meanwhile");
    drop(other);
    let run = server.settled("asked");
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&"completed".into(), &"complete".into()), "{run:#}");
    assert_eq!(server.settled("other")["outcome"]["kind"], "cancelled");
    drop(caller);
    server.wait_descriptors(descriptors);
    assert_eq!(rest(&server.kv()).1, 0, "nothing is active");
    assert!(server.terminate());
}

// contract: C-13, C-15
// field: F-48 F-50
#[test]
fn probes_are_answered_and_tell_the_truth_while_six_hundred_runs_are_cancelled() {
    const RUNS: usize = 600;
    let args = ["--kv-blocks", "512", "--queue-limit", "1024", "--log", "warn"];
    let server = Server::start(&slow_model(), &[&SLOW[..], &args].concat());
    let baseline = rest(&server.kv());
    let (over, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let (status, ready) = server.json("GET", "/health/ready");
                assert_eq!(status, 200, "{ready}");
                let kv = server.kv();
                assert_eq!(kv["conserved"], true, "{kv}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
        let callers: Vec<Caller> =
            (0..RUNS).map(|i| Caller::chat(&server, &format!("mass-{i}"), &chat_body(&format!("{i} goes"), 3000, i % 2 == 0))).collect();
        server.wait_run(&format!("mass-{}", RUNS - 1), "be taken on", |run| run["object"] == "run");
        let asked = answered.load(Ordering::Relaxed);
        for (i, caller) in callers.into_iter().enumerate() {
            match i % 3 {
                0 => {
                    let (status, _) = server.json("POST", &format!("/v1/runs/mass-{i}/cancel?wait_ms=0"));
                    assert_eq!(status, 200);
                }
                1 => caller.leave(Leave::Reset),
                _ => caller.leave(Leave::Close),
            }
        }
        for i in 0..RUNS {
            let run = server.settled(&format!("mass-{i}"));
            assert_eq!(run["outcome"]["kind"], "cancelled", "{run:#}");
            assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{run:#}");
        }
        assert!(answered.load(Ordering::Relaxed) > asked, "probes were answered all the while");
        over.store(true, Ordering::Relaxed);
    });
    let now = rest(&server.kv());
    assert_eq!((now.0, now.1), (baseline.0, baseline.1), "the account is what it was");
    assert!(server.terminate());
}
