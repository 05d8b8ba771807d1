//! Run ids: the caller's, a taken one, a bad one, none.
// contract: C-1
// field: F-65

use lifecycle::{Cause, Outcome};

use crate::simulated::default_stand;
use crate::wire::{ask, cancel, chat, chat_request, get, read_reply, send};

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_id_harms_nobody() {
    let mut stand = default_stand().await;
    let mut sockets = Vec::new();
    let mut attempts = Vec::new();
    for expected in ["same", "same~2", "same~3"] {
        sockets.push((send(stand.addr, &chat_request("same", "")).await, expected));
        let attempt = stand.worker.accept().await.attempt;
        assert_eq!(attempt.key.run.as_str(), expected);
        attempts.push(attempt);
    }
    // Ids match whole: ending the second ends neither the first nor the third.
    let addr = stand.addr;
    let cancelled = tokio::spawn(async move { cancel(addr, "same~2", 10_000).await });
    stand.worker.obey(&attempts[1]).await;
    assert_eq!(cancelled.await.expect("joined").json()["released"], true);
    for attempt in [&attempts[2], &attempts[0]] {
        let last = stand.worker.delta(attempt, 0, attempt.key.run.as_str(), &[1], Some(Cause::Stop));
        stand.worker.step(vec![last]).await;
        stand.worker.end(attempt, Outcome::of(Cause::Stop), 1).await;
    }
    for (mut socket, expected) in sockets {
        let reply = read_reply(&mut socket).await;
        assert_eq!(reply.header("x-request-id").as_deref(), Some(expected));
        assert_eq!(reply.header("x-kvit-requested-id").as_deref(), (expected != "same").then_some("same"));
        if expected == "same~2" {
            assert_eq!(reply.status, 499);
        } else {
            assert_eq!(reply.json()["choices"][0]["message"]["content"], expected);
            assert_eq!(reply.json()["id"], format!("chatcmpl-{expected}"));
        }
    }
    // An id whose run is over but still known is taken as well.
    stand.settled("same").await;
    let _socket = send(stand.addr, &chat_request("same", "")).await;
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "same~4");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_ids_are_refused_by_name() {
    let stand = default_stand().await;
    for (id, part) in [("a b", "' ' at byte 1"), ("caf\u{e9}", "'é' at byte 3"), (&"x".repeat(129), "129 bytes"), ("", "empty")] {
        let reply = ask(stand.addr, "POST", "/v1/chat/completions", &format!("X-Request-Id: {id}\r\n"), &chat("")).await;
        let (status, _, param, code) = reply.error();
        assert_eq!((status, param, code), (400, "X-Request-Id".into(), "invalid_request_id".into()), "{id:?}");
        let message = reply.json()["error"]["message"].to_string();
        assert!(message.contains(part), "{message}");
        assert!(reply.header("x-request-id").is_some_and(|own| own != id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_response_has_an_id() {
    let stand = default_stand().await;
    for path in ["/v1/models", "/health/live", "/nowhere", "/v1/runs", "/v1/runs/none"] {
        let own = get(stand.addr, path).await.header("x-request-id").expect("an id");
        assert!(own.len() == 36 && own.as_bytes()[14] == b'7', "a UUIDv7: {own}");
        let given = ask(stand.addr, "GET", path, "X-Request-Id: mine\r\n", "").await;
        assert_eq!(given.header("x-request-id").as_deref(), Some("mine"));
    }
}
