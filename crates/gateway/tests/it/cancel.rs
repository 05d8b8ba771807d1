//! Cancel by name, deadlines, rejections, a lost worker: how each end looks to the caller and to whoever asks.
// contract: C-4 C-5 C-7 C-8 C-20 C-22

use lifecycle::event::Event;
use lifecycle::message::{Down, Up, Usage};
use lifecycle::{Cause, Outcome};

use crate::simulated::{SOON, WORKER, default_stand, soon, stand};
use crate::wire::{ask, cancel, chat, chat_request, get, ms, read_reply, read_until, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_by_name_once_twice_and_after_the_end() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "first").await;
    read_until(&mut socket, "first").await;
    // Without a wait the answer is what is true now.
    let reply = cancel(stand.addr, "r1", 0).await;
    assert_eq!((reply.status, &reply.json()["state"], &reply.json()["released"]), (200, &"stopping".into(), &false.into()));
    assert_eq!(stand.worker.cancelled(&attempt).await, Cause::CancelRequested);
    // The second one waits for the release, and changes nothing.
    let addr = stand.addr;
    let second = tokio::spawn(async move { cancel(addr, "r1", 60_000).await });
    stand.worker.end(&attempt, Outcome::of(Cause::CancelRequested), 1).await;
    let reply = soon("the second answer", second).await.expect("joined");
    assert_eq!((reply.status, &reply.json()["released"], &reply.json()["id"]), (200, &true.into(), &"r1".into()));
    let rest = read_until(&mut socket, "\r\n0\r\n\r\n").await;
    assert!(
        rest.contains(r#"data: {"error":{"#) && rest.contains(r#""type":"cancelled""#) && rest.contains(r#""code":"cancel_requested""#)
    );
    assert!(!rest.contains("[DONE]"));
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["cause"], &run["delivery"]), (&"cancel_requested".into(), &"partial".into()));
    let after = cancel(stand.addr, "r1", 1000).await;
    assert_eq!((after.status, after.json()), (200, run));
    assert_eq!(stand.count("r1", |e| matches!(e, Event::CancelSent { .. } | Event::Superseded { .. })), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_answer_by_name_before_it_was_taken_on() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.submit().await.attempt;
    assert_eq!(cancel(stand.addr, "r1", 0).await.status, 200);
    stand.worker.obey(&attempt).await;
    let reply = read_reply(&mut socket).await;
    assert_eq!(reply.error(), (499, "cancelled".into(), None::<&str>.into(), "cancel_requested".into()));
    assert!(reply.head.starts_with("HTTP/1.1 499 Client Closed Request\r\n"), "{}", reply.head);
    assert_eq!(reply.header("x-should-retry").as_deref(), Some("false"));
    assert_eq!(stand.settled("r1").await["delivery"], "none");
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_and_impossible_ids() {
    let stand = default_stand().await;
    for id in ["nobody", "r1", "not%20an%20id", &"x".repeat(200)] {
        for reply in [cancel(stand.addr, id, 0).await, get(stand.addr, &format!("/v1/runs/{id}")).await] {
            let (status, _, _, code) = reply.error();
            assert_eq!((status, code), (404, "run_not_found".into()), "{id}");
        }
    }
    let reply = ask(stand.addr, "POST", "/v1/runs/x/cancel?wait_ms=60001", "", "").await;
    assert_eq!((reply.error().0, reply.error().2), (400, "wait_ms".into()));
}

/// The engine decides: it was done before it heard of the cancel, so the caller gets all of it.
// contract: C-4
#[tokio::test(flavor = "multi_thread")]
async fn the_end_wins_over_a_later_cancel() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    cancel(stand.addr, "r1", 0).await;
    stand.worker.cancelled(&attempt).await;
    let last = stand.worker.delta(&attempt, 0, "done already", &[1], Some(Cause::Length));
    stand.worker.step(vec![last]).await;
    stand.worker.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(Cause::Length) }).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Length), 1).await;
    let rest = read_until(&mut socket, "[DONE]").await;
    assert!(rest.contains("done already") && rest.contains(r#""finish_reason":"length""#));
    let run = stand.settled("r1").await;
    assert_eq!((&run["outcome"]["kind"], &run["delivery"]), (&"completed".into(), &"complete".into()));
    assert_eq!(run["superseded"], serde_json::json!(["cancel_requested"]));
}

// contract: C-22
#[tokio::test(flavor = "multi_thread")]
async fn deadlines() {
    for (headers, body, cause, expected) in [
        ("X-Request-Timeout-Ms: 30\r\n", "", "client_deadline", "499 Client Closed Request"),
        ("", r#","timeout_ms":30"#, "client_deadline", "499 Client Closed Request"),
        ("", "", "gateway_deadline", "504 Gateway Timeout"),
    ] {
        let own = if cause == "gateway_deadline" { ms(30) } else { SOON * 10 };
        let mut stand = stand(gateway::GatewayConfig { gateway_deadline: own, ..Default::default() }).await;
        let text = crate::wire::request_text("POST", "/v1/chat/completions", &format!("{headers}X-Request-Id: r1\r\n"), &chat(body));
        let mut socket = send(stand.addr, &text).await;
        let submit = stand.worker.submit().await;
        let named: Vec<&str> = submit.deadlines.iter().map(|d| d.cause.as_str()).collect();
        assert!(named.contains(&cause) && named.contains(&"queue_deadline"), "{named:?}");
        assert!(submit.deadlines.iter().any(|d| d.left <= ms(30)));
        assert_eq!(stand.worker.obey(&submit.attempt).await.as_str(), cause);
        let reply = read_reply(&mut socket).await;
        let (_, kind, _, code) = reply.error();
        assert_eq!((kind, code), ("timeout".into(), cause.into()));
        assert!(reply.head.starts_with(&format!("HTTP/1.1 {expected}\r\n")), "{}", reply.head);
        // Nobody asks again by himself: not by the status, or not by the header that SDKs obey.
        assert_eq!((reply.header("x-should-retry").as_deref(), reply.header("retry-after")), (Some("false"), None));
        let run = stand.settled("r1").await;
        assert_eq!(run["outcome"]["kind"], "expired");
        assert!(run["milestones"]["deadline_fired"].is_number());
    }
}

/// The worker says nothing: the caller is told all the same, and the run stays until the worker has let go.
// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_does_not_keep_the_caller() {
    let mut stand = stand(gateway::GatewayConfig { answer_grace: ms(20), ..Default::default() }).await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","timeout_ms":10"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    assert_eq!(read_reply(&mut socket).await.error().3, "client_deadline");
    let run = stand.run("r1");
    assert_eq!((&run["state"], &run["settled"], &run["outcome"]), (&"stopping".into(), &false.into(), &serde_json::Value::Null));
    stand.worker.cancelled(&attempt).await;
    stand.worker.end(&attempt, Outcome::of(Cause::ClientDeadline), 0).await;
    assert_eq!(stand.settled("r1").await["outcome"]["cause"], "client_deadline");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejections_and_failures_keep_their_status() {
    let table = [
        (Cause::Invalid, 400, "invalid_request_error"),
        (Cause::OverLimit, 400, "invalid_request_error"),
        (Cause::CannotFit, 400, "invalid_request_error"),
        (Cause::QueueFull, 429, "rate_limit_error"),
        (Cause::DeadlineUnreachable, 400, "invalid_request_error"),
        (Cause::QueueDeadline, 503, "timeout"),
        (Cause::WorkerDeadline, 504, "timeout"),
        (Cause::DeviceError, 500, "server_error"),
    ];
    let mut stand = default_stand().await;
    for (cause, status, kind) in table {
        for stream in [true, false] {
            let id = format!("{cause}-{stream}");
            let mut socket = send(stand.addr, &chat_request(&id, &format!(r#","stream":{stream}"#))).await;
            let attempt = stand.worker.submit().await.attempt;
            stand.worker.end(&attempt, Outcome::because(cause, "so it is"), 0).await;
            let reply = read_reply(&mut socket).await;
            assert_eq!(reply.error(), (status, kind.into(), None::<&str>.into(), cause.as_str().into()));
            assert_eq!((reply.json()["error"]["message"].as_str(), reply.header("x-request-id")), (Some("so it is"), Some(id.clone())));
            assert_eq!(reply.header("retry-after").is_some(), [429, 503].contains(&status), "{cause}");
            let is_final = matches!(cause, Cause::WorkerDeadline | Cause::DeadlineUnreachable);
            assert_eq!(reply.header("x-should-retry").is_some(), is_final, "{cause}");
            assert_eq!(stand.settled(&id).await["outcome"]["reason"], "so it is");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_mid_stream_is_an_error_event() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "first").await;
    stand.worker.end(&attempt, Outcome::because(Cause::DeviceError, "step 7 failed"), 1).await;
    let reply = read_reply(&mut socket).await;
    let last: serde_json::Value = serde_json::from_str(reply.events().last().expect("events")).expect("JSON");
    assert_eq!(last["error"], serde_json::json!({"message":"step 7 failed","type":"server_error","param":null,"code":"device_error"}));
    assert_eq!(stand.settled("r1").await["delivery"], "partial");
}

/// No silence, no "released": the worker's end of the link closes.
// contract: C-7 C-20 C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker() {
    let mut stand = default_stand().await;
    let mut plain = send(stand.addr, &chat_request("plain", "")).await;
    stand.worker.accept().await;
    let mut wanted = send(stand.addr, &chat_request("wanted", "")).await;
    stand.worker.accept().await;
    cancel(stand.addr, "wanted", 0).await;
    stand.worker.up = None;
    assert_eq!(read_reply(&mut plain).await.error().3, "worker_lost");
    assert_eq!(read_reply(&mut wanted).await.error().3, "cancel_requested");
    let run = stand.settled("plain").await;
    assert_eq!(
        (&run["outcome"]["cause"], &run["released"], &run["guarantee"]),
        (&"worker_lost".into(), &false.into(), &"best_effort".into())
    );
    // The simulated worker journals nothing: all that bounds the run is the model's context.
    assert_eq!(run["waste_bound_tokens"], 512);
    assert_eq!(stand.settled("wanted").await["outcome"]["kind"], "cancelled");
    assert_eq!(stand.count("plain", |e| matches!(e, Event::Void { .. })), 1);
    for reply in [get(stand.addr, "/health/ready").await, ask(stand.addr, "POST", "/v1/chat/completions", "", &chat("")).await] {
        assert_eq!((reply.error().0, reply.error().3), (503, "worker_lost".into()));
    }
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_room_at_the_gateway() {
    let mut stand = stand(gateway::GatewayConfig { queue_max: 1, ..Default::default() }).await;
    let _first = send(stand.addr, &chat_request("first", "")).await;
    stand.worker.submit().await;
    let reply = ask(stand.addr, "POST", "/v1/chat/completions", "X-Request-Id: second\r\n", &chat("")).await;
    assert_eq!((reply.error().0, reply.error().3, reply.header("retry-after")), (429, "queue_full".into(), Some("1".into())));
    let run = stand.settled("second").await;
    assert_eq!((&run["outcome"]["kind"], &run["attempt"], &run["guarantee"]), (&"rejected".into(), &0.into(), &"confirmed".into()));
}

/// What another life of the worker says changes nothing.
// contract: C-3
#[tokio::test(flavor = "multi_thread")]
async fn words_of_another_incarnation() {
    let mut stand = default_stand().await;
    let mut socket = send(stand.addr, &chat_request("r1", "")).await;
    let submit = stand.worker.accept().await;
    assert_eq!((submit.worker, submit.number), (WORKER, 1));
    let stale = lifecycle::Incarnation(WORKER.0 - 1);
    let attempt = submit.attempt;
    let outcome = Outcome::of(Cause::WorkerError);
    stand.worker.say_as(stale, Up::Ended { attempt: attempt.clone(), outcome, usage: Usage::default() }).await;
    let last = stand.worker.delta(&attempt, 0, "fine", &[1], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(&attempt, Outcome::of(Cause::Stop), 1).await;
    assert_eq!(read_reply(&mut socket).await.status, 200);
    assert_eq!(stand.settled("r1").await["outcome"]["kind"], "completed");
}

/// A cancel names its submit, so that the worker can tell a late one from an early one.
// contract: C-2 C-11
#[tokio::test(flavor = "multi_thread")]
async fn numbers_ascend_and_cancels_name_them() {
    let mut stand = default_stand().await;
    let mut sockets = Vec::new();
    for number in 1..=3 {
        sockets.push(send(stand.addr, &chat_request(&format!("r{number}"), "")).await);
        let submit = stand.worker.submit().await;
        assert_eq!((submit.number, submit.attempt.attempt), (number, 1));
    }
    cancel(stand.addr, "r2", 0).await;
    match stand.worker.next().await {
        Down::Cancel { attempt, number, cause, .. } => {
            assert_eq!((attempt.key.run.as_str(), number, cause), ("r2", 2, Cause::CancelRequested));
        }
        other => panic!("a cancel was expected: {other:?}"),
    }
}
