//! The same `Idempotency-Key` and body as a live run: its answer from the first event on, for as many as ask, and one run.
// contract: C-6 C-26 C-28

use lifecycle::event::Event;
use lifecycle::{AttemptId, Cause, Outcome};
use tokio::net::TcpStream;

use crate::simulated::{Stand, default_stand, stand};
use crate::wire::{Leave, Reply, ask, chat, ms, read_reply, read_until, request_text, send};

/// What a grace does is shown elsewhere: here the last one takes the run along.
fn keyed(id: &str, key: &str, extra: &str) -> String {
    let headers = format!("X-Request-Id: {id}\r\nIdempotency-Key: {key}\r\nX-On-Disconnect: cancel\r\n");
    request_text("POST", "/v1/chat/completions", &headers, &chat(extra))
}

/// Sends a request and waits until it has its seat: a reader that streams is told at once that it has joined.
async fn joined(stand: &Stand, id: &str, extra: &str) -> (TcpStream, String) {
    let mut socket = send(stand.addr, &keyed(id, "k", extra)).await;
    let head = read_until(&mut socket, "\r\n\r\n").await;
    (socket, head)
}

/// The rest of an answer whose first part was read already.
async fn rest(mut socket: TcpStream, first: String) -> Reply {
    let more = read_until(&mut socket, "\r\n0\r\n\r\n").await;
    let text = first + &more;
    let (head, chunks) = text.split_once("\r\n\r\n").expect("a head");
    let lines = chunks.split("\r\n").filter(|l| l.starts_with("data: "));
    Reply { status: 200, head: head.to_owned(), body: lines.collect() }
}

async fn finish(stand: &mut Stand, attempt: &AttemptId, sequences: u32) {
    for index in 0..sequences {
        let last = stand.worker.delta(attempt, index, "the end", &[1, 2], Some(Cause::Stop));
        stand.worker.step(vec![last]).await;
    }
    stand.worker.end(attempt, Outcome::of(Cause::Stop), 2 * sequences).await;
}

