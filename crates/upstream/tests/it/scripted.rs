//! Each way in which an upstream can fail: the error says which, and nothing is left open.
// contract: C-28

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use upstream::client::{Answer, CallError, Client, Lost, NotSent};
use upstream::config::{Secret, UpstreamConfig};
use upstream::sse::{Event, Scanner, SseError};

use crate::script::*;

const CHAT: &str = "/v1/chat/completions";

async fn post(client: &Client) -> Result<Answer, CallError> {
    soon(client.post(CHAT, HeaderMap::new(), Bytes::from_static(b"{\"stream\":true}"))).await
}

/// All that comes of a body, and how it ends.
async fn read(mut answer: Answer) -> (String, Result<(), CallError>) {
    let mut all = Vec::new();
    loop {
        match soon(answer.next()).await {
            Ok(Some(piece)) => all.extend_from_slice(&piece),
            Ok(None) => return (String::from_utf8(all).expect("text"), Ok(())),
            Err(error) => {
                assert_eq!(soon(answer.next()).await, Err(error.clone()), "ever after");
                return (String::from_utf8(all).expect("text"), Err(error));
            }
        }
    }
}

async fn events(mut answer: Answer, line_bytes_max: usize) -> (Vec<Event>, Result<bool, SseError>) {
    let (mut scanner, mut events) = (Scanner::new(line_bytes_max, 1 << 20), Vec::new());
    while let Some(piece) = soon(answer.next()).await.expect("the body") {
        if let Err(error) = scanner.push(piece, &mut events) {
            return (events, Err(error));
        }
    }
    let done = events.last().is_some_and(|event| event.read().done);
    (events, Ok(done))
}

fn lost(why: Lost) -> Option<CallError> {
    Some(CallError::Lost(why))
}

#[tokio::test]
async fn nobody_is_there() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    let client = Client::new(&UpstreamConfig::at(&format!("http://127.0.0.1:{port}")).expect("a URL")).expect("a client");
    let refused = CallError::NotSent(NotSent::NoConnection(io::ErrorKind::ConnectionRefused));
    assert_eq!((post(&client).await.err(), client.open()), (Some(refused), 0));
    let client = Client::new(&UpstreamConfig::at("http://no-such-host.invalid").expect("a URL")).expect("a client");
    assert!(matches!(post(&client).await.err(), Some(CallError::NotSent(NotSent::NoHost(_)))));
}

#[tokio::test]
async fn it_dies_with_the_request_in_its_hands() {
    let upstream = Upstream::always(vec![Step::Request]).await;
    let client = upstream.client(|_| ());
    assert_eq!(post(&client).await.err(), lost(Lost::Closed));
    upstream.all_closed(&client).await;
    assert_eq!(upstream.requests(), 1, "what may have arrived is not sent again");
}

#[tokio::test]
async fn it_hangs_before_the_head() {
    let upstream = Upstream::always(vec![Step::Request, Step::UntilClosed]).await;
    let client = upstream.client(|config| config.head_timeout = Duration::from_millis(100));
    assert_eq!(post(&client).await.err(), lost(Lost::HeadTimeout));
    upstream.all_closed(&client).await;
}

#[tokio::test]
async fn it_hangs_within_the_stream() {
    let upstream = Upstream::always(vec![Step::Request, stream_head(), chunk("data: 1\n\n"), Step::UntilClosed]).await;
    let idle = Duration::from_millis(100);
    let client = upstream.client(|config| config.idle_timeout = idle);
    let (text, end) = read(post(&client).await.expect("a head")).await;
    assert_eq!((text.as_str(), end.err()), ("data: 1\n\n", lost(Lost::IdleTimeout(idle))));
    upstream.all_closed(&client).await;
}

