//! Many cancels at random moments, then normal work: the account and the per-run objects are exactly what they were, and the answers are
//! the same bytes.
// contract: C-14, C-15
// field: F-45, F-51, F-58

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::leaving_guest::metrics;
use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, real_model, rest};

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

/// What a storm is made of.
struct Weather {
    /// Runs that must have been cancelled, by the server's own record.
    cancels: u64,
    /// Runs that may be sent for it.
    runs_max: u64,
    /// Callers at a time: more than run at a time, so that some wait.
    callers: u64,
    /// Words of a long prompt.
    long_words: u64,
    /// One run in so many has such a prompt.
    long_in: u64,
    /// Most tokens that are waited for.
    tokens: u64,
}

/// Tokens of a step: a long prompt takes many.
const STEP: u64 = 64;
/// Runs that a caller leaves before it looks at what came of them.
const BATCH: u64 = 10;

/// Where a caller means to leave; the server's record says where it did.
enum Aim {
    /// As soon as the request is sent.
    AtOnce,
    /// Some microseconds later.
    Later(u64),
    /// When its long prompt is being computed.
    Prefill,
    /// When half of its long prompt is computed, or more.
    PrefillsEnd,
    /// When so many tokens have come, or were made where the answer comes as a whole.
    Tokens(u64),
}

fn one_cancel(server: &Server, id: &str, weather: &Weather, dice: &mut Dice) {
    let stream = dice.roll(3) > 0;
    let long = dice.roll(weather.long_in) == 0;
    let aim = match dice.roll(6) {
        _ if long && dice.roll(2) == 0 => Aim::Prefill,
        _ if long => Aim::PrefillsEnd,
        0 => Aim::AtOnce,
        1 | 2 => Aim::Later(dice.roll(30_000)),
        _ => Aim::Tokens(1 + dice.roll(weather.tokens)),
    };
    // A long prompt is new from its first word on; others have beginnings in common.
    let words = if long { weather.long_words } else { 1 + dice.roll(40) };
    let first = if long { format!("{id} ") } else { String::new() };
    let prompt = first + &"word ".repeat(words as usize) + &format!("{}", dice.roll(4));
    // Some come to their end about when they are left.
    let most = if dice.roll(8) == 0 { 1 + dice.roll(2 * weather.tokens) } else { 300 };
    let mut body = chat_body(&prompt, most as u32, stream);
    body["n"] = json!(1 + dice.roll(2));
    let mut caller = Caller::chat(server, id, &body);
    let reach = |what: &str, there: &dyn Fn(&Value) -> bool| {
        server.wait_run(id, what, |run| run["object"] == "run" && (run["state"] == "ended" || there(run)));
    };
    match aim {
        Aim::AtOnce => {}
        Aim::Later(micros) => std::thread::sleep(std::time::Duration::from_micros(micros)),
        Aim::Prefill => reach("begin", &|run| run["milestones"]["prefill_start"].is_number()),
        Aim::PrefillsEnd => reach("compute half of its prompt", &is_late_in_prefill),
        Aim::Tokens(n) if stream => {
            caller.read_tokens(n as usize);
        }
        Aim::Tokens(n) => reach("decode", &|run| run["tokens"]["generated"].as_u64() >= Some(n)),
    }
    match dice.roll(5) {
        0 => {
            let _ = server.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0"));
        }
        1 | 2 => caller.leave(Leave::Reset),
        _ => caller.leave(Leave::Close),
    }
}

/// Whether a run took half of the steps, or more, that its prompt takes at least.
fn is_late_in_prefill(run: &Value) -> bool {
    let prompt = run["tokens"]["prompt"].as_u64().unwrap_or(0);
    prompt > 0 && run["steps"]["total"].as_u64() >= Some((prompt / STEP / 2).max(1))
}

/// What came of the runs, by the server's own record.
#[derive(Default, Debug)]
struct Tally {
    sent: u64,
    cancelled: u64,
    phases: BTreeMap<&'static str, u64>,
    causes: BTreeMap<String, u64>,
    others: BTreeMap<String, u64>,
}

