//! `/v1/runs/{id}/effects`: what a run does outside, noted by whoever does it, before and after.
//!
//! The order that makes the note worth something: note it (`intended`), move it to `submitted`, send it, move it to what became of it. A move
//! that is refused says what stands, and then nothing is to be sent.
//!
//! Invariant: an equal key with an equal kind and description is the same effect and is answered as it stands; nothing is said to be undone.
// contract: C-27 C-30

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lifecycle::{EffectState, OutcomeKind, Party, RunKey};
use serde_json::{Value, json};
use store::{Effect, HookState, StoredRun};

use super::error::ApiError;
use super::fields::Fields;
use super::generate::{IDEMPOTENCY_KEY, read};
use super::runs::key;
use super::{Requested, Segment, name, ok};
use crate::calls::Calls;
use crate::joining::KEY_MAX_LEN;
use crate::keeping::{Keeper, now_ms};
use crate::keys::Caller;
use crate::outside::{Intended, NotMoved, TOOL_KIND};

/// Longest kind in bytes.
const KIND_MAX_LEN: usize = 64;
/// How long a run's JSON waits for its effects; then it says that they are not known.
const VIEW_WAIT: Duration = Duration::from_millis(500);

/// An effect as it is shown.
fn object(effect: &Effect) -> Value {
    let detail = effect.detail.as_deref().map(|detail| String::from_utf8_lossy(detail).into_owned());
    json!({
        "object": "effect", "key": effect.key, "kind": effect.kind, "description": effect.description, "state": effect.state.as_str(),
        "attempt": effect.attempt, "detail": detail, "created_ms": effect.created_ms, "updated_ms": effect.updated_ms,
    })
}

/// Several.
pub(super) fn list(effects: &[Effect]) -> Value {
    effects.iter().map(object).collect()
}

fn hook_value(hook: &HookState) -> Value {
    let state = match (&hook.due_ms, hook.last.as_deref()) {
        (Some(_), _) => "pending",
        (None, Some("delivered")) => "delivered",
        (None, _) => "given_up",
    };
    json!({"id": hook.id, "state": state, "tries": hook.tries, "due_ms": hook.due_ms, "last": hook.last})
}

/// Adds to a run's JSON what was done outside: effects and webhooks; `null` where the store does not say in time.
pub(super) async fn add(calls: &Calls, run: &RunKey, object: &mut Value) {
    let Some(keeper) = &calls.keeper else { return };
    let found = tokio::time::timeout(VIEW_WAIT, async {
        let effects = stored(calls, keeper, run).await?;
        // The entry for the tools is no webhook.
        let mut hooks = keeper.store.hooks(run).await.ok()?;
        hooks.retain(|hook| hook.url.starts_with("http"));
        Some((effects, hooks.iter().map(hook_value).collect::<Value>()))
    });
    let (effects, hooks) = found.await.ok().flatten().unwrap_or((Value::Null, Value::Null));
    object["effects"] = effects;
    object["webhooks"] = hooks;
}

/// A run's effects as they are shown; `null` where the store does not say in time.
pub(super) async fn outside(calls: &Calls, run: &RunKey) -> Value {
    let Some(keeper) = &calls.keeper else { return Value::Null };
    tokio::time::timeout(VIEW_WAIT, stored(calls, keeper, run)).await.ok().flatten().unwrap_or(Value::Null)
}

async fn stored(calls: &Calls, keeper: &Keeper, run: &RunKey) -> Option<Value> {
    match keeper.store.run(run).await.ok()? {
        Some(known) => Some(list(&calls.effects(keeper, &known).await.ok()?)),
        None => Some(list(&[])),
    }
}

/// The store, or why there is none.
fn keeper(calls: &Calls) -> Result<&Arc<Keeper>, ApiError> {
    let why = "effects are noted only where runs are kept, and this server has no run store";
    calls.keeper.as_ref().ok_or_else(|| ApiError::bad(why).code("no_run_store"))
}

/// The run as it is kept. One that is live here and not in the store is not there yet.
async fn known(calls: &Calls, run: &RunKey) -> Result<StoredRun, ApiError> {
    match calls.known(run).await.map_err(ApiError::store)? {
        Some(known) => Ok(known),
        None if calls.journal.run(run).is_some() => Err(ApiError::store_down()),
        None => Err(ApiError::not_held(run.run.as_str(), calls.journal.recall(run), calls.journal.limits())),
    }
}

