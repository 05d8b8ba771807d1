//! The input of a response: a text, or a list of items. kvit's own model reads messages of text; an engine of others also what was called.
//!
//! Invariant: an item that would change the answer is read or refused by name, never dropped.

use serde_json::{Map, Value};

use super::asked::{Call, Item, Message, Output, Role};
use crate::http::error::ApiError;

/// Most items of one request.
pub(super) const ITEMS_MAX: usize = 4096;
/// Longest id of an item in characters.
const ID_MAX_LEN: usize = 256;

/// Longest name of a call in characters.
const CALL_ID_MAX_LEN: usize = 256;

/// Reads `input`. Calls and what they returned are read if the model `calls` functions.
pub(super) fn items(input: Option<Value>, calls: bool) -> Result<Vec<Item>, ApiError> {
    let list = match input {
        Some(Value::String(text)) => return Ok(vec![Item::message(Role::User, text)]),
        Some(Value::Array(list)) if list.is_empty() => return Err(ApiError::field("input", "must not be empty")),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::field("input", "must be a string or an array of items")),
        None => return Err(ApiError::field("input", "is missing")),
    };
    if list.len() > ITEMS_MAX {
        return Err(ApiError::field("input", format!("must have at most {ITEMS_MAX} items")));
    }
    let items = list.into_iter().enumerate().map(|(i, item)| one(i, item, calls)).collect::<Result<Vec<_>, _>>()?;
    distinct(&items)?;
    Ok(items)
}

/// Whoever lists the items goes on behind an id, so none may stand there twice.
fn distinct(items: &[Item]) -> Result<(), ApiError> {
    let mut seen = std::collections::HashSet::new();
    let twice = items.iter().enumerate().find(|(_, item)| item.id().is_some_and(|id| !seen.insert(id)));
    match twice {
        Some((i, _)) => Err(ApiError::field(&format!("input[{i}].id"), "is the id of an earlier item, too")),
        None => Ok(()),
    }
}

fn one(i: usize, item: Value, calls: bool) -> Result<Item, ApiError> {
    let at = |field: &str| format!("input[{i}].{field}");
    let Value::Object(mut item) = item else { return Err(ApiError::field(&format!("input[{i}]"), "must be an object")) };
    let kind = item.remove("type").filter(|kind| !kind.is_null()).unwrap_or_else(|| "message".into());
    let id = match item.remove("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) if (1..=ID_MAX_LEN).contains(&id.chars().count()) => Some(id),
        Some(_) => return Err(ApiError::field(&at("id"), format!("must be a string of 1 to {ID_MAX_LEN} characters"))),
    };
    let read = match kind.as_str() {
        Some("message") => Item::Message(message(&mut item, id, at)?),
        Some("function_call") if calls => {
            let (call_id, name) = (named(&mut item, "call_id", at)?, named(&mut item, "name", at)?);
            Item::Call(Call { id, call_id, name, arguments: text(&mut item, "arguments", at)? })
        }
        Some("function_call_output") if calls => {
            Item::Output(Output { id, call_id: named(&mut item, "call_id", at)?, output: returned(&mut item, at)? })
        }
        _ => return Err(other(&at("type"), &kind)),
    };
    word(&at("status"), item.remove("status"), &["in_progress", "completed", "incomplete"])?;
    nothing_left(&format!("input[{i}]"), &item)?;
    Ok(read)
}

/// A text that must be there.
fn text(item: &mut Map<String, Value>, name: &str, at: impl Fn(&str) -> String) -> Result<String, ApiError> {
    match item.remove(name) {
        Some(Value::String(text)) => Ok(text),
        Some(Value::Null) | None => Err(ApiError::field(&at(name), "is missing")),
        Some(_) => Err(ApiError::field(&at(name), "must be a string")),
    }
}

/// A name that must be there.
fn named(item: &mut Map<String, Value>, name: &str, at: impl Fn(&str) -> String) -> Result<String, ApiError> {
    let found = text(item, name, &at)?;
    let fits = (1..=CALL_ID_MAX_LEN).contains(&found.chars().count());
    fits.then_some(found).ok_or_else(|| ApiError::field(&at(name), format!("must be a string of 1 to {CALL_ID_MAX_LEN} characters")))
}

