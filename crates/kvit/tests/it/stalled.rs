//! Callers that are there and do not read, against a real engine: each run ends as `client_stalled`, what it computed late is bounded, and
//! every block comes back. How the limits are judged is tested in `gateway`, against a scripted worker.
// contract: C-12, C-15, C-28
// field: F-80

use std::io::Read;

use serde_json::Value;

use crate::http2::Http2;
use crate::server::{Caller, SLOW, Server, chat_body, rest, slow_model};

fn start(unread_max_ms: u32, more: &str) -> Server {
    let unread_max = format!("--unread-max-ms={unread_max_ms}");
    let limits = "--keepalive-comment-ms=300 --send-buffer-bytes=8192 --head-bytes-max=8192 --log=warn";
    let words: Vec<&str> = limits.split(' ').chain([unread_max.as_str()]).chain(SLOW).chain(more.split_whitespace()).collect();
    Server::start(&slow_model(), &words)
}

fn stalled(server: &Server, id: &str) -> Value {
    ended(server, id, "partial")
}

fn ended(server: &Server, id: &str, delivery: &str) -> Value {
    let run = server.settled(id);
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &"client_stalled".into()), "{run:#}");
    assert_eq!((&run["guarantee"], &run["delivery"]), (&"confirmed".into(), &delivery.into()), "{run:#}");
    assert!(run["tokens"]["after_receipt"].as_u64().is_some_and(|n| n <= 1), "{run:#}");
    run
}

#[test]
fn a_caller_with_a_small_buffer_that_stops_reading() {
    let server = start(1000, "--stream-buffer-events 100000");
    let baseline = rest(&server.kv());
    let stream = server.connect();
    socket2::SockRef::from(&stream).set_recv_buffer_size(2048).expect("a small buffer");
    let mut socket = stream.try_clone().expect("a second handle");
    let mut caller = Caller::over(stream, "/v1/chat/completions", "r", &chat_body("go", 6000, true));
    caller.read_tokens(3);
    stalled(&server, "r");
    assert_eq!(rest(&server.kv()), baseline);
    // What was under way can be read, and then it ends without its proper end.
    let mut left = Vec::new();
    let _ = socket.read_to_end(&mut left);
    assert!(!String::from_utf8_lossy(&left).contains("[DONE]"), "{} bytes", left.len());
    assert_eq!(server.run("r")["superseded"], serde_json::json!([]));
}

/// The number of waiting events judges before the time does.
#[test]
fn a_caller_behind_whom_too_much_waits() {
    let server = start(600_000, "--stream-buffer-events 4");
    let baseline = rest(&server.kv());
    let stream = server.connect();
    socket2::SockRef::from(&stream).set_recv_buffer_size(2048).expect("a small buffer");
    let mut caller = Caller::over(stream, "/v1/chat/completions", "r", &chat_body("go", 6000, true));
    caller.read_tokens(3);
    stalled(&server, "r");
    assert_eq!(rest(&server.kv()), baseline);
}

#[test]
fn an_http2_caller_that_does_not_open_its_window() {
    let server = start(1000, "--stream-buffer-events 100000");
    let baseline = rest(&server.kv());
    let mut http = Http2::with_window(server.connect(), 2048);
    let mut unread = http.chat("unread", &chat_body("go", 6000, true));
    http.headers(&mut unread);
    let mut other = http.chat("read", &chat_body("go on", 30, true));
    http.read_until(&mut other, "[DONE]");
    stalled(&server, "unread");
    assert_eq!(server.settled("read")["delivery"], "complete");
    assert_eq!(rest(&server.kv()), baseline);
}

