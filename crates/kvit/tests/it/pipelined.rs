//! Callers that send on behind a request whose answer is pending: their leaving is seen behind however many bytes, and whoever stays gets the
//! answers that are due.
// contract: C-10, C-12, C-13, C-15, C-24, C-28
// field: F-01, F-03, F-13

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;

use serde_json::Value;

use crate::http2::Http2;
use crate::server::{Caller, Leave, SLOW, Server, chat_body, rest, slow_model};

/// Tokens that nobody will have computed when the caller leaves.
const MANY: u32 = 3000;
/// More than any kernel's receive buffer holds for a program that does not read.
const FLOOD: usize = 4 << 20;
/// The default of `pipelined_bytes_max`.
const KEPT: usize = 64 << 10;

fn start(more: &[&str]) -> Server {
    Server::start(&slow_model(), &[&SLOW[..], &["--log=warn"], more].concat())
}

/// A further request as it would be pipelined, as long as is wanted.
fn request(id: &str, bytes: usize, max: u32) -> Vec<u8> {
    let mut body = chat_body("hi", max, false);
    let short = body.to_string().len() + ",\"user\":\"\"".len();
    body["user"] = Value::from("x".repeat(bytes.saturating_sub(short)));
    let body = body.to_string();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: {id}\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body.as_bytes()].concat()
}

fn cancelled(server: &Server, id: &str, causes: &[&str], phase: &str) {
    let run = server.settled(id);
    assert_eq!(run["outcome"]["kind"], "cancelled", "{id}: {run:#}");
    assert!(run["outcome"]["cause"].as_str().is_some_and(|cause| causes.contains(&cause)), "{id}: {run:#}");
    assert_eq!((&run["phase_at_disconnect"], &run["guarantee"]), (&phase.into(), &"confirmed".into()), "{id}: {run:#}");
    assert!(run["delivery"] != "complete", "{id}: {run:#}");
    assert!(run["tokens"]["generated"].as_u64().is_some_and(|n| n < u64::from(MANY)), "{id}: {run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{id}: {run:#}");
    assert_eq!(run["blocks"]["held"], 0, "{id}: {run:#}");
}

/// A run that is decoding, and a second handle on its caller's socket.
fn decoding(server: &Server, id: &str, stream: bool) -> (Caller, std::net::TcpStream) {
    let socket = server.connect();
    let second = socket.try_clone().expect("a second handle");
    let caller = Caller::over(socket, "/v1/chat/completions", id, &chat_body("go", MANY, stream));
    server.wait_run(id, "decode", |run| run["tokens"]["generated"].as_u64() > Some(2));
    (caller, second)
}

#[test]
fn a_close_behind_megabytes_is_seen() {
    let server = start(&[]);
    let baseline = rest(&server.kv());
    for (how, stream) in [(Leave::Close, false), (Leave::Close, true), (Leave::Reset, false), (Leave::Reset, true)] {
        let id = format!("{how:?}-{stream}");
        let (caller, mut socket) = decoding(&server, &id, stream);
        socket.write_all(&request("never", FLOOD, 3)).expect("it is taken");
        drop(socket);
        caller.leave(how);
        cancelled(&server, &id, &[how.cause()], "decode");
    }
    assert_eq!(server.json("GET", "/v1/runs/never").0, 404, "who left has not asked");
    assert_eq!(rest(&server.kv()), baseline);
}

/// Queued: nothing has been computed and nothing is.
#[test]
fn a_close_behind_megabytes_is_seen_in_the_queue() {
    let server = start(&["--max-running", "1"]);
    let (holder, other) = decoding(&server, "holder", false);
    let mut caller = server.connect();
    let queued = Caller::over(caller.try_clone().expect("a second handle"), "/v1/chat/completions", "queued", &chat_body("hi", 5, false));
    server.wait_run("queued", "queue", |run| run["milestones"]["queued"].is_number());
    caller.write_all(&vec![b'x'; FLOOD]).expect("it is taken");
    drop((caller, queued));
    cancelled(&server, "queued", &["client_closed"], "queued");
    drop((holder, other));
    cancelled(&server, "holder", &["client_closed"], "decode");
}