/// What a function has returned: a text, or parts of one.
fn returned(item: &mut Map<String, Value>, at: impl Fn(&str) -> String) -> Result<Vec<String>, ApiError> {
    match item.remove("output") {
        Some(Value::Array(list)) => {
            list.into_iter().enumerate().map(|(k, p)| part(&format!("{}[{k}]", at("output")), Role::User, p)).collect()
        }
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Null) | None => Err(ApiError::field(&at("output"), "is missing")),
        Some(_) => Err(ApiError::field(&at("output"), "must be a string or an array of text parts")),
    }
}

fn message(item: &mut Map<String, Value>, id: Option<String>, at: impl Fn(&str) -> String) -> Result<Message, ApiError> {
    let role = match item.remove("role").as_ref().and_then(Value::as_str) {
        Some("system") => Role::System,
        Some("developer") => Role::Developer,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some(_) => return Err(ApiError::field(&at("role"), "must be system, developer, user or assistant")),
        None => return Err(ApiError::field(&at("role"), "is missing")),
    };
    let parts = match item.remove("content") {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) if !list.is_empty() => {
            list.into_iter().enumerate().map(|(k, p)| part(&format!("{}[{k}]", at("content")), role, p)).collect::<Result<_, _>>()?
        }
        Some(Value::Array(_)) => return Err(ApiError::field(&at("content"), "must not be empty")),
        Some(Value::Null) | None => return Err(ApiError::field(&at("content"), "is missing")),
        Some(_) => return Err(ApiError::field(&at("content"), "must be a string or an array of text parts")),
    };
    // A label for models that were trained with it; this one reads the text alone.
    word(&at("phase"), item.remove("phase"), &["commentary", "final_answer"])?;
    Ok(Message { id, role, parts })
}

/// Says what is wrong with an item that is no message.
fn other(at: &str, kind: &Value) -> ApiError {
    let known = |text: &str| ApiError::field(at, text).code("unsupported_item");
    match kind.as_str() {
        Some("item_reference") => known("references to items are not supported by this server: send the item, or previous_response_id"),
        Some("function_call" | "function_call_output") => known("items about calls of functions are not supported: this model calls none"),
        Some(kind) if kind.contains("call") || kind.starts_with("tool_search") || kind.starts_with("mcp_") => {
            known("items about calls of tools are not supported by this server")
        }
        Some("reasoning") => known("reasoning items are not supported: this model writes none"),
        Some(_) => known("must be message: this model reads messages only"),
        None => ApiError::field(at, "must be a string"),
    }
}

fn part(at: &str, role: Role, part: Value) -> Result<String, ApiError> {
    let Value::Object(mut part) = part else { return Err(ApiError::field(at, "must be an object")) };
    let kind = part.remove("type");
    match kind.as_ref().and_then(Value::as_str) {
        Some("input_text") => {}
        Some("output_text") if role == Role::Assistant => {
            // What is said in them is about the text and no part of it. Log-probabilities kvit says itself; what it never says is not its to drop.
            part.remove("logprobs");
            match part.remove("annotations") {
                None | Some(Value::Null) => {}
                Some(Value::Array(list)) if list.is_empty() => {}
                Some(_) => return Err(ApiError::field(&format!("{at}.annotations"), "must be empty: it is not supported by this server")),
            }
        }
        Some("output_text") => return Err(ApiError::field(&format!("{at}.type"), "output_text is the assistant's; use input_text")),
        _ => return Err(ApiError::field(&format!("{at}.type"), "must be input_text or output_text: this model reads text only")),
    }
    let text = match part.remove("text") {
        Some(Value::String(text)) => text,
        _ => return Err(ApiError::field(&format!("{at}.text"), "must be a string")),
    };
    nothing_left(at, &part)?;
    Ok(text)
}

/// A word that changes nothing, if it is one of these.
fn word(at: &str, value: Option<Value>, all: &[&str]) -> Result<(), ApiError> {
    match value {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(word)) if all.contains(&word.as_str()) => Ok(()),
        Some(_) => Err(ApiError::field(at, format!("must be one of {}", all.join(", ")))),
    }
}

fn nothing_left(at: &str, map: &Map<String, Value>) -> Result<(), ApiError> {
    match map.iter().find(|(_, value)| !value.is_null()) {
        Some((name, _)) => Err(ApiError::field(&format!("{at}.{name}"), "is not supported by this server").code("unsupported_parameter")),
        None => Ok(()),
    }
}
