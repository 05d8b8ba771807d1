//! `POST /v1/responses`: its fields, by the schema that OpenAI publishes, and kvit's extensions.
//!
//! Invariant: pure; a field that would change the answer is obeyed or refused by name, never dropped.
// contract: C-25 C-28

use std::time::Duration;

use lifecycle::OnDisconnect;
use lifecycle::params::{LOGPROBS_MAX, Params};
use serde_json::{Map, Value};

use super::asked::Asked;
use super::{input, words};
use crate::http::error::ApiError;
use crate::http::fields::{self, Fields};

/// Most pairs of `metadata`; this and the next two are OpenAI's.
const METADATA_MAX: usize = 16;
/// Longest key of `metadata` in characters.
const METADATA_KEY_MAX: usize = 64;
/// Longest value of `metadata` in characters.
const METADATA_VALUE_MAX: usize = 512;
/// Longest `safety_identifier` in characters; OpenAI's.
const SAFETY_MAX: usize = 64;
/// Longest `user` and `prompt_cache_key` in characters: they are kept with the response. OpenAI names no limit.
const NAME_MAX: usize = 512;

/// A request that was read.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) params: Params,
    pub(super) stream: bool,
    /// The deadline in the body.
    pub(super) timeout: Option<Duration>,
    /// The policy in the body.
    pub(super) on_disconnect: Option<OnDisconnect>,
}

/// How long responses are kept, and the time; all in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    /// The calendar's time.
    pub(super) now: i64,
    /// Where the caller says nothing; `None` if nothing is kept here.
    pub(super) usual: Option<i64>,
    /// The longest that a caller may ask for.
    pub(super) max: i64,
}

/// Reads the fields; the model's name was taken before. `forwards` says that the model is an engine's of others, which has more words.
pub(super) fn parse(mut fields: Fields, retention: Retention, forwards: bool) -> Result<Request, ApiError> {
    let mut params = Params::default();
    // What is said again is said as it was written.
    let number = |fields: &Fields, name: &str| fields.peek(name).and_then(Value::as_f64).unwrap_or(1.0);
    let (temperature, top_p) = (number(&fields, "temperature"), number(&fields, "top_p"));
    fields::generation(&mut fields, &mut params)?;
    params.max_tokens = fields.u32("max_output_tokens")?;
    fields::check(&params, "max_output_tokens")?;
    let background = fields.bool("background")?.unwrap_or(false);
    let store = fields.bool("store")?.unwrap_or(true);
    if background && !store {
        return Err(ApiError::field("background", "needs store: true, for an answer that nobody waits for must be kept"));
    }
    let stream = fields.bool("stream")?.unwrap_or(false);
    stream_options(&mut fields, stream)?;
    let on_disconnect = on_disconnect(&mut fields, background)?;
    let expires_at = expires(&mut fields, store, retention)?;
    unsupported(&mut fields)?;
    let tools = words::tools(&mut fields, forwards)?;
    let (format, top_logprobs) = (text(&mut fields, forwards)?, top_logprobs(&mut fields)?);
    params.sampling.logprobs = (included(&mut fields)? || top_logprobs > 0).then_some(top_logprobs);
    let asked = Asked {
        input: input::items(fields.take("input"), forwards)?,
        instructions: fields.text("instructions")?,
        previous_response_id: fields.text("previous_response_id")?,
        metadata: metadata(&mut fields)?,
        background,
        store,
        max_output_tokens: params.max_tokens,
        temperature,
        top_p,
        tool_choice: words::choice(&mut fields, &tools, forwards)?,
        parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        tools,
        format,
        top_logprobs,
        max_tool_calls: fields.u32("max_tool_calls")?,
        user: name(&mut fields, "user", NAME_MAX)?,
        safety_identifier: name(&mut fields, "safety_identifier", SAFETY_MAX)?,
        prompt_cache_key: name(&mut fields, "prompt_cache_key", NAME_MAX)?,
        created_at: retention.now,
        expires_at,
    };
    harmless(&mut fields)?;
    let timeout = fields::timeout(&mut fields)?;
    fields.finish()?;
    Ok(Request { asked, params, stream, timeout, on_disconnect })
}

/// Fields of OpenAI's that ask for what is not here, with a word about why.
fn unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    const WHY: [(&str, &str); 4] = [
        ("conversation", "is not supported by this server; use previous_response_id"),
        ("prompt", "is not supported by this server: it keeps no prompt templates"),
        ("moderation", "is not supported by this server"),
        ("context_management", "is not supported by this server"),
    ];
    match WHY.iter().find(|(name, _)| fields.take(name).is_some()) {
        Some((name, why)) => Err(ApiError::field(name, why).code("unsupported_parameter")),
        None => Ok(()),
    }
}

/// Takes fields whose values may be such that they change nothing, and refuses all others.
fn harmless(fields: &mut Fields) -> Result<(), ApiError> {
    word(fields, "service_tier", &["auto", "default"])?;
    // `auto` lets a server drop the oldest items of what does not fit. Nothing is dropped here: what does not fit is refused.
    word(fields, "truncation", &["auto", "disabled"])?;
    word(fields, "prompt_cache_retention", &["in_memory", "24h"])?;
    if let Some(inner) = object(fields, "reasoning")?
        && let Some(name) = inner.left()
    {
        let why = "is not supported: this model does not reason apart";
        return Err(ApiError::field(&format!("reasoning.{name}"), why).code("unsupported_parameter"));
    }
    Ok(())
}