impl Tally {
    fn add(&mut self, run: &Value) {
        // A caller who left before the request was read made no run.
        if run["object"] != "run" {
            return *self.others.entry("never read".to_owned()).or_default() += 1;
        }
        let word = |v: &Value| v.as_str().unwrap_or("none").to_owned();
        if run["outcome"]["kind"] != "cancelled" {
            return *self.others.entry(word(&run["outcome"]["kind"])).or_default() += 1;
        }
        self.cancelled += 1;
        *self.causes.entry(word(&run["outcome"]["cause"])).or_default() += 1;
        let long = run["tokens"]["prompt"].as_u64() > Some(8 * STEP);
        let phase = match run["phase_at_disconnect"].as_str() {
            Some("queued") => "queued",
            Some("prefill") if long && is_late_in_prefill(run) => "late in a long prefill",
            Some("prefill") if long => "early in a long prefill",
            Some("prefill") => "prefill",
            Some("before_first_token") => "before the first token",
            Some("decode") => "decode",
            other => panic!("a cancelled run has a phase, and not {other:?}: {run:#}"),
        };
        *self.phases.entry(phase).or_default() += 1;
    }
}

/// Entries of the worker's and the gateway's tables that belong to runs, and defects, that are not 0.
fn leftovers(server: &Server) -> Vec<(String, f64)> {
    let of_runs = ["kvit_runs{", "kvit_worker_held{", "kvit_gateway_calls", "kvit_defects_total{", "kvit_tombstones"];
    let metrics = metrics(server);
    for family in &of_runs[..4] {
        assert!(metrics.keys().any(|name| name.starts_with(family)), "there is no {family}");
    }
    metrics.into_iter().filter(|(name, value)| of_runs.iter().any(|of| name.starts_with(of)) && *value != 0.0).collect()
}

fn storm(model: &Path, weather: &Weather) {
    let step = STEP.to_string();
    let server = Server::start(model, &["--kv-blocks", "512", "--max-running", "4", "--step-tokens", &step, "--log", "warn"]);
    let before = normal_answers(&server, 20);
    let baseline = rest(&server.kv());
    assert_eq!(leftovers(&server), [], "nothing is held before");
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for c in 0..weather.callers {
            let (server, tally) = (&server, &tally);
            scope.spawn(move || {
                let mut dice = Dice(0x5eed + c * 7919);
                let enough = |t: &Tally| t.cancelled >= weather.cancels || t.sent + BATCH > weather.runs_max;
                for batch in 0.. {
                    {
                        let mut tally = tally.lock().expect("no caller panicked");
                        if enough(&tally) {
                            break;
                        }
                        tally.sent += BATCH;
                    }
                    let ids: Vec<String> = (0..BATCH).map(|i| format!("storm-{c}-{batch}-{i}")).collect();
                    ids.iter().for_each(|id| one_cancel(server, id, weather, &mut dice));
                    for id in ids {
                        let mut run = server.run(&id);
                        if run["object"] == "run" {
                            run = server.settled(&id);
                            let waste = run["tokens"]["after_receipt"].as_u64().unwrap_or(99);
                            assert!(waste <= 2, "one a sequence, and n is 2 at most: {run:#}");
                            assert_eq!(run["blocks"]["held"], 0, "{run:#}");
                        }
                        tally.lock().expect("no caller panicked").add(&run);
                    }
                }
            });
        }
    });
    let tally = tally.into_inner().expect("no caller panicked");
    println!("{tally:#?}");
    assert!(tally.cancelled >= weather.cancels, "{tally:?}");
    let of = |phases: &[&str]| phases.iter().map(|p| tally.phases.get(p).copied().unwrap_or(0)).sum::<u64>();
    for phases in [
        &["queued"][..],
        &["prefill", "early in a long prefill"],
        &["early in a long prefill", "late in a long prefill"],
        &["late in a long prefill", "before the first token"],
        &["decode"],
    ] {
        assert!(of(phases) > 0, "nobody left in {phases:?}: {tally:?}");
    }
    // Whoever's request was read after its caller had gone may come last of all.
    server.at_rest(&baseline);
    assert_eq!(normal_answers(&server, 20), before, "the same bytes as before");
    server.at_rest(&baseline);
    assert_eq!(leftovers(&server), [], "nothing is held after");
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
    let mut causes = BTreeMap::<String, u32>::new();
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
    assert_eq!(leftovers(&server), [], "nothing is held after");
    assert!(server.terminate());
}

// contract: C-13
#[test]
fn a_thousand_cancels_in_every_phase_on_a_tiny_model_leave_nothing_behind() {
    let weather = Weather { cancels: 1000, runs_max: 4000, callers: 8, long_words: 300, long_in: 10, tokens: 12 };
    storm(&crate::leaving_matrix::model(), &weather);
}

// contract: C-13
#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn real_a_thousand_cancels_in_every_phase_leave_nothing_behind() {
    let weather = Weather { cancels: 1000, runs_max: 4000, callers: 8, long_words: 700, long_in: 40, tokens: 3 };
    storm(&real_model(), &weather);
}
