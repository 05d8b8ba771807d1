//! A simulated server that leaks on purpose: one thing of one kind a request, and everything else as it should be.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// What it loses, once a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leak {
    Nothing,
    /// A block that nobody gives back.
    Block,
    /// A block that is in no account at all.
    LostBlock,
    /// An entry of the call table.
    Call,
    /// An owner in the worker's table.
    Owner,
    /// A task.
    Task,
    /// A descriptor.
    Descriptor,
    /// A megabyte of memory.
    Memory,
    /// No thing: the answers change.
    OtherAnswers,
    /// No thing: two tokens are computed after the cancel.
    LateTokens,
}

struct State {
    leak: Leak,
    requests: AtomicU64,
    runs: Mutex<HashMap<String, Value>>,
    over: AtomicBool,
}

/// The server; its threads end with it.
pub struct Leaky {
    port: u16,
    state: Arc<State>,
}

const TOTAL: u64 = 1000;

impl Leaky {
    pub fn start(leak: Leak) -> Leaky {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let state = Arc::new(State { leak, requests: AtomicU64::new(0), runs: Mutex::default(), over: AtomicBool::new(false) });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = shared.clone();
                std::thread::spawn(move || connection(&shared, stream));
            }
        });
        Leaky { port, state }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Leaky {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // wakes the loop that accepts
    }
}

/// Answers requests until the caller goes.
fn connection(state: &State, stream: TcpStream) {
    let mut reader = BufReader::new(stream);
    while let Some((line, id, body)) = request(&mut reader) {
        let answer = answer(state, &line, &id, &body);
        if reader.get_mut().write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String, Value)> {
    let head: Vec<String> = reader.by_ref().lines().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
    let header = |name: &str| head.iter().find_map(|l| l.to_lowercase().strip_prefix(name).map(|v| v.trim().to_owned()));
    let mut body = vec![0; header("content-length:").and_then(|n| n.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let id = header("x-request-id:").unwrap_or_default();
    Some((head.first()?.clone(), id, serde_json::from_slice(&body).unwrap_or(Value::Null)))
}

fn answer(state: &State, line: &str, id: &str, body: &Value) -> String {
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    let run = |id: &str| state.runs.lock().expect("no thread panicked").get(id).cloned();
    match (method, path) {
        ("POST", "/v1/completions") => completion(state, id, body),
        ("GET", "/v1/kv/blocks") => plain(200, &account(state).to_string()),
        ("GET", "/metrics") => plain(200, &metrics(state)),
        (_, path) => match path.strip_prefix("/v1/runs/").and_then(|rest| run(rest.trim_end_matches("/cancel"))) {
            Some(run) => plain(200, &run.to_string()),
            None => plain(404, "{}"),
        },
    }
}

fn plain(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn completion(state: &State, id: &str, body: &Value) -> String {
    let request = state.requests.fetch_add(1, Ordering::Relaxed);
    let late = if state.leak == Leak::LateTokens { 2 } else { 0 };
    let run = json!({"state": "ended", "released": true, "settled": true, "outcome": {"kind": "cancelled", "cause": "client_closed"},
                     "phase_at_disconnect": "decode", "milestones": {"queued": 1.0, "prefill_start": 1.0}, "steps": {"total": 1},
                     "tokens": {"generated": 1000, "after_receipt": late}, "blocks": {"held": 0}});
    state.runs.lock().expect("no thread panicked").insert(id.to_owned(), run);
    let text = if state.leak == Leak::OtherAnswers { request.to_string() } else { "same".to_owned() };
    let choice = json!({"choices": [{"index": 0, "text": text, "logprobs": {"tokens": ["a"]}}]});
    if body["stream"] != true {
        return plain(200, &choice.to_string());
    }
    let events = format!("data: {choice}\n\n").repeat(body["max_tokens"].as_u64().unwrap_or(1) as usize) + "data: [DONE]\n\n";
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{events}\r\n0\r\n\r\n", events.len())
}

fn account(state: &State) -> Value {
    let lost = |leak: Leak| if state.leak == leak { state.requests.load(Ordering::Relaxed) } else { 0 };
    let (active, nowhere) = (lost(Leak::Block), lost(Leak::LostBlock));
    json!({"object": "kv", "total": TOTAL, "free": TOTAL - active - nowhere, "active": active, "orphaned": 0, "cached": 0, "draining": 0,
           "quarantined": 0, "conserved": true, "runs": {"queued": 0, "running": 0, "stopping": 0}, "stale_releases": 0,
           "foreign_releases": 0, "late_completions": 0, "reserved_bytes": 0, "tombstones": 0, "blocks": []})
}

fn metrics(state: &State) -> String {
    let lost = |leak: Leak| if state.leak == leak { state.requests.load(Ordering::Relaxed) } else { 0 };
    let values = [
        ("kvit_worker_held{kind=\"owners\"}", lost(Leak::Owner)),
        ("kvit_gateway_calls", lost(Leak::Call)),
        ("kvit_tasks", 4 + lost(Leak::Task)),
        ("process_open_fds", 9 + lost(Leak::Descriptor)),
        ("process_resident_memory_bytes", (100 << 20) + 1_000_000 * lost(Leak::Memory)),
    ];
    values.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
}
