//! Callers that are there and do not read: bounded buffers, bounded time.
// contract: C-28
// field: F-80

use lifecycle::message::Down;
use lifecycle::{Cause, Outcome};
use tokio::io::AsyncReadExt;

use crate::simulated::{Stand, soon, stand};
use crate::wire::{chat_request, ms, send};

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