/// Reads `include`: whether log-probabilities are asked for.
fn included(fields: &mut Fields) -> Result<bool, ApiError> {
    const LOGPROBS: &str = "message.output_text.logprobs";
    match fields.take("include") {
        None => Ok(false),
        Some(Value::Array(list)) if list.iter().all(|name| name == LOGPROBS) => Ok(!list.is_empty()),
        Some(_) => Err(ApiError::field("include", format!("may name {LOGPROBS} and nothing else")).code("unsupported_parameter")),
    }
}

fn top_logprobs(fields: &mut Fields) -> Result<u8, ApiError> {
    let few = |v: &Value| v.as_u64().and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= LOGPROBS_MAX);
    Ok(fields.typed("top_logprobs", &format!("a whole number from 0 to {LOGPROBS_MAX}"), few)?.unwrap_or(0))
}

/// Reads `text`: the form of the answer.
fn text(fields: &mut Fields, forwards: bool) -> Result<Value, ApiError> {
    let Some(mut text) = object(fields, "text")? else { return words::format(None, forwards) };
    let format = words::format(text.take("format"), forwards)?;
    // OpenAI's default; the other words ask for shorter or longer answers.
    word(&mut text, "verbosity", &["medium"]).map_err(|_| ApiError::field("text.verbosity", "must be medium"))?;
    match text.left() {
        Some(name) => Err(ApiError::field(&format!("text.{name}"), "is not supported by this server").code("unsupported_parameter")),
        None => Ok(format),
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<(), ApiError> {
    let Some(mut options) = object(fields, "stream_options")? else { return Ok(()) };
    if !stream {
        return Err(ApiError::field("stream_options", "is allowed only with stream: true"));
    }
    no_obfuscation(options.bool("include_obfuscation")?, "stream_options.include_obfuscation")?;
    match options.left() {
        Some(name) => {
            Err(ApiError::field(&format!("stream_options.{name}"), "is not supported by this server").code("unsupported_parameter"))
        }
        None => Ok(()),
    }
}

/// Padding against traffic analysis: asking for none is asking for what happens.
pub(super) fn no_obfuscation(wanted: Option<bool>, name: &str) -> Result<(), ApiError> {
    match wanted {
        Some(true) => Err(ApiError::field(name, "is not supported by this server").code("unsupported_parameter")),
        Some(false) | None => Ok(()),
    }
}

/// What the body says a disconnect means; `background` says so, too.
// contract: C-25
fn on_disconnect(fields: &mut Fields, background: bool) -> Result<Option<OnDisconnect>, ApiError> {
    match fields::on_disconnect(fields)? {
        Some(policy) if background && policy != OnDisconnect::Continue => {
            Err(ApiError::field("on_disconnect", "must be continue with background: true: that is what it means"))
        }
        policy => Ok(policy.or(background.then_some(OnDisconnect::Continue))),
    }
}

/// When the response is to be deleted, in seconds of the calendar.
fn expires(fields: &mut Fields, store: bool, retention: Retention) -> Result<Option<i64>, ApiError> {
    let Retention { now, usual, max } = retention;
    let whole = "a whole number of seconds";
    let left = fields.typed("expires_in_s", whole, Value::as_i64)?;
    let at = fields.typed("expires_at", whole, Value::as_i64)?;
    let (name, left) = match (left, at) {
        (None, None) => return Ok(usual.filter(|_| store).map(|left| now.saturating_add(left))),
        (Some(_), Some(_)) => return Err(ApiError::field("expires_in_s", "cannot be given together with expires_at")),
        (Some(left), None) => ("expires_in_s", left),
        (None, Some(at)) => ("expires_at", at.saturating_sub(now)),
    };
    if !store {
        return Err(ApiError::field(name, "is allowed only with store: true: nothing else is kept"));
    }
    if !(1..=max).contains(&left) {
        return Err(ApiError::field(name, format!("must be 1 to {max} seconds from now")));
    }
    Ok(Some(now.saturating_add(left)))
}

fn metadata(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let map = match fields.take("metadata") {
        None => return Ok(Map::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return Err(ApiError::field("metadata", "must be an object of strings")),
    };
    if map.len() > METADATA_MAX {
        return Err(ApiError::field("metadata", format!("must have at most {METADATA_MAX} pairs")));
    }
    for (key, value) in &map {
        let Some(value) = value.as_str() else { return Err(ApiError::field("metadata", "must have strings as values")) };
        if key.chars().count() > METADATA_KEY_MAX {
            return Err(ApiError::field("metadata", format!("must have keys of at most {METADATA_KEY_MAX} characters")));
        }
        if value.chars().count() > METADATA_VALUE_MAX {
            return Err(ApiError::field("metadata", format!("must have values of at most {METADATA_VALUE_MAX} characters")));
        }
    }
    Ok(map)
}

/// A name that is only said again.
fn name(fields: &mut Fields, field: &str, max: usize) -> Result<Option<String>, ApiError> {
    let text = fields.text(field)?;
    if text.as_ref().is_some_and(|text| text.chars().count() > max) {
        return Err(ApiError::field(field, format!("must be at most {max} characters")));
    }
    Ok(text)
}

fn word(fields: &mut Fields, name: &str, all: &[&str]) -> Result<(), ApiError> {
    match fields.take(name) {
        None => Ok(()),
        Some(Value::String(word)) if all.contains(&word.as_str()) => Ok(()),
        Some(_) => Err(ApiError::field(name, format!("must be one of {}", all.join(", "))).code("unsupported_parameter")),
    }
}

fn object(fields: &mut Fields, name: &str) -> Result<Option<Fields>, ApiError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(Fields::of(map))),
        Some(_) => Err(ApiError::field(name, "must be an object")),
    }
}
