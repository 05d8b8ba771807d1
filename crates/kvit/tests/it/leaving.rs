//! Every way to leave that this step covers, in every phase, with the real model over raw sockets: the run ends for the right cause, at
//! most one token is computed after the leaving was seen, none is delivered, and every block comes back.
//!
//! Where the server may be further than the caller believes, a case is tried again until the server's record says that it was met.
// contract: C-12, C-13, C-15, C-20, C-24

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::leaving_guest::{Going, Guest, Left, metric};
use crate::server::{PATIENCE, Server, chat_body, real_model, rest};

const STORY: &str = "Tell me a long story about a lighthouse.";
/// Times that a case is tried.
const TRIES: u32 = 25;
const EVERY_WAY: [Going; 4] = [Going::FinAndDrain, Going::CloseUnread, Going::CloseRead, Going::Reset];

/// About 3,000 tokens of prompt, of which the prefix index knows nothing yet.
fn long_prompt(id: &str) -> String {
    format!("{id}: ") + &"The keeper counted the ships, one by one, and wrote their names into the book. ".repeat(180)
}

/// What every abandoned run must show, and that its caller never had a token that the server does not call delivered.
fn assert_cancelled(run: &Value, cause: &str, phase: &str, left: &Left) {
    assert_eq!(run["state"], "ended", "{run:#}");
    assert_eq!(run["outcome"]["kind"], "cancelled", "{run:#}");
    assert_eq!(run["outcome"]["cause"], cause, "{run:#}");
    assert_eq!(run["guarantee"], "confirmed", "{run:#}");
    assert_eq!(run["phase_at_disconnect"], phase, "{run:#}");
    let n = |k: &str| run["tokens"][k].as_u64().expect("counted");
    assert!(n("after_receipt") <= 1, "{run:#}");
    // What was handed to the caller was computed before he left, and nothing is counted twice.
    assert!(n("delivered") + n("after_disconnect") <= n("generated"), "{run:#}");
    // By the caller's own count, to the last byte that reached it.
    assert!(left.tokens <= n("delivered"), "{} tokens reached the caller: {run:#}", left.tokens);
    assert!(!left.heard.contains("[DONE]") && !left.heard.contains("finish_reason\":\"length"), "it looks whole: {}", left.heard);
    if phase != "decode" {
        assert_eq!((n("generated"), n("delivered"), left.tokens), (0, 0, 0), "{run:#}");
        assert_eq!(run["delivery"], "none", "{run:#}");
    }
    assert_eq!(run["blocks"]["held"], 0, "{run:#}");
    let m = &run["milestones"];
    for name in ["accepted", "cancel_sent", "cancel_received", "cancel_applied", "released", "settled"] {
        assert!(m[name].is_number(), "{name} is missing: {run:#}");
    }
    assert!(m["released"].as_f64() <= m["settled"].as_f64());
}

/// Tries a case until the server met the run where it was meant to be left; the run, and what its caller had.
fn met(server: &Server, case: &str, how: Going, go: impl Fn(&str, u32) -> Left, is_met: impl Fn(&Value) -> bool) -> (Value, Left) {
    for attempt in 1..=TRIES {
        let id = format!("{case}-{how:?}-{attempt}").to_lowercase();
        let left = go(&id, attempt);
        // Whoever was gone before the request was read made no run.
        if server.run(&id)["object"] != "run" {
            continue;
        }
        let run = server.settled(&id);
        // What came between the last read and the close lies unread, and then a close is a reset: that is TCP.
        let raced = how == Going::CloseRead && run["outcome"]["cause"] == "client_reset";
        if is_met(&run) && run["outcome"]["kind"] == "cancelled" && !raced {
            let n = |k: &str| run["tokens"][k].as_u64().unwrap_or(u64::MAX);
            let (phase, cause) =
                (run["phase_at_disconnect"].as_str().unwrap_or("none"), run["outcome"]["cause"].as_str().unwrap_or("none"));
            println!(
                "{case:<14} {:<12} seen in {phase:<8} {cause:<14} generated {:>3}  delivered {:>3}  read {:>3}  after receipt {}  tries {attempt}",
                format!("{how:?}"),
                n("generated"),
                n("delivered"),
                left.tokens,
                n("after_receipt")
            );
            return (run, left);
        }
    }
    panic!("{case}, {how:?}: in {TRIES} tries no run was met where it was to be left")
}

