//! A request body as named fields that are taken out one by one, so that an error names its field and what is left over is known.
//!
//! Invariant: no field is silently ignored unless it is listed here as one that changes nothing.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::OnDisconnect;
use lifecycle::params::{ParamError, Params, STOPS_MAX};
use serde_json::{Map, Value};

use super::error::ApiError;
use super::leaving;
use crate::calls::Models;

/// Most entries of `logit_bias`.
pub(crate) const LOGIT_BIAS_MAX: usize = 1024;
/// Most `stop_token_ids`.
pub(crate) const STOP_TOKENS_MAX: usize = 64;
/// Longest name of a model in bytes, where none is known to compare it with.
const MODEL_MAX_LEN: usize = 256;
/// Longest `cache_salt` in bytes.
pub(crate) const SALT_MAX_LEN: usize = 256;

/// The fields of a JSON object that were not taken yet. `null` counts as absent, as at OpenAI.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// The fields of an object inside a body.
    pub(crate) const fn of(map: Map<String, Value>) -> Fields {
        Fields(map)
    }

    /// Looks at a field and leaves it.
    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The name of a field that is left, if any has a value.
    pub(crate) fn left(&self) -> Option<&str> {
        self.0.iter().find(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Parses a body; a syntax error names its line and column.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Fields(map)),
            Ok(_) => Err(ApiError::bad("the body must be a JSON object")),
            Err(e) => Err(ApiError::bad(format!("the body is not valid JSON: {e}"))),
        }
    }

    /// Takes a field out, whatever it is.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|v| !v.is_null())
    }

    /// Puts a field back that was taken, or a part of it.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// A field of a type of its own.
    pub(crate) fn typed<T>(&mut self, name: &str, what: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(v) => read(&v).map(Some).ok_or_else(|| ApiError::field(name, format!("must be {what}"))),
        }
    }

    /// A truth value.
    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A number.
    pub(crate) fn f32(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        self.typed(name, "a number", |v| v.as_f64().map(|x| x as f32))
    }

    /// A whole number from 0.
    pub(crate) fn u32(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.typed(name, "a whole number from 0 to 4294967295", |v| v.as_u64().and_then(|x| u32::try_from(x).ok()))
    }

    /// A text.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |v| v.as_str().map(str::to_owned))
    }

    /// A text or a list of texts.
    pub(crate) fn texts(&mut self, name: &str, max: usize) -> Result<Vec<String>, ApiError> {
        let read = |v: &Value| match v {
            Value::String(s) => Some(vec![s.clone()]),
            Value::Array(list) => list.iter().map(|s| s.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        let list = self.typed(name, "a string or an array of strings", read)?.unwrap_or_default();
        if list.len() > max {
            return Err(ApiError::field(name, format!("must be at most {max} strings")));
        }
        Ok(list)
    }

    /// What is left, as JSON.
    pub(crate) fn rest(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Refuses what is left, unless it changes nothing. The first field is named.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, value)| !changes_nothing(name, value)) {
            None => Ok(()),
            Some((name, _)) => Err(ApiError::field(name, "is not supported by this server").code("unsupported_parameter")),
        }
    }
}

/// Whether a field that nothing took may be ignored without the caller getting something else than it asked for.
fn changes_nothing(name: &str, value: &Value) -> bool {
    let empty = |v: &Value| v.as_array().is_some_and(Vec::is_empty) || v.as_object().is_some_and(Map::is_empty);
    if value.is_null() {
        return true;
    }
    match name {
        "user"
        | "metadata"
        | "service_tier"
        | "prompt_cache_key"
        | "prompt_cache_retention"
        | "safety_identifier"
        | "parallel_tool_calls" => true,
        "store" | "echo" | "use_beam_search" | "include_stop_str_in_output" => value == &Value::Bool(false),
        "skip_special_tokens" | "add_generation_prompt" => value == &Value::Bool(true),
        "tools" | "functions" => empty(value),
        "tool_choice" | "function_call" => matches!(value.as_str(), Some("none" | "auto")),
        "response_format" => value.get("type").and_then(Value::as_str) == Some("text"),
        "modalities" => value.as_array().is_some_and(|m| m.iter().all(|x| x == "text")),
        "suffix" => value == "",
        "best_of" => value == 1,
        _ => false,
    }
}