#[tokio::test]
async fn it_speaks_no_http_or_too_much_of_it() {
    for (says, too_large) in
        [("SSH-2.0-OpenSSH_9\r\n".to_owned(), false), (format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20 << 10)), true)]
    {
        let upstream = Upstream::always(vec![Step::Request, send(&says), Step::UntilClosed]).await;
        let client = upstream.client(|config| config.head_bytes_max = 8 << 10);
        match (post(&client).await.err(), too_large) {
            (Some(CallError::Lost(Lost::NotHttp(_))), false) | (Some(CallError::Lost(Lost::HeadTooLarge)), true) => {}
            (other, _) => panic!("{other:?}"),
        }
        upstream.all_closed(&client).await;
    }
    let upstream = Upstream::always(vec![Step::Request, stream_head(), chunk("data: 1\n\n"), send("zz\r\n"), Step::UntilClosed]).await;
    let client = upstream.client(|_| ());
    let (text, end) = read(post(&client).await.expect("a head")).await;
    assert_eq!(text, "data: 1\n\n");
    assert!(matches!(end, Err(CallError::Lost(Lost::NotHttp(_)))), "{end:?}");
    upstream.all_closed(&client).await;
}

#[tokio::test]
async fn half_a_chunk_and_half_a_length() {
    let length = send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata");
    for steps in [vec![Step::Request, stream_head(), send("20\r\ndata")], vec![Step::Request, length]] {
        let upstream = Upstream::always(steps).await;
        let client = upstream.client(|_| ());
        let (text, end) = read(post(&client).await.expect("a head")).await;
        assert_eq!((text.as_str(), end.err()), ("data", lost(Lost::BrokeOff)));
        upstream.all_closed(&client).await;
    }
}

#[tokio::test]
async fn a_500_keeps_its_body_and_its_connection() {
    let error = r#"{"error":{"message":"out of memory","code":500}}"#;
    let answer = [Step::Request, reply("500 Internal Server Error", "application/json", error)];
    let upstream = Upstream::always([answer.clone(), answer].concat().into_iter().chain([Step::UntilClosed]).collect()).await;
    let client = upstream.client(|_| ());
    for _ in 0..2 {
        let answer = post(&client).await.expect("a head");
        assert_eq!((answer.status, answer.content_type.as_deref()), (500, Some("application/json")));
        let body = soon(answer.whole()).await.expect("a body");
        let said = upstream::whole::read(&body).expect("JSON");
        assert_eq!(said.error.map(|e| e.message.into_owned()).as_deref(), Some("out of memory"));
    }
    assert_eq!((upstream.accepted(), client.idle(), client.open()), (1, 1, 1));
    drop(client);
}

#[tokio::test]
async fn an_error_event_within_the_stream() {
    let token = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
    let broken = "data: {\"error\":{\"message\":\"engine died\"}}\n\n";
    let upstream = Upstream::always(vec![Step::Request, stream_head(), chunk(token), chunk(broken), last_chunk(), Step::UntilClosed]).await;
    let client = upstream.client(|_| ());
    let answer = post(&client).await.expect("a head");
    assert!(answer.is_event_stream());
    let (events, end) = events(answer, 1000).await;
    assert_eq!((events[0].read().said.tokens(), end), (1, Ok(false)));
    assert!(events[1].read().said.error.is_some());
    assert_eq!(client.idle(), 1, "it was read to its end");
}

