//! Cancels that race against completion, within a step of it: whichever wins, everybody is told the same, then and after a `kill -9`.
// contract: C-4, C-5, C-14, C-26

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{Caller, PATIENCE, Server, chat_body, lasting_model, rest};

/// Tokens of an answer.
const TOKENS: u32 = 6;
/// Who races at the same time.
const CALLERS: u64 = 4;

/// Its own small generator: a test must be able to repeat a failure.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides.max(1)
    }
}

/// How a run ended, as somebody was told: its kind and its cause.
type Ended = (String, String);

/// What a run's events say, from the first to the last.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Told {
    events: Vec<String>,
    text: String,
    ended: Ended,
}

fn outcome(run: &Value) -> Ended {
    let part = |name: &str| run["outcome"][name].as_str().unwrap_or_else(|| panic!("no outcome: {run:#}")).to_owned();
    (part("kind"), part("cause"))
}

/// A store that is waited for, however slow the disk, and a model whose step takes longer than a cancel's way to the server.
fn start(store: &Path) -> Server {
    let store = store.to_str().expect("a path");
    Server::start(
        &lasting_model(),
        &["--log", "error", "--store", store, "--max-running", "4", "--threads", "1", "--store-patience-ms", "60000"],
    )
}

/// A request whose answer ends its connection, sent.
fn asked(server: &Server, method: &str, path: &str) -> TcpStream {
    let mut stream = server.connect();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").expect("it is asked");
    stream
}

/// Reads a run's events to their end.
fn read(mut stream: TcpStream, id: &str) -> Told {
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("the events can be read");
    assert!(all.starts_with("HTTP/1.1 200"), "{id}: {all}");
    let lines: Vec<&str> = all.lines().collect();
    let field = |name: &'static str| lines.iter().filter_map(move |line| line.strip_prefix(name));
    let numbers: Vec<u64> = field("id: ").map(|n| n.parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "{id}");
    let data: Vec<Value> = field("data: ").map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let events = field("event: ").zip(field("data: ")).map(|(kind, data)| format!("{kind} {data}")).collect();
    let text = data.iter().filter_map(|data| data["text"].as_str()).collect();
    assert_eq!(field("event: ").next_back(), Some("end"), "{id}: {all}");
    Told { events, text, ended: outcome(data.last().expect("an event")) }
}

/// What the caller itself was told to the end.
fn creator(caller: &mut Caller, mut text: String) -> (String, Ended) {
    let mut ended = ("completed".to_owned(), "length".to_owned());
    while let Some(event) = caller.event() {
        let event: Value = serde_json::from_str(&event).expect("JSON");
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if let Some(code) = event["error"]["code"].as_str() {
            // The stream ends with it, without a `[DONE]`.
            ended = ("cancelled".to_owned(), code.to_owned());
            break;
        }
    }
    (text, ended)
}

/// One race. `step` is how long a step takes, in microseconds.
fn race(server: &Server, id: &str, dice: &mut Dice, step: u64) -> Told {
    let mut body = chat_body(&format!("Race {id}"), TOKENS, true);
    body["ignore_eos"] = json!(true);
    // Its events are kept for the key. The connection ends with the answer, however many tokens a piece of text has.
    let headers = format!("Idempotency-Key: {id}\r\nConnection: close\r\n");
    let mut caller = Caller::post_with(server, "/v1/chat/completions", id, &headers, &body);
    let mut cancel = server.connect();
    let mut text = caller.read_tokens(1);
    let follower = asked(server, "GET", &format!("/v1/runs/{id}/events"));
    // One step before the last token, or with it, and up to a step later.
    text += &caller.read_tokens(TOKENS as usize - 2 + dice.roll(2) as usize - 1);
    let pause = dice.roll(step);
    let since = Instant::now();
    while since.elapsed() < Duration::from_micros(pause) {
        std::hint::spin_loop();
    }
    write!(cancel, "POST /v1/runs/{id}/cancel HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").expect("it is asked");
    let (text, ended) = creator(&mut caller, text);
    let told = read(follower, id);
    let mut answer = String::new();
    cancel.read_to_string(&mut answer).expect("the cancel is answered");
    let (_, run) = answer.split_once("\r\n\r\n").expect("a head");
    let run = outcome(&serde_json::from_str(run).expect("JSON"));
    assert_eq!([&ended, &run, &outcome(&server.run(id))], [&told.ended; 3], "{id}: caller, canceller, whoever looks, and a second reader");
    assert_eq!(text, told.text, "{id}: caller and second reader");
    told
}

/// How long a step of a lone run takes about, in microseconds.
fn step(server: &Server) -> u64 {
    let since = Instant::now();
    let mut caller = Caller::chat(server, "step", &chat_body("Step", 64, true));
    caller.read_tokens(1);
    caller.read_tokens(63);
    (since.elapsed().as_micros() as u64 / 64).max(1)
}

fn races(count: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("runs.db");
    let server = start(&store);
    let (step, baseline) = (step(&server), rest(&server.kv()));
    let series = |caller: u64| {
        let (server, mut dice) = (&server, Dice(0x9e37_79b9 + caller));
        move || -> Vec<(String, Told)> {
            let ids = (caller..count).step_by(CALLERS as usize).map(|i| format!("race-{i}"));
            ids.map(|id| (id.clone(), race(server, &id, &mut dice, step))).collect()
        }
    };
    let told: BTreeMap<String, Told> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(series(caller))).collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("a series of races")).collect()
    });
    let mut kinds: BTreeMap<&Ended, u64> = BTreeMap::new();
    told.values().for_each(|told| *kinds.entry(&told.ended).or_default() += 1);
    println!("{count} races, {step} µs a step: {kinds:?}");
    let allowed = [("cancelled", "cancel_requested"), ("completed", "length")].map(|(kind, cause)| (kind.to_owned(), cause.to_owned()));
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), allowed.iter().collect::<Vec<_>>(), "outcomes of both kinds, and no other");
    let since = Instant::now();
    while rest(&server.kv()) != baseline && since.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(rest(&server.kv()), baseline, "account and runs are at rest");
    let again = |server: &Server, when: &str| {
        for (id, told) in &told {
            assert_eq!(outcome(&server.run(id)), told.ended, "{id} {when}");
            assert_eq!(read(asked(server, "GET", &format!("/v1/runs/{id}/events")), id), *told, "{id} {when}");
        }
    };
    again(&server, "afterwards");
    // SIGKILL.
    drop(server);
    again(&start(&store), "after a restart");
}

#[test]
fn a_thousand_cancels_that_race_against_completion_have_one_outcome_for_everybody() {
    races(1000);
}
