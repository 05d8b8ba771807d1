//! A run as the store has it, in the shape of `GET /v1/runs/{id}`: its whole record where one was kept, else what is known without it.
//!
//! Invariant: what only the run's own gateway knows while it runs is `null`, never made up.
// contract: C-29

use serde_json::{Value, json};
use store::StoredRun;

/// The run's JSON.
pub(super) fn view(run: &StoredRun) -> Value {
    if let Some(mut record) = run.record.as_deref().and_then(|record| serde_json::from_slice::<Value>(record).ok()) {
        // Records of before had neither.
        if let Some(record) = record.as_object_mut() {
            record.entry("tenant").or_insert_with(|| run.key.tenant.as_str().into());
            record.entry("created_ms").or_insert_with(|| run.created_ms.into());
        }
        return record;
    }
    let outcome = run.outcome.as_ref();
    let state = match (outcome, run.attempt) {
        (Some(_), _) => Some("ended"),
        (None, 0) => Some("queued"),
        // Where a worker has it, only its own gateway knows more.
        (None, _) => None,
    };
    json!({
        "object": "run",
        "id": run.key.run.as_str(),
        "tenant": run.key.tenant.as_str(),
        "model": run.model,
        "state": state,
        "released": null,
        "settled": null,
        "attempt": run.attempt,
        "outcome": outcome.map(|o| json!({"kind": o.kind().as_str(), "cause": o.cause.as_str(), "reason": o.reason})),
        "delivery": run.delivery.map(lifecycle::Delivery::as_str),
        "guarantee": null,
        "phase_at_disconnect": null,
        "milestones": null,
        "boundaries": null,
        "tokens": outcome.map(|_| json!({"prompt": run.usage.prompt, "cached_prompt": run.usage.cached_prompt, "generated": run.usage.generated})),
        "superseded": null,
        "on_disconnect": run.on_disconnect.to_string(),
        "owner": run.owner.to_string(),
        "created_ms": run.created_ms,
        "ended_ms": run.ended_ms,
        "expires_ms": run.expires_ms,
    })
}
