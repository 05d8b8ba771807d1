//! `/v1/kv`: the worker's account of its blocks, one consistent cut of its own state.
//!
//! Invariant: nothing is added up or remembered here; if the worker does not answer, there is no answer.
// contract: C-15

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use lifecycle::message::{BlockCut, Snapshot};
use serde_json::{Value, json};

use super::error::ApiError;
use super::ok;
use crate::calls::Calls;

async fn cut(calls: &Calls, blocks: bool) -> Result<Box<Snapshot>, ApiError> {
    let silent = || ApiError::unavailable("the worker does not answer").code("worker_silent");
    calls.snapshot(blocks).await.ok_or_else(silent)
}

fn account_object(calls: &Calls, cut: &Snapshot) -> Value {
    json!({
        "object": "kv", "incarnation": calls.worker.to_string(), "step": cut.step.0, "block_tokens": cut.block_tokens, "total": cut.total,
        "free": cut.free, "active": cut.active, "orphaned": cut.orphaned, "cached": cut.cached, "draining": cut.draining,
        "quarantined": cut.quarantined, "conserved": cut.is_conserved(),
        "runs": {"queued": cut.queued, "running": cut.running, "stopping": cut.stopping},
        "stale_releases": cut.stale_releases, "foreign_releases": cut.foreign_releases, "double_releases": cut.double_releases,
        "late_completions": cut.late_completions,
        "reserved_bytes": cut.reserved_bytes, "tombstones": cut.tombstones, "device_lost": cut.device_lost,
    })
}

fn block_object(block: &BlockCut) -> Value {
    let owners: Vec<String> = block.owners.iter().map(ToString::to_string).collect();
    json!({"block": block.block, "generation": block.generation, "state": block.state, "owners": owners,
           "fence": block.fence.map(|step| step.0)})
}

/// `GET /v1/kv`
pub(crate) async fn account(State(calls): State<Arc<Calls>>) -> Result<Response, ApiError> {
    let cut = cut(&calls, false).await?;
    Ok(ok(&account_object(&calls, &cut)))
}

/// `GET /v1/kv/blocks`
pub(crate) async fn blocks(State(calls): State<Arc<Calls>>) -> Result<Response, ApiError> {
    let cut = cut(&calls, true).await?;
    let mut object = account_object(&calls, &cut);
    object["blocks"] = cut.blocks.iter().map(block_object).collect();
    Ok(ok(&object))
}
