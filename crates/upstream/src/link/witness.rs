//! A witness for requests that were left before they were counted: the smallest request that shows that a step is over.
//!
//! An engine whose counters are those of its last step says nothing of a request whose first step goes on. A later request that has its tokens
//! shows that a step is over which began when both had come. Where no caller's own request shows it, this one does: two tokens behind a prompt
//! of one letter, and nobody waits for it but a slot that is still taken.
//!
//! Invariant: one at a time, and none while nobody waits for one; one that refuses is not asked again before it was met anew.
// contract: C-29

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::json;

use super::{Shared, held};
use crate::client::CallError;

/// Pause behind one that failed.
const AGAIN: Duration = Duration::from_millis(500);

pub(super) async fn watch(shared: &Arc<Shared>) {
    loop {
        let is_asked = shared.config.witness && !shared.takes_no_witness.load(Ordering::Acquire);
        let from = held(&shared.ledger).witness_from().filter(|_| is_asked);
        let Some(from) = from else {
            shared.unwitnessed.notified().await;
            continue;
        };
        let wait = from.saturating_sub(shared.now());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
            // Somebody's own request may have shown it meanwhile.
            continue;
        }
        let sent = shared.now();
        match ask(shared).await {
            Ok(200..=299) => {
                held(&shared.ledger).witnessed(sent, shared.now());
                shared.closed.notify_one();
            }
            Ok(status @ 400..=499) if status != 429 => {
                tracing::warn!(upstream = %shared.config.name, status, "takes no witness: what is left before its tokens stays unproven");
                shared.takes_no_witness.store(true, Ordering::Release);
            }
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Asks for two tokens, and reads all of the answer. Its status.
async fn ask(shared: &Arc<Shared>) -> Result<u16, CallError> {
    let Some(met) = shared.capabilities() else { return Ok(503) };
    let body = json!({"model": &*met.model, "prompt": "a", "max_tokens": 2, "min_tokens": 2, "ignore_eos": true, "temperature": 0});
    let all = async {
        let answer = shared.client.post("/v1/completions", HeaderMap::new(), Bytes::from(body.to_string())).await?;
        let status = answer.status;
        answer.whole().await?;
        Ok(status)
    };
    // Whoever hangs with it is asked again; nobody waits for longer than for a proof.
    tokio::time::timeout(shared.config.observe_for, all).await.unwrap_or(Ok(504))
}
