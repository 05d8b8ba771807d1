//! `tools` of a request: those that kvit itself calls when the answer is complete (`{"type": "kvit_http", …}`), taken out before anybody else
//! reads the field.
//!
//! Invariant: a tool whose URL the operator has not listed is refused, and so is one of a run that nobody keeps.
// contract: C-27 C-28

use lifecycle::OnDisconnect;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use crate::config::GatewayConfig;
use crate::outside::{TOOL_KIND, Tool};

/// Longest name of a tool in bytes.
const NAME_MAX_LEN: usize = 64;
/// What can be called.
const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];

/// Takes kvit's tools out of the field; what else stands in it stays.
pub(crate) fn take(fields: &mut Fields, config: &GatewayConfig) -> Result<Vec<Tool>, ApiError> {
    let all = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(all)) => all,
        // Somebody else says what is wrong with it.
        Some(other) => {
            fields.put("tools", other);
            return Ok(Vec::new());
        }
    };
    let is_ours = |tool: &Value| tool.get("type").and_then(Value::as_str) == Some(TOOL_KIND);
    let at = all.iter().enumerate().filter(|(_, tool)| is_ours(tool));
    let tools = at.map(|(i, value)| tool(i, value, config)).collect::<Result<Vec<Tool>, _>>()?;
    let max = config.outside.tools_max;
    if tools.len() > max {
        return Err(ApiError::field("tools", format!("has {} of type {TOOL_KIND}, at most {max} are allowed", tools.len())));
    }
    let twice = tools.iter().enumerate().find(|(i, tool)| tools[..*i].iter().any(|other| other.name == tool.name));
    if let Some((_, tool)) = twice {
        return Err(ApiError::field("tools", format!("has two of the name `{}`", tool.name)));
    }
    let rest: Vec<Value> = all.into_iter().filter(|tool| !is_ours(tool)).collect();
    if !rest.is_empty() {
        fields.put("tools", Value::Array(rest));
    }
    Ok(tools)
}

/// Tools are called for runs that go on without their readers, and no others.
pub(crate) fn check(tools: &[Tool], on_disconnect: OnDisconnect, is_kept: bool) -> Result<(), ApiError> {
    if tools.is_empty() || (on_disconnect == OnDisconnect::Continue && is_kept) {
        return Ok(());
    }
    if !is_kept {
        let why = "are called only where runs are kept, and this server has no run store";
        return Err(ApiError::field("tools", why).code("no_run_store"));
    }
    let why = format!("may have tools of type {TOOL_KIND} only in a background run, or with on_disconnect: continue");
    Err(ApiError::field("tools", why).code("tools_need_background"))
}

fn tool(i: usize, value: &Value, config: &GatewayConfig) -> Result<Tool, ApiError> {
    let at = |field: &str| format!("tools[{i}].{field}");
    let wrong = |field: &str, why: String| ApiError::field(&at(field), why);
    let Value::Object(map) = value else { return Err(ApiError::field(&format!("tools[{i}]"), "must be an object")) };
    let known = ["type", "name", "url", "method", "safe_to_repeat", "timeout_ms", "arguments"];
    if let Some(name) = map.keys().find(|name| !known.contains(&name.as_str())) {
        return Err(wrong(name, "is not known here".to_owned()));
    }
    let text = |field: &str| match map.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(wrong(field, "must be a string".to_owned())),
    };
    let name = text("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_MAX_LEN || !name.chars().all(is_plain) {
        return Err(wrong("name", format!("must be 1 to {NAME_MAX_LEN} of A-Z a-z 0-9 _ -")));
    }
    let url = text("url")?.unwrap_or_default();
    if !config.outside.tool_urls.allow(url) {
        return Err(
            wrong("url", "is not among those that this server's operator allows (option tool_urls)".to_owned()).code("url_not_allowed")
        );
    }
    let method = text("method")?.unwrap_or("POST");
    if !METHODS.contains(&method) {
        return Err(wrong("method", format!("must be one of {}", METHODS.join(", "))));
    }
    let safe_to_repeat = match map.get("safe_to_repeat") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(safe)) => *safe,
        Some(_) => return Err(wrong("safe_to_repeat", "must be true or false".to_owned())),
    };
    let max = u64::try_from(config.outside.tool_timeout_max.as_millis()).unwrap_or(u64::MAX);
    let timeout_ms = match map.get("timeout_ms") {
        None | Some(Value::Null) => max,
        Some(value) => {
            let why = || wrong("timeout_ms", format!("must be a whole number of milliseconds from 1 to {max}"));
            value.as_u64().filter(|ms| (1..=max).contains(ms)).ok_or_else(why)?
        }
    };
    let arguments = map.get("arguments").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    let max = config.outside.effect_text_bytes_max;
    if arguments.to_string().len() > max {
        return Err(wrong("arguments", format!("must be at most {max} bytes of JSON")));
    }
    Ok(Tool { name: name.to_owned(), url: url.to_owned(), method: method.to_owned(), safe_to_repeat, timeout_ms, arguments })
}