/// What both endpoints ask for beside the prompt.
pub(crate) struct Common {
    pub(crate) params: Params,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_disconnect: Option<OnDisconnect>,
}

/// Takes the model's name and checks it: absent or empty means the one model there is. While a worker was never met, nobody knows which models
/// there are: a run that names one waits for it.
pub(crate) fn model(fields: &mut Fields, models: &Models) -> Result<Arc<str>, ApiError> {
    model_named(fields.text("model")?, models)
}

/// The same, for a name that was taken.
pub(crate) fn model_named(name: Option<String>, models: &Models) -> Result<Arc<str>, ApiError> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => match models.known.iter().find(|model| *model.id == *name) {
            Some(model) => Ok(model.id.clone()),
            None if models.may_be_others && name.len() <= MODEL_MAX_LEN => Ok(name.into()),
            None => Err(no_model(&name)),
        },
        None => match &models.known[..] {
            [model] => Ok(model.id.clone()),
            [] => Err(ApiError::no_worker()),
            several => {
                let names = several.iter().map(|model| &*model.id).collect::<Vec<_>>().join(", ");
                Err(ApiError::field("model", format!("must be given, for there are several: {names}")))
            }
        },
    }
}

/// OpenAI's answer for a model that is not there.
pub(crate) fn no_model(name: &str) -> ApiError {
    let shown: String = name.chars().take(100).collect();
    ApiError::new(axum::http::StatusCode::NOT_FOUND, "invalid_request_error", format!("The model `{shown}` does not exist"))
        .code("model_not_found")
}

/// Takes the fields that both endpoints share. `logprobs` is left to the endpoint: its meaning differs.
pub(crate) fn common(fields: &mut Fields, logprobs: Option<u8>) -> Result<Common, ApiError> {
    let mut params = Params::default();
    generation(fields, &mut params)?;
    params.sampling.logprobs = logprobs;
    let legacy = fields.u32("max_tokens")?;
    let newer = fields.u32("max_completion_tokens")?;
    params.max_tokens = newer.or(legacy);
    params.n = fields.u32("n")?.unwrap_or(1);
    check(&params, if newer.is_some() { "max_completion_tokens" } else { "max_tokens" })?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    let include_usage = stream_options(fields, stream)?;
    Ok(Common { params, stream, include_usage, timeout: timeout(fields)?, on_disconnect: on_disconnect(fields)? })
}

/// Takes what every endpoint calls the same: how tokens are chosen, what stops them, and kvit's extensions.
pub(crate) fn generation(fields: &mut Fields, params: &mut Params) -> Result<(), ApiError> {
    sampling(fields, params)?;
    params.stop = fields.texts("stop", STOPS_MAX)?;
    params.stop_token_ids = stop_tokens(fields)?;
    params.ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
    params.priority = fields.typed("priority", "a whole number", |v| v.as_i64().and_then(|x| i32::try_from(x).ok()))?.unwrap_or(0);
    let salt = fields.text("cache_salt")?.unwrap_or_default();
    if salt.len() > SALT_MAX_LEN {
        return Err(ApiError::field("cache_salt", format!("must be at most {SALT_MAX_LEN} bytes")));
    }
    params.cache_salt = salt.into();
    Ok(())
}

/// Checks every range. An error names the field that the caller wrote: `cap` is what this endpoint calls `max_tokens`.
pub(crate) fn check(params: &Params, cap: &str) -> Result<(), ApiError> {
    params.check().map_err(|e: ParamError| {
        let param = if e.param == "max_tokens" { cap } else { e.param };
        ApiError::field(param, format!("must be {}", e.allowed))
    })
}

/// The deadline in the body.
pub(crate) fn timeout(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let timeout = fields.typed("timeout_ms", "a whole number of milliseconds above 0", |v| v.as_u64().filter(|ms| *ms > 0))?;
    Ok(timeout.map(Duration::from_millis))
}

