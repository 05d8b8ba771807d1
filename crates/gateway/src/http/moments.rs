//! `/v1/kv/moments`, `/v1/kv/map` and `/v1/kv/blocks/{block}`: the workers' blocks, small enough to look at every second, and as they stood
//! before.
//!
//! Invariant: what is shown stood so in one cut of its worker's own state. An owner is named to its own tenant and to operators only.
// contract: C-15 C-30

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::ApiError;
use super::kv::Sees;
use super::runs::{Params, params};
use super::{Segment, named, ok};
use crate::calls::Calls;
use crate::keys::Caller;
use crate::moments::{Film, Kind, Moment};

fn account_object(moment: &Moment) -> Value {
    let of = moment.account;
    json!({"moment": moment.number, "at_ms": moment.at_ms, "step": of.step.0, "total": of.total, "free": of.free, "active": of.active,
           "orphaned": of.orphaned, "cached": of.cached, "draining": of.draining, "quarantined": of.quarantined, "conserved": of.conserved})
}

fn kind_object(kind: &Kind, sees: &Sees) -> Value {
    let owners: Vec<String> = kind.owners.iter().map(|owner| sees.owner(owner)).collect();
    json!({"state": kind.state, "owners": owners, "fence": kind.fence.map(|step| step.0)})
}

/// A whole number in the query.
fn number(map: &HashMap<String, String>, name: &str) -> Result<Option<u64>, ApiError> {
    let wrong = || ApiError::field(name, "must be a whole number");
    map.get(name).map(|text| text.parse().map_err(|_| wrong())).transpose()
}

fn film_object(worker: &str, film: &Film, after: u64) -> Value {
    let moments: Vec<Value> = film.iter().filter(|moment| moment.number > after).map(|moment| account_object(moment)).collect();
    json!({"worker": worker, "incarnation": film.newest().and_then(|newest| newest.life).map(|life| life.to_string()),
           "first": film.iter().next().map(|moment| moment.number), "moments": moments})
}

/// `GET /v1/kv/moments?worker=&after=`: which moments are kept, with their sums.
pub(crate) async fn moments(State(calls): State<Arc<Calls>>, query: Params) -> Result<Response, ApiError> {
    let map = params(query, &["worker", "after"])?;
    let after = number(&map, "after")?.unwrap_or(0);
    calls.take_moments().await;
    let wanted = map.get("worker");
    let films = calls.films();
    let films = films.by_worker.iter().filter(|(name, _)| wanted.is_none_or(|wanted| **wanted == ***name));
    let workers: Vec<Value> = films.map(|(name, film)| film_object(name, film, after)).collect();
    let config = calls.config.moments;
    Ok(ok(&json!({"object": "kv_moments", "now_ms": calls.calendar_ms(), "every_ms": config.every.as_millis() as u64,
                  "keep_ms": config.keep.as_millis() as u64, "workers": workers})))
}

/// A 404: there is no such moment, worker or block, or no longer.
fn gone(what: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", what).code("moment_not_kept")
}

/// The moment that a query names, of the worker that it names: by default the newest one of the only worker.
async fn moment(calls: &Calls, map: &HashMap<String, String>) -> Result<(Arc<str>, Arc<Moment>), ApiError> {
    let wanted = number(map, "moment")?;
    if wanted.is_none() {
        calls.take_moments().await;
    }
    let films = calls.films();
    let (name, film) = match map.get("worker") {
        Some(worker) => films.by_worker.get_key_value(worker.as_str()).ok_or_else(|| gone("no worker of this name has blocks here"))?,
        None => match films.by_worker.len() {
            0 => return Err(ApiError::unavailable("the worker does not answer").code("worker_silent")),
            1 => films.by_worker.iter().next().ok_or_else(|| gone("there is none"))?,
            _ => return Err(ApiError::field("worker", format!("must be one of {}", names(films.by_worker.keys())))),
        },
    };
    let found = match wanted {
        Some(number) => film.get(number),
        None => film.newest(),
    };
    let moment = found.ok_or_else(|| gone("this moment is no longer kept, or never was"))?;
    Ok((name.clone(), moment.clone()))
}

fn names<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> String {
    names.map(|name| &**name).collect::<Vec<_>>().join(", ")
}

/// `GET /v1/kv/map?worker=&moment=`: each block's state, owners and fence, blocks beside one another told of together.
pub(crate) async fn map(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    query: Params,
) -> Result<Response, ApiError> {
    let map = params(query, &["worker", "moment"])?;
    let (worker, moment) = moment(&calls, &map).await?;
    let sees = Sees::of(&calls, caller);
    let mut object = account_object(&moment);
    object["object"] = "kv_map".into();
    object["worker"] = (*worker).into();
    object["incarnation"] = json!(moment.life.map(|life| life.to_string()));
    object["block_tokens"] = moment.block_tokens.into();
    object["kinds"] = moment.kinds.iter().map(|kind| kind_object(kind, &sees)).collect();
    object["cells"] = moment.cells.iter().flat_map(|(count, kind)| [Value::from(*count), Value::from(*kind)]).collect();
    Ok(ok(&object))
}

/// `GET /v1/kv/blocks/{block}?worker=&moment=`: one block, with its generation.
pub(crate) async fn block(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    segment: Segment,
    query: Params,
) -> Result<Response, ApiError> {
    let map = params(query, &["worker", "moment"])?;
    let name = named(segment)?;
    let (worker, moment) = moment(&calls, &map).await?;
    let found = name.parse().ok().and_then(|block: u32| Some((block, moment.block(block)?)));
    let (block, (kind, generation)) = found.ok_or_else(|| gone("there is no such block"))?;
    let mut object = kind_object(kind, &Sees::of(&calls, caller));
    object["object"] = "kv_block".into();
    object["worker"] = (*worker).into();
    object["moment"] = moment.number.into();
    object["block"] = block.into();
    object["generation"] = generation.into();
    Ok(ok(&object))
}