fn prefill_reached(server: &Server, id: &str) {
    server.wait_run(id, "reach prefill", |r| r["milestones"]["prefill_start"].is_number());
}

fn phase_is(phase: &'static str) -> impl Fn(&Value) -> bool {
    move |run| run["phase_at_disconnect"] == phase
}

// field: F-01, F-03, F-05, F-08, F-13, F-23, F-29, F-45
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_left_at_the_first_token_in_mid_decode_and_near_the_end() {
    let server = Server::start(&real_model(), &["--threads", "2"]);
    let baseline = rest(&server.kv());
    for how in EVERY_WAY {
        for (case, tokens, max) in [("first-token", 1, 300), ("mid-decode", 40, 300), ("near-the-end", 118, 120)] {
            // A run that is nearly done may come to its own end before it is left: then it is left a token earlier.
            let near_the_end = case == "near-the-end";
            let go = |id: &str, attempt: u32| {
                let mut guest = Guest::chat(&server, id, &chat_body(STORY, max, true));
                let earlier = if near_the_end { u64::from(attempt - 1) } else { 0 };
                assert!(guest.read_tokens(tokens - earlier), "{}", guest.heard);
                guest.leave(how)
            };
            let (run, left) = met(&server, case, how, go, phase_is("decode"));
            assert_cancelled(&run, how.cause(), "decode", &left);
            assert_eq!(run["delivery"], "partial", "{run:#}");
            assert!(left.tokens >= tokens.saturating_sub(u64::from(TRIES)).max(1), "it read them: {run:#}");
            assert!(!near_the_end || run["tokens"]["generated"].as_u64() >= Some(tokens - u64::from(TRIES)), "{run:#}");
        }
    }
    assert_eq!(rest(&server.kv()), baseline);
}

/// A stream's head is sent when the worker has taken the run on, which is when its prompt is tokenised; a whole answer's, with the answer.
// field: F-01, F-03, F-05, F-13, F-23
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_left_before_the_head_and_in_a_prefill_of_3000_tokens() {
    let server = Server::start(&real_model(), &["--threads", "2"]);
    let baseline = rest(&server.kv());
    for how in EVERY_WAY {
        for stream in [true, false] {
            let kind = if stream { "stream" } else { "whole" };
            let send = |id: &str| Guest::chat(&server, id, &chat_body(&long_prompt(id), 20, stream));
            // Nothing of a whole answer comes while its prompt is computed: nothing can lie unread.
            if how != Going::CloseUnread {
                // Gone as soon as all is sent: no head of an answer is sent yet, since the prompt is being tokenised.
                // On a quick machine it may be gone before its request is read, which makes no run: every other time it waits for that.
                let at_once = |id: &str, attempt: u32| {
                    let guest = send(id);
                    let looks = if attempt.is_multiple_of(2) { 1000 } else { 0 };
                    let _ = (0..looks).find(|_| server.run(id)["object"] == "run");
                    guest.leave(how)
                };
                // One whose prompt was done between the observation and the cancel's receipt was met too late: it is tried again.
                let tokenising = |run: &Value| run["phase_at_disconnect"] == "queued" && run["milestones"]["prefill_start"].is_null();
                let (run, left) = met(&server, &format!("at-once-{kind}"), how, at_once, tokenising);
                assert_cancelled(&run, how.cause(), "queued", &left);
                assert!(!left.heard.contains(" 200 "), "the head had come: {}", left.heard);
                assert_eq!((&run["steps"]["total"], &run["blocks"]["peak"]), (&json!(0), &json!(0)), "{run:#}");
            }
            if how != Going::CloseUnread || stream {
                let go = |id: &str, _| {
                    let guest = send(id);
                    prefill_reached(&server, id);
                    guest.leave(how)
                };
                let (run, left) = met(&server, &format!("prefill-{kind}"), how, go, phase_is("prefill"));
                assert_cancelled(&run, how.cause(), "prefill", &left);
                assert!(run["tokens"]["prompt"].as_u64() > Some(2500), "{run:#}");
                assert!(stream || !left.heard.contains(" 200 "), "a head without an answer: {}", left.heard);
            }
            if stream {
                // The head was read.
                let go = |id: &str, _| {
                    let mut guest = send(id);
                    guest.head();
                    prefill_reached(&server, id);
                    guest.leave(how)
                };
                let (run, left) = met(&server, "prefill-head", how, go, phase_is("prefill"));
                assert_cancelled(&run, how.cause(), "prefill", &left);
                assert!(left.heard.contains(" 200 "), "{}", left.heard);
            }
        }
        if how == Going::CloseUnread {
            continue;
        }
        let go = |id: &str, _| {
            let guest = Guest::chat(&server, id, &chat_body(STORY, 400, false));
            server.wait_run(id, "decode", |r| r["tokens"]["generated"].as_u64() > Some(5));
            guest.leave(how)
        };
        let (run, left) = met(&server, "decode-whole", how, go, phase_is("decode"));
        assert_cancelled(&run, how.cause(), "decode", &left);
        assert_eq!((&run["tokens"]["delivered"], &run["delivery"]), (&json!(0), &json!("none")), "{run:#}");
        assert!(!left.heard.contains(" 200 "), "a part of an answer came: {}", left.heard);
    }
    assert_eq!(rest(&server.kv()), baseline);
}

