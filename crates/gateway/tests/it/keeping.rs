//! What the next life of a gateway has to know of a run: that its end is wanted, and the deadline that its caller gave.
// contract: C-7 C-22

use std::sync::Arc;

use gateway::GatewayConfig;
use lifecycle::{Cause, Incarnation, OnDisconnect, RunId, RunKey, Tenant};
use serde_json::{Value, json};
use store::memory::Memory;
use store::{NewRun, RunStore, StoreConfig, StoredRun, Survives, Write};

use crate::simulated::{Stand, kept_stand};
use crate::wire::{cancel, ms, read_reply, request_text, send};

/// The owner of what another life of a gateway has left.
const FORMER: Incarnation = Incarnation(9);

async fn kept() -> (Stand, Arc<Memory>) {
    let memory = Memory::new(StoreConfig::at("memory"), true);
    (kept_stand(GatewayConfig::default(), Some(memory.clone())).await, memory)
}

fn key(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") }
}

/// Looks again and again until it is so.
async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..2000 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(ms(5)).await;
    }
    panic!("never: {what}");
}

async fn stored(memory: &Memory, id: &str) -> Option<StoredRun> {
    memory.run(&key(id)).await.expect("the store is there")
}

// contract: C-7
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_was_answered_is_known_to_whoever_takes_the_run_over() {
    let (mut stand, memory) = kept().await;
    let body = json!({"input": "hi", "background": true}).to_string();
    let request = request_text("POST", "/v1/responses", "X-Request-Id: r1\r\n", &body);
    assert_eq!(read_reply(&mut send(stand.addr, &request).await).await.status, 200);
    stand.worker.accept().await;
    let told = cancel(stand.addr, "r1", 0).await;
    assert_eq!((told.status, &told.json()["outcome"]), (200, &Value::Null), "its worker has not answered");
    assert_eq!(stored(&memory, "r1").await.and_then(|run| run.wanted), Some(Cause::CancelRequested));
}

// contract: C-22
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_that_its_caller_gave_holds_in_the_next_life_too() {
    let (stand, memory) = kept().await;
    let body = json!({"input": "hi", "background": true, "timeout_ms": 60_000}).to_string();
    let request = request_text("POST", "/v1/responses", "X-Request-Id: r1\r\n", &body);
    assert_eq!(read_reply(&mut send(stand.addr, &request).await).await.status, 200);
    let request = stored(&memory, "r1").await.and_then(|run| run.request);
    // The same two minutes ago, at a gateway that is gone.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a calendar").as_millis();
    let created_ms = i64::try_from(now).expect("a date") - 120_000;
    let late = NewRun { created_ms, on_disconnect: OnDisconnect::Continue, request, ..former("late") };
    memory.commit(vec![Write::Accept(Box::new(late))], Survives::Machine).await.expect("the store is there");
    let mut next = kept_stand(GatewayConfig::default(), Some(memory.clone())).await;
    let submit = next.worker.accept().await;
    let left = submit.deadlines.iter().find(|deadline| deadline.cause == Cause::ClientDeadline).map(|deadline| deadline.left);
    assert_eq!((submit.attempt.key.run.as_str(), left), ("late", Some(ms(0))));
    assert_eq!(next.worker.obey(&submit.attempt).await, Cause::ClientDeadline);
    let outcome = until("it ends", async || stored(&memory, "late").await.and_then(|run| run.outcome)).await;
    assert_eq!(outcome.cause, Cause::ClientDeadline);
}

/// A run that a life that is gone has accepted.
fn former(id: &str) -> NewRun {
    NewRun {
        tenant: Tenant::default(),
        wish: Some(RunId::parse(id).expect("an id")),
        fresh: RunId::parse(&format!("fresh-{id}")).expect("an id"),
        door: "chat".into(),
        model: "tiny".into(),
        caller: "anonymous".into(),
        on_disconnect: OnDisconnect::Cancel,
        keeps: true,
        owner: FORMER,
        created_ms: 1,
        expires_ms: None,
        request: None,
        joining: None,
    }
}