fn text(fields: &mut Fields, name: &str, range: std::ops::RangeInclusive<usize>) -> Result<String, ApiError> {
    let text = fields.text(name)?.unwrap_or_default();
    match range.contains(&text.len()) {
        true => Ok(text),
        false => Err(ApiError::field(name, format!("must be {} to {} bytes", range.start(), range.end()))),
    }
}

/// The effect's key: in the header or in the body, and in both the same.
fn effect_key(headers: &HeaderMap, fields: &mut Fields) -> Result<String, ApiError> {
    let bad = || ApiError::field("key", format!("must be 1 to {KEY_MAX_LEN} visible ASCII characters, in the body or as Idempotency-Key"));
    let mut given = headers.get_all(IDEMPOTENCY_KEY).iter();
    let header = given.next().map(|value| value.to_str().map(str::to_owned).map_err(|_| bad())).transpose()?;
    let body = fields.text("key")?;
    let key = match (header, body) {
        (Some(header), Some(body)) if header != body => return Err(bad()),
        (Some(key), _) | (None, Some(key)) => key,
        (None, None) => return Err(bad()),
    };
    let is_visible = key.bytes().all(|byte| byte.is_ascii_graphic());
    if given.next().is_some() || !(1..=KEY_MAX_LEN).contains(&key.len()) || !is_visible { Err(bad()) } else { Ok(key) }
}

fn state(fields: &mut Fields) -> Result<Option<EffectState>, ApiError> {
    let Some(word) = fields.text("state")? else { return Ok(None) };
    let words = || EffectState::ALL.map(EffectState::as_str).join(", ");
    EffectState::parse(&word).map(Some).ok_or_else(|| ApiError::field("state", format!("must be one of {}", words())))
}

fn detail(calls: &Calls, fields: &mut Fields) -> Result<Option<Vec<u8>>, ApiError> {
    let max = calls.config.outside.effect_text_bytes_max;
    let detail = fields.text("detail")?;
    if detail.as_ref().is_some_and(|detail| detail.len() > max) {
        return Err(ApiError::field("detail", format!("must be at most {max} bytes")));
    }
    Ok(detail.map(String::into_bytes))
}

/// `POST /v1/runs/{id}/effects`
pub(crate) async fn create(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
    request: Request,
) -> Result<Response, ApiError> {
    let run = key(&caller, id)?;
    let answer = created(&calls, &run, request).await;
    Ok(of_run(&run, &requested, answer))
}

async fn created(calls: &Calls, run: &RunKey, request: Request) -> Result<Response, ApiError> {
    let (head, body) = request.into_parts();
    let body = read(calls, body, 0).await?;
    let keeper = keeper(calls)?;
    let mut fields = Fields::parse(&body)?;
    let key = effect_key(&head.headers, &mut fields)?;
    let kind = text(&mut fields, "kind", 1..=KIND_MAX_LEN)?;
    if kind.starts_with("kvit_") {
        return Err(ApiError::field("kind", "must not begin with kvit_: these are the server's own"));
    }
    let description = text(&mut fields, "description", 1..=calls.config.outside.effect_text_bytes_max)?;
    let state = state(&mut fields)?.unwrap_or(EffectState::Intended);
    let detail = detail(calls, &mut fields)?;
    fields.finish()?;
    let known = known(calls, run).await?;
    let now = now_ms();
    // Where the run is, the attempt is known before the store has it.
    let live = calls.lock().entries.get(run).map(|entry| entry.dispatch.call().attempt());
    let attempt = live.unwrap_or(known.attempt);
    let effect = Effect { key, kind, description, state, attempt, detail, created_ms: now, updated_ms: now };
    if state.is_begun() && known.outcome.is_some() {
        let stands = calls.effects(keeper, &known).await.map_err(ApiError::store)?.into_iter().find(|there| there.key == effect.key);
        return match stands {
            Some(there) if there.kind == effect.kind && there.description == effect.description => Ok(ok(&object(&there))),
            Some(_) => Err(reused()),
            None => Err(over(&known)),
        };
    }
    match calls.intend(keeper, run, effect).await.map_err(ApiError::store)? {
        Intended::New(effect) => {
            let mut response = ok(&object(&effect));
            *response.status_mut() = StatusCode::CREATED;
            Ok(response)
        }
        Intended::Stands(effect) => Ok(ok(&object(&effect))),
        Intended::Other => Err(reused()),
        Intended::Over(run) => Err(over(&run)),
        Intended::Full => {
            let why = format!("the run has {} effects, as many as it may (option effects_max)", calls.config.outside.effects_max);
            Err(ApiError::new(StatusCode::CONFLICT, "invalid_request_error", why).code("too_many_effects"))
        }
        Intended::NoRun => Err(ApiError::store_down()),
    }
}

