//! Declared tools and webhooks of the real server, which is killed in the middle: a scripted payment service counts calls and keys.
// contract: C-27
// field: F-83

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{PATIENCE, Server, tiny_model};

/// A call as it came in, and what it is answered, whether or not anybody is there to hear it.
#[derive(Clone, Debug)]
pub struct Call {
    pub key: String,
    pub status: u16,
}

/// What a call is answered with, and after how long, by its number among all calls.
pub type Script = fn(usize) -> (u16, Duration);

/// By run and tool.
pub type Calls = HashMap<(String, String), Vec<Call>>;

/// The calls for each run's tools, and whether their answers are held back.
#[derive(Clone)]
pub struct Payments {
    calls: Arc<Mutex<Calls>>,
    holds: Arc<Mutex<bool>>,
    script: Script,
}

impl Payments {
    /// Whatever is asked for is paid.
    pub fn start() -> (Payments, u16) {
        Payments::scripted(|_| (200, Duration::ZERO))
    }

    pub fn scripted(script: Script) -> (Payments, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let payments = Payments { calls: Arc::default(), holds: Arc::default(), script };
        let serving = payments.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        (payments, port)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut read = Vec::new();
        let mut piece = [0; 4096];
        let (run, tool, key) = loop {
            match stream.read(&mut piece) {
                Ok(n) if n > 0 => read.extend_from_slice(&piece[..n]),
                _ => return,
            }
            let text = String::from_utf8_lossy(&read).into_owned();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let header = |name: &str| head.lines().find_map(|l| l.to_lowercase().strip_prefix(name).map(|v| v.trim().to_owned()));
            let length = header("content-length:").and_then(|n| n.parse().ok()).unwrap_or(0);
            if body.len() >= length {
                let body: Value = serde_json::from_str(body).expect("JSON");
                let said = |field: &str| body[field].as_str().unwrap_or_else(|| panic!("no {field}")).to_owned();
                break (said("run"), said("tool"), header("idempotency-key:").expect("a key"));
            }
        };
        let (status, after) = {
            let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
            let (status, after) = (self.script)(calls.values().map(Vec::len).sum());
            calls.entry((run, tool)).or_default().push(Call { key, status });
            (status, after)
        };
        std::thread::sleep(after);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(5)));
        while *self.holds.lock().unwrap_or_else(PoisonError::into_inner) {
            // Or whoever called is gone.
            if matches!(stream.read(&mut piece), Ok(0)) {
                return;
            }
        }
        let answer = format!("HTTP/1.1 {status} Paid\r\nContent-Length: 4\r\nConnection: close\r\n\r\npaid");
        let _ = stream.write_all(answer.as_bytes());
    }

    pub fn hold(&self, holds: bool) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = holds;
    }

    /// All calls so far.
    pub fn by_tool(&self) -> Calls {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The keys of each run's calls.
    pub fn calls(&self) -> HashMap<String, Vec<String>> {
        let mut of_run: HashMap<String, Vec<String>> = HashMap::new();
        for ((run, _), calls) in self.by_tool() {
            of_run.entry(run).or_default().extend(calls.into_iter().map(|call| call.key));
        }
        of_run
    }

    pub fn total(&self) -> usize {
        self.calls().values().map(Vec::len).sum()
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server whose runs are kept there, which may call this port.
fn serve(store: &Path, port: u16) -> Server {
    let (store, urls) = (store.to_str().expect("UTF-8"), format!("http://127.0.0.1:{port}/pay"));
    Server::start(&tiny_model(), &["--store", store, "--tool-urls", &urls, "--tool-timeout-ms", "500", "--store-poll-ms", "50"])
}

/// A declared tool that asks for a payment.
pub fn tool(port: u16, name: &str, safe: bool) -> Value {
    json!({"type": "kvit_http", "name": name, "url": format!("http://127.0.0.1:{port}/pay"), "safe_to_repeat": safe})
}

/// A background response that pays once it is complete.
pub fn paying(port: u16, safe: bool, tokens: u32) -> Value {
    let tool = tool(port, "pay", safe);
    json!({"input": "Hello there", "background": true, "max_output_tokens": tokens, "temperature": 0, "ignore_eos": true, "tools": [tool]})
}

fn create(server: &Server, id: &str, port: u16, safe: bool) {
    let body = paying(port, safe, 16);
    let (status, _, answer) = server.request("POST", "/v1/responses", Some(id), Some(&body));
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
}

pub fn effect(server: &Server, id: &str) -> String {
    let list = server.json("GET", &format!("/v1/runs/{id}/effects")).1;
    list["data"][0]["state"].as_str().unwrap_or_default().to_owned()
}

// contract: C-27
#[test]
fn a_kill_between_submitted_and_committed_repeats_only_what_is_safe() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("runs.db");
    let (payments, port) = Payments::start();
    payments.hold(true);
    let server = serve(&store, port);
    create(&server, "once", port, false);
    create(&server, "again", port, true);
    until("both calls", || payments.total() == 2);
    // SIGKILL.
    drop(server);
    payments.hold(false);
    let server = serve(&store, port);
    until("both are settled", || effect(&server, "once") == "unknown" && effect(&server, "again") == "committed");
    let calls = payments.calls();
    assert_eq!(calls["once"].len(), 1);
    assert!(calls["again"].len() == 2 && calls["again"][0] == calls["again"][1], "twice, with one key: {calls:?}");
}

/// Killed again and again while runs complete and pay: no payment that is not safe to repeat is made twice, whenever it was.
#[test]
fn kills_at_many_moments_pay_nothing_twice() {
    const ROUNDS: usize = 6;
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("runs.db");
    let (payments, port) = Payments::start();
    let mut runs: Vec<(String, bool)> = Vec::new();
    for round in 0..ROUNDS {
        let server = serve(&store, port);
        let before = payments.total();
        for n in 0..3 {
            let (id, safe) = (format!("r{round}-{n}"), n == 2);
            create(&server, &id, port, safe);
            runs.push((id, safe));
        }
        // At another moment each round: before anything is paid, in the middle, and with calls left in flight.
        payments.hold(round % 3 == 2);
        until("as many payments as this round waits for", || payments.total() >= before + round % 3);
        drop(server);
        payments.hold(false);
    }
    let server = serve(&store, port);
    for (id, _) in &runs {
        until("every run ends", || server.run(id)["outcome"].is_object());
        assert_eq!(server.run(id)["outcome"]["kind"], "completed", "a background run goes on");
        until("every effect is settled", || ["committed", "unknown", "failed"].contains(&effect(&server, id).as_str()));
    }
    let calls = payments.calls();
    for (id, safe) in &runs {
        let (state, keys) = (effect(&server, id), calls.get(id).cloned().unwrap_or_default());
        assert!(*safe || keys.len() <= 1, "{id} paid twice: {keys:?}");
        assert!(keys.iter().all(|key| *key == keys[0]), "{id}: {keys:?}");
        assert!(state == "committed" && !keys.is_empty() || state == "unknown" && !safe, "{id} is {state} after {} calls", keys.len());
        let shown = server.run(id)["effects"].clone();
        assert_eq!(shown.as_array().map(Vec::len), Some(1), "{id}");
    }
}
