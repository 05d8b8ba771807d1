//! A database that crashes under a gateway that lives comes back without what no disk had: it is told it again, and nobody sees a difference.
// contract: C-5 C-26

use std::sync::Arc;

use gateway::GatewayConfig;
use lifecycle::{AttemptId, Cause, Outcome};
use serde_json::json;
use store::memory::Memory;
use store::{RunStore, StoreConfig, StoredEvent, StoredRun};

use crate::simulated::{Stand, kept_stand, key, soon};
use crate::wire::{chat_request, ms, read_reply, read_until, request_text, send};

/// A store of which a gateway cannot know that it is alone with it.
async fn shared() -> (Stand, Arc<Memory>) {
    let memory = Memory::new(StoreConfig::at("memory"), false);
    (kept_stand(GatewayConfig::default(), Some(memory.clone())).await, memory)
}

async fn stored(memory: &Memory, id: &str) -> Option<StoredRun> {
    memory.run(&key(id)).await.expect("the store is there")
}

async fn events(memory: &Memory, id: &str) -> Vec<StoredEvent> {
    memory.events(&key(id), 0, 100).await.expect("the store is there")
}

/// Waits until the store has so many of a run's events.
async fn has(memory: &Memory, id: &str, count: usize) -> Vec<StoredEvent> {
    soon("the events are there", async {
        loop {
            let there = events(memory, id).await;
            if there.len() >= count {
                return there;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

async fn outcome(memory: &Memory, id: &str) -> Outcome {
    soon("it has an outcome", async {
        loop {
            if let Some(outcome) = stored(memory, id).await.and_then(|run| run.outcome) {
                return outcome;
            }
            tokio::time::sleep(ms(5)).await;
        }
    })
    .await
}

async fn finish(stand: &mut Stand, attempt: &AttemptId) {
    let last = stand.worker.delta(attempt, 0, "done", &[8], Some(Cause::Stop));
    stand.worker.step(vec![last]).await;
    stand.worker.end(attempt, Outcome::of(Cause::Stop), 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_background_run_has_all_its_events_and_its_end_in_a_store_that_forgot_some() {
    let (mut stand, memory) = shared().await;
    let body = json!({"input": "hi", "background": true}).to_string();
    let request = request_text("POST", "/v1/responses", "X-Request-Id: r1\r\n", &body);
    assert_eq!(read_reply(&mut send(stand.addr, &request).await).await.status, 200);
    // Its acceptance waited for the disk; what follows did not.
    let on_disk = memory.moment();
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "the ").await;
    stand.worker.token(&attempt, "Rhine ").await;
    let told = has(&memory, "r1", 3).await;
    memory.crash_back_to(&on_disk);
    assert_eq!(events(&memory, "r1").await.len(), 0, "they are gone");
    stand.worker.token(&attempt, "is ").await;
    let again = has(&memory, "r1", 4).await;
    assert_eq!(again[..3], told, "the same under the same numbers");
    // Once more, and nothing comes behind it but its end.
    memory.crash_back_to(&on_disk);
    finish(&mut stand, &attempt).await;
    assert_eq!(outcome(&memory, "r1").await.cause, Cause::Stop);
    let whole = events(&memory, "r1").await;
    assert_eq!(whole[..4], again);
    assert_eq!(whole.iter().map(|event| event.number).collect::<Vec<_>>(), (1..=whole.len() as u64).collect::<Vec<_>>());
    assert_eq!(stored(&memory, "r1").await.map(|run| run.attempt), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interactive_run_that_was_forgotten_is_there_again_with_what_its_reader_was_told() {
    let (mut stand, memory) = shared().await;
    let before = memory.moment();
    let mut one = send(stand.addr, &chat_request("r1", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    stand.worker.token(&attempt, "the ").await;
    memory.crash_back_to(&before);
    assert!(stored(&memory, "r1").await.is_none(), "it is gone");
    finish(&mut stand, &attempt).await;
    read_until(&mut one, "[DONE]").await;
    assert_eq!(outcome(&memory, "r1").await.cause, Cause::Stop);
    // And one that is over already, when the next one is asked for.
    memory.crash_back_to(&before);
    let mut two = send(stand.addr, &chat_request("r2", r#","stream":true"#)).await;
    let attempt = stand.worker.accept().await.attempt;
    finish(&mut stand, &attempt).await;
    read_until(&mut two, "[DONE]").await;
    for id in ["r1", "r2"] {
        assert_eq!(outcome(&memory, id).await.cause, Cause::Stop, "{id}");
    }
}