/// `PATCH /v1/runs/{id}/effects/{key}`
pub(crate) async fn change(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Path((id, effect)) = path.map_err(|e| ApiError::bad(format!("the path cannot be read: {}", e.body_text())))?;
    let run = key(&caller, Ok(Path(id)))?;
    let answer = changed(&calls, &run, &effect, request).await;
    Ok(of_run(&run, &requested, answer))
}

async fn changed(calls: &Calls, run: &RunKey, effect: &str, request: Request) -> Result<Response, ApiError> {
    let body = read(calls, request.into_body(), 0).await?;
    let keeper = keeper(calls)?;
    let mut fields = Fields::parse(&body)?;
    let to = state(&mut fields)?.ok_or_else(|| ApiError::field("state", "is missing"))?;
    let detail = detail(calls, &mut fields)?;
    fields.finish()?;
    let known = known(calls, run).await?;
    // What has been waited for long enough is unknown first.
    calls.effects(keeper, &known).await.map_err(ApiError::store)?;
    let asked = (to.asked(), Party::Caller);
    match calls.move_effect(keeper, (run, effect), asked, detail).await.map_err(ApiError::store)? {
        Ok(effect) => Ok(ok(&object(&effect))),
        Err(NotMoved::Absent) => {
            let why = format!("the run has no effect `{}`", effect.chars().take(KEY_MAX_LEN).collect::<String>());
            Err(ApiError::new(StatusCode::NOT_FOUND, "invalid_request_error", why).code("effect_not_found"))
        }
        Err(NotMoved::Stands(stands)) => Ok(refused(&stands, to)),
    }
}

/// A 409 that says what stands beside why it stays.
fn refused(stands: &Effect, to: EffectState) -> Response {
    let own = if stands.kind == TOOL_KIND {
        "; it is the server's own, and a caller may only say what became of one that is unknown"
    } else {
        ""
    };
    let why = format!("the effect is {}, from where it does not become {} now{own}", stands.state.as_str(), to.as_str());
    let error = ApiError::new(StatusCode::CONFLICT, "invalid_request_error", why).code("effect_stands");
    let mut body = error.to_json();
    body["effect"] = object(stands);
    (StatusCode::CONFLICT, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn reused() -> ApiError {
    let why = "names an effect of another kind or description; use a new key for another effect";
    ApiError::field_with(StatusCode::UNPROCESSABLE_ENTITY, "key", why).code("idempotency_key_reused")
}

/// A 409: none of the run's effects begins any more.
fn over(run: &StoredRun) -> ApiError {
    let why = match run.outcome.as_ref().map(lifecycle::Outcome::kind) {
        Some(OutcomeKind::Completed) => "has ended",
        Some(_) => "has ended without completing",
        None => "is cancelled",
    };
    let why =
        format!("the run {why}: no further effect of it is begun; one that was done already can be noted as committed, failed or unknown");
    ApiError::new(StatusCode::CONFLICT, "invalid_request_error", why).code("run_over")
}

/// `GET /v1/runs/{id}/effects`
pub(crate) async fn show(
    State(calls): State<Arc<Calls>>,
    Extension(caller): Extension<Caller>,
    Extension(requested): Extension<Requested>,
    id: Segment,
) -> Result<Response, ApiError> {
    let run = key(&caller, id)?;
    let answer = shown(&calls, &run).await;
    Ok(of_run(&run, &requested, answer))
}

async fn shown(calls: &Calls, run: &RunKey) -> Result<Response, ApiError> {
    let keeper = keeper(calls)?;
    let known = known(calls, run).await?;
    let effects = calls.effects(keeper, &known).await.map_err(ApiError::store)?;
    Ok(ok(&json!({"object": "list", "data": list(&effects)})))
}

/// An answer about a run carries its id; of a run that is not there it has only its own.
fn of_run(run: &RunKey, requested: &Requested, answer: Result<Response, ApiError>) -> Response {
    match answer {
        Ok(mut response) => {
            name(response.headers_mut(), &run.run, requested.0.as_ref());
            response
        }
        Err(error) => error.into_response(),
    }
}