#[test]
fn a_half_close_behind_pipelined_bytes_is_seen() {
    let server = start(&[]);
    let baseline = rest(&server.kv());
    for bytes in [KEPT / 4, 300_000] {
        for stream in [false, true] {
            let id = format!("{bytes}-{stream}");
            let (caller, mut socket) = decoding(&server, &id, stream);
            socket.write_all(&request("never", bytes, 3)).expect("it is taken");
            socket.shutdown(Shutdown::Write).expect("it can be half closed");
            cancelled(&server, &id, &["client_closed"], "decode");
            drop((caller, socket));
        }
    }
    assert_eq!(server.json("GET", "/v1/runs/never").0, 404, "who left has not asked");
    assert_eq!(rest(&server.kv()), baseline);
}

/// The next answer on a connection: its head in lower case and its body.
fn answer(lines: &mut impl BufRead) -> (String, Value) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(lines.read_line(&mut head).expect("an answer comes") > 0, "closed in {head:?}");
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok()).expect("a length");
    let mut body = vec![0; length];
    lines.read_exact(&mut body).expect("the whole body comes");
    (head, serde_json::from_slice(&body).expect("JSON"))
}

/// Three requests at once, the further ones longer than hyper's first buffer and within the limit: each is answered, in its turn.
#[test]
fn pipelined_requests_within_the_limit_are_answered_in_order() {
    let server = start(&[]);
    let mut socket = server.connect();
    let ids = ["one", "two", "three"];
    let texts = [request("one", 200, 40), request("two", KEPT / 3, 7), request("three", KEPT / 3, 5)];
    socket.write_all(&texts[0]).expect("it is taken");
    server.wait_run("one", "decode", |run| run["tokens"]["generated"].as_u64() > Some(0));
    socket.write_all(&texts[1..].concat()).expect("it is taken");
    let mut lines = BufReader::new(socket);
    for (id, tokens) in ids.into_iter().zip([40, 7, 5]) {
        let (head, body) = answer(&mut lines);
        assert!(head.starts_with("http/1.1 200") && head.contains(&format!("x-request-id: {id}\r\n")), "{head}");
        assert_eq!(body["usage"]["completion_tokens"], tokens, "{body}");
        let run = server.settled(id);
        assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&"completed".into(), &"complete".into()), "{run:#}");
    }
}

/// Who sends too much and stays has not left: he gets the answer that is due, and then the connection's end.
#[test]
fn too_much_behind_a_request_costs_the_connection_and_not_the_answer() {
    let server = start(&["--body-timeout-ms", "1000"]);
    let descriptors = server.descriptors();
    let mut socket = server.connect();
    socket.write_all(&request("one", 200, 150)).expect("it is taken");
    server.wait_run("one", "decode", |run| run["tokens"]["generated"].as_u64() > Some(0));
    socket.write_all(&request("two", FLOOD / 2, 3)).expect("it is taken");
    let mut lines = BufReader::new(socket);
    let (head, body) = answer(&mut lines);
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body["usage"]["completion_tokens"], 150, "{body}");
    let run = server.settled("one");
    assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&"length".into(), &"complete".into()), "{run:#}");
    assert_eq!(run["phase_at_disconnect"], Value::Null, "{run:#}");
    // The second one was cut off: whatever it is told, no run came of it.
    let mut left = Vec::new();
    let _ = lines.read_to_end(&mut left);
    assert!(!String::from_utf8_lossy(&left).contains("HTTP/1.1 200"), "{left:?}");
    assert_eq!(server.json("GET", "/v1/runs/two").0, 404);
    drop(lines);
    server.wait_descriptors(descriptors);
}

/// HTTP/2 is read all the time: a close is seen behind whatever else was sent.
// field: F-78
#[test]
fn an_http2_close_behind_a_large_request_is_seen() {
    let server = start(&[]);
    let mut http = Http2::over(server.connect());
    let _open = http.chat("run", &chat_body("go", MANY, false));
    server.wait_run("run", "decode", |run| run["tokens"]["generated"].as_u64() > Some(2));
    let _more = http.chat("more", &chat_body(&"x".repeat(FLOOD / 2), 3, false));
    // Its body may still be on its way: what the server then says of it lies unread at the caller, whose close is a reset by that.
    drop(http.close());
    cancelled(&server, "run", &["client_closed", "client_reset"], "decode");
}