/// What the body says a disconnect means.
pub(crate) fn on_disconnect(fields: &mut Fields) -> Result<Option<OnDisconnect>, ApiError> {
    fields.text(leaving::FIELD)?.map(|text| leaving::parse(&text, leaving::FIELD)).transpose()
}

fn sampling(fields: &mut Fields, params: &mut Params) -> Result<(), ApiError> {
    let s = &mut params.sampling;
    s.temperature = fields.f32("temperature")?.unwrap_or(s.temperature);
    // The field writes "off" as 0 or as -1.
    let top_k = |v: &Value| v.as_u64().and_then(|k| u32::try_from(k).ok()).or((v.as_i64() == Some(-1)).then_some(0));
    s.top_k = fields.typed("top_k", "a whole number, or -1 for all tokens", top_k)?.unwrap_or(s.top_k);
    s.top_p = fields.f32("top_p")?.unwrap_or(s.top_p);
    s.min_p = fields.f32("min_p")?.unwrap_or(s.min_p);
    s.presence_penalty = fields.f32("presence_penalty")?.unwrap_or(s.presence_penalty);
    s.frequency_penalty = fields.f32("frequency_penalty")?.unwrap_or(s.frequency_penalty);
    s.repetition_penalty = fields.f32("repetition_penalty")?.unwrap_or(s.repetition_penalty);
    s.min_tokens = fields.u32("min_tokens")?.unwrap_or(s.min_tokens);
    s.logit_bias = logit_bias(fields)?;
    // OpenAI's seeds are signed; the bits are what counts.
    let seed = fields.typed("seed", "a whole number of at most 64 bits", |v| v.as_u64().or(v.as_i64().map(i64::cast_unsigned)))?;
    s.seed = match seed {
        Some(seed) => seed,
        None => getrandom::u64().map_err(|e| ApiError::unavailable(format!("no randomness for a seed: {e}")))?,
    };
    Ok(())
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let read = |v: &Value| {
        let one = |(token, bias): (&String, &Value)| Some((token.parse::<u32>().ok()?, bias.as_f64()? as f32));
        v.as_object()?.iter().map(one).collect::<Option<Vec<_>>>()
    };
    let mut list = fields.typed("logit_bias", "an object of token ids and numbers", read)?.unwrap_or_default();
    if list.len() > LOGIT_BIAS_MAX {
        return Err(ApiError::field("logit_bias", format!("must have at most {LOGIT_BIAS_MAX} entries")));
    }
    list.sort_by_key(|(token, _)| *token);
    Ok(list)
}

fn stop_tokens(fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    let list = fields.typed("stop_token_ids", "an array of token ids", tokens)?.unwrap_or_default();
    if list.len() > STOP_TOKENS_MAX {
        return Err(ApiError::field("stop_token_ids", format!("must be at most {STOP_TOKENS_MAX} tokens")));
    }
    Ok(list)
}

/// An array of token ids, if it is one.
pub(crate) fn tokens(v: &Value) -> Option<Vec<u32>> {
    v.as_array()?.iter().map(|t| t.as_u64().and_then(|t| u32::try_from(t).ok())).collect()
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ApiError::field("stream_options", "is allowed only with stream: true"));
    }
    let Value::Object(map) = options else { return Err(ApiError::field("stream_options", "must be an object")) };
    let mut inner = Fields(map);
    let usage = inner.bool("include_usage").map_err(|_| ApiError::field("stream_options.include_usage", "must be true or false"))?;
    // Padding against traffic analysis: asking for none is asking for what happens.
    if inner.bool("include_obfuscation")?.unwrap_or(false) {
        return Err(ApiError::field("stream_options.include_obfuscation", "is not supported by this server"));
    }
    match inner.0.keys().next() {
        Some(name) => Err(ApiError::field(&format!("stream_options.{name}"), "is not supported by this server")),
        None => Ok(usage.unwrap_or(false)),
    }
}