// field: F-34, F-82
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_leaving_the_queue_behind_a_full_engine_touches_no_block() {
    let server = Server::start(&real_model(), &["--max-running", "1"]);
    let baseline = rest(&server.kv());
    let mut first = Guest::chat(&server, "holder", &chat_body(STORY, 4000, true));
    assert!(first.read_tokens(2));
    for how in EVERY_WAY {
        for stream in [true, false] {
            // Of a whole answer nothing comes that could lie unread.
            if how == Going::CloseUnread && !stream {
                continue;
            }
            let go = |id: &str, _| {
                let guest = Guest::chat(&server, id, &chat_body("Hello", 50, stream));
                server.wait_run(id, "queue", |r| r["milestones"]["queued"].is_number());
                guest.leave(how)
            };
            let (run, left) = met(&server, &format!("queued-{stream}"), how, go, phase_is("queued"));
            assert_cancelled(&run, how.cause(), "queued", &left);
            assert_eq!(run["blocks"]["peak"], 0, "{run:#}");
            assert_eq!(run["steps"]["total"], 0, "{run:#}");
        }
    }
    let had = first.tokens;
    assert!(first.read_tokens(had + 3), "the run in front noticed nothing");
    first.leave(Going::FinAndDrain);
    let run = server.settled("holder");
    assert_eq!(run["outcome"]["kind"], "cancelled", "it held the engine all the time: {run:#}");
    assert_eq!(rest(&server.kv()), baseline);
}

