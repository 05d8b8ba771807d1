//! `GET /v1/caller`: who a key says that its sender is, and whether a key is wanted at all. Answered to everybody, so that a page can ask for one.
//!
//! Invariant: whoever has no key learns that it needs one, and nothing else.
// contract: C-30

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;

use super::ok;
use crate::calls::Calls;

/// `GET /v1/caller`
pub(crate) async fn show(State(calls): State<Arc<Calls>>, headers: HeaderMap) -> Response {
    let keys = &calls.config.keys;
    let caller = keys.caller(&headers).ok();
    ok(&json!({
        "object": "caller", "keys": !keys.is_empty(), "name": caller.as_ref().map(|caller| &*caller.name),
        "tenant": caller.as_ref().map(|caller| caller.tenant.as_str()),
        "operator": caller.as_ref().is_some_and(|caller| keys.is_operator(caller)),
    }))
}