// field: F-65 F-77
#[tokio::test(flavor = "multi_thread")]
async fn two_streams_of_one_run_are_the_same_bytes() {
    for n in [1, 2] {
        let mut stand = default_stand().await;
        let extra = format!(r#","stream":true,"n":{n},"stream_options":{{"include_usage":true}}"#);
        let mut one = send(stand.addr, &keyed("r1", "k", &extra)).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "before").await;
        let first = read_until(&mut one, "before").await;
        let (two, head) = joined(&stand, "other", &extra).await;
        stand.worker.token(&attempt, "between").await;
        finish(&mut stand, &attempt, n).await;
        let (one, two) = (rest(one, first).await, rest(two, head).await);
        assert_eq!(one.events(), two.events());
        assert!(
            one.body.contains("before") && one.body.contains("between") && one.body.trim_end().ends_with("data: [DONE]"),
            "{}",
            one.body
        );
        let names = ["x-request-id", "x-kvit-joined", "x-kvit-requested-id"].map(|name| (one.header(name), two.header(name)));
        let (yes, other) = (Some("true".to_owned()), Some("other".to_owned()));
        assert_eq!(names, [(Some("r1".into()), Some("r1".into())), (None, yes), (None, other)]);
        let run = stand.settled("r1").await;
        assert_eq!(run["delivery"], "complete");
        assert_eq!(run["tokens"]["delivered"], 2 + 2 * n, "an answer that two read is delivered once");
        assert_eq!(stand.run("other"), serde_json::Value::Null, "what joined is no run of its own");
        assert!(stand.worker.try_next().is_none(), "one submit, and no cancel");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_whole_answers_of_one_run_are_the_same_bytes() {
    // A whole answer has no first byte that would show that its caller has joined: a twin that came after the end is tried again.
    for round in 0..50 {
        if whole_twin(ms(10 * round)).await {
            return;
        }
    }
    panic!("no twin ever joined");
}

async fn whole_twin(pause: std::time::Duration) -> bool {
    let mut stand = default_stand().await;
    let mut one = send(stand.addr, &keyed("r1", "k", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "some ").await;
    let mut two = send(stand.addr, &keyed("r1", "k", "")).await;
    tokio::time::sleep(pause).await;
    finish(&mut stand, &attempt, 1).await;
    let one = read_reply(&mut one).await;
    let two = tokio::select! {
        reply = read_reply(&mut two) => reply,
        _ = stand.worker.submit() => return false,
    };
    let told = [&one, &two].map(|reply| (reply.status, reply.header("x-request-id"), reply.body.clone()));
    assert_eq!(told[0], told[1]);
    assert_eq!((one.header("x-kvit-joined"), two.header("x-kvit-joined").as_deref()), (None, Some("true")));
    assert!(one.json()["choices"][0]["message"]["content"] == "some the end", "{}", one.body);
    let run = stand.settled("r1").await;
    assert_eq!((&run["tokens"]["delivered"], &run["delivery"]), (&3.into(), &"complete".into()));
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_may_leave_and_the_last_cancels() {
    for (how, cause) in Leave::BOTH {
        let extra = r#","stream":true"#;
        let mut stand = default_stand().await;
        let mut one = send(stand.addr, &keyed("r1", "k", extra)).await;
        let attempt = stand.worker.accept().await.attempt;
        stand.worker.token(&attempt, "before").await;
        read_until(&mut one, "before").await;
        let (mut two, _) = joined(&stand, "r1", extra).await;
        how.now(one);
        // The second reads on: the run was not cancelled with the first.
        for word in ["one", "two", "three"] {
            stand.worker.token(&attempt, word).await;
            read_until(&mut two, word).await;
        }
        let run = stand.run("r1");
        assert_eq!((&run["outcome"], &run["milestones"]["disconnect_observed"]), (&serde_json::Value::Null, &serde_json::Value::Null));
        assert!(stand.worker.try_next().is_none());
        how.now(two);
        assert_eq!(stand.worker.obey(&attempt).await.as_str(), cause);
        let run = stand.settled("r1").await;
        assert_eq!(
            (&run["outcome"]["cause"], &run["delivery"], &run["tokens"]["delivered"]),
            (&cause.into(), &"partial".into(), &4.into())
        );
        assert_eq!(stand.count("r1", |e| matches!(e, Event::CancelSent { .. })), 1);
        // Whoever asks again after that gets a run of its own.
        let _late = send(stand.addr, &keyed("r1", "k", extra)).await;
        assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "r1~2");
    }
}

// contract: C-22 C-26
#[tokio::test(flavor = "multi_thread")]
async fn a_readers_own_deadline_ends_its_reading_and_not_the_run() {
    let extra = r#","stream":true"#;
    let mut stand = default_stand().await;
    let mut one = send(stand.addr, &keyed("r1", "k", extra)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "before").await;
    read_until(&mut one, "before").await;
    let headers = "X-Request-Id: r2\r\nIdempotency-Key: k\r\nX-Request-Timeout-Ms: 60\r\n";
    let mut two = send(stand.addr, &request_text("POST", "/v1/chat/completions", headers, &chat(extra))).await;
    let told = read_until(&mut two, "client_deadline").await;
    assert!(!told.contains("[DONE]"), "{told}");
    stand.worker.token(&attempt, "between").await;
    read_until(&mut one, "between").await;
    assert_eq!(stand.run("r1")["outcome"], serde_json::Value::Null);
    assert!(stand.worker.try_next().is_none(), "no cancel");
    finish(&mut stand, &attempt, 1).await;
    read_until(&mut one, "[DONE]").await;
    assert_eq!(stand.settled("r1").await["outcome"]["kind"], "completed");
}

/// Between the cancel and its end, too: a run that nobody wanted is not wanted again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_is_not_joined() {
    let mut stand = default_stand().await;
    let one = send(stand.addr, &keyed("r1", "k", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    drop(one);
    assert_eq!(stand.worker.cancelled(&attempt).await, Cause::ClientClosed);
    let mut again = send(stand.addr, &keyed("r1", "k", "")).await;
    let second = stand.worker.accept().await.attempt;
    assert_eq!(second.key.run.as_str(), "r1~2");
    // The first one's end does not forget the second one's key.
    stand.worker.end(&attempt, Outcome::of(Cause::ClientClosed), 0).await;
    stand.settled("r1").await;
    let reply = ask(stand.addr, "POST", "/v1/chat/completions", "Idempotency-Key: k\r\n", &chat(r#","max_tokens":9"#)).await;
    assert_eq!(reply.error().0, 422);
    finish(&mut stand, &second, 1).await;
    let reply = read_reply(&mut again).await;
    assert_eq!((reply.status, reply.header("x-request-id").as_deref(), reply.header("x-kvit-joined")), (200, Some("r1~2"), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_join_is_told_why() {
    let config = gateway::GatewayConfig { replay_events_max: 3, readers_max: 2, ..Default::default() };
    let mut stand = stand(config).await;
    let extra = r#","stream":true"#;
    let mut one = send(stand.addr, &keyed("r1", "k", extra)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "before").await;
    read_until(&mut one, "before").await;
    let post =
        async |path: &str, key: &str, body: &str| ask(stand.addr, "POST", path, &format!("Idempotency-Key: {key}\r\n"), body).await.error();
    let reused = (422, "invalid_request_error".into(), "Idempotency-Key".into(), "idempotency_key_reused".into());
    let busy = (409, "invalid_request_error".into(), "Idempotency-Key".into(), "idempotency_key_in_use".into());
    assert_eq!(post("/v1/chat/completions", "k", &chat("")).await, reused);
    assert_eq!(post("/v1/completions", "k", r#"{"prompt":"x"}"#).await, reused);
    for bad in ["", "caf\u{e9}", &"x".repeat(256)] {
        let (status, _, param, _) = post("/v1/chat/completions", bad, &chat(extra)).await;
        assert_eq!((status, param), (400, "Idempotency-Key".into()), "{bad:?}");
    }
    let (two, _) = joined(&stand, "x", extra).await;
    assert_eq!(post("/v1/chat/completions", "k", &chat(extra)).await, busy, "two readers, and no more");
    drop(two);
    // Four items are more than are kept.
    for word in ["3rd", "4th"] {
        stand.worker.token(&attempt, word).await;
        read_until(&mut one, word).await;
    }
    assert_eq!(post("/v1/chat/completions", "k", &chat(extra)).await, busy);
    assert!(stand.worker.try_next().is_none(), "none of these reached the worker");
    // Once the run is over the key is free.
    finish(&mut stand, &attempt, 1).await;
    read_until(&mut one, "[DONE]").await;
    stand.settled("r1").await;
    let _next = send(stand.addr, &keyed("r2", "k", "")).await;
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "r2");
}

// contract: C-28
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_said_too_many_bytes_cannot_be_joined() {
    // Six letters and a token's id of four bytes fit once.
    let config = gateway::GatewayConfig { replay_bytes_max: 10, ..Default::default() };
    let mut stand = stand(config).await;
    let extra = r#","stream":true"#;
    let mut one = send(stand.addr, &keyed("r1", "k", extra)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "before").await;
    read_until(&mut one, "before").await;
    let (two, _) = joined(&stand, "before", extra).await;
    drop(two);
    stand.worker.token(&attempt, "behind").await;
    read_until(&mut one, "behind").await;
    let headers = "Idempotency-Key: k\r\n";
    let refused = ask(stand.addr, "POST", "/v1/chat/completions", headers, &chat(extra)).await.error();
    assert_eq!((refused.0, refused.3), (409, "idempotency_key_in_use".into()));
}
