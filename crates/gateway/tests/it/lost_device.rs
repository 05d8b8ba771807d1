//! A worker whose device is lost: it answers, and can compute nothing any more. The front door says so to whoever asks.

use lifecycle::message::{Snapshot, Up};
use lifecycle::{Cause, Outcome};

use crate::simulated::{default_stand, soon};
use crate::wire::{chat_request, get, read_reply, send};

const WHY: &str = "it fell off the bus";

// contract: C-6
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_is_not_ready_and_runs_fail_with_a_record() {
    let mut stand = default_stand().await;
    assert_eq!(get(stand.addr, "/health/ready").await.status, 200);
    let mut before = send(stand.addr, &chat_request("before", "")).await;
    let attempt = stand.worker.accept().await.attempt;
    for why in [WHY, "a second reason"] {
        stand.worker.say(Up::DeviceLost { why: why.into() }).await;
    }
    let failed = || Outcome::because(Cause::DeviceError, format!("the device is lost: {WHY}"));
    stand.worker.end(&attempt, failed(), 0).await;
    let (status, _, _, code) = soon("an answer", read_reply(&mut before)).await.error();
    assert_eq!((status, code), (500, "device_error".into()));
    // Whoever has been told of the end finds the reason.
    for path in ["/health", "/health/ready"] {
        let reply = get(stand.addr, path).await;
        assert_eq!((reply.error().0, reply.error().3), (503, "device_lost".into()));
        assert!(reply.body.contains(WHY) && reply.body.contains("started again"), "{}", reply.body);
    }
    assert_eq!(get(stand.addr, "/health/live").await.status, 200);

    let mut after = send(stand.addr, &chat_request("after", "")).await;
    let attempt = stand.worker.submit().await.attempt;
    stand.worker.end(&attempt, failed(), 0).await;
    let (status, _, _, code) = read_reply(&mut after).await.error();
    assert_eq!((status, code), (500, "device_error".into()));
    let run = stand.settled("after").await;
    assert_eq!((run["outcome"]["kind"].as_str(), run["outcome"]["cause"].as_str()), (Some("failed"), Some("device_error")));
    assert!(run["outcome"]["reason"].as_str().is_some_and(|why| why.contains(WHY)), "{run}");

    for (lost, shown) in [(None, serde_json::Value::Null), (Some(WHY.to_owned()), WHY.into())] {
        let addr = stand.addr;
        let asked = tokio::spawn(async move { get(addr, "/v1/kv").await });
        stand.worker.answer(Snapshot { device_lost: lost, ..Snapshot::default() }).await;
        assert_eq!(asked.await.expect("joined").json()["device_lost"], shown);
    }
}
