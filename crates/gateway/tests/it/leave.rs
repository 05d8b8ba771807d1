//! The caller leaves: in every phase, by close and by reset, whatever hyper is doing. Each time the worker is told at once.
// contract: C-6 C-8 C-12 C-13 C-24
// field: F-01 F-03 F-05 F-13 F-17 F-21 F-22 F-68

use lifecycle::event::Event;
use lifecycle::{Cause, Outcome};
use tokio::io::AsyncWriteExt;

use crate::simulated::{Stand, default_stand, stand};
use crate::wire::{Leave, ask, chat, chat_request, get, ms, read_reply, read_until, send};

/// What holds after every disconnect that was seen while the run was live.
async fn check(stand: &Stand, id: &str, cause: &str, delivery: &str) {
    let run = stand.settled(id).await;
    assert_eq!((&run["outcome"]["kind"], &run["outcome"]["cause"]), (&"cancelled".into(), &cause.into()));
    assert_eq!((&run["delivery"], &run["released"], &run["superseded"]), (&delivery.into(), &true.into(), &serde_json::json!([])));
    let m = &run["milestones"];
    assert!(m["disconnect_observed"].is_number() && m["cancel_sent"].is_number() && m["cancel_acknowledged"].is_number(), "{m}");
    for once in ["abandonment", "outcome", "delivery", "settled", "acknowledged"] {
        let count = stand.count(id, |event| match event {
            Event::AbandonmentObserved { .. } => once == "abandonment",
            Event::OutcomeSet { .. } => once == "outcome",
            Event::DeliveryEnded { .. } => once == "delivery",
            Event::Settled { .. } => once == "settled",
            Event::CancelAcknowledged => once == "acknowledged",
            _ => false,
        });
        assert_eq!(count, 1, "{once}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_headers() {
    for (leave, cause) in Leave::BOTH {
        for stream in ["true", "false"] {
            let mut stand = default_stand().await;
            let socket = send(stand.addr, &chat_request("r1", &format!(r#","stream":{stream}"#))).await;
            let submit = stand.worker.submit().await;
            leave.now(socket);
            assert_eq!(stand.worker.obey(&submit.attempt).await.as_str(), cause);
            check(&stand, "r1", cause, "none").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_mid_stream() {
    for (leave, cause) in Leave::BOTH {
        let mut stand = default_stand().await;
        let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "first").await;
        read_until(&mut socket, "first").await;
        leave.now(socket);
        assert_eq!(stand.worker.obey(&attempt).await.as_str(), cause);
        check(&stand, "r1", cause, "partial").await;
        assert_eq!(stand.run("r1")["tokens"]["delivered"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_whole_answer_grows() {
    for (leave, cause) in Leave::BOTH {
        let mut stand = default_stand().await;
        let socket = send(stand.addr, &chat_request("r1", "")).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "never seen").await;
        leave.now(socket);
        assert_eq!(stand.worker.obey(&attempt).await.as_str(), cause);
        check(&stand, "r1", cause, "none").await;
    }
}

/// hyper stops reading with a request in hand and bytes in its buffer: only the watcher can see the end behind them.
#[tokio::test(flavor = "multi_thread")]
async fn behind_unread_bytes() {
    for (leave, cause) in Leave::BOTH {
        for stream in ["true", "false"] {
            let mut stand = default_stand().await;
            let mut socket = send(stand.addr, &chat_request("r1", &format!(r#","stream":{stream}"#))).await;
            let attempt = stand.worker.accept().await.attempt;
            if stream == "true" {
                // A close with something unread would be a reset.
                read_until(&mut socket, "assistant").await;
            }
            let more = chat_request("r2", &format!(r#","user":"{}""#, "x".repeat(30_000))).repeat(3);
            socket.write_all(more.as_bytes()).await.expect("the kernel's buffers take it");
            leave.now(socket);
            assert_eq!(stand.worker.obey(&attempt).await.as_str(), cause);
            check(&stand, "r1", cause, "none").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_close_is_leaving_unless_it_is_allowed() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    socket.shutdown().await.expect("shutdown");
    assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientClosed);
    check(&stand, "r1", "client_closed", "none").await;

    let mut stand = crate::simulated::stand(gateway::GatewayConfig { allow_half_close: true, ..Default::default() }).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    socket.shutdown().await.expect("shutdown");
    let last = stand.worker.delta(&attempt, 0, "still here", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert_eq!(read_reply(&mut socket).await.json()["choices"][0]["message"]["content"], "still here");
    assert_eq!(stand.settled("r1").await["delivery"], "complete");
}

/// A reset is seen even after a half close that is allowed.
#[tokio::test(flavor = "multi_thread")]
async fn reset_after_an_allowed_half_close() {
    let mut stand = stand(gateway::GatewayConfig { allow_half_close: true, ..Default::default() }).await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    socket.shutdown().await.expect("shutdown");
    Leave::Reset.now(socket);
    assert_eq!(stand.worker.obey(&attempt).await, Cause::ClientReset);
    check(&stand, "r1", "client_reset", "none").await;
}

/// The caller sends and is gone in the same moment: whatever of it became a run is ended and released.
// field: F-22
#[tokio::test(flavor = "multi_thread")]
async fn in_the_moment_of_asking() {
    // Its worker obeys every cancel as if it were the first, so there must be one a run, however long the callers take.
    let stand = stand(gateway::GatewayConfig { cancel_repeat: crate::simulated::SOON, ..Default::default() }).await;
    for round in 0..50 {
        let leave = if round % 2 == 0 { Leave::Close } else { Leave::Reset };
        leave.now(send(stand.addr, &chat_request(&format!("gone-{round}"), r#","stream":true"#)).await);
    }
    let Stand { addr, journal, worker, stop: _stop, hurry: _hurry, served: _served } = stand;
    let worker = tokio::spawn(worker.obey_everything());
    // A caller that is answered was accepted after those before it: by then hyper has looked at all of them.
    assert_eq!(get(addr, "/v1/models").await.status, 200);
    let known = |id: &str| journal.run(&crate::simulated::key(id));
    crate::simulated::soon("every run that began has ended", async {
        loop {
            let over = |id: &str| known(id).is_none_or(|run| run.settled && run.outcome.is_some_and(|o| o.kind == "cancelled"));
            if (0..50).all(|round| over(&format!("gone-{round}"))) {
                break;
            }
            tokio::time::sleep(ms(2)).await;
        }
    })
    .await;
    assert_eq!(journal.defects(), 0);
    worker.abort();
}

/// The end had come before the caller left: the outcome stands, the delivery says what it got.
#[tokio::test(flavor = "multi_thread")]
async fn after_the_end_but_before_the_release() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    let usage = Default::default();
    let last = stand.worker.delta(&attempt, 0, "all", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.say(lifecycle::message::Up::Ended { attempt: attempt.clone(), outcome: Outcome::of(Cause::Stop), usage }).await;
    read_until(&mut socket, "[DONE]").await;
    Leave::Close.now(socket);
    stand.worker.release(&attempt).await;
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&"stop".into(), &"complete".into()));
}

/// C-9: an unheard cancel is sent again, by a driver that outlives handler, body and connection.
// contract: C-9
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_repeated_until_the_release() {
    let mut stand = stand(gateway::GatewayConfig { cancel_repeat: ms(5), cancel_repeat_max: ms(20), ..Default::default() }).await;
    let socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    Leave::Reset.now(socket);
    for _ in 0..4 {
        assert_eq!(stand.worker.cancelled(&attempt).await, Cause::ClientReset);
    }
    // Acknowledged is not released: it goes on.
    stand.worker.say(lifecycle::message::Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(Cause::ClientReset) }).await;
    for _ in 0..2 {
        stand.worker.cancelled(&attempt).await;
    }
    stand.worker.end(&attempt, Outcome::of(Cause::ClientReset), 0).await;
    stand.settled("r1").await;
    assert!(stand.count("r1", |e| matches!(e, Event::CancelSent { .. })) >= 6);
    assert_eq!(stand.count("r1", |e| matches!(e, Event::AbandonmentObserved { .. })), 1);
}

/// One HTTP/2 stream is reset; the connection and the other run on it go on.
// contract: C-14
#[tokio::test(flavor = "multi_thread")]
async fn one_stream_of_a_connection() {
    let mut stand = default_stand().await;
    let tcp = tokio::net::TcpStream::connect(stand.addr).await.expect("connect");
    let (client, connection) = h2::client::handshake(tcp).await.expect("handshake");
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.expect("ready");
    let mut open = async |id: &str, stream: bool| {
        let request = http::Request::post("http://test/v1/chat/completions").header("x-request-id", id).body(()).expect("a request");
        let (response, mut body) = client.send_request(request, false).expect("sent");
        body.send_data(chat(&format!(r#","stream":{stream}"#)).into(), true).expect("sent");
        (response, body)
    };
    let (first, mut first_body) = open("a", true).await;
    let one = stand.worker.accept().await.attempt;
    let (second, _second_body) = open("b", true).await;
    let two = stand.worker.accept().await.attempt;
    let first = first.await.expect("headers");
    let second = second.await.expect("headers");
    first_body.send_reset(h2::Reason::CANCEL);
    assert_eq!(stand.worker.obey(&one).await, Cause::ClientReset);
    check(&stand, "a", "client_reset", "none").await;
    // And one that has no headers yet.
    let (third, mut third_body) = open("c", false).await;
    let three = stand.worker.submit().await.attempt;
    third_body.send_reset(h2::Reason::CANCEL);
    assert_eq!(stand.worker.obey(&three).await, Cause::ClientReset);
    check(&stand, "c", "client_reset", "none").await;
    let last = stand.worker.delta(&two, 0, "untouched", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&two, Outcome::of(Cause::Stop), 1).await;
    let mut body = second.into_body();
    let mut text = Vec::new();
    while let Some(chunk) = crate::simulated::soon("a chunk", body.data()).await {
        text.extend_from_slice(&chunk.expect("data"));
    }
    assert!(String::from_utf8_lossy(&text).contains("untouched") && text.ends_with(b"data: [DONE]\n\n"));
    assert_eq!(stand.settled("b").await["delivery"], "complete");
    drop((first, third, client));
    driver.abort();
}

/// n answers are one attempt: one cancel, one release.
// contract: C-31
// field: F-68
#[tokio::test(flavor = "multi_thread")]
async fn with_several_answers() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true,"n":2"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    let deltas = vec![stand.worker.delta(&attempt, 0, "left", &[1], None), stand.worker.delta(&attempt, 1, "right", &[2], None)];
    stand.worker.step(deltas).await;
    read_until(&mut socket, "right").await;
    Leave::Close.now(socket);
    stand.worker.obey(&attempt).await;
    check(&stand, "r1", "client_closed", "partial").await;
    assert_eq!(stand.run("r1")["tokens"]["delivered"], 2);
}

/// A caller whose body never comes whole is no run.
#[tokio::test(flavor = "multi_thread")]
async fn in_mid_body() {
    let stand = default_stand().await;
    let text = chat_request("r1", "");
    Leave::Close.now(send(stand.addr, &text[..text.len() - 5]).await);
    let reply = ask(stand.addr, "GET", "/v1/runs/r1", "", "").await;
    assert_eq!(reply.error().3, "run_not_found");
}