/// A whole answer that nobody reads: it was computed, so it is completed; it is not delivered, and its connection is not kept. It cannot
/// stall earlier: in the queue, in prefill, before the first token and in decode nothing of it is sent.
// contract: C-6
#[test]
fn a_whole_answer_that_is_not_read() {
    // Time enough to make JSON of it.
    let server = start(1500, "");
    let baseline = rest(&server.kv());
    let descriptors = server.descriptors();
    // With its log-probabilities an answer is larger than all buffers on its way.
    let mut body = chat_body("go", 200, false);
    (body["logprobs"], body["top_logprobs"]) = (true.into(), 20.into());
    let stream = server.connect();
    socket2::SockRef::from(&stream).set_recv_buffer_size(2048).expect("a small buffer");
    let mut socket = stream.try_clone().expect("a second handle");
    let caller = Caller::over(stream, "/v1/chat/completions", "r", &body);
    let run = server.settled("r");
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"completed".into(), &"length".into()), "{run:#}");
    assert_eq!((&run["superseded"], &run["delivery"]), (&serde_json::json!(["client_stalled"]), &"partial".into()), "{run:#}");
    assert_eq!((&run["tokens"]["generated"], &run["tokens"]["delivered"]), (&200.into(), &0.into()), "{run:#}");
    assert_eq!(rest(&server.kv()), baseline);
    server.wait_descriptors(descriptors);
    // What was under way can be read, and it is not all that its head announced.
    let mut left = Vec::new();
    let _ = socket.read_to_end(&mut left);
    let text = String::from_utf8_lossy(&left).to_lowercase();
    let length = text.lines().find_map(|l| l.strip_prefix("content-length: ")?.parse::<usize>().ok());
    assert!(length.is_some_and(|n| n > left.len()), "{} bytes came of {length:?}", left.len());
    drop(caller);
}

/// Before the first token a stream has only its head and comments to be left unread, and over HTTP/2 comments that the window does not take
/// are no pieces of an answer: a caller that takes none is not stalled in the queue or in prefill, but as soon as there is something to take.
#[test]
fn an_http2_caller_that_takes_no_comments() {
    let server = start(1000, "--max-running 1");
    let baseline = rest(&server.kv());
    let mut holder = Caller::chat(&server, "holder", &chat_body("go", 6000, true));
    holder.read_tokens(1);
    let mut http = Http2::with_window(server.connect(), 16);
    let mut unread = http.chat("unread", &chat_body("hi", 6000, true));
    http.headers(&mut unread);
    // Somebody beside it reads its own comments, for longer than the limit is.
    let mut beside = Http2::over(server.connect());
    let mut comments = beside.chat("beside", &chat_body("hi", 3, true));
    for _ in 0..6 {
        beside.read_until(&mut comments, ": keepalive");
    }
    let run = server.run("unread");
    assert!(run["state"] == "queued" && run["outcome"].is_null(), "{run:#}");
    assert_eq!(server.json("POST", "/v1/runs/holder/cancel").0, 200);
    let run = ended(&server, "unread", "none");
    assert_eq!((&run["phase_at_disconnect"], &run["tokens"]["delivered"]), (&"decode".into(), &0.into()), "{run:#}");
    beside.read_until(&mut comments, "[DONE]");
    assert_eq!(server.settled("beside")["delivery"], "complete");
    server.settled("holder");
    assert_eq!(rest(&server.kv()), baseline);
    drop(holder);
}

/// Whoever waits in the queue hears that it is waiting.
#[test]
fn a_stream_in_the_queue_gets_comments() {
    let server = start(1000, "--max-running 1");
    let mut holder = Caller::chat(&server, "holder", &chat_body("go", 6000, true));
    holder.read_tokens(1);
    let mut stream = server.connect();
    let mut queued =
        Caller::over(stream.try_clone().expect("a second handle"), "/v1/chat/completions", "queued", &chat_body("hi", 3, true));
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    while text.matches(": keepalive\n\n").count() < 2 {
        let n = stream.read(&mut buffer).expect("comments come");
        assert!(n > 0, "closed: {text}");
        text += &String::from_utf8_lossy(&buffer[..n]);
    }
    let run = server.run("queued");
    assert!(run["state"] == "queued" && run["tokens"]["delivered"] == 0, "{run:#}");
    assert_eq!(server.json("POST", "/v1/runs/holder/cancel").0, 200);
    assert!(!queued.read_tokens(1).is_empty());
    assert_eq!(server.settled("queued")["outcome"]["kind"], "completed");
    drop(holder);
}
