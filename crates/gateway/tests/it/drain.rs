//! Shutdown: live runs may end, and can be watched and cancelled meanwhile; the rest is cancelled, everything settles.
// contract: C-28

use gateway::GatewayError;
use lifecycle::{Cause, Outcome};

use crate::simulated::{SOON, soon, stand};
use crate::wire::{ask, cancel, chat, chat_request, get, ms, read_reply, read_until, request_text, send};

#[tokio::test(flavor = "multi_thread")]
async fn live_runs_end_and_new_ones_are_refused() {
    let mut stand = stand(gateway::GatewayConfig::default()).await;
    let mut idle = send(stand.addr, &request_text("GET", "/health/ready", "", "")).await;
    let ready = read_reply(&mut idle).await;
    assert_eq!((ready.status, ready.header("connection")), (200, None));
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.stop.take().expect("once").send(()).expect("it serves");
    soon("the shutdown is seen", async { while get(stand.addr, "/health/ready").await.status == 200 {} }).await;
    // A connection that was open before is answered, and then closed; so is a new one.
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    idle.write_all(request_text("POST", "/v1/completions", "", r#"{"prompt":"x"}"#).as_bytes()).await.expect("sent");
    let mut replies = vec![read_reply(&mut idle).await];
    assert_eq!(soon("the connection is closed", idle.read(&mut [0])).await.expect("in good order"), 0);
    for extra in ["", r#","stream":true"#] {
        replies.push(ask(stand.addr, "POST", "/v1/chat/completions", "", &chat(extra)).await);
    }
    replies.push(get(stand.addr, "/health/ready").await);
    for reply in replies {
        let (status, kind, _, code) = reply.error();
        assert_eq!((status, kind, code), (503, "server_error".into(), "shutting_down".into()));
        assert_eq!(reply.header("connection").as_deref(), Some("close"));
        assert!(reply.header("retry-after").is_some() && reply.header("x-request-id").is_some());
    }
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);
    let seen = get(stand.addr, "/v1/runs/r1").await;
    assert_eq!((seen.status, &seen.json()["settled"]), (200, &false.into()));
    assert!(stand.worker.try_next().is_none(), "nothing of what was refused reached the worker");
    let last = stand.worker.delta(&attempt, 0, "to the end", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert!(read_until(&mut socket, "[DONE]").await.contains("to the end"));
    drop((socket, idle));
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
    assert_eq!(serde_json::to_value(stand.journal.run(&crate::simulated::key("r1"))).expect("JSON")["delivery"], "complete");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_cancelled_by_name_in_the_drain() {
    let mut stand = stand(gateway::GatewayConfig { drain: SOON * 10, ..Default::default() }).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.stop.take().expect("once").send(()).expect("it serves");
    soon("the shutdown is seen", async { while get(stand.addr, "/health/ready").await.status == 200 {} }).await;
    let addr = stand.addr;
    let cancelled = tokio::spawn(async move { cancel(addr, "r1", 10_000).await });
    assert_eq!(stand.worker.obey(&attempt).await, Cause::CancelRequested);
    assert_eq!(soon("the answer", cancelled).await.expect("joined").json()["released"], true);
    assert_eq!(read_reply(&mut socket).await.error().3, "cancel_requested");
    drop(socket);
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
}

/// The drain's time is over, or somebody no longer waits for it: the same end.
#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_is_cancelled_and_told() {
    for (drain, hurried) in [(ms(10), false), (SOON * 10, true)] {
        cancelled_and_told(drain, hurried).await;
    }
}

async fn cancelled_and_told(drain: std::time::Duration, hurried: bool) {
    let mut stand = stand(gateway::GatewayConfig { drain, ..Default::default() }).await;
    let mut streamed = send(stand.addr, &chat_request("s", r#","stream":true"#)).await;
    let one = stand.worker.accept().await.attempt;
    let mut whole = send(stand.addr, &chat_request("w", "")).await;
    let two = stand.worker.accept().await.attempt;
    read_until(&mut streamed, "assistant").await;
    stand.stop.take().expect("once").send(()).expect("it serves");
    if hurried {
        soon("the shutdown is seen", async { while get(stand.addr, "/health/ready").await.status == 200 {} }).await;
        assert!(stand.worker.try_next().is_none(), "the drain has time");
        stand.hurry.take().expect("once").send(()).expect("it serves");
    }
    for _ in [&one, &two] {
        let lifecycle::message::Down::Cancel { attempt, cause, .. } = stand.worker.next().await else { panic!("a cancel was expected") };
        assert_eq!(cause, Cause::Shutdown);
        stand.worker.end(&attempt, Outcome::of(cause), 0).await;
    }
    let rest = read_until(&mut streamed, "\r\n0\r\n\r\n").await;
    assert!(rest.contains(r#""code":"shutdown""#) && !rest.contains("[DONE]"));
    assert_eq!(read_reply(&mut whole).await.error().3, "shutdown");
    for id in ["s", "w"] {
        assert_eq!(stand.settled(id).await["outcome"]["cause"], "shutdown");
    }
    drop((streamed, whole));
    assert!(soon("serve returns", stand.served).await.expect("joined").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_settle_is_said() {
    let config = gateway::GatewayConfig { drain: ms(5), settle: ms(30), answer_grace: ms(5), ..Default::default() };
    let mut stand = stand(config).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    stand.worker.accept().await;
    stand.stop.take().expect("once").send(()).expect("it serves");
    assert_eq!(read_reply(&mut socket).await.error().3, "shutdown");
    drop(socket);
    let result = soon("serve returns", stand.served).await.expect("joined");
    assert!(matches!(result, Err(GatewayError::Unsettled { runs: 1 })), "{result:?}");
}
