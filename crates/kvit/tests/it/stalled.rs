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
    let run = server.settled(id);
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &"client_stalled".into()), "{run:#}");
    assert_eq!((&run["guarantee"], &run["delivery"]), (&"confirmed".into(), &"partial".into()), "{run:#}");
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
