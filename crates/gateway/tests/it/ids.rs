//! Run ids: the caller's, a taken one, a bad one, none.
// contract: C-1
// field: F-65

use lifecycle::{Cause, Outcome};

use crate::simulated::default_stand;
use crate::wire::{ask, cancel, chat, chat_request, get, read_reply, read_until, request_text, send};

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

/// What is said about a run is found by that run's id, whatever id the question had.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_a_run_carries_the_runs_id() {
    let mut stand = default_stand().await;
    let _socket = send(stand.addr, &chat_request("named", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    let cancel_path = "/v1/runs/named/cancel?wait_ms=0";
    for (method, path, status) in [
        ("GET", "/v1/runs/named", 200),
        ("POST", "/v1/runs/named/cancel?wait_ms=x", 400),
        ("POST", cancel_path, 200),
        ("GET", "/v1/runs/%6eamed", 200),
    ] {
        let plain = ask(stand.addr, method, path, "", "").await;
        assert_eq!((plain.status, plain.header("x-request-id").as_deref()), (status, Some("named")), "{method} {path}");
        assert_eq!(plain.header("x-kvit-requested-id"), None);
        let given = ask(stand.addr, method, path, "X-Request-Id: mine\r\n", "").await;
        assert_eq!(given.header("x-request-id").as_deref(), Some("named"), "{method} {path}");
        assert_eq!(given.header("x-kvit-requested-id").as_deref(), Some("mine"), "the question's own id is not lost");
    }
    stand.worker.obey(&attempt).await;
    stand.settled("named").await;
    assert_eq!(ask(stand.addr, "POST", cancel_path, "", "").await.header("x-request-id").as_deref(), Some("named"), "also after its end");
    // A run that never was has no id to tell.
    let none = get(stand.addr, "/v1/runs/names").await.header("x-request-id").expect("an id");
    assert!(none != "names" && none.len() == 36, "{none}");
}

/// Ids that are each other's beginnings, or look like the name that a second run would be given.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_touches_the_run_of_that_name_and_no_other() {
    let names = ["a", "ab", "a~2", "A", "a.b", "a~2~2"];
    let mut stand = default_stand().await;
    let mut sockets = Vec::new();
    let mut attempts = Vec::new();
    for name in names {
        sockets.push(send(stand.addr, &chat_request(name, r#","stream":true"#)).await);
        let attempt = stand.worker.accept().await.attempt;
        assert_eq!(attempt.key.run.as_str(), name, "these are six names");
        attempts.push(attempt);
    }
    let addr = stand.addr;
    let cancelled = tokio::spawn(async move { cancel(addr, "a", 10_000).await });
    assert_eq!(stand.worker.obey(&attempts[0]).await, Cause::CancelRequested);
    assert_eq!(cancelled.await.expect("joined").json()["id"], "a");
    stand.settled("a").await;
    assert_eq!(cancel(addr, "a", 0).await.json()["id"], "a");
    assert!(stand.worker.try_next().is_none(), "one cancel was sent, of one run");
    for (attempt, socket) in attempts.iter().zip(&mut sockets).skip(1) {
        assert_eq!(stand.run(attempt.key.run.as_str())["outcome"], serde_json::Value::Null);
        let last = stand.worker.delta(attempt, 0, "whole", &[1], Some(Cause::Stop));
        stand.worker.step(vec![last]).await;
        stand.worker.end(attempt, Outcome::of(Cause::Stop), 1).await;
        assert!(read_until(socket, "[DONE]").await.contains("whole"));
        assert_eq!(stand.settled(attempt.key.run.as_str()).await["outcome"]["kind"], "completed");
    }
    // Both `a` (ended, remembered) and `a~2` (a caller's own choice) are taken: the next is the third.
    let _third = send(stand.addr, &chat_request("a", "")).await;
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "a~3");
    let _other = send(stand.addr, &chat_request("a~2", "")).await;
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), "a~2~3", "a~2~2 is taken as well");
}

/// What a path can be made to say names one run or none; the same id in another spelling is the same id.
#[tokio::test(flavor = "multi_thread")]
async fn no_path_reaches_another_run() {
    let mut stand = default_stand().await;
    let _socket = send(stand.addr, &chat_request("r1", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    let hostile = [
        "..",
        ".",
        "%2e%2e",
        "r1%2f..%2fr1",
        "..%2Fr1",
        "r1%00",
        "r1%0d%0a",
        "%20r1",
        "r1%20",
        "R1",
        "r",
        "r1~",
        "r1~2",
        "r1%7E2",
        "%25r1",
        "r1%",
        "%",
        "%zz",
        "%ff%fe",
        "caf%C3%A9",
        "r1;x",
        "r1%3Fwait_ms=0",
        "r1/cancel",
        "/r1",
        "r1/",
        "",
    ];
    for id in hostile {
        for (method, path) in [("POST", format!("/v1/runs/{id}/cancel")), ("GET", format!("/v1/runs/{id}"))] {
            let reply = ask(stand.addr, method, &path, "", "").await;
            let listing = method == "GET" && path == "/v1/runs/";
            assert!([400, 404, 405].contains(&reply.status) && !listing || reply.status == 404, "{method} {path}: {}", reply.head);
            reply.error();
            assert!(reply.header("x-request-id").is_some(), "{method} {path}");
        }
    }
    assert!(stand.worker.try_next().is_none(), "nothing was cancelled");
    let addr = stand.addr;
    let same = tokio::spawn(async move { cancel(addr, "%72%31", 10_000).await });
    assert_eq!(stand.worker.obey(&attempt).await, Cause::CancelRequested);
    assert_eq!(same.await.expect("joined").json()["id"], "r1");
}

/// An id that a header cannot carry, or that is none, is refused whole: it is neither cut nor cleaned, and makes no run.
#[tokio::test(flavor = "multi_thread")]
async fn no_header_makes_another_id() {
    let mut stand = default_stand().await;
    for id in ["..", ".", "a/b", "a\\b", "a\tb", "a,b", "a\"b", "%61", "\u{202e}a", "a\u{0}", "\u{7f}", "~/x", "a b", "\u{ff41}"] {
        let text = request_text("POST", "/v1/chat/completions", &format!("X-Request-Id: {id}\r\n"), &chat(""));
        let reply = read_reply(&mut send(stand.addr, &text).await).await;
        assert_eq!(reply.status, 400, "{id:?}");
        // What is no header at all hyper answers by itself, with the status alone.
        if !reply.body.is_empty() {
            assert_eq!(reply.error().3, "invalid_request_id", "{id:?}");
        }
    }
    assert!(stand.worker.try_next().is_none());
    // Two of them are two wishes: which one would count is nobody's guess.
    let two = ask(stand.addr, "POST", "/v1/chat/completions", "X-Request-Id: a\r\nX-Request-Id: b\r\n", &chat("")).await;
    assert_eq!(two.error(), (400, "invalid_request_error".into(), "X-Request-Id".into(), "invalid_request_id".into()));
    // The longest there may be, asked for twice: the second is cut so that it is still an id, and is another one.
    let longest = "x".repeat(128);
    let _one = send(stand.addr, &chat_request(&longest, "")).await;
    assert_eq!(stand.worker.submit().await.attempt.key.run.as_str(), longest);
    let _two = send(stand.addr, &chat_request(&longest, "")).await;
    let second = stand.worker.submit().await.attempt.key.run;
    assert_eq!((second.as_str().len(), second.as_str().ends_with("x~2")), (128, true));
}