// contract: C-4, C-8
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_cancel_by_name_once_twice_after_the_end_and_of_an_unknown_id() {
    let server = Server::start(&real_model(), &[]);
    let mut guest = Guest::chat(&server, "named", &chat_body(STORY, 400, true));
    assert!(guest.read_tokens(5));
    let (status, run) = server.json("POST", "/v1/runs/named/cancel");
    assert_eq!((status, &run["released"]), (200, &json!(true)), "{run:#}");
    assert_eq!(run["outcome"]["cause"], "cancel_requested");
    let (status, again) = server.json("POST", "/v1/runs/named/cancel");
    assert_eq!((status, &again["outcome"]), (200, &run["outcome"]));
    // The open stream says that it did not end well, and ends.
    guest.read_to_the_end();
    let last = guest.heard.lines().rev().find(|l| l.starts_with("data: ")).expect("a terminal event");
    assert!(last.contains("\"error\"") && last.contains("cancel_requested"), "{last}");
    let run = server.settled("named");
    let n = |k: &str| run["tokens"][k].as_u64().expect("counted");
    assert!(n("after_receipt") <= 1, "{run:#}");
    // Whoever stays has exactly what the server calls delivered, and of what was computed after the receipt nothing.
    assert_eq!(guest.tokens, n("delivered"), "{run:#}");
    assert!(n("delivered") + n("after_receipt") <= n("generated"), "{run:#}");

    let (status, _, _) = server.request("POST", "/v1/chat/completions", Some("done"), Some(&chat_body("Hi", 3, false)));
    assert_eq!(status, 200);
    let (status, run) = server.json("POST", "/v1/runs/done/cancel");
    assert_eq!((status, &run["outcome"]["kind"]), (200, &json!("completed")), "what ended stays as it ended");
    assert_eq!(server.json("POST", "/v1/runs/nobody/cancel").0, 404);
}

/// The server's account of the leaving is not asked for: its CPU time stops growing, and a second caller gets the machine to itself, by
/// the tokens that the machine makes and by that caller's own clock.
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_the_work_stops_as_seen_from_outside() {
    let server = Server::start(&real_model(), &[]);
    timed_answer(&server, "warm");
    let solo = timed_answer(&server, "solo");
    let mut guest = Guest::chat(&server, "outside", &chat_body(STORY, 4000, true));
    assert!(guest.read_tokens(10));
    let beside = timed_answer(&server, "beside");
    // On a busy machine it takes as long as it takes.
    let (since, mut busy, start) = (Instant::now(), 0, server.cpu_ticks());
    while busy < BUSY && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
        busy = server.cpu_ticks() - start;
    }
    let window = since.elapsed();
    assert!(busy >= BUSY, "it computed before: {busy} ticks in {window:?}");
    let left = guest.leave(Going::FinAndDrain);
    let since = Instant::now();
    let mut quiet = None;
    while since.elapsed() < PATIENCE && quiet.is_none() {
        let ticks = ticks_in(&server, Duration::from_millis(100));
        quiet = (ticks <= 1).then(|| since.elapsed());
    }
    let idle = ticks_in(&server, window);
    let made = metric(&server, "kvit_tokens_generated_total");
    let after = timed_answer(&server, "after");
    let made = metric(&server, "kvit_tokens_generated_total") - made;
    println!("CPU ticks in {window:?}: {busy} while decoding, {idle} after the caller left; quiet after {quiet:?}");
    println!("{ANSWER} tokens by their caller's clock: alone {solo:?}, beside the run {beside:?}, after it was left {after:?}");
    println!("after it was left that is {:.2} of the time alone", after.as_secs_f64() / solo.as_secs_f64());
    assert!(quiet.is_some(), "it never fell silent");
    assert!(idle * 5 <= busy, "it stopped: {idle} of {busy}");
    assert_eq!(made, f64::from(ANSWER), "nobody's tokens were made but the second caller's");
    // Its clock is only asked whether it is in the same world: others may need the machine meanwhile.
    assert!(after <= solo * 5, "{after:?}, alone {solo:?}");
    assert_cancelled(&server.settled("outside"), "client_closed", "decode", &left);
}

/// CPU ticks that show that something is computed, and tokens of an answer that is timed.
const BUSY: u64 = 20;
const ANSWER: u32 = 48;

/// How long an answer takes by its caller's clock.
fn timed_answer(server: &Server, name: &str) -> Duration {
    let body = chat_body(&format!("{name}: name the rivers of the world."), ANSWER, false);
    let since = Instant::now();
    let (status, _, _) = server.request("POST", "/v1/chat/completions", Some(name), Some(&body));
    assert_eq!(status, 200);
    since.elapsed()
}

fn ticks_in(server: &Server, window: Duration) -> u64 {
    let before = server.cpu_ticks();
    std::thread::sleep(window);
    server.cpu_ticks() - before
}