#[tokio::test]
async fn an_endless_line_and_an_endless_answer() {
    let endless =
        || vec![Step::Request, send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"), Step::Endless("xxxxxxxxxxxxxxxx")];
    let upstream = Upstream::always(endless()).await;
    let client = upstream.client(|config| config.answer_bytes_max = 1 << 20);
    let (found, end) = events(post(&client).await.expect("a head"), 4096).await;
    assert_eq!((found, end), (vec![], Err(SseError::Line { max: 4096 })));
    upstream.all_closed(&client).await;
    let (text, end) = read(post(&client).await.expect("a head")).await;
    assert_eq!(end.err(), lost(Lost::TooLong(1 << 20)));
    assert!(text.len() <= 1 << 20);
    upstream.all_closed(&client).await;
}

#[tokio::test]
async fn a_wrong_content_type_a_compressed_body_and_no_bytes() {
    let steps = |n| match n {
        0 => vec![Step::Request, reply("200 OK", "text/html", "<html>")],
        1 => vec![Step::Request, send("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\nabc"), Step::UntilClosed],
        2 => vec![Step::Request, reply("200 OK", "application/json", ""), Step::Request, reply("200 OK", "a/b", "x"), Step::UntilClosed],
        _ => vec![Step::Request, send("")],
    };
    let upstream = Upstream::each(steps).await;
    let client = upstream.client(|config| config.idle_connections_max = 1);
    let answer = post(&client).await.expect("a head");
    assert_eq!((answer.is_event_stream(), answer.content_type.as_deref()), (false, Some("text/html")));
    drop(answer);
    assert_eq!(post(&client).await.err(), lost(Lost::Encoded));
    assert_eq!(soon(post(&client).await.expect("a head").whole()).await, Ok(Bytes::new()));
    assert_eq!(soon(post(&client).await.expect("the same connection").whole()).await, Ok(Bytes::from_static(b"x")));
    assert_eq!(upstream.accepted(), 3);
    let held = client.idle();
    assert_eq!(held, 1);
}

#[tokio::test]
async fn a_slow_drip_is_no_hang() {
    let stream = "HTTP/1.1 200 OK\r\ncontent-length: 25\r\n\r\ndata: a\r\n\r\ndata: [DONE]\n\n";
    let upstream = Upstream::always(vec![Step::Request, Step::Drip(stream, Duration::from_millis(30)), Step::UntilClosed]).await;
    // Less than all of it takes, more than any one byte.
    let client = upstream.client(|config| config.idle_timeout = Duration::from_secs(1));
    let (events, end) = events(post(&client).await.expect("a head"), 100).await;
    assert_eq!((events.len(), end), (2, Ok(true)));
    assert_eq!(events[0].data.as_deref(), Some(&b"a"[..]));
}

#[tokio::test]
async fn an_end_without_done_is_seen_as_one() {
    let head = send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n");
    let upstream = Upstream::always(vec![Step::Request, head, send("data: {\"choices\":[]}\n\ndata: {\"cho")]).await;
    let client = upstream.client(|_| ());
    let mut answer = post(&client).await.expect("a head");
    let (mut scanner, mut events) = (Scanner::new(100, 100), Vec::new());
    while let Some(piece) = soon(answer.next()).await.expect("an end that is no error of the connection") {
        scanner.push(piece, &mut events).expect("events");
    }
    assert_eq!((events.len(), events[0].read().done), (1, false));
    assert_eq!(scanner.finish(), (None, Bytes::from_static(b"data: {\"cho")));
    upstream.all_closed(&client).await;
    assert_eq!(client.idle(), 0, "its end was the connection's");
}

#[tokio::test]
async fn a_connection_that_was_closed_between_two_requests_is_replaced() {
    let upstream = Upstream::always(vec![Step::Request, reply("200 OK", "a/b", "x")]).await;
    let client = upstream.client(|_| ());
    for n in 1..=20 {
        assert_eq!(soon(post(&client).await.expect("a head").whole()).await, Ok(Bytes::from_static(b"x")));
        // Until the upstream has closed: then the kernel knows, whoever else does.
        while upstream.counts.open.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!((upstream.accepted(), upstream.requests()), (n, n), "each was sent once");
    }
}

#[tokio::test]
async fn what_is_sent_and_what_is_passed_on() {
    let head = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\nset-cookie: a=b\r\nx-ratelimit-limit-requests: 9\r\n\
        connection: keep-alive\r\ncontent-length: 0\r\n\r\n";
    let upstream = Upstream::always(vec![Step::Request, send(head), Step::UntilClosed]).await;
    let mut config = UpstreamConfig::at(&format!("{}/openai/v1", upstream.url())).expect("a URL");
    config.api_key = Some(Secret::new("sk-ours"));
    let client = Client::new(&config).expect("a client");
    let mut headers = HeaderMap::new();
    for (name, value) in
        [("authorization", "Bearer theirs"), ("connection", "upgrade"), ("accept-encoding", "gzip"), ("x-request-id", "r1")]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let answer = soon(client.post(CHAT, headers, Bytes::from_static(b"{}"))).await.expect("a head");
    let passed: Vec<_> = answer.headers.keys().map(|name| name.as_str().to_owned()).collect();
    assert_eq!((answer.status, passed), (429, vec!["retry-after".to_owned(), "x-ratelimit-limit-requests".to_owned()]));
    let sent = upstream.counts.requests.lock().expect("counts")[0].clone();
    assert!(sent.starts_with("POST /openai/v1/chat/completions HTTP/1.1\r\n") && sent.ends_with("\r\n\r\n{}"), "{sent}");
    for line in ["authorization: Bearer sk-ours", "x-request-id: r1", "content-length: 2", &format!("host: {}", upstream.addr)] {
        assert!(sent.lines().any(|l| l == line), "{line} in {sent}");
    }
    assert!(!sent.contains("theirs") && !sent.contains("gzip") && !sent.contains("upgrade"), "{sent}");
}

// field: F-01
#[tokio::test]
async fn whoever_drops_an_answer_closes_its_connection_at_once() {
    let upstream = Upstream::always(vec![Step::Request, stream_head(), chunk("data: 1\n\n"), Step::UntilClosed]).await;
    let client = upstream.client(|_| ());
    let mut answer = post(&client).await.expect("a head");
    assert_eq!(soon(answer.next()).await, Ok(Some(Bytes::from_static(b"data: 1\n\n"))));
    assert_eq!(client.open(), 1);
    drop(answer);
    assert_eq!(client.open(), 0, "with the drop, not after it");
    upstream.all_closed(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_that_leave_at_any_moment_leave_nothing_open() {
    let upstream = Upstream::always(vec![
        Step::Request,
        Step::Drip("HTTP/1.1 200 OK\r\n\r\ndata: 1\n\n", Duration::from_millis(1)),
        Step::UntilClosed,
    ])
    .await;
    let client = upstream.client(|_| ());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..300 {
        let client = client.clone();
        callers.spawn(async move {
            let call = async {
                let mut answer = client.post(CHAT, HeaderMap::new(), Bytes::from_static(b"{}")).await.expect("a head");
                while answer.next().await.expect("a body").is_some() {}
            };
            tokio::time::timeout(Duration::from_millis(n / 3), call).await.expect_err("it never ends by itself");
        });
    }
    while let Some(caller) = soon(callers.join_next()).await {
        caller.expect("no panic");
    }
    assert_eq!((client.open(), client.idle()), (0, 0));
    upstream.all_closed(&client).await;
}

#[tokio::test]
async fn idle_connections_are_few_and_not_kept() {
    let upstream = Upstream::always(vec![Step::Request, reply("200 OK", "a/b", "x"), Step::UntilClosed]).await;
    let client = upstream.client(|config| (config.idle_connections_max, config.idle_keep) = (2, Duration::from_millis(200)));
    let mut answers = Vec::new();
    for _ in 0..5 {
        answers.push(post(&client).await.expect("a head"));
    }
    for answer in answers {
        soon(answer.whole()).await.expect("a body");
    }
    assert_eq!((upstream.accepted(), client.idle()), (5, 2));
    upstream.all_closed(&client).await;
    assert_eq!(client.idle(), 0);
}

#[tokio::test]
async fn a_connection_is_used_again_by_the_runtime_that_it_wakes() {
    let answer = [Step::Request, reply("200 OK", "a/b", "x")];
    let upstream =
        Upstream::always([answer.clone(), answer.clone(), answer].concat().into_iter().chain([Step::UntilClosed]).collect()).await;
    let client = upstream.client(|config| config.idle_connections_max = 1);
    let ask = async |client: &Client| soon(post(client).await.expect("a head").whole()).await.expect("a body");
    ask(&client).await;
    let (accepted, elsewhere) = (upstream.accepted(), client.clone());
    let there = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            for _ in 0..2 {
                soon(post(&elsewhere).await.expect("a head").whole()).await.expect("a body");
            }
        });
    });
    tokio::task::spawn_blocking(|| there.join().expect("it asked")).await.expect("it was waited for");
    // One for both requests of the other, in the place of the first, which had waited longest.
    assert_eq!((accepted, upstream.accepted(), client.idle()), (1, 2, 1));
    ask(&client).await;
    assert_eq!(upstream.accepted(), 3);
}
