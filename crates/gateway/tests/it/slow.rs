//! Callers that are there and do not read: bounded buffers, bounded time.
// contract: C-28
// field: F-80

use lifecycle::message::Down;
use lifecycle::{Cause, Outcome};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::simulated::{Stand, soon, stand};
use crate::wire::{chat_request, ms, read_until, send};

fn config() -> gateway::GatewayConfig {
    gateway::GatewayConfig { stream_buffer_events: 8, send_buffer_bytes: 4096, head_bytes_max: 8192, ..Default::default() }
}

/// Sends text until the gateway has had enough; the attempt's cancel.
async fn flood(stand: &mut Stand, attempt: &lifecycle::AttemptId) -> Cause {
    let text = "x".repeat(16 << 10);
    for _ in 0..10_000 {
        stand.worker.token(attempt, &text).await;
        if let Some(message) = stand.worker.try_next() {
            let Down::Cancel { cause, .. } = message else { panic!("a cancel was expected: {message:?}") };
            return cause;
        }
        tokio::task::yield_now().await;
    }
    panic!("160 MB went nowhere");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_buffer_ends_the_run_and_closes_the_connection() {
    let mut stand = stand(config()).await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    assert_eq!(flood(&mut stand, &attempt).await, Cause::ClientStalled);
    stand.worker.end(&attempt, Outcome::of(Cause::ClientStalled), 9).await;
    let run = stand.settled("r1").await;
    assert_eq!(run["outcome"]["cause"], "client_stalled");
    assert_ne!(run["delivery"], "complete");
    // What was sent before is still there; then the stream ends without looking complete.
    let mut rest = Vec::new();
    let _ = soon("the end of the connection", socket.read_to_end(&mut rest)).await;
    assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
}

/// Too little to fill the buffer, but nobody reads it: time runs out instead.
#[tokio::test(flavor = "multi_thread")]
async fn an_unread_answer_is_not_kept_for_ever() {
    let mut stand = stand(gateway::GatewayConfig { unread_max: ms(100), stream_buffer_events: 1000, ..config() }).await;
    let socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    let text = "x".repeat(256 << 10);
    let mut deltas: Vec<_> = (0..64).map(|_| stand.worker.delta(&attempt, 0, &text, &[1], None)).collect();
    deltas.push(stand.worker.delta(&attempt, 0, "", &[], Some(Cause::Length)));
    stand.worker.step(deltas).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Length), 64).await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["superseded"]), (&"completed".into(), &serde_json::json!(["client_stalled"])));
    assert_ne!(run["delivery"], "complete");
    drop(socket);
}

/// A long silence of the worker is not the reader's fault.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_first_token_is_no_stall() {
    let mut stand = stand(gateway::GatewayConfig { unread_max: ms(20), ..Default::default() }).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    // Not an assertion: this only lets more than `unread_max` go by.
    tokio::time::sleep(ms(100)).await;
    for _ in 0..100 {
        stand.worker.token(&attempt, "x").await;
    }
    let last = stand.worker.delta(&attempt, 0, "", &[], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 100).await;
    let reply = crate::wire::read_reply(&mut socket).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "x".repeat(100));
    assert_eq!(stand.settled("r1").await["delivery"], "complete");
}

/// Who connects and says nothing is not kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed() {
    let stand = stand(gateway::GatewayConfig { header_timeout: ms(30), ..Default::default() }).await;
    for beginning in ["", "GET /v1/mod", "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"] {
        let mut socket = send(stand.addr, beginning).await;
        let mut rest = Vec::new();
        let _ = soon("the connection is closed", socket.read_to_end(&mut rest)).await;
    }
}

/// Who is silent between two requests has a time of its own, and one whose answer takes longer than that has not been silent.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_kept_for_a_while_and_then_closed() {
    let config = gateway::GatewayConfig { header_timeout: ms(60), keep_alive_idle: ms(700), ..Default::default() };
    let mut stand = stand(config).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    // Not an assertion: this only lets more than both limits go by.
    tokio::time::sleep(ms(1000)).await;
    let last = stand.worker.delta(&attempt, 0, "x", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert_eq!(crate::wire::read_reply(&mut socket).await.json()["choices"][0]["message"]["content"], "x");
    // Longer than a head may take, and shorter than an idle connection is kept.
    tokio::time::sleep(ms(150)).await;
    socket.write_all(b"GET /health/live HTTP/1.1\r\nHost: t\r\n\r\n").await.expect("it is open");
    assert_eq!(crate::wire::read_reply(&mut socket).await.status, 200);
    let mut rest = Vec::new();
    soon("the connection is closed", socket.read_to_end(&mut rest)).await.expect("in good order");
    assert!(rest.is_empty());
}

/// A caller with a receive buffer of its own size, or with its system's.
async fn with_buffer(stand: &Stand, bytes: Option<u32>, text: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    if let Some(bytes) = bytes {
        socket.set_recv_buffer_size(bytes).expect("SO_RCVBUF");
    }
    let mut stream = soon("a connection", socket.connect(stand.addr)).await.expect("connect");
    soon("sending", stream.write_all(text.as_bytes())).await.expect("sent");
    stream
}

/// Nobody judges by the number of events here.
fn by_time() -> gateway::GatewayConfig {
    gateway::GatewayConfig { unread_max: ms(300), stream_buffer_events: 1_000_000, ..Default::default() }
}

