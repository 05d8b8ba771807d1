//! Many cancels at random moments, then normal work: the account and the per-run objects are exactly what they were, and the answers are
//! the same bytes.
// contract: C-14, C-15
// field: F-45, F-51, F-58

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, real_model, rest, tiny_model};

impl Server {
    /// Waits until account and runs are as they were; says what is not when the patience is over.
    fn at_rest(&self, baseline: &(u64, u64, u64, u64, String)) {
        let since = std::time::Instant::now();
        while rest(&self.kv()) != *baseline && since.elapsed() < PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(rest(&self.kv()), *baseline, "account and runs are at rest");
    }
}

/// Its own small generator: a test must be able to repeat a failure.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn normal_answers(server: &Server, n: usize) -> Vec<Value> {
    let answer = |i: usize| {
        let body = chat_body(&format!("Question {i}: what is {i} plus {i}?"), 24, false);
        let (status, _, bytes) = server.request("POST", "/v1/chat/completions", None, Some(&body));
        assert_eq!(status, 200);
        let v: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
        v["choices"].clone()
    };
    (0..n).map(answer).collect()
}

fn one_cancel(server: &Server, i: u64, dice: &mut Dice) {
    let id = format!("storm-{i}");
    let stream = dice.roll(3) > 0;
    let prompt = "word ".repeat(1 + dice.roll(120) as usize) + &format!("{}", dice.roll(4));
    let mut body = chat_body(&prompt, 1 + dice.roll(60) as u32, stream);
    body["n"] = json!(1 + dice.roll(2));
    let mut caller = Caller::chat(server, &id, &body);
    match dice.roll(4) {
        0 => {}
        1 => std::thread::sleep(std::time::Duration::from_micros(dice.roll(30_000))),
        _ if stream => {
            caller.read_tokens(dice.roll(12) as usize);
        }
        _ => std::thread::sleep(std::time::Duration::from_micros(dice.roll(8_000))),
    }
    match dice.roll(5) {
        0 => {
            let _ = server.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0"));
        }
        1 | 2 => caller.leave(Leave::Reset),
        _ => caller.leave(Leave::Close),
    }
}

fn storm(model: &Path, cancels: u64, callers: u64) {
    let server = Server::start(model, &["--kv-blocks", "512", "--max-running", "4"]);
    let before = normal_answers(&server, 20);
    let baseline = rest(&server.kv());
    let cancelled = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for c in 0..callers {
            let (server, cancelled) = (&server, &cancelled);
            scope.spawn(move || {
                let mut dice = Dice(0x5eed + c * 7919);
                for i in (c..cancels).step_by(callers as usize) {
                    one_cancel(server, i, &mut dice);
                }
                for i in (c..cancels).step_by(callers as usize) {
                    let id = format!("storm-{i}");
                    // A caller who left before the request was read made no run.
                    if server.run(&id)["object"] == "run" {
                        let run = server.settled(&id);
                        let waste = run["tokens"]["after_receipt"].as_u64().unwrap_or(99);
                        assert!(waste <= 2, "one a sequence, and n is 2 at most: {run:#}");
                        cancelled.fetch_add(u32::from(run["outcome"]["kind"] == "cancelled"), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let cancelled = cancelled.into_inner();
    println!("{cancelled} of {cancels} runs were cancelled, the others had come to their end");
    assert!(u64::from(cancelled) > cancels / 3);
    assert_eq!(rest(&server.kv()), baseline, "account and runs are at rest");
    assert_eq!(server.kv()["tombstones"].as_u64().unwrap_or(0), 0);
    assert_eq!(normal_answers(&server, 20), before, "the same bytes as before");
    let (_, _, metrics) = server.request("GET", "/metrics", None, None);
    let metrics = String::from_utf8(metrics).expect("metrics are text");
    let defects: Vec<&str> = metrics.lines().filter(|l| l.starts_with("kvit_defects_total") && !l.ends_with(" 0")).collect();
    assert!(defects.is_empty(), "{defects:?}");
    assert!(server.terminate());
}

/// Everybody sends at once and goes at once: in the window in which a request is read, taken on and sent to the worker, half of it done.
// contract: C-4, C-11, C-13
#[test]
fn five_hundred_cancelled_in_the_dispatch_window_leave_none_running() {
    const RUNS: usize = 500;
    // A model that takes its time: nobody comes to the end of so many tokens before a cancel comes, however late.
    let args = ["--kv-blocks", "512", "--max-running", "4", "--queue-limit", "1024", "--log", "warn"];
    let server = Server::start(&crate::leaving_matrix::model(), &args);
    let before = normal_answers(&server, 5);
    let baseline = rest(&server.kv());
    let all_there = std::sync::Barrier::new(RUNS);
    std::thread::scope(|scope| {
        for i in 0..RUNS {
            let (server, all_there) = (&server, &all_there);
            scope.spawn(move || {
                let id = format!("window-{i}");
                let body = chat_body(&format!("{i} to begin with"), 7000, i % 2 == 0);
                all_there.wait();
                let caller = Caller::chat(server, &id, &body);
                match i % 3 {
                    0 => caller.leave(Leave::Close),
                    1 => caller.leave(Leave::Reset),
                    _ => {
                        crate::leaving_client::cancel(server, &id);
                        caller.leave(Leave::Close);
                    }
                }
            });
        }
    });
    server.at_rest(&baseline);
    let mut causes = std::collections::BTreeMap::<String, u32>::new();
    for i in 0..RUNS {
        let run = server.run(&format!("window-{i}"));
        // Whoever was gone before the request was read made no run.
        if run["object"] != "run" {
            *causes.entry("never read".to_owned()).or_default() += 1;
            continue;
        }
        assert_eq!(
            (&run["outcome"]["kind"], &run["released"], &run["settled"]),
            (&json!("cancelled"), &json!(true), &json!(true)),
            "{run:#}"
        );
        assert!(run["tokens"]["after_receipt"].as_u64() <= Some(1), "{run:#}");
        let cause = run["outcome"]["cause"].as_str().unwrap_or("none").to_owned();
        assert!(i % 3 < 2 || cause == "cancel_requested", "a run that was cancelled by name was known: {run:#}");
        *causes.entry(cause).or_default() += 1;
    }
    println!("{RUNS} at once: {causes:?}");
    assert_eq!(normal_answers(&server, 5), before, "the same bytes as before");
    server.at_rest(&baseline);
    let (_, _, metrics) = server.request("GET", "/metrics", None, None);
    let metrics = String::from_utf8(metrics).expect("metrics are text");
    let of_runs = ["kvit_runs{", "kvit_worker_held{", "kvit_gateway_calls ", "kvit_defects_total{", "kvit_tombstones "];
    let left: Vec<&str> = metrics.lines().filter(|l| of_runs.iter().any(|of| l.starts_with(of)) && !l.ends_with(" 0")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(server.terminate());
}

#[test]
fn a_thousand_cancels_on_the_tiny_model_leave_nothing_behind() {
    storm(&tiny_model(), 1000, 8);
}

#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_a_thousand_cancels_leave_nothing_behind() {
    storm(&real_model(), 1000, 4);
}
