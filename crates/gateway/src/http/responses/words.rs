//! What a response may ask for that kvit's own engine has no word for, and the words that engines of others have: functions to call, forms
//! of an answer. Read here by OpenAI's names of the Responses API, and written by those of its chat completions.
//!
//! Invariant: pure; what an engine is not told is refused by name, and to a model of kvit's own nothing of it is said.

use bytes::Bytes;
use lifecycle::message::{ChatMessage, Prompt};
use serde_json::{Map, Value, json};

use super::asked::{Asked, Item, Message, Role, plain};
use crate::http::error::ApiError;
use crate::http::fields::Fields;

/// Most functions of one request; OpenAI's.
const TOOLS_MAX: usize = 128;
/// Longest name of a function or a schema in characters; OpenAI's.
const NAME_MAX: usize = 64;

/// Reads `tools`, of which kvit's own were taken. They are repeated as they were written, with the fields that OpenAI's object always has.
pub(super) fn tools(fields: &mut Fields, calls: bool) -> Result<Vec<Value>, ApiError> {
    let list = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) if list.is_empty() => return Ok(list),
        Some(Value::Array(list)) if calls => list,
        Some(_) if calls => return Err(ApiError::field("tools", "must be an array")),
        Some(_) => return Err(unsupported("tools", "must be empty: this model calls none")),
    };
    if list.len() > TOOLS_MAX {
        return Err(ApiError::field("tools", format!("must be at most {TOOLS_MAX}")));
    }
    list.into_iter().enumerate().map(|(i, tool)| function(&format!("tools[{i}]"), tool)).collect()
}

fn function(at: &str, tool: Value) -> Result<Value, ApiError> {
    let Value::Object(tool) = tool else { return Err(ApiError::field(at, "must be an object")) };
    let field = |name: &str| format!("{at}.{name}");
    if tool.get("type").and_then(Value::as_str) != Some("function") {
        return Err(unsupported(&field("type"), "must be function: other tools are not supported by this server"));
    }
    name(&field("name"), tool.get("name"))?;
    let is_right = |(name, value): (&String, &Value)| match name.as_str() {
        "description" => value.is_string() || value.is_null(),
        "parameters" => value.is_object() || value.is_null(),
        "strict" => value.is_boolean() || value.is_null(),
        _ => true,
    };
    if let Some((name, _)) = tool.iter().find(|entry| !is_right(*entry)) {
        return Err(ApiError::field(&field(name), "must be a string (description), an object (parameters), or true or false (strict)"));
    }
    let known = ["type", "name", "description", "parameters", "strict"];
    if let Some((name, _)) = tool.iter().find(|(name, value)| !known.contains(&name.as_str()) && !value.is_null()) {
        return Err(unsupported(&field(name), "is not supported by this server"));
    }
    let mut tool = tool;
    tool.retain(|name, _| known.contains(&name.as_str()));
    for name in ["parameters", "strict"] {
        tool.entry(name).or_insert(Value::Null);
    }
    Ok(Value::Object(tool))
}

fn name(at: &str, value: Option<&Value>) -> Result<(), ApiError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let fits = |name: &str| (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_plain);
    let why = || ApiError::field(at, format!("must be 1 to {NAME_MAX} of A-Z a-z 0-9 _ -"));
    value.and_then(Value::as_str).filter(|name| fits(name)).map(drop).ok_or_else(why)
}

/// Reads `tool_choice`.
pub(super) fn choice(fields: &mut Fields, tools: &[Value], calls: bool) -> Result<Value, ApiError> {
    let Some(choice) = fields.take("tool_choice") else { return Ok(json!("auto")) };
    match choice.as_str() {
        Some("auto" | "none") => return Ok(choice),
        _ if !calls => return Err(unsupported("tool_choice", "must be auto or none: this model calls no tools")),
        _ if tools.is_empty() => return Err(ApiError::field("tool_choice", "must be auto or none without tools")),
        Some("required") => return Ok(choice),
        _ => {}
    }
    let is_function = choice.get("type").and_then(Value::as_str) == Some("function");
    let named = choice.get("name").filter(|_| is_function && choice.as_object().is_some_and(|choice| choice.len() == 2));
    match named {
        Some(name) if tools.iter().any(|tool| tool["name"] == *name) => Ok(choice),
        Some(_) => Err(ApiError::field("tool_choice.name", "is the name of none of the tools")),
        None => Err(unsupported("tool_choice", "must be auto, none, required or {\"type\":\"function\",\"name\":NAME}")),
    }
}

