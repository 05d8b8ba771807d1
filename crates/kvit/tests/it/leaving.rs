//! Every way to leave that this step covers, in every phase, with the real model over raw sockets: the run ends for the right cause, at
//! most one token is computed after the leaving was seen, none is delivered, and every block comes back.
// contract: C-12, C-13, C-15, C-20, C-24

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Caller, Leave, Server, chat_body, real_model, rest};

const STORY: &str = "Tell me a long story about a lighthouse.";

/// About 3,000 tokens of prompt, of which the prefix index knows nothing yet.
fn long_prompt(id: &str) -> String {
    format!("{id}: ") + &"The keeper counted the ships, one by one, and wrote their names into the book. ".repeat(180)
}

/// What every abandoned run must show.
fn assert_cancelled(run: &Value, cause: &str, phase: &[&str]) {
    assert_eq!(run["state"], "ended", "{run:#}");
    assert_eq!(run["outcome"]["kind"], "cancelled", "{run:#}");
    assert_eq!(run["outcome"]["cause"], cause, "{run:#}");
    assert_eq!(run["guarantee"], "confirmed", "{run:#}");
    assert!(phase.contains(&run["phase_at_disconnect"].as_str().unwrap_or("")), "{run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().expect("counted") <= 1, "{run:#}");
    // What was handed to the caller was computed before he left, and nothing is counted twice.
    let n = |k: &str| run["tokens"][k].as_u64().expect("counted");
    assert!(n("delivered") + n("after_disconnect") <= n("generated"), "{run:#}");
    assert_eq!(run["blocks"]["held"], 0, "{run:#}");
    let m = &run["milestones"];
    for name in ["accepted", "cancel_sent", "cancel_received", "cancel_applied", "released", "settled"] {
        assert!(m[name].is_number(), "{name} is missing: {run:#}");
    }
    assert!(m["released"].as_f64() <= m["settled"].as_f64());
}

fn prefill_reached(server: &Server, id: &str) {
    server.wait_run(id, "reach prefill", |r| r["milestones"]["prefill_start"].is_number());
}

// field: F-01, F-03, F-05, F-08, F-13, F-23, F-29, F-45
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_close_and_reset_in_every_phase() {
    let server = Server::start(&real_model(), &["--threads", "2"]);
    let baseline = rest(&server.kv());
    for how in [Leave::Close, Leave::Reset] {
        let name = |phase: &str| format!("{phase}-{how:?}").to_lowercase();
        for (phase, tokens, max) in [("first", 1, 300), ("middle", 40, 300), ("late", 117, 120)] {
            let id = name(phase);
            let mut caller = Caller::chat(&server, &id, &chat_body(STORY, max, true));
            caller.read_tokens(tokens);
            caller.leave(how);
            let run = server.settled(&id);
            // A run that is nearly done may come to its own end first: then it says so, and nothing was cancelled.
            if phase == "late" && run["outcome"]["kind"] == "completed" {
                continue;
            }
            assert_cancelled(&run, how.cause(), &["decode"]);
            assert!(run["tokens"]["delivered"].as_u64() <= run["tokens"]["generated"].as_u64(), "{run:#}");
        }
        // Before the headers, in the prefill of about 3,000 tokens; and a caller who waits for the whole answer.
        for (phase, stream) in [("prefill", true), ("prefill-whole", false)] {
            let id = name(phase);
            let caller = Caller::chat(&server, &id, &chat_body(&long_prompt(&id), 20, stream));
            prefill_reached(&server, &id);
            caller.leave(how);
            let run = server.settled(&id);
            assert_cancelled(&run, how.cause(), &["prefill"]);
            assert!(run["tokens"]["prompt"].as_u64() > Some(2500), "{run:#}");
            assert_eq!(run["tokens"]["generated"], 0, "{run:#}");
            assert_eq!(run["delivery"], "none", "{run:#}");
        }
        let id = name("whole");
        let caller = Caller::chat(&server, &id, &chat_body(STORY, 400, false));
        server.wait_run(&id, "decode", |r| r["tokens"]["generated"].as_u64() > Some(5));
        caller.leave(how);
        let run = server.settled(&id);
        assert_cancelled(&run, how.cause(), &["decode"]);
        assert_eq!(run["tokens"]["delivered"], 0, "{run:#}");
    }
    assert_eq!(rest(&server.kv()), baseline);
}

// field: F-34, F-82
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_leaving_the_queue_behind_a_full_engine_touches_no_block() {
    let server = Server::start(&real_model(), &["--max-running", "1"]);
    let baseline = rest(&server.kv());
    let mut first = Caller::chat(&server, "holder", &chat_body(STORY, 400, true));
    first.read_tokens(2);
    for how in [Leave::Close, Leave::Reset] {
        for stream in [true, false] {
            let id = format!("queued-{how:?}-{stream}").to_lowercase();
            let caller = Caller::chat(&server, &id, &chat_body("Hello", 50, stream));
            server.wait_run(&id, "queue", |r| r["milestones"]["queued"].is_number());
            caller.leave(how);
            let run = server.settled(&id);
            assert_cancelled(&run, how.cause(), &["queued"]);
            assert_eq!(run["blocks"]["peak"], 0, "{run:#}");
            assert_eq!(run["steps"]["total"], 0, "{run:#}");
        }
    }
    assert!(!first.read_tokens(3).is_empty(), "the run in front noticed nothing");
    first.leave(Leave::Close);
    server.settled("holder");
    assert_eq!(rest(&server.kv()), baseline);
}

// contract: C-4, C-8
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_cancel_by_name_once_twice_after_the_end_and_of_an_unknown_id() {
    let server = Server::start(&real_model(), &[]);
    let mut caller = Caller::chat(&server, "named", &chat_body(STORY, 400, true));
    caller.read_tokens(5);
    let (status, run) = server.json("POST", "/v1/runs/named/cancel");
    assert_eq!((status, &run["released"]), (200, &json!(true)), "{run:#}");
    assert_eq!(run["outcome"]["cause"], "cancel_requested");
    let (status, again) = server.json("POST", "/v1/runs/named/cancel");
    assert_eq!((status, &again["outcome"]), (200, &run["outcome"]));
    // The open stream says that it did not end well, and ends.
    let last = std::iter::from_fn(|| caller.event()).find(|e| e.contains("\"error\"")).expect("a terminal event");
    assert!(last.contains("\"error\"") && last.contains("cancel_requested"), "{last}");
    let run = server.settled("named");
    assert!(run["tokens"]["after_receipt"].as_u64() <= Some(1), "{run:#}");

    let (status, _, _) = server.request("POST", "/v1/chat/completions", Some("done"), Some(&chat_body("Hi", 3, false)));
    assert_eq!(status, 200);
    let (status, run) = server.json("POST", "/v1/runs/done/cancel");
    assert_eq!((status, &run["outcome"]["kind"]), (200, &json!("completed")), "what ended stays as it ended");
    assert_eq!(server.json("POST", "/v1/runs/nobody/cancel").0, 404);
}

/// The server is not asked: its CPU time stops growing, and a second caller gets the machine to itself.
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_the_work_stops_as_seen_from_outside() {
    let server = Server::start(&real_model(), &[]);
    let mut caller = Caller::chat(&server, "outside", &chat_body(STORY, 2000, true));
    caller.read_tokens(10);
    let window = Duration::from_millis(500);
    let busy = ticks_in(&server, window);
    caller.leave(Leave::Close);
    let left = Instant::now();
    let mut quiet = None;
    while left.elapsed() < Duration::from_secs(10) && quiet.is_none() {
        let ticks = ticks_in(&server, Duration::from_millis(100));
        quiet = (ticks <= 1).then(|| left.elapsed());
    }
    let idle = ticks_in(&server, window);
    println!("CPU ticks in {window:?}: {busy} while decoding, {idle} after the caller left; quiet after {quiet:?}");
    assert!(busy >= 10, "it computed before: {busy}");
    assert!(idle * 5 <= busy, "it stopped: {idle} of {busy}");
    let run = server.settled("outside");
    assert_cancelled(&run, "client_closed", &["decode"]);
}

fn ticks_in(server: &Server, window: Duration) -> u64 {
    let before = server.cpu_ticks();
    std::thread::sleep(window);
    server.cpu_ticks() - before
}
