//! `/v1/alerts` and `/v1/waste`: what the journal says of the server as a whole, for those without Prometheus.
//!
//! Invariant: sums only; no run and no tenant is named.
// contract: C-30

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;

use super::ok;
use crate::asks::Cut;
use crate::calls::Calls;

/// `GET /v1/alerts`
pub(crate) async fn alerts(State(calls): State<Arc<Calls>>) -> Response {
    let cuts = calls.snapshots(false).await;
    let workers: Vec<_> = cuts.iter().map(Cut::scraped).collect();
    ok(&calls.journal.alerts(&calls.config.alerts, &workers))
}

/// `GET /v1/waste`
pub(crate) async fn waste(State(calls): State<Arc<Calls>>) -> Response {
    ok(&calls.journal.waste(&calls.config.prices))
}