/// Sends small pieces until the attempt is cancelled: how many there were.
async fn trickle(stand: &mut Stand, attempt: &lifecycle::AttemptId, piece: &str) -> (u64, Cause) {
    for n in 1..1_000_000 {
        stand.worker.token(attempt, piece).await;
        match stand.worker.try_next() {
            Some(Down::Cancel { cause, .. }) => return (n, cause),
            Some(message) => panic!("a cancel was expected: {message:?}"),
            None if n % 64 == 0 => tokio::time::sleep(ms(1)).await,
            None => {}
        }
    }
    panic!("a million pieces went nowhere");
}

/// The largest receive buffer that this system gives a connection by itself.
fn largest_receive_buffer() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").expect("Linux says it");
    text.split_whitespace().last().and_then(|n| n.parse().ok()).expect("three numbers")
}

/// What a caller swallows before anybody can notice that its program reads nothing: its own receive buffer, which is its own business, and
/// what waits here: the send buffer and hyper's.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_stops_reading_is_stalled_when_its_buffer_is_full() {
    for buffer in [Some(4096), None] {
        let config = by_time();
        let here = 2 * config.send_buffer_bytes as u64 + 2 * config.head_bytes_max as u64;
        let mut stand = stand(config).await;
        let mut socket = with_buffer(&stand, buffer, &chat_request("r1", r#","stream":true"#)).await;
        let attempt = stand.worker.accept().await.attempt;
        read_until(&mut socket, "assistant").await;
        let (pieces, cause) = trickle(&mut stand, &attempt, &"x".repeat(1000)).await;
        assert_eq!(cause, Cause::ClientStalled);
        stand.worker.end(&attempt, Outcome::of(Cause::ClientStalled), pieces as u32).await;
        let run = stand.settled("r1").await;
        assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&"client_stalled".into(), &"partial".into()));
        let mut rest = Vec::new();
        let _ = soon("the end of the connection", socket.read_to_end(&mut rest)).await;
        println!("receive buffer {buffer:?}: {} bytes swallowed or under way, {pieces} pieces of 1,000", rest.len());
        assert!(!String::from_utf8_lossy(&rest).contains("[DONE]"));
        // The kernel doubles what is asked for and gives no less than a few kilobytes.
        let theirs = buffer.map_or(largest_receive_buffer(), |bytes| 4 * u64::from(bytes));
        assert!((rest.len() as u64) <= here + theirs, "{} bytes were swallowed, at most {} can be", rest.len(), here + theirs);
    }
}

/// A whole answer that nobody reads: it was computed, so it is completed; it is not delivered, and neither it nor its connection is kept.
// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_that_nobody_reads_is_not_complete() {
    // Time enough to make JSON of it.
    let mut stand = stand(gateway::GatewayConfig { send_buffer_bytes: 16 << 10, unread_max: ms(1500), ..by_time() }).await;
    let mut socket = with_buffer(&stand, Some(4096), &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    let last = stand.worker.delta(&attempt, 0, &"x".repeat(512 << 10), &[1], Some(Cause::Length));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Length), 1).await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&"completed".into(), &"partial".into()));
    assert_eq!((&run["tokens"]["delivered"], &run["superseded"]), (&0.into(), &serde_json::json!(["client_stalled"])));
    let mut rest = Vec::new();
    let _ = soon("the end of the connection", socket.read_to_end(&mut rest)).await;
    assert!(rest.len() < 256 << 10, "{} bytes were kept for nobody", rest.len());
}

/// Its last bytes wait in the kernel, the run is long settled: the connection is not kept either.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_last_bytes_nobody_reads_is_closed() {
    // No other limit closes it.
    let mut stand = stand(gateway::GatewayConfig { header_timeout: std::time::Duration::from_secs(3600), ..by_time() }).await;
    let mut socket = with_buffer(&stand, Some(4096), &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    // Less than hyper and the kernel take.
    let last = stand.worker.delta(&attempt, 0, &"x".repeat(48 << 10), &[1], Some(Cause::Length));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Length), 1).await;
    assert_eq!(stand.settled("r1").await["delivery"], "complete");
    // Not an assertion: this only lets more than `unread_max` go by. The bytes that were sent can still be read, and then the end.
    tokio::time::sleep(ms(900)).await;
    let mut rest = Vec::new();
    let _ = soon("the end of the connection", socket.read_to_end(&mut rest)).await;
}

/// Whoever reads slowly, a little at a time and for many times the limit, is a reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_is_no_stall() {
    let mut stand = stand(gateway::GatewayConfig { send_buffer_bytes: 4096, head_bytes_max: 8192, ..by_time() }).await;
    let mut socket = with_buffer(&stand, Some(4096), &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    for n in 0..200 {
        stand.worker.token(&attempt, &format!("{n} {}", "x".repeat(1000))).await;
    }
    let last = stand.worker.delta(&attempt, 0, "", &[], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 200).await;
    let mut text = Vec::new();
    let mut buffer = [0; 8192];
    while !text.ends_with(b"0\r\n\r\n") {
        let n = soon("more", socket.read(&mut buffer)).await.expect("read");
        assert!(n > 0, "closed although it was read: {} bytes", text.len());
        text.extend_from_slice(&buffer[..n]);
        tokio::time::sleep(ms(40)).await;
    }
    assert!(String::from_utf8_lossy(&text).contains("[DONE]"));
    assert_eq!(stand.settled("r1").await["delivery"], "complete");
}
