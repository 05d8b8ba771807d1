//! Cancelling a run by name at another gateway than the one that has it.
// contract: C-4, C-5, C-8, C-20

use std::time::{Duration, Instant};

use protocol::runs_v1::{CancelRequest, GetRequest};

use super::*;
use crate::faults::finish;
use crate::grpc_client::Grpc;
use crate::server::{chat_body, rest};

/// A stream at A, cancelled at B: both say the same, the reader is told, and every block is back.
fn cancelled_at_another(more: &[&str]) {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway_with("a", more), stand.gateway_with("b", more));
    let before = rest(&a.kv());
    for id in ["one", "two"] {
        let mut caller = Caller::chat(&a, id, &chat_body("Hello", 12_000, true));
        assert!(!caller.read_tokens(2).is_empty());
        let (status, run) = cancel(&b, id, 60_000);
        assert_eq!((status, &run["outcome"]["cause"]), (200, &json!("cancel_requested")), "{run:#}");
        assert_eq!(finish(&mut caller).1.as_deref(), Some("cancel_requested"));
        let settled = a.settled(id);
        assert_eq!(settled["outcome"]["cause"], "cancel_requested", "{settled:#}");
        // Twice, and after the end, it is the same.
        assert_eq!(cancel(&b, id, 60_000).1["outcome"]["cause"], "cancel_requested");
        let whole = b.wait_run(id, "be settled there, too", |run| run["settled"] == true);
        assert_eq!((&whole["released"], &whole["outcome"]), (&json!(true), &settled["outcome"]), "{whole:#}");
    }
    until("every block is back", || (rest(&a.kv()) == before).then_some(()));
    assert_eq!(cancel(&b, "nobody", 0).0, 404);
}

#[test]
fn a_stream_is_cancelled_at_another_gateway() {
    cancelled_at_another(&PATIENT);
}

#[test]
fn without_notifications_the_poll_finds_it() {
    cancelled_at_another(&[&PATIENT[..], &["--store-notify", "false"]].concat());
}

#[test]
fn a_background_run_is_cancelled_at_another_gateway() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    drop(background(&a, "r", &chat_body("Hello", 12_000, true), 2));
    assert_eq!(cancel(&b, "r", 60_000).1["outcome"]["cause"], "cancel_requested");
    let told = Follower::of(&b, "r", 0).all();
    whole_text(&told);
    assert_eq!(told.last().map(|(_, _, end)| &end["outcome"]["cause"]), Some(&json!("cancel_requested")));
    assert_eq!(Follower::of(&a, "r", 0).all(), told);
}

#[test]
fn grpc_cancels_and_shows_what_another_gateway_has() {
    let Some(stand) = Stand::lasting(1) else { return };
    let (a, b) = (stand.gateway("a"), stand.gateway("b"));
    let mut caller = Caller::chat(&a, "r", &chat_body("Hello", 12_000, true));
    assert!(!caller.read_tokens(2).is_empty());
    let grpc = Grpc::to(&b);
    let get = |run: &str| grpc.wait(grpc.client.clone().get(GetRequest { run: run.into() }));
    let shown = get("r").expect("it is there").into_inner();
    assert_eq!((shown.id.as_str(), shown.outcome, shown.attempt), ("r", None, 1));
    assert_eq!(get("nobody").map_err(|status| status.code()).err(), Some(tonic::Code::NotFound));
    let cancel = CancelRequest { run: "r".into(), wait_ms: Some(60_000) };
    let cancelled = grpc.wait(grpc.client.clone().cancel(cancel)).expect("it is there").into_inner();
    assert_eq!(cancelled.outcome.map(|outcome| outcome.cause()), Some(protocol::runs_v1::Cause::CancelRequested));
    assert_eq!(finish(&mut caller).1.as_deref(), Some("cancel_requested"));
}

/// How long it takes from the call at B until the stream at A has ended, and until B answers; printed, not judged.
fn measure(what: &str, more: &[&str]) {
    const TIMES: usize = 60;
    let Some(stand) = Stand::lasting(1) else { return };
    let flags = [&PATIENT[..], &["--store-poll-ms", "1000"], more].concat();
    let (a, b) = (stand.gateway_with("a", &flags), stand.gateway_with("b", &flags));
    let (mut ended, mut answered): (Vec<Duration>, Vec<Duration>) = (0..TIMES)
        .map(|i| {
            let id = format!("m{i}");
            let mut caller = Caller::chat(&a, &id, &chat_body("Hello", 12_000, true));
            assert!(!caller.read_tokens(2).is_empty());
            let since = Instant::now();
            std::thread::scope(|scope| {
                let answer = scope.spawn(|| {
                    assert_eq!(cancel(&b, &id, 60_000).1["outcome"]["cause"], "cancel_requested");
                    since.elapsed()
                });
                assert_eq!(finish(&mut caller).1.as_deref(), Some("cancel_requested"));
                (since.elapsed(), answer.join().expect("it answers"))
            })
        })
        .unzip();
    let figures = |all: &mut Vec<Duration>| {
        all.sort();
        format!("median {:.1} ms, 95% {:.1} ms, most {:.1} ms", ms(all[TIMES / 2]), ms(all[TIMES * 95 / 100]), ms(all[TIMES - 1]))
    };
    println!("{what}, {TIMES} times: the stream at A has ended: {}; B has answered: {}", figures(&mut ended), figures(&mut answered));
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[test]
#[ignore = "prints how long it takes"]
fn long_how_long_a_cancel_at_another_gateway_takes() {
    measure("with NOTIFY, poll every 1000 ms", &["--store-notify", "true"]);
    measure("without NOTIFY, poll every 1000 ms", &["--store-notify", "false"]);
}
