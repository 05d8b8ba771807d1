//! `/v1/kv`: the workers' accounts of their blocks, each one consistent cut of its worker's own state.
//!
//! With one worker the answer is its account. With several the accounts stand side by side, and above them their sum: of cuts that were
//! made at nearly the same time, and of no single moment.
//!
//! Invariant: nothing is remembered here; a worker that does not answer has no account, and if none does, there is no answer. An owner of a
//! block is named to its own tenant and to operators only.
// contract: C-15 C-30

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use lifecycle::message::{BlockCut, Snapshot};
use lifecycle::{AttemptId, Tenant};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::ok;
use crate::asks::Cut;
use crate::calls::Calls;
use crate::keys::Caller;

/// The fields of an account that are added up over several workers.
const SUMMED: [&str; 13] = [
    "total",
    "free",
    "active",
    "orphaned",
    "cached",
    "draining",
    "quarantined",
    "stale_releases",
    "foreign_releases",
    "double_releases",
    "late_completions",
    "reserved_bytes",
    "tombstones",
];

/// An owner that is not the asker's to know.
const HIDDEN: &str = "-";

/// Whose owners of blocks are named.
pub(super) struct Sees {
    tenant: Tenant,
    /// Those of every tenant.
    all: bool,
}

impl Sees {
    pub(super) fn of(calls: &Calls, caller: Caller) -> Sees {
        Sees { all: calls.config.keys.is_operator(&caller), tenant: caller.tenant }
    }

    pub(super) fn owner(&self, owner: &AttemptId) -> String {
        match owner.key.tenant == self.tenant {
            true => owner.to_string(),
            // Two tenants' runs may have one id.
            false if self.all => format!("{}:{owner}", owner.key.tenant),
            false => HIDDEN.to_owned(),
        }
    }
}

fn account_object(cut: &Cut, account: &Snapshot, blocks: Option<&Sees>) -> Value {
    let mut object = json!({
        "object": "kv", "incarnation": cut.life.map(|life| life.to_string()), "step": account.step.0, "block_tokens": account.block_tokens,
        "total": account.total, "free": account.free, "active": account.active, "orphaned": account.orphaned, "cached": account.cached,
        "draining": account.draining, "quarantined": account.quarantined, "conserved": account.is_conserved(),
        "runs": {"queued": account.queued, "running": account.running, "stopping": account.stopping},
        "stale_releases": account.stale_releases, "foreign_releases": account.foreign_releases,
        "double_releases": account.double_releases, "late_completions": account.late_completions,
        "reserved_bytes": account.reserved_bytes, "tombstones": account.tombstones, "device_lost": account.device_lost,
    });
    if let Some(sees) = blocks {
        object["blocks"] = account.blocks.iter().map(|block| block_object(block, sees)).collect();
    }
    object
}

fn block_object(block: &BlockCut, sees: &Sees) -> Value {
    let owners: Vec<String> = block.owners.iter().map(|owner| sees.owner(owner)).collect();
    json!({"block": block.block, "generation": block.generation, "state": block.state, "owners": owners,
           "fence": block.fence.map(|step| step.0)})
}

/// Several accounts: the sum of those that were answered, and each by itself. Who did not answer stands there with its name alone.
fn several(cuts: &[Cut], blocks: Option<&Sees>) -> Value {
    let answered: Vec<(&Cut, Value)> =
        cuts.iter().filter_map(|cut| Some((cut, account_object(cut, cut.snapshot.as_deref()?, blocks)))).collect();
    let sum = |of: &dyn Fn(&Value) -> Option<u64>| answered.iter().filter_map(|(_, account)| of(account)).sum::<u64>();
    let mut object = Map::new();
    object.insert("object".to_owned(), "kv".into());
    object.insert("answered".to_owned(), answered.len().into());
    for name in SUMMED {
        object.insert(name.to_owned(), sum(&|account| account[name].as_u64()).into());
    }
    object.insert("conserved".to_owned(), answered.iter().all(|(_, account)| account["conserved"] == true).into());
    let runs = ["queued", "running", "stopping"].map(|name| (name.to_owned(), sum(&|account| account["runs"][name].as_u64()).into()));
    object.insert("runs".to_owned(), Value::Object(runs.into_iter().collect()));
    let mut accounts = answered.into_iter().peekable();
    let workers = cuts.iter().map(|cut| {
        let account = accounts.next_if(|(of, _)| std::ptr::eq(*of, cut)).map(|(_, account)| account);
        let mut worker = account.unwrap_or_else(|| json!({"object": "kv", "incarnation": cut.life.map(|life| life.to_string())}));
        worker["worker"] = (*cut.name).into();
        worker["answered"] = cut.snapshot.is_some().into();
        worker
    });
    object.insert("workers".to_owned(), workers.collect());
    Value::Object(object)
}

async fn answer(calls: &Calls, blocks: Option<&Sees>) -> Result<Response, ApiError> {
    let cuts = calls.snapshots(blocks.is_some()).await;
    if cuts.iter().all(|cut| cut.snapshot.is_none()) {
        return Err(ApiError::unavailable("the worker does not answer").code("worker_silent"));
    }
    Ok(match &cuts[..] {
        [cut] => ok(&cut.snapshot.as_deref().map(|account| account_object(cut, account, blocks))),
        _ => ok(&several(&cuts, blocks)),
    })
}

/// `GET /v1/kv`
pub(crate) async fn account(State(calls): State<Arc<Calls>>) -> Result<Response, ApiError> {
    answer(&calls, None).await
}

/// `GET /v1/kv/blocks`
pub(crate) async fn blocks(State(calls): State<Arc<Calls>>, Extension(caller): Extension<Caller>) -> Result<Response, ApiError> {
    answer(&calls, Some(&Sees::of(&calls, caller))).await
}
