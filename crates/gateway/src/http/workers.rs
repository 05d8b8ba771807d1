//! `/v1/workers`: who computes, as this gateway knows it now.
//!
//! Invariant: nobody is asked for it; what is not known is `null`.
// contract: C-10

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use lifecycle::{Load, Shows, WorkerState};
use serde_json::{Value, json};

use super::ok;
use crate::calls::Calls;

fn worker_object(known: &WorkerState, load: Load) -> Value {
    let clock = known.clock.map(|clock| (clock.offset_us as f64 / 1000.0, clock.error.as_micros() as f64 / 1000.0)).unzip();
    json!({
        "object": "worker", "name": &*known.name, "incarnation": known.life.map(|life| life.to_string()), "state": known.word(),
        "kind": known.offer.make.map(|make| make.kind), "cancel": known.offer.make.map(|make| make.cancel),
        "shows": known.offer.make.map(|make| shows(make.shows)),
        "model": known.offer.models.first().map(|model| &*model.id),
        "models": known.offer.models.iter().map(|model| &*model.id).collect::<Vec<_>>(), "slots": known.offer.slots, "runs": load.runs, "device_lost": known.device_lost,
        "clock_offset_ms": clock.0, "clock_error_ms": clock.1,
    })
}

fn shows(shows: Shows) -> Value {
    json!({
        "requests": shows.requests.as_str(), "kv_usage": shows.kv_usage.as_str(), "tokens": shows.tokens.as_str(),
        "proves_within_ms": shows.proves_within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX)),
    })
}

/// `GET /v1/workers`
pub(crate) async fn list(State(calls): State<Arc<Calls>>) -> Response {
    let table = calls.lock();
    let loads = table.loads();
    let load = |worker| loads.get(&worker).copied().unwrap_or_default();
    let data: Vec<Value> = table.workers.iter().map(|(worker, known)| worker_object(known, load(worker))).collect();
    drop(table);
    ok(&json!({"object": "list", "data": data}))
}
