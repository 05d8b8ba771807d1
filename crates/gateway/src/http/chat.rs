//! `/v1/chat/completions`: its request and its shapes.
//!
//! Invariant: a field that would change the answer is obeyed or refused by name, never dropped.

use lifecycle::message::{ChatMessage, Prompt, TokenLogprob};
use lifecycle::params::LOGPROBS_MAX;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::{Common, Fields, common};
use super::openai::{finite, token_text};

/// Reads the fields of a chat request; the model's name was taken before.
pub(crate) fn parse(mut fields: Fields) -> Result<(Prompt, Common), ApiError> {
    let turns = match fields.take("messages") {
        Some(Value::Array(list)) if !list.is_empty() => list,
        Some(Value::Array(_)) => return Err(ApiError::field("messages", "must not be empty")),
        Some(_) => return Err(ApiError::field("messages", "must be an array")),
        None => return Err(ApiError::field("messages", "is missing")),
    };
    let turns = turns.into_iter().enumerate().map(|(i, turn)| message(i, turn)).collect::<Result<Vec<_>, _>>()?;
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.u32("top_logprobs")?;
    let logprobs = match (wanted, top) {
        (false, Some(1..)) => return Err(ApiError::field("top_logprobs", "is allowed only with logprobs: true")),
        (false, Some(0) | None) => None,
        (true, top) => Some(top_logprobs(top)?),
    };
    let common = common(&mut fields, logprobs)?;
    fields.finish()?;
    Ok((Prompt::Chat(turns), common))
}

fn top_logprobs(top: Option<u32>) -> Result<u8, ApiError> {
    u8::try_from(top.unwrap_or(0))
        .ok()
        .filter(|k| *k <= LOGPROBS_MAX)
        .ok_or_else(|| ApiError::field("top_logprobs", format!("must be between 0 and {LOGPROBS_MAX}")))
}

fn message(i: usize, turn: Value) -> Result<ChatMessage, ApiError> {
    let at = |field: &str| format!("messages[{i}].{field}");
    let Value::Object(mut turn) = turn else { return Err(ApiError::field(&format!("messages[{i}]"), "must be an object")) };
    let role = match turn.get("role").and_then(Value::as_str) {
        // OpenAI's newer word for the same place.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some(_) => return Err(ApiError::field(&at("role"), "must be system, developer, user or assistant")),
        None => return Err(ApiError::field(&at("role"), "is missing")),
    };
    let content = match turn.remove("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => joined(&at("content"), &parts)?,
        Some(Value::Null) | None => return Err(ApiError::field(&at("content"), "is missing")),
        Some(_) => return Err(ApiError::field(&at("content"), "must be a string or an array of text parts")),
    };
    let harmless = |name: &str| matches!(name, "role" | "name");
    match turn.iter().find(|(name, v)| !harmless(name) && !v.is_null()) {
        Some((name, _)) => Err(ApiError::field(&at(name), "is not supported by this server")),
        None => Ok(ChatMessage { role: role.to_owned(), content }),
    }
}

fn joined(at: &str, parts: &[Value]) -> Result<String, ApiError> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            _ => return Err(ApiError::field(&format!("{at}[{i}]"), "must be {\"type\":\"text\",\"text\":…}: this model reads text only")),
        }
    }
    Ok(text)
}

/// One choice of a chunk.
pub(crate) fn chunk_choice(index: u32, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

/// One choice of a whole answer.
pub(crate) fn whole_choice(index: u32, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"index": index, "message": {"role": "assistant", "content": text, "refusal": null}, "logprobs": logprobs,
           "finish_reason": reason})
}

/// Log-probabilities as chat shows them.
pub(crate) fn logprobs(entries: &[TokenLogprob]) -> Value {
    let one = |bytes: &[u8], logprob: f32| json!({"token": token_text(bytes), "logprob": finite(logprob), "bytes": bytes});
    let content = entries.iter().map(|e| {
        let mut entry = one(&e.bytes, e.logprob);
        entry["top_logprobs"] = e.top.iter().map(|(_, bytes, logprob)| one(bytes, *logprob)).collect();
        entry
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}
