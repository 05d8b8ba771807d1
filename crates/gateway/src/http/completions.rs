//! `/v1/completions`: its request and its shapes.
//!
//! Invariant: one prompt a request; several are refused rather than run one after another under one id.

use lifecycle::message::{Prompt, TokenLogprob};
use lifecycle::params::LOGPROBS_MAX;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Common, Fields, common, tokens};
use super::openai::{finite, token_text};

/// Reads the fields of a completion request; the model's name was taken before.
pub(crate) fn parse(mut fields: Fields) -> Result<(Prompt, Common), ApiError> {
    let prompt = prompt(fields.take("prompt"))?;
    let logprobs = match fields.u32("logprobs")? {
        None => None,
        Some(k) => match u8::try_from(k) {
            Ok(k) if k <= LOGPROBS_MAX => Some(k),
            _ => return Err(ApiError::field("logprobs", format!("must be between 0 and {LOGPROBS_MAX}"))),
        },
    };
    let common = common(&mut fields, logprobs)?;
    fields.finish()?;
    Ok((prompt, common))
}

fn prompt(value: Option<Value>) -> Result<Prompt, ApiError> {
    const ALLOWED: &str = "must be a string or an array of token ids";
    let several = || ApiError::field("prompt", "several prompts in one request are not supported; send one request for each");
    match value {
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => Ok(Prompt::Text(text.clone())),
            [ids @ Value::Array(_)] => tokens(ids).map(Prompt::Tokens).ok_or_else(|| ApiError::field("prompt", ALLOWED)),
            [Value::String(_) | Value::Array(_), ..] => Err(several()),
            [] => Err(ApiError::field("prompt", "must not be empty")),
            _ => tokens(&Value::Array(list)).map(Prompt::Tokens).ok_or_else(|| ApiError::field("prompt", ALLOWED)),
        },
        Some(_) => Err(ApiError::field("prompt", ALLOWED)),
        None => Err(ApiError::field("prompt", "is missing")),
    }
}

/// One choice, of a chunk or of a whole answer: they look the same.
pub(crate) fn choice(index: u32, text: &str, logprobs: Value, reason: Option<&str>) -> Value {
    json!({"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason})
}

/// Log-probabilities as plain completions show them; the chosen token is always among the top ones.
pub(crate) fn logprobs(entries: &[TokenLogprob], offset: usize) -> Value {
    let texts: Vec<String> = entries.iter().map(|e| token_text(&e.bytes)).collect();
    let offsets = texts.iter().scan(offset, |at, text| {
        let here = *at;
        *at += text.chars().count();
        Some(here)
    });
    let top = entries.iter().map(|e| {
        let mut map: Map<String, Value> = e.top.iter().map(|(_, b, p)| (token_text(b), json!(finite(*p)))).collect();
        map.entry(token_text(&e.bytes)).or_insert_with(|| json!(finite(e.logprob)));
        Value::Object(map)
    });
    json!({"text_offset": offsets.collect::<Vec<_>>(), "token_logprobs": entries.iter().map(|e| finite(e.logprob)).collect::<Vec<_>>(),
           "tokens": texts, "top_logprobs": top.collect::<Vec<_>>()})
}
