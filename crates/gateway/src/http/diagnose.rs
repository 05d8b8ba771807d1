//! `/v1/diagnose`: what is the matter, by one look at everything that this gateway sees.
//!
//! Invariant: for operators only, for it names runs of every tenant. Nothing in it is a prompt's or an answer's text, a key or an address.
// contract: C-15 C-30

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use lifecycle::{RunId, RunKey, Tenant};
use observe::diagnose::{Look, judge, tail};
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::ok;
use super::runs::{Params, params};
use crate::calls::Calls;
use crate::keys::Caller;

/// Most records of each run that the verdict is about.
const TAIL_MAX: usize = 1000;
/// Most runs whose records are told.
const RUNS_MAX: usize = 20;

/// `GET /v1/diagnose?look=true&tail=N`
///
/// Without `look` the blocks themselves are not asked for: their sums tell most faults, and cost a big pool nothing.
pub(crate) async fn diagnose(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    query: Params,
) -> Result<Response, ApiError> {
    let map = params(query, &["look", "tail"])?;
    let whole = match map.get("look").map(String::as_str) {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(ApiError::field("look", "must be true or false")),
    };
    let each = map
        .get("tail")
        .map(|text| text.parse::<usize>().ok().filter(|n| *n <= TAIL_MAX))
        .map(|n| n.ok_or_else(|| ApiError::field("tail", format!("must be a whole number, at most {TAIL_MAX}"))));
    let each = each.transpose()?;
    if !calls.config.keys.is_operator(&caller) {
        return Err(ApiError::operators_only());
    }
    let look = calls.see(whole).await;
    let diagnosis = judge(std::slice::from_ref(&look), None);
    let mut answer = json!(diagnosis);
    if let Some(each) = each {
        let runs: Vec<RunKey> = concerned(&look).take(RUNS_MAX).collect();
        answer["tail"] = Value::Array(tail(&calls.journal, &runs, each));
    }
    if whole {
        let told = calls.config.told.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
        answer["config"] = Value::Object(Map::from_iter(told));
        answer["look"] = json!(look);
    }
    Ok(ok(&answer))
}

/// The runs that are left behind, and then those that the workers have.
fn concerned(look: &Look) -> impl Iterator<Item = RunKey> {
    let left = look.left.iter().map(|left| (&left.tenant, &left.run));
    let attempts = look.workers.iter().filter_map(|worker| worker.account.as_ref()).flat_map(|account| &account.attempts);
    let mut seen = std::collections::HashSet::new();
    let all = left.chain(attempts.map(|attempt| (&attempt.tenant, &attempt.run)));
    all.filter(move |name| seen.insert(*name))
        .filter_map(|(tenant, run)| Some(RunKey { tenant: Tenant::parse(tenant).ok()?, run: RunId::parse(run).ok()? }))
}