/// Reads `text.format`.
pub(super) fn format(value: Option<Value>, forms: bool) -> Result<Value, ApiError> {
    const FIELD: &str = "text.format";
    let Some(value) = value else { return Ok(plain()) };
    let Value::Object(format) = &value else { return Err(ApiError::field(FIELD, "must be an object")) };
    let only = |known: &[&str]| match format.iter().find(|(name, value)| !known.contains(&name.as_str()) && !value.is_null()) {
        Some((name, _)) if forms => Err(unsupported(&format!("{FIELD}.{name}"), "is not supported by this server")),
        Some(_) => Err(unsupported(FIELD, "must be {\"type\":\"text\"}")),
        None => Ok(()),
    };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => only(&["type"]).map(|()| plain()),
        Some("json_object") if forms => only(&["type"]).map(|()| value),
        Some("json_schema") if forms => {
            only(&["type", "name", "schema", "description", "strict"])?;
            name(&format!("{FIELD}.name"), format.get("name"))?;
            if !format.get("schema").is_some_and(Value::is_object) {
                return Err(ApiError::field(&format!("{FIELD}.schema"), "must be an object"));
            }
            Ok(without_nulls(&value, &[]))
        }
        _ if forms => Err(unsupported(FIELD, "must have the type text, json_object or json_schema")),
        _ => Err(unsupported(FIELD, "must be {\"type\":\"text\"}: this model has no other form")),
    }
}

fn unsupported(field: &str, why: &str) -> ApiError {
    ApiError::field(field, why).code("unsupported_parameter")
}

/// What the model continues: turns that its own template renders, or, where there is more to say than texts, a chat in OpenAI's own words.
pub(super) fn prompt(items: Vec<Item>, asked: &Asked, with_logprobs: bool, forwards: bool) -> Result<Prompt, ApiError> {
    let has_calls = items.iter().any(|item| !matches!(item, Item::Message(_)));
    if has_calls && !forwards {
        let why = "leads to calls of functions, which this model does not read";
        return Err(ApiError::field("previous_response_id", why).code("unsupported_item"));
    }
    if forwards && (has_calls || with_logprobs || !asked.tools.is_empty() || asked.format != plain()) {
        return Ok(Prompt::Worded(Bytes::from(chat(&items, asked).to_string())));
    }
    let turn = |item: Item| match item {
        Item::Message(message) => Some(ChatMessage { role: message.role.in_template().to_owned(), content: message.parts.concat() }),
        Item::Call(_) | Item::Output(_) => None,
    };
    Ok(Prompt::Chat(items.into_iter().filter_map(turn).collect()))
}

/// The fields of a chat completion that say this.
fn chat(items: &[Item], asked: &Asked) -> Value {
    let mut body = Map::new();
    body.insert("messages".to_owned(), Value::Array(messages(items)));
    if !asked.tools.is_empty() {
        let tools = asked.tools.iter().map(|tool| json!({"type": "function", "function": without_nulls(tool, &["type"])})).collect();
        body.insert("tools".to_owned(), tools);
        let choice = match &asked.tool_choice {
            Value::Object(choice) => json!({"type": "function", "function": {"name": choice["name"]}}),
            word => word.clone(),
        };
        body.insert("tool_choice".to_owned(), choice);
        if !asked.parallel_tool_calls {
            body.insert("parallel_tool_calls".to_owned(), json!(false));
        }
    }
    if asked.format != plain() {
        let mut format = json!({"type": asked.format["type"]});
        if asked.format["type"] == "json_schema" {
            format["json_schema"] = without_nulls(&asked.format, &["type"]);
        }
        body.insert("response_format".to_owned(), format);
    }
    Value::Object(body)
}

/// An object without these fields and those that say nothing.
fn without_nulls(value: &Value, names: &[&str]) -> Value {
    let fields = value.as_object().into_iter().flatten();
    let kept = fields.filter(|(name, value)| !value.is_null() && !names.contains(&name.as_str()));
    Value::Object(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The messages of a chat completion. Calls stand in the assistant's message before them, or in one of their own.
fn messages(items: &[Item]) -> Vec<Value> {
    let mut all: Vec<Value> = Vec::new();
    for item in items {
        match item {
            Item::Message(Message { role, parts, .. }) => all.push(json!({"role": role.in_template(), "content": parts.concat()})),
            Item::Output(output) => {
                all.push(json!({"role": "tool", "tool_call_id": output.call_id, "content": output.output.concat()}));
            }
            Item::Call(call) => {
                let function = json!({"name": call.name, "arguments": call.arguments});
                let call = json!({"id": call.call_id, "type": "function", "function": function});
                if all.last().is_none_or(|last| last["role"] != Role::Assistant.in_template()) {
                    all.push(json!({"role": Role::Assistant.in_template(), "content": null}));
                }
                let calls = all.last_mut().and_then(Value::as_object_mut).map(|last| last.entry("tool_calls").or_insert(json!([])));
                if let Some(calls) = calls.and_then(Value::as_array_mut) {
                    calls.push(call);
                }
            }
        }
    }
    all
}
