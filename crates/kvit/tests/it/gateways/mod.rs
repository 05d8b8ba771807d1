//! Several `kvit gateway`s on one PostgreSQL: real processes, a real server (`KVIT_TEST_POSTGRES`; without it they say that they are skipped).
//! Leases and polls are short by options; nothing is judged by time.

mod cancel;
mod ends;
mod events;
mod outage;
mod stopped;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use xtask::postgres;

use crate::faults::relay::Relay;
use crate::faults::{gateway, slow_worker, until};
use crate::server::{Caller, Server, lasting_model};
use crate::worker::Process;

/// A gateway that says nothing for so long is over.
const LEASES: [&str; 4] = ["--lease-ms", "2500", "--store-lease-ms", "3000"];
/// And looks often.
const LOOKS: [&str; 2] = ["--store-poll-ms", "100"];
/// However slow the machine is: a run that the store does not take in time goes on under another id.
const PATIENT: [&str; 2] = ["--store-patience-ms", "20000"];
/// Nobody who leaves ends it.
const GOES_ON: &str = "X-On-Disconnect: continue\r\n";

/// A store that gateways share, and workers.
struct Stand {
    url: String,
    workers: Vec<Process>,
}

/// A schema of its own in the server that is named, which is reached at the address that `by` makes of its own.
fn schema(by: impl FnOnce(&str) -> String) -> Option<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let Some(url) = postgres::named() else {
        println!("skipped: {} names no PostgreSQL server", postgres::VARIABLE);
        return None;
    };
    let schema = format!("g{}_{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut connection = PgConnection::connect(&url).await.expect("the server is there");
        let make = format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}");
        connection.execute(AssertSqlSafe(make)).await.expect("a schema");
    });
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (user, rest) = rest.rsplit_once('@').expect("a URL with a user");
    let (host, database) = rest.split_once('/').expect("a URL with a database");
    let sign = if database.contains('?') { '&' } else { '?' };
    Some(format!("{scheme}://{user}@{}/{database}{sign}options[search_path]={schema}", by(host)))
}

impl Stand {
    /// On a schema of its own.
    fn lasting(workers: usize) -> Option<Stand> {
        Some(Stand::on(schema(str::to_owned)?, workers))
    }

    /// The same, behind a cable that can be cut.
    fn cabled(workers: usize) -> Option<(Stand, Relay)> {
        let mut relay = None;
        let url = schema(|host| relay.insert(Relay::to(host)).address.clone())?;
        Some((Stand::on(url, workers), relay?))
    }

    /// With a model whose longest run outlasts everything that only needs a run to be under way.
    fn on(url: String, workers: usize) -> Stand {
        let workers = (0..workers).map(|_| slow_worker(&lasting_model(), &["--lease-ms", "2500"])).collect();
        Stand { url, workers }
    }

    fn gateway(&self, name: &str) -> Server {
        self.gateway_with(name, &PATIENT)
    }

    fn gateway_with(&self, name: &str, more: &[&str]) -> Server {
        let workers: Vec<&str> = self.workers.iter().map(|worker| worker.address.as_str()).collect();
        // An option is named once.
        let poll: &[&str] = if more.contains(&"--store-poll-ms") { &[] } else { &LOOKS };
        gateway(&workers, &[&["--store", &self.url, "--name", name], &LEASES[..], poll, more].concat())
    }
}

/// A run that goes on without its caller; its first `tokens` have been read.
fn background(server: &Server, id: &str, body: &Value, tokens: usize) -> Caller {
    let mut caller = Caller::post_with(server, "/v1/chat/completions", id, GOES_ON, body);
    assert!(tokens == 0 || !caller.read_tokens(tokens).is_empty());
    caller
}

/// Somebody who reads a run's events.
struct Follower {
    reader: BufReader<TcpStream>,
}

/// An event: its number, its kind, what it says.
type Told = (u64, String, Value);

impl Follower {
    fn of(server: &Server, id: &str, after: u64) -> Follower {
        let mut stream = server.connect();
        let head = format!("GET /v1/runs/{id}/events?after={after} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("the request can be sent");
        Follower { reader: BufReader::new(stream) }
    }

    /// The next event; `None` at the end of the stream. Anything but a stream of events is shown.
    fn next(&mut self) -> Option<Told> {
        let (mut number, mut kind) = (None, String::new());
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
            let line = line.trim_end();
            assert!(!line.starts_with("HTTP/1.1 ") || line.starts_with("HTTP/1.1 200"), "{line}");
            if let Some(id) = line.strip_prefix("id: ") {
                number = id.parse().ok();
            } else if let Some(word) = line.strip_prefix("event: ") {
                kind = word.to_owned();
            } else if let (Some(data), Some(number)) = (line.strip_prefix("data: "), number) {
                return Some((number, kind, serde_json::from_str(data).expect("JSON")));
            }
        }
    }

    fn some(&mut self, n: usize) -> Vec<Told> {
        (0..n).map(|_| self.next().expect("a further event")).collect()
    }

    fn all(mut self) -> Vec<Told> {
        std::iter::from_fn(|| self.next()).collect()
    }
}

/// What a run said from its first event on, which must be all of it, once, in order, with its end.
fn whole_text(told: &[Told]) -> String {
    let numbers: Vec<u64> = told.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, (1..=told.len() as u64).collect::<Vec<_>>());
    let kinds: Vec<&str> = told.iter().map(|(_, kind, _)| kind.as_str()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"accepted"), Some(&"end")), "{kinds:?}");
    assert!(kinds[1..kinds.len() - 1].iter().all(|kind| *kind == "delta"), "{kinds:?}");
    told.iter().map(|(_, _, said)| said["text"].as_str().unwrap_or_default()).collect()
}

/// The outcome as this gateway knows it, when it does.
fn outcome(server: &Server, id: &str) -> (String, String) {
    let run = server.wait_run(id, "end", |run| run["outcome"].is_object());
    let word = |name: &str| run["outcome"][name].as_str().unwrap_or_default().to_owned();
    (word("kind"), word("cause"))
}

fn is(kind: &str, cause: &str) -> (String, String) {
    (kind.to_owned(), cause.to_owned())
}

/// Waits until this gateway finds a run in the store.
fn known(server: &Server, id: &str) {
    until("the run is known", || (server.json("GET", &format!("/v1/runs/{id}")).0 == 200).then_some(()));
}

fn cancel(server: &Server, id: &str, wait_ms: u64) -> (u16, Value) {
    server.json("POST", &format!("/v1/runs/{id}/cancel?wait_ms={wait_ms}"))
}

fn body_of(answer: &(u16, String, Vec<u8>)) -> Value {
    serde_json::from_slice(&answer.2).unwrap_or_else(|_| json!(String::from_utf8_lossy(&answer.2)))
}
